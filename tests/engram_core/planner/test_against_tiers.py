"""A plan held against the server's own tiers: packed tables that real text is looked up in."""

import pydoc_data.topics

import numpy as np
import pytest
import torch
from artefacts import tiny_content
from golden_cases import DEMO
from tokenizers import Tokenizer

from engram_core.assembly import open_version
from engram_core.compression import TokenCompressor
from engram_core.memory_config import MemoryConfig
from engram_core.planner import (
    CountedAccess,
    HostBudget,
    MemoryShape,
    RecordFormat,
    Target,
    ZipfAccess,
    plan,
)
from engram_core.store.hot_policy import HotPolicy
from engram_core.store.hot_size import cache_bytes
from engram_core.tables import open_table, write_artefact
from engram_core.tables.convert import pack_artefact

pytestmark = pytest.mark.slow

ROWS_PER_HEAD, ROW_DIM, LAYERS, HEADS, ORDERS = 50_021, 32, 2, 2, (2, 3)
SAMPLE_TOKENS = 60_000
STEP_TOKENS = 32
POINTS = 0.03
PLANNED = {"bfloat16": "bfloat16", "int8": "int8", "float8_e4m3": "fp8"}


@pytest.fixture(scope="module")
def text():
    """Ids of Python's reference, its topics shuffled so that all parts are alike; and classes."""
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizers" / "tiny_bytelevel" / "tokenizer.json"))
    topics = pydoc_data.topics.topics
    names = np.random.default_rng(0).permutation(sorted(topics))
    ids = tokenizer.encode("\n\n".join(topics[name] for name in names)).ids
    return np.array(ids[: 2 * SAMPLE_TOKENS]), TokenCompressor.from_tokenizer(tokenizer)


@pytest.fixture(scope="module")
def tables(tmp_path_factory, text):
    """A folder with one packed artefact per row format."""
    folder = tmp_path_factory.mktemp("tables")
    content = tiny_content(
        storage="dense", dtype="bfloat16", compressor=text[1],
        rows_per_head=(ROWS_PER_HEAD,) * len(ORDERS), head_dim=ROW_DIM,
    )  # fmt: skip
    write_artefact(folder / "source", content)
    for dtype in PLANNED:
        pack_artefact(open_table(folder / "source"), folder / dtype, dtype)
    return folder


def shape_of(dtype):
    record = RecordFormat(PLANNED[dtype], ROW_DIM)
    return MemoryShape.from_rows_per_head(ROWS_PER_HEAD, LAYERS, ORDERS, HEADS, record)


def tier_of(made, name):
    return next(each for each in made.tiers if each.name == name)


def serve(version, ids):
    """Look a text up as decode steps do; rows and bytes that were read below the cache."""
    rows = read = 0
    for start in range(0, len(ids), STEP_TOKENS):
        step, before = ids[start : start + STEP_TOKENS], ids[max(0, start - 2) : start]
        for layer in version.layer_ids:
            row_ids = version.hasher.row_ids(step, layer, before).reshape(-1)
            out = torch.empty(row_ids.size, ROW_DIM, dtype=torch.bfloat16)
            read += version.tiers[layer].gather(row_ids, out).transferred_bytes
            rows += row_ids.size
    return rows, read


def counters(version):
    tiers = version.tiers.values()
    return np.array([sum(t.hits for t in tiers), sum(t.hits + t.misses for t in tiers)])


@pytest.mark.parametrize("dtype", PLANNED)
def test_a_table_in_dram_takes_the_planned_bytes(tables, text, dtype):
    shape = shape_of(dtype)
    version = open_version(open_table(tables / dtype), text[1], MemoryConfig(tier="dram"))
    budget = HostBudget(dram=shape.stored_bytes(HEADS), ssd_iops=1e6)
    made = plan(shape, budget, Target(1), ZipfAccess(shape, 1))
    held = [version.tiers[layer].nbytes for layer in version.layer_ids]
    assert held == [*made.layer_stored_bytes]
    assert tier_of(made, "dram").bytes == sum(held)
    assert tier_of(made, "dram").share == 1
    assert tuple(t.num_rows for t in version.tiers.values()) == made.rows
    assert serve(version, text[0][:800])[0] == 800 * made.rows_per_token


@pytest.mark.parametrize(
    ("dtype", "share"), [("int8", 0.02), ("int8", 0.1), ("float8_e4m3", 0.02), ("bfloat16", 0.1)]
)
def test_a_cache_before_an_ssd_does_what_was_planned(tables, text, dtype, share):
    """Planned from one half of the text; warmed by it, and measured in the other half."""
    ids, compressor = text
    shape = shape_of(dtype)
    budget = cache_bytes(shape.total_rows, ROW_DIM, int(shape.total_rows * share))
    access = CountedAccess(shape, ids[:SAMPLE_TOKENS], compressor.class_ids)
    asked = HostBudget(dram=budget, ssd_iops=1e6)
    made = plan(shape, asked, Target(1), access)

    config = MemoryConfig(tier="ssd", hot_cache_bytes=budget)
    version = open_version(open_table(tables / dtype), compressor, config)
    caches = version.tiers.values()
    assert sum(cache.nbytes for cache in caches) == tier_of(made, "dram").bytes <= budget
    assert sum(cache.capacity_rows for cache in caches) == tier_of(made, "dram").rows
    assert sum(cache.inner.nbytes for cache in caches) == tier_of(made, "ssd").bytes

    serve(version, ids[:SAMPLE_TOKENS])
    before = counters(version)
    rows, read = serve(version, ids[SAMPLE_TOKENS:])
    hits, lookups = counters(version) - before
    assert lookups == rows == SAMPLE_TOKENS * made.rows_per_token
    planned = tier_of(made, "dram").share
    assert planned == pytest.approx(hits / lookups, abs=POINTS)
    # a record lies in one page, and a row that a step misses twice is read once
    pages = read / shape.record.bytes
    assert pages <= lookups - hits
    iops = next(each for each in made.resources if each.name == "ssd_iops")
    assert iops.needed == pytest.approx(pages / SAMPLE_TOKENS, abs=POINTS * made.rows_per_token)


@pytest.mark.parametrize("exponent", [0.6, 0.8, 1.0])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.33])
def test_reads_by_zipfs_law_hit_as_planned(exponent, share):
    num_rows, step = 100_000, 1024
    shape = MemoryShape((num_rows,), (2,), 1, RecordFormat("int8", ROW_DIM))
    capacity = int(num_rows * share)
    parts = np.cumsum(np.arange(1, num_rows + 1) ** -exponent)
    random = np.random.default_rng(0)
    policy, hits, reads = HotPolicy(num_rows, capacity), 0, 0
    for index in range(600):
        rows = np.searchsorted(parts, random.random(step) * parts[-1])
        made = policy.plan(rows.astype(np.int64), capacity)
        policy.end_reading(made)
        policy.publish(made)
        if index >= 450:  # a step's repeats are hits of a cache that reads one by one
            hits += step - made.missing.size
            reads += step
    assert ZipfAccess(shape, exponent).share(capacity) == pytest.approx(hits / reads, abs=POINTS)
