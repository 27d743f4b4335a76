"""Ratio of two medians over paired runs, with a bootstrap interval. Knows nothing of what ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """How many times the first side's median is the second's, and how sure that is.

    Attributes:
        ratio: median of the first samples / median of the second ones.
        low: lower end of the interval.
        high: upper end of the interval.
        confidence: share of resamples inside the interval.
    """

    ratio: float
    low: float
    high: float
    confidence: float


def ratio_interval(
    first: Sequence[float],
    second: Sequence[float],
    *,
    confidence: float = 0.95,
    num_resamples: int = 10_000,
    seed: int = 0,
) -> RatioInterval:
    """Compare two sides that were measured in pairs.

    Pairs are drawn together, so what slowed both sides of a pair down stays paired. The percentile
    interval is repeatable: the draws depend on `seed` alone.
    Raises ValueError when the samples are not pairs of positive numbers.
    """
    pairs = _pairs(first, second)  # [2, pairs]
    draws = np.random.default_rng(seed).integers(
        0, pairs.shape[1], size=(num_resamples, pairs.shape[1])
    )
    medians = np.median(pairs[:, draws], axis=2)  # [2, resamples]
    tail = (1 - confidence) / 2
    low, high = np.quantile(medians[0] / medians[1], [tail, 1 - tail])
    ratio = np.median(pairs[0]) / np.median(pairs[1])
    return RatioInterval(float(ratio), float(low), float(high), confidence)


def _pairs(first: Sequence[float], second: Sequence[float]) -> np.ndarray:
    if len(first) != len(second) or len(first) == 0:
        raise ValueError(f"pairs are needed, got {len(first)} and {len(second)} samples")
    pairs = np.array([first, second], dtype=np.float64)
    if not (np.isfinite(pairs).all() and (pairs > 0).all()):
        raise ValueError("every sample must be a positive number")
    return pairs
