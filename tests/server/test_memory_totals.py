"""MemoryTotals: sums never fall, whatever is swapped and freed."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from engram_core.stats import HotCacheStats, MemoryStats, RowServerStats
from server.memory_totals import MemoryTotals


class Source:
    """A memory that counts by being told to."""

    def __init__(self):
        self.is_freed = False
        self.cache = HotCacheStats(resident_rows=3, capacity_rows=10, nbytes=100)
        self.server = RowServerStats("a:1", is_open=True)

    def count(self):
        self.cache = replace(self.cache, hits=self.cache.hits + 2, misses=self.cache.misses + 1)
        self.server = replace(self.server, attempts=self.server.attempts + 5)

    def stats(self):
        return MemoryStats({(1, "hot"): self.cache}, {"a:1": self.server})


@given(st.lists(st.sampled_from(["swap", "count old", "count new", "free"]), max_size=30))
def test_sums_stay_monotonic(events):
    totals, held, counted = MemoryTotals(), [Source()], 0
    totals.add(held[0])
    for event in events:
        if event == "swap":
            held.append(Source())
            totals.add(held[-1])
        elif event.startswith("count"):
            held[0 if event == "count old" else -1].count()
            counted += 1
        elif len(held) > 1:
            held.pop(0).is_freed = True
            totals.retire()
        found = totals.stats()
        assert found.hot_caches[1, "hot"].hits == 2 * counted
        assert found.hot_caches[1, "hot"].misses == counted
        assert found.row_servers["a:1"].attempts == 5 * counted
        # sizes are those of what is held
        assert found.hot_caches[1, "hot"].nbytes == 100 * len(held)
        assert found.hot_caches[1, "hot"].capacity_rows == 10 * len(held)


def test_what_is_gone_has_no_open_breaker_and_is_let_go_of():
    totals, source = MemoryTotals(), Source()
    totals.add(source)
    source.count()
    assert totals.stats().row_servers["a:1"].is_open
    source.is_freed = True
    totals.retire()
    source.count()  # nobody looks any more
    found = totals.stats()
    assert found.row_servers["a:1"] == RowServerStats("a:1", attempts=5)
    assert found.hot_caches[1, "hot"] == HotCacheStats(hits=2, misses=1)
