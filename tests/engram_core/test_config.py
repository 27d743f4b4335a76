"""EngramConfig: both public dialects, and every refusal names field, value and what is accepted."""

import dataclasses
import json

import pytest

from engram_core.config import VARIANTS, EngramConfig
from engram_core.errors import ConfigError

VALID = {
    "form": "v41",
    "layer_ids": (1,),
    "orders": (2, 3),
    "num_heads": 2,
    "rows_per_head": (100, 100),
    "head_dim": 4,
    "hidden_size": 8,
}
V41 = {
    "engram_layer_ids": [1, 14],
    "engram_max_ngram_size": 4,
    "engram_n_heads": 8,
    "engram_head_dim": 256,
    "engram_vocab_size": 16_000_000,
}


def test_demo_defaults_are_the_demos():
    config = EngramConfig.from_demo({})
    assert (config.orders, config.num_heads, config.head_dim) == ((2, 3), 8, 64)
    assert (config.num_columns, config.memory_dim, config.conv_history) == (16, 1024, 9)
    assert (config.hidden_size, config.num_streams, config.layer_ids) == (1024, 4, (1, 15))


def test_v41_defaults_are_the_released_models():
    config = EngramConfig.from_v41({**V41, "vocab_size": 129280, "num_hidden_layers": 61})
    assert (config.orders, config.hidden_size, config.norm_eps) == ((2, 3, 4), 5120, 1e-20)
    assert (config.num_columns, config.memory_dim, config.conv_history) == (24, 6144, 0)


@pytest.mark.parametrize("key", ["engram_pad_id", "engram_pad_token_id"])
def test_v41_takes_both_names_of_the_pad_id(key):
    assert EngramConfig.from_v41({**V41, key: 7}).pad_id == 7


def test_dict_round_trip_through_json():
    config = EngramConfig(**VALID, min_hit_orders=(3,), expected_rows=(400,))
    assert EngramConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_a_configuration_without_variants_is_written_as_ever():
    """Memories' ids are derived from it: a new key would rename every memory there is."""
    written = EngramConfig(**VALID).to_dict()
    assert list(written) == [
        "form", "layer_ids", "orders", "num_heads", "rows_per_head", "head_dim", "hidden_size",
        "num_streams", "pad_id", "seed", "kernel_size", "norm_eps", "use_bias", "min_hit_orders",
        "compressed_size", "expected_rows",
    ]  # fmt: skip


def test_variants_are_written_and_read_back():
    variants = {
        "multiplier_order": "oldest_first", "lags": (1, 0), "num_branches": 3, "conv_dilation": 2,
        "folds_tokens": False, "keeps_unmapped_ids": True,
    }  # fmt: skip
    assert set(variants) == VARIANTS
    config = EngramConfig(**{**VALID, "form": "demo"}, **variants)
    assert variants.items() <= config.to_dict().items()
    assert EngramConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert (config.num_gates, config.conv_channels, config.conv_history) == (3, 24, 6)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"multiplier_order": "random"}, "multiplier_order is 'random'"),
        ({"lags": (1,)}, "lags is (1,)"),
        ({"lags": (2, 0)}, "lags is (2, 0)"),
        ({"lags": (0, -1)}, "lags is (0, -1)"),
        ({"num_branches": 0}, "num_branches is 0"),
        ({"num_branches": 2, "num_streams": 2}, "num_branches is 2"),
        ({"conv_dilation": 0}, "conv_dilation is 0"),
        ({"form": "v5"}, "form is 'v5'"),
        ({"layer_ids": ()}, "layer_ids is ()"),
        ({"layer_ids": (1, 1)}, "layer_ids is (1, 1)"),
        ({"orders": (3, 2)}, "orders is (3, 2)"),
        ({"orders": (1, 2)}, "orders is (1, 2)"),
        ({"rows_per_head": (100,)}, "rows_per_head is (100,)"),
        ({"num_heads": 0}, "num_heads is 0"),
        ({"pad_id": -1}, "pad_id is -1"),
        ({"norm_eps": -1.0}, "norm_eps is -1.0"),
        ({"min_hit_orders": (4,)}, "min_hit_orders is (4,)"),
    ],
)
def test_refusals_name_field_value_and_accepted(change, named):
    with pytest.raises(ConfigError) as caught:
        EngramConfig(**{**VALID, **change})
    assert str(caught.value).startswith(named)
    assert "accepted:" in str(caught.value)


@pytest.mark.parametrize(
    ("read", "data", "named"),
    [
        (EngramConfig.from_demo, {"n_heads": 8}, "n_heads"),
        (EngramConfig.from_demo, {"n_embed_per_ngram": 511}, "n_embed_per_ngram is 511"),
        (EngramConfig.from_v41, {**V41, "engram_heads": 8}, "engram_heads"),
        (EngramConfig.from_v41, {"engram_n_heads": 8}, "engram_layer_ids"),
        (EngramConfig.from_dict, {**VALID, "width": 3}, "width"),
        (EngramConfig.from_dict, {"form": "v41"}, "layer_ids"),
    ],
)
def test_unknown_and_missing_keys_are_refused(read, data, named):
    with pytest.raises(ConfigError, match=named.replace("(", r"\(")):
        read(data)


def test_is_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngramConfig(**VALID).seed = 1
