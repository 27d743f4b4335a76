"""Ratios and shares with bootstrap intervals. Knows nothing of what ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """How many times the second side the first one is, and how sure that is.

    Attributes:
        ratio: of the two sides' medians, or the median of the pairs' ratios.
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


def pair_ratio_interval(
    first: Sequence[float],
    second: Sequence[float],
    *,
    confidence: float = 0.95,
    num_resamples: int = 10_000,
    seed: int = 0,
) -> RatioInterval:
    """The median of the pairs' own ratios, first to second: what slowed a whole pair down is gone.

    For differences of a few per cent: `ratio_interval` compares medians that may stem from
    different moments. Repeatable, and raises ValueError, as that does.
    """
    pairs = _pairs(first, second)
    ratios = pairs[0] / pairs[1]
    draws = np.random.default_rng(seed).integers(0, len(ratios), (num_resamples, len(ratios)))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.median(ratios[draws], axis=1), [tail, 1 - tail])
    return RatioInterval(float(np.median(ratios)), float(low), float(high), confidence)


@dataclass(frozen=True, slots=True)
class ShareInterval:
    """How large a share of all flags is true, and how sure that is.

    Attributes:
        share: true flags / all flags.
        low: lower end of the interval.
        high: upper end of the interval.
        confidence: share of resamples inside the interval.
    """

    share: float
    low: float
    high: float
    confidence: float


def share_interval(
    blocks: Sequence[Sequence[bool]],
    *,
    confidence: float = 0.95,
    num_resamples: int = 10_000,
    seed: int = 0,
) -> ShareInterval:
    """The share of true flags; whole blocks are drawn, since neighbours depend on each other.

    The percentile interval is repeatable: the draws depend on `seed` alone.
    Raises ValueError when there is no flag, or a block without any.
    """
    counts = np.array([(sum(block), len(block)) for block in blocks], dtype=np.float64)
    if len(counts) == 0 or not counts[:, 1].all():
        raise ValueError("blocks of at least one flag are needed")
    draws = np.random.default_rng(seed).integers(0, len(counts), (num_resamples, len(counts)))
    true, total = counts[draws].sum(axis=1).T  # [resamples] each
    tail = (1 - confidence) / 2
    low, high = np.quantile(true / total, [tail, 1 - tail])
    share = counts[:, 0].sum() / counts[:, 1].sum()
    return ShareInterval(float(share), float(low), float(high), confidence)


def _pairs(first: Sequence[float], second: Sequence[float]) -> np.ndarray:
    if len(first) != len(second) or len(first) == 0:
        raise ValueError(f"pairs are needed, got {len(first)} and {len(second)} samples")
    pairs = np.array([first, second], dtype=np.float64)
    if not (np.isfinite(pairs).all() and (pairs > 0).all()):
        raise ValueError("every sample must be a positive number")
    return pairs
