"""Which way to a device is faster for a table's rows: all of them, or those that a cache misses?

Times both with rows of the table itself, a few times. Knows no configuration and decides nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from engram_core.device import Device
from engram_core.device_lane import DeviceLane
from engram_core.staging import RowLanding
from engram_core.store.base import RowIds, Tier
from engram_core.store.device_cache import DeviceCache
from engram_core.store.row_sample import RowSample

HOT_SHARE = 2 / 3  # of a lookup's rows: what a tenth of the rows holds (docs/memory.md, hit rates)
_TIMES = 3  # per way, after one that is not counted


@dataclass(frozen=True, slots=True)
class DeviceTrial:
    """Median times of one lookup, until its rows are on the device.

    Attributes:
        num_rows: rows of the lookup.
        plain_s: all rows cross. cached_s: those that are not hot do.
    """

    num_rows: int
    plain_s: float
    cached_s: float

    def __str__(self) -> str:
        """Both figures, for people."""
        plain, cached = 1e3 * self.plain_s, 1e3 * self.cached_s
        return f"{self.num_rows} rows take {cached:.2f} ms with it and {plain:.2f} ms without"


def try_cache(tier: Tier, device: Device, num_rows: int) -> DeviceTrial:
    """Time lookups of `num_rows` rows, two thirds of them hot, plainly and through a cache.

    Cold rows are other ones each time, so that a disk has to read them.

    Raises:
        TierError: the rows could not be delivered.
    """
    hot = int(num_rows * HOT_SHARE)
    cold = num_rows - hot
    num_sampled = hot + 2 * (_TIMES + 1) * cold
    sample = RowSample(tier, np.random.default_rng(0).integers(0, tier.num_rows, num_sampled))
    cache = DeviceCache(sample, DeviceLane(device), capacity_rows=sample.num_rows)
    landing = RowLanding(device, torch.bfloat16)
    landing.take(landing.gather(cache, np.arange(hot)))  # now they are hot
    batches = iter(_batches(hot, cold))
    plain_s = [_time(landing, sample, next(batches), device) for _ in range(_TIMES + 1)]
    cached_s = [_time(landing, cache, next(batches), device) for _ in range(_TIMES + 1)]
    cache.close()
    return DeviceTrial(num_rows, median(plain_s[1:]), median(cached_s[1:]))


def _batches(hot: int, cold: int) -> list[RowIds]:
    """Rows of a sample: the hot ones, and cold ones that no other batch has."""
    starts = range(hot, hot + 2 * (_TIMES + 1) * cold, cold) if cold else [hot] * 2 * (_TIMES + 1)
    return [np.concatenate([np.arange(hot), np.arange(at, at + cold)]) for at in starts]


def _time(landing: RowLanding, tier: Tier, row_ids: RowIds, device: Device) -> float:
    started_s = time.perf_counter()
    landing.take(landing.gather(tier, row_ids))
    device.synchronize()
    return time.perf_counter() - started_s
