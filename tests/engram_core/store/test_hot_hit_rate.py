"""On real text the cache keeps rows as well as a published policy does."""

import pydoc_data.topics

import pytest
import torch
from golden_cases import DEMO, class_map
from tokenizers import Tokenizer

from engram_core import compiled
from engram_core.config import EngramConfig
from engram_core.hashing import NgramHasher
from engram_core.layout import HashLayout
from engram_core.store.host import HostTier
from engram_core.store.hot_cache import HotCache

NUM_TOKENS = 50_000


def text_rows(orders, rows_per_head):
    """Rows of the Python language reference: int64 ``[tokens, columns]``, and the table's rows."""
    name = "tiny_bytelevel"
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizers" / name / "tokenizer.json"))
    text = "\n".join(pydoc_data.topics.topics.values())
    token_ids = tokenizer.encode(text).ids[:NUM_TOKENS]
    config = EngramConfig(
        form="v41", layer_ids=(1,), orders=orders, num_heads=8,
        rows_per_head=(rows_per_head,) * len(orders), head_dim=2, hidden_size=8,
    )  # fmt: skip
    class_ids = class_map(name)
    layout = HashLayout.build(config, int(class_ids.max()) + 1)
    return NgramHasher(layout, class_ids).row_ids(token_ids, 1), layout.rows[1]


def hit_rate(row_ids, num_rows, step_tokens):
    """Of a cache with the default capacity, a tenth of the table."""
    cache = HotCache(HostTier(torch.zeros(num_rows, 2, dtype=torch.bfloat16)))
    for start in range(0, len(row_ids), step_tokens):
        ids = row_ids[start : start + step_tokens].reshape(-1)
        cache.gather(ids, torch.empty(ids.size, 2, dtype=torch.bfloat16))
    return cache.hit_rate


def reference_rate(row_ids, capacity):
    """Of theine's W-TinyLFU, one row at a time."""
    from theine import Cache

    cache, hits = Cache(capacity, nolock=True), 0
    for row in row_ids.reshape(-1).tolist():
        _, is_hit = cache.get(row)
        hits += is_hit
        if not is_hit:
            cache.set(row, True)
    cache.close()
    return hits / row_ids.size


@pytest.mark.slow
@pytest.mark.parametrize(("orders", "rows_per_head"), [((2, 3, 4), 20_000), ((4, 6), 20_000)])
def test_hit_rate_at_a_tenth_of_the_table(orders, rows_per_head, record_property):
    assert compiled.load()
    row_ids, num_rows = text_rows(orders, rows_per_head)
    assert row_ids.size >= 500_000
    expected = reference_rate(row_ids, num_rows // 10)
    found = {step: hit_rate(row_ids, num_rows, step) for step in (1, 32)}
    for step, rate in found.items():
        record_property(f"hit_rate_{step}", rate)
    record_property("reference", expected)
    print(orders, num_rows, row_ids.size, found, expected)
    # one-sided: better than the reference is welcome
    assert found[1] >= expected - 0.02
    # a step of several tokens is planned as one, so repeats within it are misses
    assert found[32] >= expected - 0.02
