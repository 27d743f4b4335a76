"""What the offload measurement prints: rates and losses, and the counters that prove the reads."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.bootstrap import pair_ratio_interval
from benchmarks.comparison import Entry
from benchmarks.contenders.memory_engine import MemoryRun
from benchmarks.offload_rounds import Measured
from benchmarks.phase_tally import Amounts, PhaseTally
from benchmarks.report import table

HOT = "hot"
PHASES = ("prefill", "decode")
RATES = ["shape", "prompts", "contender", "tok/s", "first's loss", "95 % interval", "same"]
COUNTERS = [
    "shape", "prompts", "contender", "phase", "rows by tier", "hot cache hits", "lookups",
    "exposed wait, ms/step", "tiers' time, us/row",
]  # fmt: skip
MB = 1e6


def rates(results: Sequence[Measured]) -> str:
    """Rates; the loss is the first contender's, compared round by round with the other one."""
    lines = []
    for result in results:
        first, shape = result.comparison.entries[0], result.comparison.workload.name
        for entry in result.comparison.entries:
            rate = f"{entry.median:.1f}"
            lines.append([shape, result.prompts, entry.name, rate, *_loss(first, entry)])
    return table(RATES, lines)


def counters(results: Sequence[Measured]) -> str:
    """What the lookups did, all counted rounds together."""
    lines = [
        [result.comparison.workload.name, result.prompts, name, phase, *_counted(tally)]
        for result in results
        for name in result.runs
        for phase in PHASES
        if (tally := result.tally(name, phase)).rows
    ]
    return table(COUNTERS, lines)


def disk_reads(results: Sequence[Measured]) -> str:
    """A line per shape: what came from a disk, and how much the answers repeated themselves."""
    lines = []
    for result in results:
        reads = ", ".join(_bytes_read(result, name) for name in result.runs)
        shape = f"{result.comparison.workload.name}, {result.prompts} prompts"
        repeated = [run.repeated for runs in result.runs.values() for run in runs]
        lines.append(
            f"{shape}: {reads}; of the answers' token pairs "
            f"{sum(repeated) / len(repeated):.0%} had been in the same answer before"
        )
    return "\n".join(lines)


def warm_up_lines(runs: Sequence[MemoryRun]) -> str:
    """The hot cache's hit rate, round by round."""
    lines = []
    for phase in PHASES:
        shares = [run.lookups[phase].share(HOT) for run in runs if phase in run.lookups]
        listed = " ".join(f"{share:.0%}" for share in shares)
        lines.append(f"hot cache hits while it warmed up, {phase}: {listed}")
    return "\n".join(lines)


def _bytes_read(result: Measured, name: str) -> str:
    records, pages = result.transferred_bytes(name), result.disk_bytes(name)
    return f"{name} {records / MB:.1f} MB of records, {pages / MB:.1f} MB from a disk"


def _loss(first: Entry, entry: Entry) -> list[str]:
    if entry is first:
        return ["", "", ""]
    found = pair_ratio_interval(first.rates, entry.rates)
    same = "" if entry.same_answers is None else f"{entry.same_answers:.0%}"
    interval = f"{1 - found.high:+.1%} to {1 - found.low:+.1%}"
    return [f"{1 - found.ratio:+.1%}", interval, same]


def _counted(tally: PhaseTally) -> list[str]:
    per_row = {
        tier: 1e6 * seconds / tally.rows_by_tier[tier]
        for tier, seconds in tally.seconds_by_tier.items()
        if tally.rows_by_tier.get(tier)
    }
    return [
        _listed(tally.rows_by_tier, ".0f"),
        f"{tally.share(HOT):.1%}" if HOT in tally.rows_by_tier else "",
        _listed(tally.outcomes, ".0f"),
        f"{1e3 * tally.wait_s / tally.steps:.3f}" if tally.steps else "",
        _listed(per_row, ".2f"),
    ]


def _listed(amounts: Amounts, form: str) -> str:
    return ", ".join(f"{name} {amount:{form}}" for name, amount in sorted(amounts.items()))
