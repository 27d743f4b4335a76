"""Which facts the next step trains, and how fast: sleeping facts, contexts in turn, linear decay.

Knows only numbers: how many facts there are and which of them the model is sure of.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

SORT_WINDOW = 8  # batches whose facts are sorted by length together, to pad less


class Schedule:
    """Draws batches of facts, epoch by epoch.

    A fact that is confident in all its tokens sleeps `sleep_epochs` epochs. Epoch e trains
    context e modulo `num_contexts` of every fact awake.

    Args:
        lengths: a length per fact; batches hold facts of similar length.
        epochs: how many times each fact is visited or slept over.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        epochs: int,
        num_contexts: int,
        batch_size: int,
        sleep_epochs: int,
        seed: int,
    ) -> None:
        self._lengths = lengths
        self.epochs, self.num_contexts = epochs, num_contexts
        self._batch_size, self._sleep_epochs = batch_size, sleep_epochs
        self._random = random.Random(seed)  # noqa: S311 (a shuffle, not a secret)
        self._wakes_at = [0] * len(lengths)

    def context(self, epoch: int) -> int:
        """The context that `epoch` trains."""
        return epoch % self.num_contexts

    def batches(self, epoch: int) -> list[list[int]]:
        """The epoch's batches: facts awake, shuffled, of similar length within a batch."""
        awake = [fact for fact, at in enumerate(self._wakes_at) if at <= epoch]
        self._random.shuffle(awake)
        size = self._batch_size
        found: list[list[int]] = []
        for start in range(0, len(awake), SORT_WINDOW * size):
            window = sorted(
                awake[start : start + SORT_WINDOW * size], key=self._lengths.__getitem__
            )
            found += [window[i : i + size] for i in range(0, len(window), size)]
        self._random.shuffle(found)
        return found

    def report(self, epoch: int, facts: Sequence[int], confident: Sequence[bool]) -> None:
        """Send the facts that were confident to sleep."""
        for fact, sure in zip(facts, confident, strict=True):
            if sure:
                self._wakes_at[fact] = epoch + 1 + self._sleep_epochs

    def learning_rate_factor(self, epoch: int, fraction: float) -> float:
        """Linear decay from 1 to 0.1 over all epochs; `fraction` of this one is done."""
        return 1 - 0.9 * (epoch + fraction) / self.epochs
