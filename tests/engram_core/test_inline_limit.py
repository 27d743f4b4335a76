"""Up to how many rows a layer looks up itself: each branch, with given numbers."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram_core.cpu_cores import CpuCores
from engram_core.inline_limit import INLINE_RANGE, choose_inline_limit

TWO = CpuCores(2, "affinity")
SECONDS = st.floats(1e-12, 10)


@pytest.mark.parametrize(
    ("told", "cores", "handoff_s", "row_s", "blocking", "limit", "why"),
    [
        (0, TWO, 2e-5, 1e-8, None, 0, "at most 0 rows .*: as told$"),
        (70000, TWO, 2e-5, 1e-8, None, 70000, "at most 70000 rows .*: as told$"),
        ("auto", TWO, None, 1e-8, None, 4096, "nothing was measured$"),
        ("auto", TWO, 2e-5, None, None, 4096, "nothing was measured$"),
        ("auto", TWO, 2e-5, 1e-8, None, 4000, r"takes 20 us, a row 0.01 us, 2 cores \(affinity\)$"),
        ("auto", CpuCores(5, "cgroup quota"), 2e-5, 1e-8, None, 2500, r"5 cores \(cgroup quota\)$"),
        ("auto", TWO, 2e-5, 1e-6, None, 1024, "[)], kept within 1024 to 32768$"),
        ("auto", TWO, 2e-2, 1e-8, None, 32768, "[)], kept within 1024 to 32768$"),
        ("auto", CpuCores(1, "affinity"), 2e-5, 1e-8, None, 32768, "1 core"),
        ("auto", CpuCores(0.5, "cgroup quota"), 2e-5, 1e-8, None, 32768, "0.5 cores"),
        ("auto", TWO, None, None, "ssd", 0, "every decode step is handed over: .* for ssd$"),
        (4096, TWO, None, None, "hot", 0, "every decode step is handed over: .* for hot$"),
    ],
)  # fmt: skip
def test_the_limit_and_its_reason(told, cores, handoff_s, row_s, blocking, limit, why):
    found = choose_inline_limit(told, cores, handoff_s, row_s, blocking)
    assert found.max_rows == limit
    assert re.search(why, found.why), found.why


@given(st.floats(0.1, 256), SECONDS, SECONDS)
def test_it_stays_in_its_range_and_follows_the_figures(cores, handoff_s, row_s):
    counted = CpuCores(cores, "cgroup quota")
    limit = choose_inline_limit("auto", counted, handoff_s, row_s).max_rows
    assert INLINE_RANGE[0] <= limit <= INLINE_RANGE[1]
    assert choose_inline_limit("auto", counted, 2 * handoff_s, row_s).max_rows >= limit
    assert choose_inline_limit("auto", counted, handoff_s, 2 * row_s).max_rows <= limit
    more = CpuCores(cores + 1, "cgroup quota")
    assert choose_inline_limit("auto", more, handoff_s, row_s).max_rows <= limit
