"""Scheduler: decides what the next step computes.

Continuous batching: running sequences decode first, one token each; prefills, whole or in chunks,
get what `PrefillPace` allows beside them. Admission follows `WaitingQueue`, starts behind what the
prefix cache knows, and reserves the KV blocks of the whole history, so that a started prefill
never stalls. When a decoding sequence finds no block, the newest of the lowest priority is
preempted and recomputed later; the oldest of the highest therefore always makes progress. A batch
holds sequences of one memory version; versions take turns.

Knows no model, no tensors and no clock: deadlines are compared with the time it is told, and how
long a step took is told to `note`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from server.engine.batch import Batch, Span
from server.engine.block_pool import BlockPool
from server.engine.limits import EngineLimits
from server.engine.prefill_pace import PrefillPace
from server.engine.prefill_shares import share_out
from server.engine.prefix_cache import PrefixCache
from server.engine.sequence import Sequence
from server.engine.types import FailureKind
from server.engine.waiting import WaitingQueue


class Scheduler:
    """Waiting and running sequences, and the KV blocks they hold.

    Attributes:
        prefix: what sequences may start with.
    """

    def __init__(self, limits: EngineLimits, pool: BlockPool) -> None:
        self.limits = limits
        self.pool = pool
        self.prefix = PrefixCache(pool, enabled=limits.prefix_cache)
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []  # oldest first
        self._pace = PrefillPace(limits.max_decode_slowdown)
        self._last_version: Any = None

    @property
    def is_idle(self) -> bool:
        """Whether no sequence is left."""
        return not self.running and not self.waiting

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence, *, is_spoiled: bool = False) -> list[int]:
        """Forget a sequence, wherever it is; returns the KV blocks that nobody holds any more.

        When it ``is_spoiled``, none of its blocks is kept for reuse.
        """
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        blocks = sequence.restart()
        if is_spoiled:
            self.pool.forget(blocks)
        return self.pool.release(blocks)

    def sequences(self) -> Iterator[Sequence]:
        """All sequences, running ones first."""
        yield from self.running
        yield from self.waiting

    def expired(self, now_s: float) -> list[tuple[Sequence, FailureKind]]:
        """Sequences whose time has passed, with the reason; they stay until removed."""
        late: list[tuple[Sequence, FailureKind]] = []
        for sequence in self.sequences():
            kind = _lateness(sequence, now_s)
            if kind is not None:
                late.append((sequence, kind))
        return late

    def schedule(self) -> Batch | None:
        """The next batch, with the blocks of its tokens allocated; None when nothing can run."""
        preempted: list[Sequence] = []
        for version in self._version_turns():
            batch = self._plan(version, preempted)
            if batch is not None:
                self._last_version = version
                return batch
        return None

    def commit(self, batch: Batch) -> None:
        """Record that the batch's tokens are in the cache."""
        for span in batch.spans:
            span.sequence.num_computed = span.stop

    def note(self, batch: Batch, duration_s: float) -> None:
        """Take in how long a step took, whatever came of it; every step must be told."""
        self._pace.note(batch.num_decodes, batch.num_tokens - batch.num_decodes, duration_s)

    # --- planning ---

    def _version_turns(self) -> list[Any]:
        """Versions with work, the one after the last served first."""
        versions: list[Any] = []
        heads = [self.waiting.head] if self.waiting.head is not None else []
        for sequence in [*self.running, *heads]:
            if not any(sequence.version is known for known in versions):
                versions.append(sequence.version)
        for index, version in enumerate(versions):
            if version is self._last_version:
                return versions[index + 1 :] + versions[: index + 1]
        return versions

    def _plan(self, version: Any, preempted: list[Sequence]) -> Batch | None:
        decodes = self._plan_decodes(version, preempted)
        budget = self.limits.max_num_batched_tokens - len(decodes)
        allowed = self._pace.budget(len(decodes), self._num_prefills(len(decodes)))
        if allowed is not None:
            budget = min(budget, allowed)
        prefills = self._plan_prefills(version, budget, may_admit=not preempted)
        if not decodes and not prefills:
            return None
        return Batch((*decodes, *prefills), len(decodes), tuple(preempted))

    def _num_prefills(self, num_decodes: int) -> int:
        """Sequences without a first token that have or could have a place."""
        started = len(self.running) - num_decodes
        return started + min(len(self.waiting), self.limits.max_num_seqs - len(self.running))

    def _plan_decodes(self, version: Any, preempted: list[Sequence]) -> list[Span]:
        spans: list[Span] = []
        for sequence in self._by_rank():
            # one of a higher rank may have preempted this one a moment ago
            if sequence.version is not version or sequence not in self.running:
                continue
            if sequence.is_decoding:
                self._make_room(sequence, preempted)
                if sequence in self.running:
                    spans.append(Span(sequence, sequence.num_computed, 1))
        return spans

    def _by_rank(self) -> list[Sequence]:
        """Running sequences, those first that are preempted last."""
        return sorted(self.running, key=lambda sequence: -sequence.request.priority)

    def _make_room(self, sequence: Sequence, preempted: list[Sequence]) -> None:
        """Give the sequence a block for its next token, at the cost of those of lower rank."""
        missing = self.pool.blocks_for(sequence.num_tokens) - len(sequence.block_table)
        while missing > self.pool.num_free and sequence in self.running:
            preempted.append(self._by_rank()[-1])
            self._preempt(preempted[-1])
        if sequence in self.running and missing > 0:
            sequence.block_table += self.pool.allocate(missing)

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pool.release(sequence.restart())
        sequence.num_preemptions += 1
        self.waiting.put_back(sequence)

    def _plan_prefills(self, version: Any, budget: int, *, may_admit: bool) -> list[Span]:
        started = [each for each in self.running if _is_prefilling(each, version)]
        if may_admit:
            self._admit_for(version, started, budget)
        priorities = [sequence.request.priority for sequence in started]
        shares = share_out(self._lacking(started), priorities, budget)
        pairs = zip(started, shares, strict=True)
        return [Span(sequence, sequence.num_computed, share) for sequence, share in pairs if share]

    def _lacking(self, started: list[Sequence]) -> list[int]:
        """Tokens that each sequence could compute in one step."""
        lacking: list[int] = []
        logprob_rows = self.limits.max_prompt_logprob_rows
        for sequence in started:
            lacks = sequence.num_uncomputed
            if _needs_prompt_logprobs(sequence):
                lacks = min(lacks, logprob_rows)
                logprob_rows -= lacks
            lacking.append(lacks)
        return lacking

    def _admit_for(self, version: Any, started: list[Sequence], budget: int) -> None:
        """Start waiting sequences that this step has tokens for, and add them to ``started``."""
        while budget > 0 and self._can_start(version):
            sequence = self.waiting.head
            if sequence is None:
                return
            blocks = self.prefix.match(sequence)
            lacks = sequence.num_tokens - len(blocks) * self.pool.block_size
            has_tokens = sum(self._lacking(started)) < budget
            if not has_tokens and not _overtakes(sequence, lacks, started):
                return
            if not self._admit(sequence, blocks):
                return
            started.append(sequence)

    def _can_start(self, version: Any) -> bool:
        head = self.waiting.head
        has_place = len(self.running) < self.limits.max_num_seqs
        return head is not None and head.version is version and has_place

    def _admit(self, sequence: Sequence, known: list[int]) -> bool:
        """Start the head of the queue behind the blocks that are known, if the others are free."""
        # one token more than the history: the next token follows at once
        missing = self.pool.blocks_for(sequence.num_tokens + 1) - len(known)
        if missing + self.pool.count_idle(known) > self.pool.num_free:
            return False
        self.waiting.pop(sequence)
        self.prefix.claim(sequence, known)
        sequence.block_table += self.pool.allocate(missing)
        self.running.append(sequence)
        return True


def _is_prefilling(sequence: Sequence, version: Any) -> bool:
    return sequence.version is version and not sequence.is_decoding


def _overtakes(sequence: Sequence, lacks: int, started: list[Sequence]) -> bool:
    """Whether a new sequence would get tokens before all that were started."""
    rank = (-sequence.request.priority, lacks)
    return all(rank < (-each.request.priority, each.num_uncomputed) for each in started)


def _needs_prompt_logprobs(sequence: Sequence) -> bool:
    return (
        sequence.request.sampling.prompt_logprobs
        and sequence.num_computed < sequence.num_prompt_tokens
    )


def _lateness(sequence: Sequence, now_s: float) -> FailureKind | None:
    request = sequence.request
    if request.deadline_s is not None and now_s > request.deadline_s:
        return "deadline"
    waits = sequence.first_scheduled_s is None
    if waits and request.queue_deadline_s is not None and now_s > request.queue_deadline_s:
        return "queue_timeout"
    return None
