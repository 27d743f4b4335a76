"""EngramStep: packed order, silent sequences, waits, the hit rule and isolated failures."""

import threading

import numpy as np
import pytest
import torch
from fakes.tiers import FaultyTier
from hypothesis import given
from hypothesis import strategies as st
from memories import LAYERS, expected_rows, small_memory

from engram_core.conv_state import ConvState
from engram_core.cpu_cores import CpuCores
from engram_core.cpu_device import CpuDevice
from engram_core.errors import ConfigError, TierError
from engram_core.prefetch import Prefetcher
from engram_core.simulated import SimulatedDevice
from engram_core.step import EngramStep, RowSpan
from engram_core.store.host import HostTier
from engram_core.store.sparse import SparseTier

PROMPT = [1, 2, 3, 4, 5, 6]


@pytest.fixture
def prefetcher():
    prefetcher = Prefetcher(CpuDevice(), cores=CpuCores(2, "affinity"))
    yield prefetcher
    prefetcher.close()


def hidden_states(tokens, seed=0, streams=1):
    return torch.randn(tokens, streams, 8, generator=torch.Generator().manual_seed(seed))


def whole(ticket):
    return RowSpan(ticket, 0, ticket.num_tokens)


def test_one_ticket_that_covers_the_step_is_not_copied(prefetcher):
    memory = small_memory()
    ticket = prefetcher.submit_step(memory, memory.hasher.windows(PROMPT))
    step = EngramStep(memory, [1] * 6, [RowSpan(ticket, i, i + 1) for i in range(6)])
    assert step.embeddings(1).data_ptr() == ticket.rows(1)[0].data_ptr()


def test_a_mixed_step_is_packed_in_order(prefetcher):
    memory = small_memory()
    prompt = prefetcher.submit_prompt(memory, PROMPT)
    decode = prefetcher.submit_step(memory, memory.hasher.windows([7, 8, 9]))
    spans = [RowSpan(decode, 1, 2), RowSpan(prompt, 2, 5), None, RowSpan(decode, 2, 3), None]
    step = EngramStep(memory, [1, 3, 2, 1, 1], spans)
    for layer in LAYERS:
        rows = step.embeddings(layer)
        in_prompt = expected_rows(memory, layer, PROMPT)
        in_batch = expected_rows(memory, layer, [7, 8, 9])
        zeros = torch.zeros(2, 16)
        expected = torch.cat([in_batch[1:2], in_prompt[2:5], zeros, in_batch[2:3], zeros[:1]])
        assert torch.equal(rows, expected)
    assert [(w.layer, w.phase) for w in step.waits] == [
        (1, "decode"), (1, "prefill"), (3, "decode"), (3, "prefill"),
    ]  # fmt: skip


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=6))
def test_any_mixture_equals_each_sequence_alone(sequences):
    memory = small_memory(form="demo")
    prefetcher = Prefetcher(CpuDevice(), enabled=False)
    lengths = [length for length, _ in sequences]
    tokens = [[(7 * i + k) % 64 for k in range(n)] for i, n in enumerate(lengths)]
    spans = [
        whole(prefetcher.submit_prompt(memory, ids)) if on else None
        for ids, (_, on) in zip(tokens, sequences, strict=True)
    ]
    hidden = hidden_states(sum(lengths))
    together = EngramStep(memory, lengths, spans).apply(1, hidden)
    for part, alone, span in zip(
        together.split(lengths), hidden.split(lengths), spans, strict=True
    ):
        expected = EngramStep(memory, [len(alone)], [span]).apply(1, alone)
        torch.testing.assert_close(part, expected, atol=1e-5, rtol=1e-5)
        assert span is not None or torch.equal(part, alone)


def test_waits_are_recorded_even_when_nothing_was_waited_for(prefetcher):
    memory = small_memory()
    ticket = prefetcher.submit_prompt(memory, PROMPT)
    for lookup in ticket.lookups:
        lookup.done.wait(60)
    step = EngramStep(memory, [6], [whole(ticket)])
    step.embeddings(1)
    assert [(w.layer, w.phase, w.wait_s) for w in step.waits] == [(1, "prefill", 0.0)]


def test_silent_sequences_keep_their_very_bits(prefetcher):
    memory = small_memory(form="demo")
    hidden = hidden_states(4)
    hidden[2:] = -0.0
    ticket = prefetcher.submit_prompt(memory, [1, 2])
    step = EngramStep(memory, [2, 2], [whole(ticket), None])
    out = step.apply(1, hidden)
    assert not torch.equal(out[:2], hidden[:2])
    assert torch.equal(out[2:].view(torch.int32), hidden[2:].view(torch.int32))
    assert (step.gates[1][2:] == 0).all()


def test_a_step_without_memory_returns_what_it_got():
    memory = small_memory()
    step, hidden = EngramStep(memory, [2, 1], [None, None]), hidden_states(3)
    assert step.apply(1, hidden) is hidden
    assert step.waits == []
    assert step.gates[1].shape == (3, 1)
    assert not step.gates[1].any()


def test_gate_scale_multiplies_the_contribution(prefetcher):
    memory = small_memory()
    tickets = [prefetcher.submit_prompt(memory, PROMPT) for _ in range(3)]
    hidden = hidden_states(6).repeat(3, 1, 1)
    spans = [whole(ticket) for ticket in tickets]
    out = EngramStep(memory, [6] * 3, spans, [1.0, 0.5, 0.0]).apply(1, hidden)
    full, half, none = (out - hidden).split(6)
    torch.testing.assert_close(half, full / 2)
    assert (none == 0).all()


def test_positions_that_miss_contribute_nothing(prefetcher):
    """Only every other row was written, so most positions have a zero row among their heads."""

    def rows(layer, count, width):
        return torch.ones(count, width) * (torch.arange(count) % 2)[:, None]

    memory = small_memory(min_hit_orders=(3,), orders=(2, 3), rows=rows)
    tokens = list(range(40))
    ids = memory.hasher.row_ids(tokens, 1)  # [tokens, 2 of order 2 and 2 of order 3]
    hits = torch.from_numpy((ids[:, 2:] % 2 == 1).all(axis=1))
    assert 0 < hits.sum() < 40
    ticket = prefetcher.submit_prompt(memory, tokens)
    step, hidden = EngramStep(memory, [40], [whole(ticket)]), hidden_states(40)
    changed = (step.apply(1, hidden) != hidden).flatten(1).any(1)
    assert torch.equal(changed, hits)
    assert torch.equal(step.gates[1][:, 0] != 0, hits)


def test_convolution_states_carry_chunks(prefetcher):
    memory = small_memory(form="demo")
    ticket = prefetcher.submit_prompt(memory, PROMPT)
    hidden = hidden_states(6)
    expected = EngramStep(memory, [6], [whole(ticket)]).apply(1, hidden)
    states = {layer: ConvState(memory.config.conv_history, 8) for layer in LAYERS}
    parts = [
        EngramStep(memory, [n], [RowSpan(ticket, at, at + n)], conv_states=[states])
        .apply(1, hidden[at : at + n])
        for at, n in ((0, 1), (1, 3), (4, 2))
    ]  # fmt: skip
    torch.testing.assert_close(torch.cat(parts), expected, atol=1e-5, rtol=1e-5)
    assert (states[1].length, states[3].length) == (6, 0)


def test_a_failing_ticket_fails_the_forward_unless_isolated(prefetcher):
    memory = small_memory(wrap=lambda layer, tier: FaultyTier(tier))
    memory.tiers[1].broken = False
    broken = prefetcher.submit_prompt(memory, PROMPT)
    for lookup in broken.lookups:
        lookup.done.wait(60)
    memory.tiers[3].broken = False
    healthy = prefetcher.submit_prompt(memory, PROMPT)
    spans = [RowSpan(broken, 0, 3), whole(healthy), RowSpan(broken, 3, 6)]
    with pytest.raises(TierError, match="out of reach"):
        EngramStep(memory, [3, 6, 3], spans).apply(3, hidden_states(12))
    step, hidden = EngramStep(memory, [3, 6, 3], spans, isolate_failures=True), hidden_states(12)
    step.apply(1, hidden)
    assert step.failures == {}
    out = step.apply(3, hidden)
    assert set(step.failures) == {0, 2}
    alone = EngramStep(memory, [6], [whole(healthy)]).apply(3, hidden[3:9])
    torch.testing.assert_close(out[3:9], alone, atol=1e-5, rtol=1e-5)


def test_rows_of_an_accelerator_are_only_read_when_they_landed():
    memory, device = small_memory(), SimulatedDevice(latency_s=0.005)
    prefetcher = Prefetcher(device, cores=CpuCores(2, "affinity"))
    ticket = prefetcher.submit_prompt(memory, PROMPT)
    decode = prefetcher.submit_step(memory, memory.hasher.windows([7]))
    spans = [whole(ticket), RowSpan(decode, 0, 1)]
    rows = EngramStep(memory, [6, 1], spans).embeddings(1)
    expected = [expected_rows(memory, 1, PROMPT), expected_rows(memory, 1, [7])]
    assert torch.equal(rows, torch.cat(expected))
    ticket.release()
    decode.release()
    prefetcher.close()


def test_contradictions_are_refused(prefetcher):
    memory, other = small_memory(), small_memory(seed=1)
    ticket = prefetcher.submit_prompt(memory, PROMPT)
    with pytest.raises(ConfigError, match="one per sequence"):
        EngramStep(memory, [1, 1], [None])
    with pytest.raises(ConfigError, match="one per sequence"):
        EngramStep(memory, [1], [None], gate_scales=[1.0, 1.0])
    for start, stop in ((4, 7), (-1, 1), (0, 1)):
        with pytest.raises(ConfigError, match="ticket's 6"):
            EngramStep(memory, [2], [RowSpan(ticket, start, stop)])
    with pytest.raises(ConfigError, match="the step's"):
        EngramStep(other, [6], [whole(ticket)])
    with pytest.raises(ConfigError, match="hidden has 5 tokens; accepted: 6"):
        EngramStep(memory, [6], [whole(ticket)]).apply(1, hidden_states(5))


def sparse(layer, tier):
    """The tier's odd rows; the others were never written."""
    ids = np.arange(1, tier.num_rows, 2)
    rows = torch.empty(len(ids), tier.row_dim)
    tier.gather(ids, rows)
    return SparseTier(ids, rows, tier.num_rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wrap", [None, sparse])
def test_live_positions_alone_equal_the_whole_computation(prefetcher, wrap, dtype):
    def rows(layer, n, d):
        return (torch.arange(n) % 2)[:, None] * torch.randn(
            n, d, generator=torch.Generator().manual_seed(3)
        )

    memory = small_memory(min_hit_orders=(2,), rows=rows, wrap=wrap)
    for module in memory.modules.values():
        module.to(dtype)
    ids = [(7 * i) % 64 for i in range(30)]
    spans = [whole(prefetcher.submit_prompt(memory, ids)), None]
    hidden = hidden_states(60).to(dtype)
    hidden[:, :, 0] = -0.0
    step = EngramStep(memory, [30, 30], spans, [0.5, 1.0])
    with torch.inference_mode():
        found = step.apply(1, hidden)
        embeddings = step.embeddings(1)
        enabled = torch.arange(60) < 30
        expected = memory.modules[1](
            hidden, embeddings, live=enabled, gate_scale=1.0 - 0.5 * enabled
        )
    silent = expected.gates[:, 0] == 0
    assert 0 < int((~silent).sum()) < 30
    tolerance = {"atol": 1e-5, "rtol": 2**-7 if dtype == torch.bfloat16 else 1e-5}
    torch.testing.assert_close(found, expected.hidden, **tolerance)
    torch.testing.assert_close(step.gates[1], expected.gates)
    integers = torch.int16 if dtype == torch.bfloat16 else torch.int32
    assert torch.equal(found[silent].view(integers), hidden[silent].view(integers))


@pytest.mark.parametrize("wrap", [None, sparse])
def test_a_step_without_hits_projects_nothing_and_keeps_every_bit(prefetcher, wrap):
    memory = small_memory(min_hit_orders=(3,), rows=lambda _, n, d: torch.zeros(n, d), wrap=wrap)
    projected = []
    memory.modules[1].projection = projected.append
    ticket = prefetcher.submit_prompt(memory, PROMPT)
    step = EngramStep(memory, [6], [whole(ticket)])
    hidden = torch.full((6, 1, 8), -0.0)
    found = step.apply(1, hidden)
    assert not projected
    assert torch.equal(found.view(torch.int32), hidden.view(torch.int32))
    assert torch.equal(step.gates[1], torch.zeros(6, 1))
    assert step.silent_layers == {1}
    assert [(w.layer, w.phase) for w in step.waits] == [(1, "prefill")]
    assert torch.equal(ticket.rows(1)[0], torch.zeros(6, 16))  # whoever wants to see them can
    ticket.release()


def test_a_projection_takes_the_place_of_the_product(prefetcher):
    memory = small_memory()
    module, hidden = memory.modules[1], hidden_states(6)
    span = whole(prefetcher.submit_prompt(memory, PROMPT))
    expected = EngramStep(memory, [6], [span]).apply(1, hidden)
    weight = module.kv_weight.clone()
    module.projection = lambda rows: rows @ weight.T
    module.kv_weight.zero_()
    torch.testing.assert_close(EngramStep(memory, [6], [span]).apply(1, hidden), expected)


def test_silence_is_known_before_the_layer_where_nobody_has_to_wait():
    memory = small_memory(min_hit_orders=(3,), rows=lambda _, n, d: torch.zeros(n, d), wrap=sparse)
    inline = Prefetcher(CpuDevice(), enabled=False)
    step = EngramStep(memory, [6], [whole(inline.submit_prompt(memory, PROMPT))])
    assert step.is_silent(1)
    assert step.is_silent(1)
    assert step.silent_layers == {1}
    assert torch.equal(step.gates[1], torch.zeros(6, 1))
    assert [(w.layer, w.phase) for w in step.waits] == [(1, "prefill")]
    inline.close()


def test_a_layer_that_speaks_is_asked_once():
    memory = small_memory()
    inline = Prefetcher(CpuDevice(), enabled=False)
    span = whole(inline.submit_prompt(memory, PROMPT))
    step, hidden = EngramStep(memory, [6], [span]), hidden_states(6)
    assert not step.is_silent(1)
    assert not step.is_silent(1)
    assert torch.equal(step.apply(1, hidden), EngramStep(memory, [6], [span]).apply(1, hidden))
    assert len(step.waits) == 1
    inline.close()


def test_nobody_is_asked_while_rows_are_under_way():
    gate = threading.Event()

    class Slow(HostTier):
        def gather(self, row_ids, out):
            gate.wait(30)
            return super().gather(row_ids, out)

    memory = small_memory(wrap=lambda _, tier: Slow(torch.zeros(tier.num_rows, tier.row_dim)))
    ahead = Prefetcher(CpuDevice(), cores=CpuCores(2, "test"))
    ticket = ahead.submit_prompt(memory, PROMPT)
    step = EngramStep(memory, [6], [whole(ticket)])
    assert not step.is_silent(1)
    assert step.waits == []
    gate.set()
    step.apply(1, hidden_states(6))
    assert len(step.waits) == 1
    ahead.close()


def test_each_branch_has_a_gate_where_some_or_no_tokens_contribute(prefetcher):
    def rows(_, n, d):
        return torch.ones(n, d) * (torch.arange(n) % 3 != 0)[:, None]

    # one tap looks back on nothing, so silent tokens need not be computed
    memory = small_memory(form="demo", kernel_size=1, num_branches=3, orders=(2,), rows=rows,
                          min_hit_orders=(2,))  # fmt: skip
    ticket = prefetcher.submit_prompt(memory, PROMPT * 3)
    hidden = hidden_states(18)
    step = EngramStep(memory, [18], [whole(ticket)])
    out = step.apply(1, hidden)
    live = step.gates[1].all(1)
    assert step.gates[1].shape == (18, 3)
    assert 0 < int(live.sum()) < 18
    alone = memory.modules[1](hidden, expected_rows(memory, 1, PROMPT * 3))
    assert torch.allclose(out, alone.hidden)
    assert torch.allclose(step.gates[1], alone.gates)
    silent = EngramStep(memory, [18], [None])
    assert torch.equal(silent.apply(1, hidden), hidden)
    assert silent.gates[1].shape == (18, 3)
