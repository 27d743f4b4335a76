"""What a step computes: order, budget, admission, preemption, turns of versions."""

import pytest
from sequences import make_sequence

from server.engine.block_pool import BlockPool
from server.engine.limits import EngineLimits
from server.engine.scheduler import Scheduler
from server.engine.waiting import MAX_OVERTAKEN


def make_scheduler(blocks=16, **limits):
    settings = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "block_size": 4, **limits}
    return Scheduler(EngineLimits(**settings), BlockPool(blocks, settings["block_size"]))


def step(scheduler, duration_s=0.01):
    """Run a step as the engine would: every sequence that reaches its end gets a token."""
    batch = scheduler.schedule()
    if batch is not None:
        finish(scheduler, batch, duration_s)
    return batch


def finish(scheduler, batch, duration_s):
    scheduler.commit(batch)
    for span in batch.spans:
        if span.sequence.num_uncomputed == 0:
            scheduler.prefix.keep(span.sequence)
            span.sequence.token_ids.append(9)
    scheduler.note(batch, duration_s)


def spans(batch):
    return [(span.sequence.id, span.start, span.num_tokens) for span in batch.spans]


def add(scheduler, request_id, length, **rest):
    # prompts that share nothing, unless they have the same name
    first = 1000 * ord(request_id[0])
    sequence = make_sequence(range(first, first + length), request_id=request_id, **rest)
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
    scheduler = make_scheduler(blocks=4, prefix_cache=False)
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


def test_a_short_prompt_overtakes_a_long_one_that_is_sure_of_half():
    scheduler = make_scheduler(blocks=32)
    add(scheduler, "long", 40)
    assert spans(step(scheduler)) == [("long", 0, 16)]
    add(scheduler, "short", 6)
    assert spans(step(scheduler)) == [("long", 16, 10), ("short", 0, 6)]
    add(scheduler, "equal", 14)
    assert spans(step(scheduler)) == [("short", 6, 1), ("long", 26, 14), ("equal", 0, 1)]


def test_a_long_prompt_stretches_steps_that_generate_no_more_than_allowed():
    scheduler = make_scheduler(blocks=1000, max_num_batched_tokens=512, max_decode_slowdown=3.0)
    add(scheduler, "a", 4)
    step(scheduler)
    step(scheduler)  # generates alone, in 10 ms
    add(scheduler, "b", 2000)
    durations_s, duration_s = [], 0.0
    while len(scheduler.running) < 2 or not scheduler.running[1].is_decoding:
        batch = scheduler.schedule()
        duration_s = 0.01 + 0.001 * (batch.num_tokens - batch.num_decodes)
        durations_s.append(duration_s)
        finish(scheduler, batch, duration_s)
    assert max(durations_s) <= 0.031
    assert sum(durations_s) < 2 * 2000 * 0.001  # and it does not crawl


def test_the_highest_priority_starts_first_but_overtakes_nobody_for_ever():
    scheduler = make_scheduler(max_num_seqs=1)
    add(scheduler, "low", 2, priority=-1)
    for index in range(MAX_OVERTAKEN + 1):
        add(scheduler, f"high{index}", 2, priority=1)
    order = []
    while scheduler.waiting:
        step(scheduler)
        order.append(scheduler.running[0].id)
        scheduler.remove(scheduler.running[0])
    assert order.index("low") == MAX_OVERTAKEN
    assert [name for name in order if name != "low"] == [
        f"high{index}" for index in range(MAX_OVERTAKEN + 1)
    ]


def test_the_lowest_priority_gives_way_even_when_it_is_older():
    scheduler = make_scheduler(blocks=4)
    add(scheduler, "a", 7)
    add(scheduler, "b", 7, priority=5)
    step(scheduler)
    step(scheduler)  # both fill their second block
    batch = step(scheduler)
    assert [sequence.id for sequence in batch.preempted] == ["a"]
    assert spans(batch) == [("b", 8, 1)]


def test_a_known_prefix_is_not_computed_again():
    scheduler = make_scheduler()
    first = add(scheduler, "same", 11)
    step(scheduler)
    blocks = list(first.block_table)
    second = add(scheduler, "same", 11)
    assert spans(step(scheduler))[1] == ("same", 8, 3)
    assert second.block_table[:2] == blocks[:2]
    assert (first.num_cached, second.num_cached) == (0, 8)
    assert scheduler.prefix.drain_counts() == (22, 8)
    scheduler.remove(first)
    assert (scheduler.pool.num_used, scheduler.pool.num_idle) == (3, 1)
    scheduler.remove(second)
    assert (scheduler.pool.num_used, scheduler.pool.num_idle) == (0, 3)


def test_a_preempted_sequence_starts_behind_its_own_blocks():
    scheduler = make_scheduler(blocks=5)
    first = add(scheduler, "a", 7)
    add(scheduler, "b", 7)
    batches = [step(scheduler) for _ in range(6)]
    assert [each.id for batch in batches for each in batch.preempted] == ["b"]
    scheduler.remove(first)
    [(name, start, _)] = spans(step(scheduler))
    assert (name, start) == ("b", 8)


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
