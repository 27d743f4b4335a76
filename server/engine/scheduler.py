"""Scheduler: decides what the next step computes.

Continuous batching: running sequences decode first, one token each; the rest of the token budget
goes to prefills, whole or in chunks. Admission is first come first served and reserves the KV
blocks of the whole history, so that a started prefill never stalls. When a decoding sequence
finds no block, the newest running one is preempted and recomputed later; the oldest therefore
always makes progress. A batch holds sequences of one memory version; versions take turns.

Knows no model, no tensors and no clock: deadlines are compared with the time it is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from server.engine.batch import Batch, Span
from server.engine.block_pool import BlockPool
from server.engine.limits import EngineLimits
from server.engine.sequence import Sequence
from server.engine.types import FailureKind
from server.engine.waiting import WaitingQueue


class Scheduler:
    """Waiting and running sequences, and the KV blocks they hold."""

    def __init__(self, limits: EngineLimits, pool: BlockPool) -> None:
        self.limits = limits
        self.pool = pool
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []  # oldest first
        self._last_version: Any = None

    @property
    def is_idle(self) -> bool:
        """Whether no sequence is left."""
        return not self.running and not self.waiting

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> list[int]:
        """Forget a sequence, wherever it is, and free its KV blocks; returns them."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        blocks = sequence.restart()
        self.pool.release(blocks)
        return blocks

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
        for version in self._version_turns():
            batch = self._plan(version)
            if batch is not None:
                self._last_version = version
                return batch
        return None

    def commit(self, batch: Batch) -> None:
        """Record that the batch's tokens are in the cache."""
        for span in batch.spans:
            span.sequence.num_computed = span.stop

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

    def _plan(self, version: Any) -> Batch | None:
        preempted: list[Sequence] = []
        decodes = self._plan_decodes(version, preempted)
        budget = self.limits.max_num_batched_tokens - len(decodes)
        prefills = self._plan_prefills(version, budget, may_admit=not preempted)
        if not decodes and not prefills:
            return None
        return Batch((*decodes, *prefills), len(decodes), tuple(preempted))

    def _plan_decodes(self, version: Any, preempted: list[Sequence]) -> list[Span]:
        spans: list[Span] = []
        for sequence in list(self.running):
            # an older sequence may have preempted this one a moment ago
            if sequence.version is not version or sequence not in self.running:
                continue
            if sequence.is_decoding:
                self._make_room(sequence, preempted)
                if sequence in self.running:
                    spans.append(Span(sequence, sequence.num_computed, 1))
        return spans

    def _make_room(self, sequence: Sequence, preempted: list[Sequence]) -> None:
        """Give the sequence a block for its next token, at the cost of newer ones."""
        missing = self.pool.blocks_for(sequence.num_tokens) - len(sequence.block_table)
        while missing > self.pool.num_free and sequence in self.running:
            preempted.append(self.running[-1])
            self._preempt(self.running[-1])
        if sequence in self.running and missing > 0:
            sequence.block_table += self.pool.allocate(missing)

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pool.release(sequence.restart())
        sequence.num_preemptions += 1
        self.waiting.put_back(sequence)

    def _plan_prefills(self, version: Any, budget: int, *, may_admit: bool) -> list[Span]:
        spans: list[Span] = []
        logprob_rows = self.limits.max_prompt_logprob_rows
        for sequence in self._prefilling(version, may_admit=may_admit):
            chunk = min(sequence.num_uncomputed, budget)
            if _needs_prompt_logprobs(sequence):
                chunk = min(chunk, logprob_rows)
                logprob_rows -= chunk
            if chunk > 0:
                spans.append(Span(sequence, sequence.num_computed, chunk))
            budget -= chunk
            if budget == 0:
                break
        return spans

    def _prefilling(self, version: Any, *, may_admit: bool) -> Iterator[Sequence]:
        """Started prefills, oldest first, then new ones, admitted one by one as they are taken."""
        for sequence in list(self.running):
            if sequence.version is version and not sequence.is_decoding:
                yield sequence
        while may_admit and self._can_admit(version):
            yield self._admit()

    def _can_admit(self, version: Any) -> bool:
        head = self.waiting.head
        return (
            head is not None
            and head.version is version
            and len(self.running) < self.limits.max_num_seqs
            and self._admission_blocks(head) <= self.pool.num_free
        )

    def _admission_blocks(self, sequence: Sequence) -> int:
        # one token more than the history: the next token follows at once
        return self.pool.blocks_for(sequence.num_tokens + 1)

    def _admit(self) -> Sequence:
        sequence = self.waiting.pop()
        sequence.block_table = self.pool.allocate(self._admission_blocks(sequence))
        self.running.append(sequence)
        return sequence


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
