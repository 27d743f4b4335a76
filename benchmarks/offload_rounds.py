"""The rounds of the offload measurement: a warm-up, new prompts, then the same ones again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.comparison import Comparison, compare
from benchmarks.contenders.memory_engine import MemoryContender, MemoryRun
from benchmarks.kept_prompts import KeptPrompts
from benchmarks.phase_tally import PhaseTally
from benchmarks.prompt_source import Prompts
from benchmarks.workload import Workload

NEW, REPEATED = "new", "repeated"


@dataclass(frozen=True, slots=True)
class Measured:
    """One shape of work, measured.

    Attributes:
        prompts: whether they were new, or had been answered before.
        comparison: rates and answers.
        runs: what lookups did, by contender and round.
    """

    prompts: str
    comparison: Comparison
    runs: Mapping[str, Sequence[MemoryRun]]

    def tally(self, contender: str, phase: str) -> PhaseTally:
        """What a contender's lookups did in all rounds together."""
        runs = self.runs[contender]
        return PhaseTally.sum_of(r.lookups[phase] for r in runs if phase in r.lookups)

    def transferred_bytes(self, contender: str) -> int:
        """What a contender's tiers read across the border of a disk, by their own count."""
        return self.tally(contender, "prefill").transferred_bytes + (
            self.tally(contender, "decode").transferred_bytes
        )

    def disk_bytes(self, contender: str) -> int:
        """What the system fetched from disks for a contender: whole pages that it had not."""
        return sum(run.disk_bytes for run in self.runs[contender])

    def to_dict(self) -> dict[str, Any]:
        """Everything, JSON-ready."""
        runs = {name: [asdict(run) for run in each] for name, each in self.runs.items()}
        return {"prompts": self.prompts, **self.comparison.to_dict(), "runs": runs}


def warm_up(
    contender: MemoryContender, workload: Workload, prompts: Prompts, num_rounds: int
) -> list[MemoryRun]:
    """Answer new prompts, uncounted; returns what the lookups of each round did."""
    for _ in range(num_rounds):
        contender.run(prompts.take(workload.num_seqs, workload.prompt_tokens), workload.new_tokens)
    return _taken(contender, num_rounds)


def measure_shape(
    contenders: Sequence[MemoryContender],
    workload: Workload,
    prompts: Prompts,
    num_rounds: int,
    *,
    repeats: bool,
) -> list[Measured]:
    """Compare on new prompts and, where `repeats`, on the same ones again."""
    kept = KeptPrompts(prompts)
    found = [_measured(contenders, workload, kept, num_rounds, NEW)]
    if repeats:
        found.append(_measured(contenders, workload, kept.replay(), num_rounds, REPEATED))
    return found


def _measured(
    contenders: Sequence[MemoryContender],
    workload: Workload,
    prompts: Prompts,
    num_rounds: int,
    kind: str,
) -> Measured:
    comparison = compare(contenders, workload, prompts, num_rounds)
    runs = {each.name: _taken(each, num_rounds) for each in contenders}
    return Measured(kind, comparison, runs)


def _taken(contender: MemoryContender, num_rounds: int) -> list[MemoryRun]:
    """The last, counted rounds; what came before is forgotten as well."""
    runs = contender.runs[len(contender.runs) - num_rounds :]
    contender.runs = []
    return runs
