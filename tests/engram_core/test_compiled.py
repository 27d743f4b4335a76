"""The compiled kernels give what numpy and torch give."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engram_core import compiled
from engram_core.config import EngramConfig
from engram_core.errors import IdRangeError
from engram_core.hashing import NgramHasher
from engram_core.layout import HashLayout
from engram_core.module import EngramModule
from engram_core.store.kernels import count_unique
from engram_core.store.sparse import SparseTier

NUM_IDS, NUM_ROWS = 64, 40


@pytest.fixture(autouse=True, scope="module")
def loaded():
    assert compiled.load()


def both_ways(work):
    """What `work` returns with the compiled kernels and without them."""
    fast = work()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_kernels", None)
        return fast, work()


@st.composite
def layouts(draw):
    orders = tuple(sorted(draw(st.sets(st.integers(2, 5), min_size=1))))
    config = EngramConfig(
        form="v41", layer_ids=(0, 2), orders=orders, num_heads=draw(st.integers(1, 3)),
        rows_per_head=(draw(st.integers(11, 5000)),) * len(orders), head_dim=2, hidden_size=8,
        seed=draw(st.integers(0, 99)),
        lags=draw(st.sampled_from([(), tuple(orders[-1] - order for order in orders)])),
        multiplier_order=draw(st.sampled_from(["newest_first", "oldest_first"])),
    )  # fmt: skip
    return HashLayout.build(config, NUM_IDS)


@given(
    layouts(),
    st.lists(st.lists(st.integers(-3, NUM_IDS - 1), min_size=1), min_size=1),
    st.sampled_from([slice(None), slice(1), slice(-1, None)]),
)
def test_hashes_equal_those_of_numpy(layout, histories, served):
    """Products of large ids overflow alike."""
    histories = [[*each, 2**62] if len(each) % 2 else each for each in histories]
    layout = replace(layout, config=replace(layout.config, keeps_unmapped_ids=True))
    hasher = NgramHasher(layout, np.arange(NUM_IDS), layout.config.orders[served])
    windows = hasher.step_windows(histories)
    alone = [hasher.windows(each)[-1] for each in histories]
    np.testing.assert_array_equal(windows, np.stack(alone))
    for layer in (0, 2):
        fast, slow = both_ways(lambda layer=layer: hasher.window_rows(windows, layer))
        np.testing.assert_array_equal(fast, slow)


@given(
    st.lists(st.integers(0, NUM_ROWS - 1), unique=True, min_size=1),
    st.lists(st.lists(st.integers(0, NUM_ROWS - 1), min_size=4, max_size=4), min_size=1),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.data(),
)
def test_hits_and_rows_equal_those_of_numpy(written, asked, needed, data):
    values = torch.tensor(data.draw(st.lists(st.sampled_from([0.0, -0.0, 1.5]), min_size=len(
        written), max_size=len(written))))  # fmt: skip
    tier = SparseTier(np.array(written), values[:, None].repeat(1, 3), NUM_ROWS)
    ids, needed = np.array(asked), np.array(needed)

    def gathered():
        rows = torch.empty(ids.size, 3, dtype=torch.bfloat16)
        tier.gather(ids.reshape(-1), rows)
        return rows.view(torch.int16).numpy()

    fast, slow = both_ways(gathered)
    np.testing.assert_array_equal(fast, slow)
    has_value = (torch.from_numpy(fast).view(torch.bfloat16) != 0).any(1).view(-1, 4).numpy()
    expected = has_value[:, needed].all(axis=1)
    for mask, number in both_ways(lambda: tier.hits(ids, needed)):
        np.testing.assert_array_equal(mask, expected)
        assert number == expected.sum()
    assert count_unique(ids.reshape(-1)) == len(np.unique(ids))


@pytest.mark.parametrize("bad", [-1, NUM_ROWS])
def test_bad_ids_are_refused_in_both_ways(bad):
    tier = SparseTier(np.array([3]), torch.ones(1, 2), NUM_ROWS)

    def refused():
        with pytest.raises(IdRangeError):
            tier.gather(np.array([0, bad]), torch.empty(2, 2, dtype=torch.bfloat16))
        with pytest.raises(IdRangeError):
            tier.hits(np.array([[0, bad]]), np.array([True, False]))

    both_ways(refused)


@pytest.mark.parametrize("form", ["v41", "demo"])
@pytest.mark.parametrize("streams", [1, 3])
def test_gates_equal_those_of_torch(form, streams):
    config = EngramConfig(
        form=form, layer_ids=(0,), orders=(2,), num_heads=2, rows_per_head=(53,), head_dim=4,
        hidden_size=48, num_streams=streams, norm_eps=1e-6,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    module = EngramModule(config, 0, dtype=torch.bfloat16).requires_grad_(False)
    module.conv_weight = None  # the gate of the demo form, alone
    for parameter in module.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    hidden = torch.randn(9, streams, 48, generator=generator).bfloat16()
    rows = torch.randn(9, 8, generator=generator).bfloat16()
    rows[4] = 0
    scale = torch.linspace(0, 2, 9)
    with torch.inference_mode():
        fast, slow = both_ways(lambda: module(hidden, rows, gate_scale=scale, are_hits=True))
    torch.testing.assert_close(fast.gates, slow.gates)
    torch.testing.assert_close(fast.hidden, slow.hidden, atol=1e-6, rtol=2**-7)


def test_the_gate_keeps_nan_and_sees_changed_weights():
    config = EngramConfig(
        form="v41", layer_ids=(0,), orders=(2,), num_heads=1, rows_per_head=(53,), head_dim=4,
        hidden_size=8,
    )  # fmt: skip
    module = EngramModule(config, 0, dtype=torch.bfloat16).requires_grad_(False)
    module.kv_weight.fill_(0.1)
    hidden, rows = torch.ones(2, 1, 8).bfloat16(), torch.ones(2, 4).bfloat16()
    hidden[1] = float("nan")
    with torch.inference_mode():
        before = module(hidden, rows, are_hits=True)
        module.query_norm.data.neg_()
        module.query_norm.mul_(1)
        after = module(hidden, rows, are_hits=True)
    assert bool(before.hidden[1].isnan().all())
    assert float(after.gates[0]) < 0.5 < float(before.gates[0])
