"""Prefetcher: the same rows on every path, chosen for a stated reason; budget and stress."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from fakes.http import wait_until
from fakes.tiers import DelayedTier, HeldTier
from memories import LAYERS, NUM_IDS, expected_rows, small_memory

from engram_core.cpu_cores import CpuCores
from engram_core.cpu_device import CpuDevice
from engram_core.errors import ConfigError, StateError
from engram_core.inline_limit import InlineLimit
from engram_core.prefetch import Prefetcher
from engram_core.simulated import SimulatedDevice

MANY, ONE = CpuCores(8, "affinity"), CpuCores(1, "cgroup quota")
TOKENS, HISTORY = [5, 9, 9, 63, 0, 5, 9], [1, 2, 3]


@pytest.fixture
def open_prefetcher():
    """Makes prefetchers and checks that each ends without an open ticket."""
    made = []

    def make(device=None, **settings):
        made.append(Prefetcher(device or CpuDevice(), **{"cores": MANY, **settings}))
        return made[-1]

    yield make
    for prefetcher in made:
        prefetcher.close()
        prefetcher.close()
        assert prefetcher.open_tickets == 0


def wait_for(ticket):
    """Until a worker has done all lookups of a ticket."""
    for lookup in ticket.lookups:
        assert lookup.done.wait(60)


@pytest.mark.parametrize("device", [CpuDevice, SimulatedDevice])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("settings", [{}, {"enabled": False}, {"cores": ONE}, {"staging_bytes": 0}])
def test_every_path_gives_the_same_bits(open_prefetcher, device, dtype, settings):
    memory = small_memory()
    prefetcher = open_prefetcher(device(), dtype=dtype, **settings)
    prompt = prefetcher.submit_prompt(memory, TOKENS, HISTORY)
    windows = memory.hasher.windows(TOKENS, HISTORY)
    step = prefetcher.submit_step(memory, windows)
    assert (prompt.num_tokens, prompt.phase, step.phase) == (7, "prefill", "decode")
    for layer in LAYERS:
        expected = expected_rows(memory, layer, TOKENS, HISTORY)
        for ticket in (prompt, step):
            rows, wait_s = ticket.rows(layer)
            assert rows.dtype == dtype
            assert torch.equal(rows.float(), expected)
            assert wait_s >= 0
            assert ticket.tiers(layer) == ("host",)
            assert (ticket.row_ids(layer) == memory.hasher.row_ids(TOKENS, layer, HISTORY)).all()
    prompt.release()
    step.release()
    wait_until(lambda: memory.references == 1, what="the memory let go")


@pytest.mark.parametrize(
    ("settings", "path", "reason"),
    [
        ({}, "async", "async: 8 cores (affinity)"),
        ({"enabled": False}, "off", "off: prefetch is switched off"),
        ({"cores": ONE}, "inline", "inline: 1 core (cgroup quota)"),
    ],
)
def test_the_path_is_named_with_its_reason(open_prefetcher, settings, path, reason):
    prefetcher = open_prefetcher(**settings)
    assert prefetcher.path == path
    assert prefetcher.why_path.startswith(reason)


@pytest.mark.parametrize(
    ("wrap", "inline_max_rows", "handed_off"),
    [
        (None, 4096, False),
        (None, 27, True),  # 7 tokens of 4 rows
        (lambda layer, tier: DelayedTier(tier, 0), 4096, True),
    ],
)
def test_steps_are_handed_off_when_large_or_blocking(
    open_prefetcher, wrap, inline_max_rows, handed_off
):
    memory = small_memory(wrap=wrap)
    prefetcher = open_prefetcher(inline_max_rows=inline_max_rows)
    ticket = prefetcher.submit_step(memory, memory.hasher.windows(TOKENS))
    assert ticket.handed_off is handed_off
    ticket.release()


def test_a_memorys_own_limit_is_followed(open_prefetcher):
    memory = small_memory()
    prefetcher = open_prefetcher(inline_max_rows=0)
    for limit, handed_off in ((28, False), (27, True)):
        memory.inline_limit = InlineLimit(limit, "measured for it")
        ticket = prefetcher.submit_step(memory, memory.hasher.windows(TOKENS))
        assert ticket.handed_off is handed_off
        ticket.release()


def test_nothing_starts_before_the_layer_when_switched_off(open_prefetcher):
    held = small_memory(wrap=lambda layer, tier: HeldTier(tier))
    prefetcher = open_prefetcher(enabled=False)
    ticket = prefetcher.submit_prompt(held, TOKENS)
    assert not any(held.tiers[layer].entered.is_set() for layer in LAYERS)
    for layer in LAYERS:
        held.tiers[layer].let_go.set()
        _, wait_s = ticket.rows(layer)
        stats = ticket.drain_stats()
        assert [s.outcome for s in stats] == ["inline"]
        assert 0 < stats[0].duration_s <= wait_s
    ticket.release()


def test_step_windows_are_a_snapshot(open_prefetcher):
    memory = small_memory()
    windows = memory.hasher.windows(TOKENS)
    ticket = open_prefetcher().submit_step(memory, windows)
    windows[:] = 0
    assert torch.equal(ticket.rows(1)[0], expected_rows(memory, 1, TOKENS))
    ticket.release()


def test_statistics_say_what_was_read(open_prefetcher):
    memory = small_memory()
    ticket = open_prefetcher().submit_prompt(memory, [7] * 10, [7, 7])
    for layer in LAYERS:
        ticket.rows(layer)
    stats = ticket.drain_stats()
    assert [s.layer for s in stats] == list(LAYERS)
    for each in stats:
        assert (each.phase, each.rows, each.unique_rows) == ("prefill", 40, 4)
        assert each.rows_by_order == {2: 20, 3: 20}
        assert each.rows_by_tier == {"host": 40}
        assert 0 <= each.hash_s <= each.duration_s
    ticket.release()
    assert ticket.drain_stats() == []


def test_lookups_beyond_the_budget_are_late_and_later_ones_start_after_a_release(open_prefetcher):
    entered = threading.Event()

    class Noticed(HeldTier):
        def gather(self, row_ids, out):
            entered.set()
            return self.inner.gather(row_ids, out)

    memory, other = small_memory(), small_memory(wrap=lambda layer, tier: Noticed(tier))
    lookup_bytes = 7 * 4 * (4 * 4 + 8)  # tokens, rows, float32 values and the row id
    prefetcher = open_prefetcher(staging_bytes=2 * lookup_bytes)
    first = prefetcher.submit_prompt(memory, TOKENS)
    wait_for(first)
    second = prefetcher.submit_prompt(other, TOKENS)
    assert not second.is_ready(1)
    second.rows(1)  # beyond the budget: compute does it itself
    assert [s.outcome for s in second.drain_stats()] == ["late"]
    entered.clear()
    first.release()
    assert entered.wait(60)  # its second layer has room now
    second.rows(3)
    second.release()
    assert prefetcher.staging_used_bytes == 0


def test_a_lookup_larger_than_the_budget_holds_nobody_up(open_prefetcher):
    prefetcher = open_prefetcher(staging_bytes=3 * 4 * 24)
    memory = small_memory()
    large = prefetcher.submit_prompt(memory, TOKENS)
    small = prefetcher.submit_prompt(memory, TOKENS[:3])
    assert small.lookups[0].done.wait(60)
    large.cancel()
    small.cancel()


def test_steps_go_before_queued_prompts(open_prefetcher):
    order = []

    class Noting(HeldTier):
        def gather(self, row_ids, out):
            report = super().gather(row_ids, out)
            order.append(len(out))
            return report

    memory = small_memory(wrap=lambda layer, tier: Noting(tier))
    prefetcher = open_prefetcher()
    running = prefetcher.submit_prompt(memory, [1])
    assert memory.tiers[1].entered.wait(60)
    prompt = prefetcher.submit_prompt(memory, [1, 2])
    step = prefetcher.submit_step(memory, memory.hasher.windows([1, 2, 3]))
    for layer in LAYERS:
        memory.tiers[layer].let_go.set()
    for ticket in (running, prompt, step):
        wait_for(ticket)
        ticket.release()
    assert order == [4, 12, 12, 4, 8, 8]


def test_a_closed_prefetcher_refuses_new_tickets_and_serves_open_ones(open_prefetcher):
    memory = small_memory()
    prefetcher = open_prefetcher(staging_bytes=0)
    ticket = prefetcher.submit_prompt(memory, TOKENS)
    prefetcher.close()
    with pytest.raises(StateError, match="closed"):
        prefetcher.submit_prompt(memory, TOKENS)
    with pytest.raises(StateError, match="closed"):
        prefetcher.submit_step(memory, memory.hasher.windows(TOKENS))
    assert torch.equal(ticket.rows(1)[0], expected_rows(memory, 1, TOKENS))
    ticket.release()
    wait_until(lambda: memory.references == 1, what="the memory let go")


@pytest.mark.parametrize(
    "bad", [{"dtype": torch.float16}, {"inline_max_rows": -1}, {"staging_bytes": -1}]
)
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ConfigError, match="accepted"):
        Prefetcher(CpuDevice(), **bad)


def test_empty_spans_are_refused(open_prefetcher):
    memory, prefetcher = small_memory(), open_prefetcher()
    with pytest.raises(ConfigError, match="at least one token"):
        prefetcher.submit_prompt(memory, [])
    with pytest.raises(ConfigError, match="at least one sequence"):
        prefetcher.submit_step(memory, np.empty((0, 3), dtype=np.int64))
    wait_until(lambda: memory.references == 1, what="the memory let go")


def use_ticket(prefetcher, memory, draw):
    """Open a ticket, read some of its layers and give it up."""
    tokens = [draw.randrange(NUM_IDS) for _ in range(draw.randint(1, 12))]
    if draw.random() < 0.5:
        ticket = prefetcher.submit_prompt(memory, tokens)
    else:
        ticket = prefetcher.submit_step(memory, memory.hasher.windows(tokens))
    for layer in LAYERS[: draw.randint(0, 2)]:
        rows, _ = ticket.rows(layer)
        assert torch.equal(rows, expected_rows(memory, layer, tokens))
    ticket.release()
    ticket.cancel()
    assert sorted(s.layer for s in ticket.drain_stats()) == list(LAYERS)


@pytest.mark.parametrize("device", [CpuDevice, lambda: SimulatedDevice(0.0002)])
def test_many_tickets_at_once_stay_exact(open_prefetcher, device):
    """Several threads open, read, abandon and cancel; every row read is right, none stays open."""
    memory = small_memory(wrap=lambda layer, tier: DelayedTier(tier, 0.0002))
    prefetcher = open_prefetcher(device(), staging_bytes=4000)

    def client(seed):
        draw = random.Random(seed)
        for _ in range(40):
            use_ticket(prefetcher, memory, draw)

    with ThreadPoolExecutor(4) as pool:
        for finished in [pool.submit(client, seed) for seed in range(4)]:
            finished.result(120)
    prefetcher.close()
    wait_until(lambda: memory.references == 1, what="the memory let go")
    assert prefetcher.staging_used_bytes == 0
