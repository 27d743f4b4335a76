"""ZipfAccess against sums term by term, and its properties for tables of any size."""

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram_core.errors import ConfigError
from engram_core.planner import MemoryShape, RecordFormat, ZipfAccess

RECORD = RecordFormat("int8", 16)
exponents = st.floats(0, 4) | st.sampled_from([0.0, 1.0, 1.0 - 1e-12, 1.0 + 1e-9, 2.0])


def zipf(exponent, rows=(2 * 10**6,), num_heads=1):
    return ZipfAccess(MemoryShape(rows, (2,), num_heads, RECORD), exponent)


@given(exponents, st.integers(1, 200_000))
def test_sums_equal_those_of_all_terms(exponent, ranks):
    terms = np.arange(1, ranks + 1, dtype=np.float64) ** -exponent
    assert zipf(exponent).harmonic(ranks) == pytest.approx(terms[::-1].sum(), rel=1e-11)


def test_large_sums_equal_known_numbers():
    # ln n + Euler's constant + 1/2n; zeta(2) - 1/n; 2 sqrt(n) + zeta(1/2) + 1/(2 sqrt(n)); n
    n = 10**11
    assert zipf(1.0).harmonic(n) == pytest.approx(
        np.log(n) + 0.5772156649015329 + 0.5 / n, rel=1e-14
    )
    assert zipf(2.0).harmonic(n) == pytest.approx(np.pi**2 / 6 - 1 / n, rel=1e-13)
    assert zipf(0.5).harmonic(n) == pytest.approx(
        2 * n**0.5 - 1.4603545088095868 + 0.5 / n**0.5, rel=1e-14
    )
    assert zipf(0.0).harmonic(n) == pytest.approx(n, rel=1e-14)


@given(exponents, st.integers(1, 10**12), st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_share_grows_from_nothing_to_all(exponent, rows, parts):
    access = zipf(exponent, (rows,))
    shares = [access.share(part * rows) for part in sorted(parts)]
    assert access.share(0) == 0
    assert access.share(rows) == 1
    assert all(0 <= share <= 1 for share in shares)
    assert all(b >= a - 1e-12 for a, b in pairwise(shares))


@given(exponents, st.floats(0.01, 1))
def test_a_part_of_the_rows_takes_at_least_that_part_of_the_reads(exponent, part):
    assert zipf(exponent).share(part * 2 * 10**6) >= part - 1e-9


def test_columns_share_the_hottest_rows_evenly():
    one, many = zipf(0.8, (1000,)), zipf(0.8, (4000, 4000), num_heads=4)
    for rows in (1, 10, 500):
        assert many.share(8 * rows) == pytest.approx(one.share(rows))


def test_hundred_billion_rows_cost_nothing():
    started = time.perf_counter()
    shares = [zipf(0.9, (10**11,)).share(rows) for rows in (1e6, 1e9, 5e10)]
    assert shares == sorted(shares)
    assert time.perf_counter() - started < 1  # an array of ranks alone would take minutes


@pytest.mark.parametrize("exponent", [-0.1, 4.5, float("nan"), float("inf"), "1", None, True])
def test_refusals(exponent):
    with pytest.raises(ConfigError, match=r"zipf is .*; accepted: a number from 0 to 4"):
        zipf(exponent)
