"""The short way through the upper layers gives what the whole model gives."""

from itertools import chain

import pytest
import torch
from models import tiny_llama
from retrofit_cases import FACTS, tiny_backbone, tiny_tokenizer

from engram_core.errors import UnsupportedModelError
from engram_core.retrofit.examples import make_examples
from engram_core.retrofit.upper_layers import UpperLayers, retrofit_attention

FIRST = 2


@pytest.fixture(scope="module")
def captured():
    model = tiny_backbone()
    examples = list(chain(*make_examples(tiny_tokenizer(), FACTS, 2, seed=0)))
    upper = UpperLayers(model, FIRST)
    with retrofit_attention(model):
        cache = upper.capture(examples, lambda _: None)
    return model, upper, cache


def whole(model, example, hook=None):
    """The suffix's final hidden states by an ordinary forward."""
    handle = model.model.layers[FIRST].register_forward_pre_hook(hook) if hook else None
    final = model.model(torch.tensor([example.token_ids]), use_cache=False).last_hidden_state[0]
    if handle:
        handle.remove()
    return final[example.key_last : -1]


@pytest.mark.parametrize("chosen", [[0], [3, 7, 1, 10], list(range(12))])
def test_equals_the_whole_model(captured, chosen) -> None:
    model, upper, cache = captured
    with retrofit_attention(model):
        final = upper(cache.batch(chosen), lambda _, hidden: hidden)
    expected = torch.cat([whole(model, cache.examples[i]) for i in chosen])
    torch.testing.assert_close(final, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(cache.batch(chosen).plain, expected, rtol=1e-4, atol=1e-5)


def test_equals_the_whole_model_with_something_added_from_the_key_on(captured) -> None:
    model, upper, cache = captured
    chosen = [5, 2, 8]
    added = torch.randn(sum(cache.examples[i].suffix_length for i in chosen), 48)

    def before_layer(layer, hidden):
        return hidden + added[None] if layer == FIRST else hidden

    with retrofit_attention(model):
        final = upper(cache.batch(chosen), before_layer)
    done = 0
    for i in chosen:
        example = cache.examples[i]
        part = added[done : done + example.suffix_length]

        def hook(_module, args, part=part, example=example):
            hidden = args[0].clone()
            hidden[0, example.key_last : -1] += part
            return (hidden, *args[1:])

        expected = whole(model, example, hook)
        torch.testing.assert_close(final[done : done + len(part)], expected, rtol=1e-4, atol=1e-5)
        done += len(part)


def test_logits_and_attention_are_given_back(captured) -> None:
    model, upper, cache = captured
    ids = torch.tensor([cache.examples[0].token_ids])
    expected = model(ids).logits[0, cache.examples[0].key_last : -1]
    with retrofit_attention(model):
        assert model.config._attn_implementation == "engram_retrofit"
        final = upper(cache.batch([0]), lambda _, hidden: hidden)
        torch.testing.assert_close(upper.logits(final), expected, rtol=1e-4, atol=1e-4)
    assert model.config._attn_implementation == "sdpa"


def test_a_layer_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="layer 4 does not exist; accepted: 0 to 3"):
        UpperLayers(tiny_llama(), 4)
