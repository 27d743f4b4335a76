"""A plan as text for people: sizes, tiers, borders and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engram_core.planner import MemoryShape, Plan
from engram_core.planner.host_checks import HostCheck
from engram_core.planner.planning import BEST_SHARE, CAPACITY, TierPlan
from engram_core.planner.resources import Resource
from engram_core.store.hot_size import cache_bytes
from server.sizes import format_size

TIER_NAMES = {
    "device": "device cache",
    "dram": "DRAM",
    "extra": "extra node",
    "ssd": "SSD",
    "remote": "other hosts",
    "nowhere": "NO PLACE",
}


def render(shape: MemoryShape, plan: Plan, checks: Sequence[HostCheck]) -> str:
    """The whole report, without a newline at its end."""
    tiers = [_tier_row(tier) for tier in plan.tiers if tier.rows]
    borders = [_border_row(each) for each in plan.resources if each.needed or each.available]
    parts = [
        _columns([*_facts(shape, plan)], right_from=9),
        _columns([["tier", "rows", "bytes", "share of reads", "rows/s"], *tiers]),
        _columns([["busiest host", "needed/s", "given/s", "used"], *borders]),
        "\n".join(_verdict(plan)),
    ]
    if checks:
        parts.append(_columns([_check_row(check) for check in checks], right_from=9))
    return "\n\n".join(parts)


def _facts(shape: MemoryShape, plan: Plan) -> Iterator[list[str]]:
    record = shape.record
    yield ["rows", f"{', '.join(f'{rows:,}' for rows in plan.rows)} per layer"]
    width = f"{record.row_dim} x {record.dtype} and {record.scale_bytes} bytes of scales"
    yield ["row", f"{record.bytes} bytes ({width}), {plan.records_per_page} in a 4 KiB page"]
    yield ["reads", f"{plan.rows_per_token} rows a token ({_pattern(plan)})"]
    layers = ", ".join(format_size(each) for each in plan.layer_bytes)
    yield ["bytes", f"{layers} per layer, {format_size(plan.total_bytes)} in all"]
    heads = f"{plan.shard_heads} of {shape.num_heads} heads"
    host = f"{format_size(plan.host_stored_bytes)} on a host ({heads})"
    yield ["in pages", f"{format_size(plan.total_stored_bytes)} in all, {host}"]
    if plan.is_cached:
        a_row = cache_bytes(1, record.row_dim, 1) - cache_bytes(1, record.row_dim, 0)
        size = format_size(plan.cache_map_bytes)
        yield ["cache", f"before the SSD: {size} for its map of all rows, {a_row} bytes a row kept"]
    yield ["parameters", f"{plan.parameters:,}{_share_note(plan)}"]


def _pattern(plan: Plan) -> str:
    if plan.access["pattern"] == "zipf":
        return f"Zipf, exponent {plan.access['exponent']:g}"
    unseen = plan.access["unseen_share"]
    return f"counted in {plan.access['tokens']:,} tokens, {unseen:.1%} of the reads new to it"


def _share_note(plan: Plan) -> str:
    low, high = BEST_SHARE
    best = f"the Engram paper found {low:.0%} to {high:.0%} best"
    if plan.memory_share is None:
        return f" (--backbone-parameters tells their share; {best})"
    return f", {plan.memory_share:.1%} of all sparse parameters ({best})"


def _tier_row(tier: TierPlan) -> list[str]:
    size = format_size(tier.bytes)
    return [TIER_NAMES[tier.name], f"{tier.rows:,}", size, f"{tier.share:.2%}", _rate(tier)]


def _rate(tier: TierPlan) -> str:
    return f"{tier.rows_per_s:,.0f}"


def _border_row(each: Resource) -> list[str]:
    given = "not given" if each.available is None else _amount(each.available, each.unit)
    used = "" if each.used is None else f"{each.used:.1%}"
    return [each.name, _amount(each.needed, each.unit), given, used]


def _amount(value: float, unit: str) -> str:
    return format_size(round(value)) if unit == "bytes" else f"{value:,.0f} {unit}"


def _verdict(plan: Plan) -> Iterator[str]:
    met = "met" if plan.target_met else "NOT met"
    yield f"target      {plan.target_tokens_per_s:,.0f} tokens/s: {met}"
    if plan.bottleneck == CAPACITY:
        lost = next(tier for tier in plan.tiers if tier.name == "nowhere")
        yield (
            f"bottleneck  capacity: {format_size(lost.bytes)} of rows have no place on a host; "
            "add DRAM, an extra node, an SSD or hosts"
        )
    elif plan.attainable_tokens_per_s is None:
        yield "bottleneck  none: no given limit is used"
    else:
        attainable = f"{plan.attainable_tokens_per_s:,.0f} tokens/s attainable"
        yield f"bottleneck  {plan.bottleneck}: {attainable}"


def _check_row(check: HostCheck) -> list[str]:
    return ["ok" if check.ok else "CHANGE", check.name, check.sentence]


def _columns(rows: Sequence[Sequence[str]], right_from: int = 1) -> str:
    """Lines with aligned columns; those from `right_from` on hold numbers."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if place >= right_from else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
