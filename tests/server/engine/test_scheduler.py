"""What a step computes: order, budget, admission, preemption, turns of versions."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from sequences import make_sequence

from server.engine.block_pool import BlockPool
from server.engine.limits import EngineLimits
from server.engine.scheduler import Scheduler


def make_scheduler(blocks=16, **limits):
    settings = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "block_size": 4, **limits}
    return Scheduler(EngineLimits(**settings), BlockPool(blocks, settings["block_size"]))


def step(scheduler):
    """Run a step as the engine would: every sequence that reaches its end gets a token."""
    batch = scheduler.schedule()
    if batch is not None:
        scheduler.commit(batch)
        for span in batch.spans:
            if span.sequence.num_uncomputed == 0:
                span.sequence.token_ids.append(9)
    return batch


def spans(batch):
    return [(span.sequence.id, span.start, span.num_tokens) for span in batch.spans]


def add(scheduler, request_id, length, **rest):
    sequence = make_sequence(range(2, 2 + length), request_id=request_id, **rest)
    scheduler.add(sequence)
    return sequence


def test_nothing_to_do():
    assert make_scheduler().schedule() is None


def test_decodes_come_first_and_a_long_prompt_is_cut_to_the_budget():
    scheduler = make_scheduler()
    add(scheduler, "a", 4)
    step(scheduler)
    add(scheduler, "b", 20)
    assert spans(step(scheduler)) == [("a", 4, 1), ("b", 0, 15)]
    assert spans(step(scheduler)) == [("a", 5, 1), ("b", 15, 5)]
    batch = step(scheduler)
    assert spans(batch) == [("a", 6, 1), ("b", 20, 1)]
    assert batch.num_decodes == 2


def test_admission_is_first_come_first_served_even_when_a_later_one_would_fit():
    scheduler = make_scheduler(blocks=4)
    add(scheduler, "a", 7)  # two blocks
    add(scheduler, "large", 12)  # four
    add(scheduler, "small", 2)
    assert spans(step(scheduler)) == [("a", 0, 7)]
    assert [sequence.id for sequence in scheduler.waiting] == ["large", "small"]


def test_no_more_sequences_than_allowed():
    scheduler = make_scheduler(max_num_seqs=2)
    for name in "abc":
        add(scheduler, name, 2)
    assert [name for name, _, _ in spans(step(scheduler))] == ["a", "b"]


def test_the_newest_gives_way_and_is_recomputed_whole():
    scheduler = make_scheduler(blocks=4)
    add(scheduler, "a", 7)
    add(scheduler, "b", 7)
    step(scheduler)
    step(scheduler)  # both fill their second block
    batch = step(scheduler)
    assert spans(batch) == [("a", 8, 1)]
    assert [sequence.id for sequence in batch.preempted] == ["b"]
    (waiting,) = scheduler.waiting
    assert (waiting.num_computed, waiting.block_table, waiting.num_tokens) == (0, [], 9)
    scheduler.remove(scheduler.running[0])
    assert spans(step(scheduler)) == [("b", 0, 9)]


def test_versions_take_turns():
    scheduler = make_scheduler()
    add(scheduler, "a", 2, version="old")
    step(scheduler)
    add(scheduler, "b", 2, version="new")
    seen = [[name for name, _, _ in spans(step(scheduler))] for _ in range(4)]
    assert seen == [["b"], ["a"], ["b"], ["a"]]


def test_a_new_version_does_not_overtake_the_queue():
    scheduler = make_scheduler(max_num_seqs=1)
    first = add(scheduler, "a", 2, version="old")
    add(scheduler, "b", 2, version="new")
    assert {name for _ in range(3) for name, _, _ in spans(step(scheduler))} == {"a"}
    scheduler.remove(first)
    assert spans(step(scheduler)) == [("b", 0, 2)]


def test_prompt_logprobs_are_computed_in_pieces():
    scheduler = make_scheduler(max_prompt_logprob_rows=6)
    add(scheduler, "a", 10, prompt_logprobs=True)
    add(scheduler, "b", 5)
    assert spans(step(scheduler)) == [("a", 0, 6), ("b", 0, 5)]
    assert spans(step(scheduler)) == [("b", 5, 1), ("a", 6, 4)]


@pytest.mark.parametrize("started", [False, True])
def test_queue_deadline_counts_until_the_first_forward(started):
    from dataclasses import replace

    scheduler = make_scheduler()
    sequence = add(scheduler, "a", 2)
    sequence.request = replace(sequence.request, queue_deadline_s=10.0)
    sequence.first_scheduled_s = 5.0 if started else None
    assert scheduler.expired(9.0) == []
    assert scheduler.expired(11.0) == ([] if started else [(sequence, "queue_timeout")])


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come, are cancelled, finish; the invariants hold after every step."""

    VERSIONS = ("v1", "v2", None)

    def __init__(self):
        super().__init__()
        self.scheduler = make_scheduler(blocks=12, max_num_seqs=4, max_num_batched_tokens=8)
        self.live = {}  # in order of arrival
        self.count = 0

    @precondition(lambda self: len(self.live) < 8)
    @rule(
        length=st.integers(1, 20),
        new=st.integers(1, 12),
        version=st.sampled_from(VERSIONS),
        judged=st.booleans(),
    )
    def submit(self, length, new, version, judged):
        self.count += 1
        name = str(self.count)
        sequence = make_sequence(
            range(length), request_id=name, version=version, max_new_tokens=new,
            prompt_logprobs=judged,
        )  # fmt: skip
        self.live[name] = sequence
        self.scheduler.add(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data):
        self.leave(data.draw(st.sampled_from(sorted(self.live))))

    @rule(count=st.integers(1, 6))
    def run(self, count):
        for _ in range(count):
            self.run_step()

    def run_step(self):
        batch = step(self.scheduler)
        assert (batch is None) == (not self.live)
        if batch is None:
            return
        self.check(batch)
        for span in batch.spans:
            sequence = span.sequence
            if sequence.num_generated >= sequence.request.sampling.max_new_tokens:
                self.leave(sequence.id)

    def check(self, batch):
        limits = self.scheduler.limits
        assert 0 < batch.num_tokens <= limits.max_num_batched_tokens
        assert len(batch.spans) <= limits.max_num_seqs
        assert {span.sequence.version for span in batch.spans} == {batch.version}
        assert all(span.num_tokens == 1 for span in batch.decodes)
        for span in batch.spans:
            capacity = len(span.sequence.block_table) * limits.block_size
            assert span.num_tokens > 0
            assert span.stop <= min(capacity, span.sequence.num_tokens)

    def leave(self, name):
        self.scheduler.remove(self.live.pop(name))

    @invariant()
    def blocks_belong_to_running_sequences(self):
        owned = [block for each in self.scheduler.running for block in each.block_table]
        assert len(owned) == len(set(owned)) == self.scheduler.pool.num_used
        assert all(not each.block_table for each in self.scheduler.waiting)

    @invariant()
    def arrival_order_is_kept(self):
        names = [int(each.id) for each in self.scheduler.sequences()]
        assert names == sorted(names) == sorted(map(int, self.live))
        tokens = sum(each.num_tokens for each in self.scheduler.waiting)
        assert tokens == self.scheduler.waiting.num_tokens

    def teardown(self):
        for _ in range(2000):
            if not self.live:
                break
            self.run_step()
        assert not self.live, "every request finishes"
        assert self.scheduler.is_idle
        assert self.scheduler.pool.num_used == 0


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
