"""Ticket: every outcome, failures that stay inside, and no way to deadlock or leak."""

import threading

import pytest
import torch
from fakes.http import wait_until
from fakes.tiers import DelayedTier, FaultyTier, HeldTier
from memories import LAYERS, expected_rows, small_memory

from engram_core.cpu_cores import CpuCores
from engram_core.cpu_device import CpuDevice
from engram_core.errors import ConfigError, IdRangeError, StateError, TierError
from engram_core.prefetch import Prefetcher

TOKENS = [3, 1, 4, 1, 5]


@pytest.fixture
def prefetcher():
    prefetcher = Prefetcher(CpuDevice(), cores=CpuCores(2, "affinity"))
    yield prefetcher
    prefetcher.close()
    assert prefetcher.open_tickets == 0


@pytest.fixture
def held():
    """A memory whose gathers stop until they are let go."""
    memory = small_memory(wrap=lambda layer, tier: HeldTier(tier))
    yield memory
    let_go(memory)


def let_go(memory):
    for layer in LAYERS:
        memory.tiers[layer].let_go.set()


def in_thread(work):
    """Run `work` on another thread; returns a call that waits for its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()

    def join():
        thread.join(60)
        return results[0]

    return join


def outcomes(ticket):
    return {s.layer: s.outcome for s in ticket.drain_stats()}


def test_rows_that_are_ready_were_hidden(prefetcher):
    ticket = prefetcher.submit_prompt(small_memory(), TOKENS)
    for lookup in ticket.lookups:
        assert lookup.done.wait(60)
    for layer in LAYERS:
        assert ticket.is_ready(layer)
        assert ticket.rows(layer)[1] == 0.0
    assert outcomes(ticket) == {1: "hidden", 3: "hidden"}
    ticket.release()


def test_a_running_lookup_is_waited_for(prefetcher, held):
    ticket = prefetcher.submit_prompt(held, TOKENS)
    assert held.tiers[1].entered.wait(60)
    taken = in_thread(lambda: ticket.rows(1))
    assert not ticket.is_ready(1)
    assert ticket.tiers(1) == ()
    let_go(held)
    rows, wait_s = taken()
    assert torch.equal(rows, expected_rows(held, 1, TOKENS))
    assert wait_s > 0
    assert outcomes(ticket) == {1: "partial"}
    ticket.release()


def test_a_lookup_nobody_started_is_done_by_the_layer_itself(prefetcher, held):
    """The worker is stuck in one ticket; another one's rows come all the same."""
    stuck = prefetcher.submit_prompt(held, TOKENS)
    assert held.tiers[1].entered.wait(60)
    memory = small_memory()
    ticket = prefetcher.submit_prompt(memory, TOKENS)
    rows, wait_s = ticket.rows(1)
    assert torch.equal(rows, expected_rows(memory, 1, TOKENS))
    late = ticket.drain_stats()[0]
    assert late.outcome == "late"
    assert 0 < late.duration_s <= wait_s  # none of it was hidden, its queueing is no part
    ticket.release()
    let_go(held)
    stuck.release()


def test_layers_are_looked_up_in_order(prefetcher):
    order = []

    class Noting(DelayedTier):
        def gather(self, row_ids, out):
            order.append(self.layer)
            return super().gather(row_ids, out)

    def wrap(layer, tier):
        noting = Noting(tier, 0)
        noting.layer = layer
        return noting

    ticket = prefetcher.submit_prompt(small_memory(wrap=wrap), TOKENS)
    for lookup in ticket.lookups:
        lookup.done.wait(60)
    assert order == list(LAYERS)
    ticket.release()


def test_a_layer_that_takes_its_rows_again_waits_and_reports_nothing(prefetcher):
    memory = small_memory()
    ticket = prefetcher.submit_prompt(memory, TOKENS)
    first, _ = ticket.rows(1)
    outcomes(ticket)
    again, wait_s = ticket.rows(1)
    assert again.data_ptr() == first.data_ptr()
    assert wait_s == 0.0
    assert outcomes(ticket) == {}
    ticket.release()


def test_cancelling_leaves_a_running_lookup_to_finish(prefetcher, held):
    ticket = prefetcher.submit_prompt(held, TOKENS)
    assert held.tiers[1].entered.wait(60)
    ticket.cancel()
    ticket.cancel()
    assert outcomes(ticket) == {1: "cancelled", 3: "cancelled"}
    assert prefetcher.open_tickets == 1  # the worker still reads this memory
    assert held.references == 2
    with pytest.raises(StateError, match="released"):
        ticket.rows(3)
    let_go(held)
    assert ticket.lookups[0].done.wait(60)
    prefetcher.close()  # joins the worker
    assert prefetcher.open_tickets == 0
    wait_until(lambda: held.references == 1, what="the memory let go")
    assert held.tiers[3].gathers == 0


def test_a_layer_waiting_for_a_cancelled_lookup_is_told(prefetcher, held):
    ticket = prefetcher.submit_prompt(held, TOKENS)
    assert held.tiers[1].entered.wait(60)

    def take():
        with pytest.raises(StateError, match="released"):
            ticket.rows(1)
        return "told"

    told = in_thread(take)
    ticket.cancel()
    let_go(held)
    assert told() == "told"


def test_release_after_use_reports_nothing_more(prefetcher):
    memory = small_memory()
    ticket = prefetcher.submit_prompt(memory, TOKENS)
    for layer in LAYERS:
        ticket.rows(layer)
    ticket.drain_stats()
    ticket.release()
    assert ticket.drain_stats() == []
    wait_until(lambda: memory.references == 1, what="the memory let go")
    assert prefetcher.open_tickets == 0
    with pytest.raises(StateError):
        ticket.rows(1)


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (TierError("the disk is gone"), TierError, "the disk is gone"),
        (OSError("no route"), TierError, "tier 'host' failed for layer 1"),
    ],
)
def test_a_failure_surfaces_in_its_ticket_only(prefetcher, error, raised, message):
    memory = small_memory(
        wrap=lambda layer, tier: FaultyTier(tier, error) if layer == 1 else tier,
    )
    broken = prefetcher.submit_prompt(memory, TOKENS)
    for lookup in broken.lookups:
        assert lookup.done.wait(60)
    memory.tiers[1].broken = False
    healthy = prefetcher.submit_prompt(memory, TOKENS)
    for _ in range(2):
        with pytest.raises(raised, match=message):
            broken.rows(1)
    assert torch.equal(broken.rows(3)[0], expected_rows(memory, 3, TOKENS))
    assert torch.equal(healthy.rows(1)[0], expected_rows(memory, 1, TOKENS))
    assert set(outcomes(broken)) == {3}
    broken.release()
    healthy.release()
    assert outcomes(broken) == {}
    # a lookup that was still running lets go of the memory when it is done
    wait_until(lambda: memory.references == 1, what="the memory let go")


def test_a_token_without_a_class_fails_its_ticket(prefetcher):
    ticket = prefetcher.submit_prompt(small_memory(), [1, 10_000])
    for layer in LAYERS:
        with pytest.raises(IdRangeError):
            ticket.rows(layer)
    ticket.release()


def test_a_layer_without_memory_is_refused(prefetcher):
    ticket = prefetcher.submit_prompt(small_memory(), TOKENS)
    for ask in (ticket.rows, ticket.is_ready, ticket.row_ids, ticket.tiers):
        with pytest.raises(ConfigError, match=r"layer 2 has no Engram; accepted: \[1, 3\]"):
            ask(2)
    ticket.release()
