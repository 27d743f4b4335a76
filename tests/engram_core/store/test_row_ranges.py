"""RowRanges: the place of a row among packed ranges, and which ranges a head owns."""

import numpy as np
import pytest
from artefacts import tiny_content
from hypothesis import given
from hypothesis import strategies as st

from engram_core.errors import ConfigError, IdRangeError
from engram_core.store.row_ranges import RowRanges, head_bounds


@st.composite
def bounds(draw):
    edges = sorted(draw(st.sets(st.integers(0, 60), min_size=2, max_size=10)))
    return list(zip(edges[::2], edges[1::2], strict=False))


@given(bounds())
def test_places_count_through_the_ranges(bounds):
    rows = np.concatenate([np.arange(first, stop) for first, stop in bounds])
    ranges = RowRanges(bounds)
    assert ranges.num_rows == len(rows)
    assert np.array_equal(ranges.places(rows), np.arange(len(rows)))
    everything = np.arange(70)
    assert np.array_equal(ranges.holds(everything), np.isin(everything, rows))
    for outside in np.setdiff1d(everything, rows):
        with pytest.raises(IdRangeError, match=f"row id {outside} "):
            ranges.places(np.array([rows[0], outside]))


@pytest.mark.parametrize("bad", [[], [(3, 3)], [(5, 9), (8, 12)], [(5, 9), (1, 2)], [(-1, 4)]])
def test_other_bounds_are_refused(bad):
    with pytest.raises(ConfigError, match="accepted: ascending, none empty"):
        RowRanges(bad)


def test_no_id_reads_nothing():
    assert RowRanges([(2, 5)]).places(np.empty(0, dtype=np.int64)).size == 0


def test_neighbours_are_joined():
    assert RowRanges([(0, 4), (4, 9), (11, 12)]).bounds == ((0, 9), (11, 12))


def test_a_head_owns_a_range_of_every_order():
    layout = tiny_content().layout
    starts, sizes = layout.offsets[1], layout.column_primes(1)
    expected = tuple((starts[c], starts[c] + sizes[c]) for c in (1, 3))
    assert head_bounds(layout, 1, [1]) == expected
    assert head_bounds(layout, 1, None) == ((0, layout.rows[1]),)
    assert head_bounds(layout, 1, [1, 0]) == ((0, layout.rows[1]),)


@pytest.mark.parametrize("heads", [[], [2], [-1, 0]])
def test_other_heads_are_refused(heads):
    with pytest.raises(ConfigError, match="accepted: numbers from 0 to 1"):
        head_bounds(tiny_content().layout, 1, heads)
