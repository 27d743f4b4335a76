"""The article's regime on the simulated device: lookup takes 44 % of the time, as on its NPU.

Calibrated on the article's arm 0 alone: its lookup gives the price of a row, the rest of its time
is compute. Arms 1 and 2 are then this project's cache and prefetcher on real tokens; what they take
is a prediction. Compute and rows cost sleep, so that they overlap as on a device of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from benchmarks.report import table
from benchmarks.three_arm.ahead import Ahead
from benchmarks.three_arm.arm import Arm, Layer
from benchmarks.three_arm.in_layer import InLayer
from benchmarks.three_arm.lookups import Lookups, tier_gather
from benchmarks.three_arm.measure import Series
from engram_core.device import Device
from engram_core.prefetch import Prefetcher
from engram_core.store.base import RowIds, Tier, TierReport
from engram_core.store.hot_cache import HotCache
from engram_core.version import MemoryVersion

TOTAL_MS, LOOKUP_MS = 26.72, 11.63  # the article's arm 0, at 4096 tokens
ARTICLE = {"0": (26.72, 11.63), "1": (20.94, 4.89), "2": (19.22, None)}
TOKENS = 4096
STRETCH = 40  # all times are longer by this, so that this host's own work hardly shows
HEADER = ["arm", "end to end ms", "article", "lookup ms", "article", "exposed ms", "hit rate"]


class PricedTier:
    """A tier whose rows cost a fixed time each.

    Args:
        inner: where they come from. row_s: seconds for a row.
    """

    is_blocking = True

    def __init__(self, inner: Tier, row_s: float) -> None:
        self.name, self.num_rows, self.row_dim = inner.name, inner.num_rows, inner.row_dim
        self.nbytes = inner.nbytes
        self._inner, self._row_s = inner, row_s

    def gather(self, row_ids: RowIds, out: torch.Tensor) -> TierReport:
        """Write the rows (see `Tier.gather`), and let their time pass."""
        started_s = time.perf_counter()
        report = self._inner.gather(row_ids, out)
        _sleep_until(started_s + row_ids.size * self._row_s)
        duration_s = time.perf_counter() - started_s
        return TierReport(report.rows_by_tier, {self.name: duration_s}, report.transferred_bytes)


@dataclass(frozen=True, slots=True)
class Regime:
    """Prices in stretched seconds.

    Attributes:
        row_s: of a row. layer_s: of the compute of an Engram layer.
    """

    row_s: float
    layer_s: float

    @classmethod
    def of(cls, version: MemoryVersion) -> Regime:
        """The article's arm 0 with this memory's layers and columns."""
        layers = len(version.layer_ids)
        rows = TOKENS * version.config.num_columns * layers
        return cls(
            row_s=STRETCH * LOOKUP_MS / 1e3 / rows,
            layer_s=STRETCH * (TOTAL_MS - LOOKUP_MS) / 1e3 / layers,
        )


def article_arms(
    version: MemoryVersion, device: Device
) -> tuple[list[Arm], list[tuple[HotCache, int]]]:
    """Arms 0 to 2 in the article's regime, and the hot caches with their layers."""
    regime = Regime.of(version)
    priced: dict[int, Tier] = {
        layer: PricedTier(tier, regime.row_s) for layer, tier in version.tiers.items()
    }
    caches = [{layer: HotCache(tier) for layer, tier in priced.items()} for _ in range(2)]
    cached = MemoryVersion(
        version.hasher, version.compressor_fingerprint, caches[1], version.modules, content="priced"
    )
    lookups: list[Lookups] = [
        _in_layer(version, priced, device, lambda: 0),
        _in_layer(version, caches[0], device, lambda: sum(c.hits for c in caches[0].values())),
        Ahead(cached, Prefetcher(device, dtype=torch.bfloat16)),
    ]
    layers = dict.fromkeys(version.layer_ids, _priced_layer(regime.layer_s))
    arms = [
        Arm(name, torch.bfloat16, each, layers, lambda ids: ids, device)
        for name, each in zip(ARTICLE, lookups, strict=True)
    ]
    return arms, [(cache, layer) for each in caches for layer, cache in each.items()]


def render(found: Mapping[str, Series]) -> str:
    """Predictions beside the article's figures, in its milliseconds."""
    lines = []
    for name, series in found.items():
        total, lookup = ARTICLE[name]
        article_lookup = "" if lookup is None else f"{lookup:.2f}"
        own = (_ms(series.total_s), _ms(series.lookup_s), _ms(series.exposed_s))
        hit_rate = f"{series.hit_rate:.1%}" if series.hits else ""
        lines.append([name, own[0], f"{total:.2f}", own[1], article_lookup, own[2], hit_rate])
    return table(HEADER, lines)


def _ms(stretched_s: Sequence[float]) -> str:
    return f"{1e3 * median(stretched_s) / STRETCH:.2f}"


def _in_layer(
    version: MemoryVersion,
    tiers: Mapping[int, Tier],
    device: Device,
    count_hits: Callable[[], int],
) -> InLayer:
    gather = tier_gather(tiers, torch.bfloat16)
    return InLayer(version.hasher.row_ids, gather, device, count_hits)


def _priced_layer(layer_s: float) -> Layer:
    def layer(hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        _sleep_until(time.perf_counter() + layer_s)
        return hidden

    return layer


def _sleep_until(moment_s: float) -> None:
    left_s = moment_s - time.perf_counter()
    if left_s > 0:
        time.sleep(left_s)
