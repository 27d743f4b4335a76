"""The scheduler, its pool and its prefix cache against a simple model of what they promise.

The model knows what every slot of the cache holds: a token with everything before it and whatever
else it depends on. Requests come, are cancelled, spoil and finish; whatever happens, a sequence
only ever stands on slots that hold exactly its own history.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sequences import make_sequence

from server.engine.block_pool import BlockPool
from server.engine.limits import EngineLimits
from server.engine.scheduler import Scheduler
from server.engine.types import EngramParams
from server.engine.waiting import MAX_OVERTAKEN

TEXT = tuple(range(100, 140))  # most prompts begin with it
ENGRAM = (EngramParams(), EngramParams(gate_scale=0.5), EngramParams(enabled=False))


class QueueModel:
    """Who is started next: a list of [name, priority, times overtaken] in order of arrival."""

    def __init__(self):
        self.entries = []

    def add(self, name, priority):
        self.entries.append([name, priority, 0])

    def put_back(self, name, priority, overtaken):
        self.entries.insert(0, [name, priority, overtaken])

    def start(self):
        """The next one's name; it is taken out."""
        patient_out = [entry for entry in self.entries if entry[2] >= MAX_OVERTAKEN]
        best = max(entry[1] for entry in self.entries)
        chosen = (patient_out or [entry for entry in self.entries if entry[1] == best])[0]
        for entry in self.entries[: self.entries.index(chosen)]:
            entry[2] += 1
        self.entries.remove(chosen)
        return chosen[0]

    def remove(self, name):
        self.entries = [entry for entry in self.entries if entry[0] != name]


class SchedulerMachine(RuleBasedStateMachine):
    """Drives a scheduler as the engine does, with a model of its queue and of the cache."""

    PREFIX_CACHE = True

    def __init__(self):
        super().__init__()
        limits = EngineLimits(
            max_num_seqs=4, max_num_batched_tokens=12, block_size=4, max_prompt_logprob_rows=6,
            max_decode_slowdown=2.0, prefix_cache=self.PREFIX_CACHE,
        )  # fmt: skip
        self.scheduler = Scheduler(limits, BlockPool(14, 4))
        self.live = {}
        self.queue = QueueModel()
        self.slots = {}  # (block, place) -> what it holds
        self.count = 0

    @precondition(lambda self: len(self.live) < 8)
    @rule(
        shared=st.integers(0, 24),
        own=st.integers(1, 8),
        new=st.integers(1, 12),
        version=st.sampled_from(("v1", "v2", None)),
        read=st.tuples(st.sampled_from(ENGRAM), st.sampled_from("ab")),  # whose memory, and how
        priority=st.sampled_from((0, 0, 0, 1, -1)),
        judged=st.sampled_from((False, False, True)),
        differs=st.booleans(),
    )
    def submit(self, shared, own, new, version, read, priority, judged, differs):
        engram, isolation = read
        self.count += 1
        name = str(self.count)
        tail = range(1000 * self.count, 1000 * self.count + own) if differs else TEXT[shared:][:own]
        self.live[name] = make_sequence(
            (*TEXT[:shared], *tail), request_id=name, version=version, engram=engram,
            isolation=isolation, priority=priority, max_new_tokens=new, prompt_logprobs=judged,
        )  # fmt: skip
        self.scheduler.add(self.live[name])
        self.queue.add(name, priority)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), spoiled=st.booleans())
    def cancel(self, data, spoiled):
        self.leave(data.draw(st.sampled_from(sorted(self.live))), is_spoiled=spoiled)

    @rule(durations_s=st.lists(st.sampled_from((0.001, 0.01, 0.1)), min_size=1, max_size=6))
    def run(self, durations_s):
        for duration_s in durations_s:
            self.run_step(duration_s)

    def run_step(self, duration_s=0.01):
        running = [each.id for each in self.scheduler.running]
        batch = self.scheduler.schedule()
        assert (batch is None) == (not self.live)
        if batch is None:
            return
        self.check_order(running, batch)
        self.check_batch(batch)
        self.compute(batch)
        self.scheduler.commit(batch)
        for span in batch.spans:
            self.give_token(span.sequence)
        self.scheduler.note(batch, duration_s)

    def give_token(self, sequence):
        if sequence.num_uncomputed:
            return
        self.scheduler.prefix.keep(sequence)
        # the same history always goes on alike
        sequence.token_ids.append(200 + hash(tuple(sequence.token_ids)) % 2)
        if sequence.num_generated >= sequence.request.sampling.max_new_tokens:
            self.leave(sequence.id)

    def leave(self, name, *, is_spoiled=False):
        sequence = self.live.pop(name)
        blocks = list(sequence.block_table)
        unheld = self.scheduler.remove(sequence, is_spoiled=is_spoiled)
        self.queue.remove(name)
        if is_spoiled:
            held = {block for each in self.live.values() for block in each.block_table}
            assert set(unheld) == set(blocks) - held
            for block in unheld:
                for place in range(4):
                    self.slots[block, place] = "cleared"

    # --- the model ---

    def history(self, sequence, stop):
        """What the slot of the token before ``stop`` must hold."""
        request = sequence.request
        memory = None
        if sequence.version is not None and request.engram.enabled:
            memory = sequence.version.id, request.engram.gate_scale
        return memory, request.isolation, tuple(sequence.token_ids[:stop])

    def slot(self, sequence, position):
        return sequence.block_table[position // 4], position % 4

    def compute(self, batch):
        for span in batch.spans:
            for position in range(span.start):
                expected = self.history(span.sequence, position + 1)
                assert self.slots[self.slot(span.sequence, position)] == expected
        for span in batch.spans:
            for position in range(span.start, span.stop):
                slot = self.slot(span.sequence, position)
                self.slots[slot] = self.history(span.sequence, position + 1)

    def check_order(self, running, batch):
        for sequence in batch.preempted:
            running.remove(sequence.id)
            self.queue.put_back(sequence.id, sequence.request.priority, sequence.num_overtaken)
        now = [each.id for each in self.scheduler.running]
        assert now[: len(running)] == running
        for name in now[len(running) :]:
            assert not batch.preempted
            assert name == self.queue.start()
        assert [each.id for each in self.scheduler.waiting] == [e[0] for e in self.queue.entries]

    def check_batch(self, batch):
        limits = self.scheduler.limits
        assert 0 < batch.num_tokens <= limits.max_num_batched_tokens
        assert len(batch.spans) <= limits.max_num_seqs
        assert all(span.sequence.version is batch.version for span in batch.spans)
        assert all(span.num_tokens == 1 for span in batch.decodes)
        for span in batch.spans:
            sequence = span.sequence
            assert span.start == sequence.num_computed
            assert span.num_tokens > 0
            assert span.stop <= min(len(sequence.block_table) * 4, sequence.num_tokens)
        self.check_fairness(batch)

    def check_fairness(self, batch):
        """Every decoding sequence has its token; the oldest prompt half of what prompts get."""
        decoding = [
            each for each in self.scheduler.running
            if each.version is batch.version and each.is_decoding and each.num_computed
        ]  # fmt: skip
        alone = {span.sequence.id for span in batch.decodes}
        fresh = {span.sequence.id for span in batch.prefills}
        assert {each.id for each in decoding} <= alone | fresh
        if batch.prefills:
            oldest = batch.prefills[0]
            total = sum(span.num_tokens for span in batch.prefills)
            assert oldest.num_tokens >= min(oldest.sequence.num_uncomputed, total // 2, 6)

    @invariant()
    def every_block_has_the_holders_it_should(self):
        held = [block for each in self.scheduler.running for block in each.block_table]
        pool = self.scheduler.pool
        assert len(set(held)) == pool.num_used
        assert all(pool.holders(block) == held.count(block) for block in held)
        assert all(not each.block_table for each in self.scheduler.waiting)
        assert len(pool._free) + pool.num_idle + pool.num_used == pool.num_blocks
        if not self.PREFIX_CACHE:
            assert len(held) == len(set(held))
            assert pool.num_idle == 0

    @invariant()
    def nobody_is_lost(self):
        names = [each.id for each in self.scheduler.sequences()]
        assert sorted(names) == sorted(self.live)
        tokens = sum(each.num_tokens for each in self.scheduler.waiting)
        assert tokens == self.scheduler.waiting.num_tokens

    @invariant()
    def judged_prompts_are_computed_whole(self):
        judged = [e for e in self.live.values() if e.request.sampling.prompt_logprobs]
        assert all(each.num_cached == 0 for each in judged)

    @invariant()
    def kept_blocks_hold_what_their_keys_say(self):
        pool = self.scheduler.pool
        for each in self.live.values():
            blocks = self.scheduler.prefix.match(each)
            assert len(blocks) * 4 < each.num_tokens
            for index, block in enumerate(blocks):
                for place in range(4):
                    expected = self.history(each, 4 * index + place + 1)
                    assert self.slots[block, place] == expected
        assert all(pool.holders(block) == 0 for block in pool._idle)

    def teardown(self):
        for _ in range(3000):
            if not self.live:
                break
            self.run_step()
        assert not self.live, "every request finishes"
        assert self.scheduler.is_idle
        assert self.scheduler.pool.num_used == 0


class PlainMachine(SchedulerMachine):
    """The same without reuse."""

    PREFIX_CACHE = False


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestPlainMachine = PlainMachine.TestCase
TestPlainMachine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
