"""ShardedRowSource: every row comes from the source that owns it, in the order asked for."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from row_servers import (
    LAYER,
    TABLE,
    TIMEOUT_S,
    ScriptedSource,
    one_source_per_head,
    tiny_artefact,
)

from engram_core.errors import ConfigError, TierRefusedError, TierTimeoutError
from engram_core.row_shard import shard_of
from engram_core.store.host import HostTier
from engram_core.store.local_rows import LocalRowSource
from engram_core.store.row_source import RowSourceDescription, check_description
from engram_core.store.sharded import ShardedRowSource


@pytest.fixture(scope="module", params=["dense", "sparse"])
def artefact(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "memory"
    return tiny_artefact(folder, storage=request.param, num_heads=3)


def expected_rows(artefact, ids):
    return shard_of(artefact).read_rows(TABLE, ids)


@pytest.mark.parametrize("count", [0, 1, 2, 5000])
def test_rows_come_in_order_from_their_servers(artefact, count):
    ids = np.random.default_rng(0).integers(0, artefact.layout.rows[LAYER], count)
    with one_source_per_head(artefact) as sources:
        sharded = ShardedRowSource(sources)
        rows = sharded.read_rows(TABLE, ids, TIMEOUT_S)
        assert np.array_equal(rows, expected_rows(artefact, ids))
        shapes = {f"layer{layer}": (artefact.layout.rows[layer], 8) for layer in (1, 2)}
        check_description(sharded.describe(TIMEOUT_S), artefact.content, shapes, sharded.name)
        sharded.close()


def test_each_source_is_asked_for_its_heads_only(artefact):
    sources = [ScriptedSource(shard_of(artefact, [head])) for head in range(3)]
    ids = np.arange(artefact.layout.rows[LAYER])[::-1].copy()
    rows = ShardedRowSource(sources).read_rows(TABLE, ids, TIMEOUT_S)
    assert np.array_equal(rows, expected_rows(artefact, ids))
    for source in sources:
        bounds = source.describe(0.0).tables[TABLE].ranges
        owned = np.concatenate([np.arange(first, stop) for first, stop in bounds])
        assert np.array_equal(np.sort(source.asked[0]), owned)


def test_sources_without_a_row_of_the_batch_are_not_asked(artefact):
    sources = [ScriptedSource(shard_of(artefact, [head])) for head in range(3)]
    ShardedRowSource(sources).read_rows(TABLE, np.array([0, 0]), TIMEOUT_S)
    assert [len(source.asked) for source in sources] == [1, 0, 0]


def test_sources_are_asked_at_the_same_time(artefact):
    together = threading.Barrier(3)

    class Meeting(ScriptedSource):
        def read_rows(self, *arguments):
            together.wait(TIMEOUT_S)
            return super().read_rows(*arguments)

    sources = [Meeting(shard_of(artefact, [head])) for head in range(3)]
    ids = np.arange(artefact.layout.rows[LAYER])
    assert len(ShardedRowSource(sources).read_rows(TABLE, ids, TIMEOUT_S)) == len(ids)


def test_one_that_hangs_costs_the_timeout_and_no_more(artefact):
    let_go = threading.Event()

    class Hanging(ScriptedSource):
        def read_rows(self, *arguments):
            let_go.wait(TIMEOUT_S)
            return super().read_rows(*arguments)

    sources = [shard_of(artefact, [0]), Hanging(shard_of(artefact, [1, 2]))]
    sharded = ShardedRowSource(sources)
    ids = np.arange(artefact.layout.rows[LAYER])
    started = time.monotonic()
    for _ in range(3):
        with pytest.raises(TierTimeoutError, match=r"row server scripted did not answer"):
            sharded.read_rows(TABLE, ids, 0.1)
    assert time.monotonic() - started < TIMEOUT_S / 2
    let_go.set()
    assert len(sharded.read_rows(TABLE, ids, TIMEOUT_S)) == len(ids)


def test_a_refusal_makes_it_ask_again_who_has_what(artefact):
    swapped = ScriptedSource(shard_of(artefact, [0]))
    other = ScriptedSource(shard_of(artefact, [1, 2]))
    sharded = ShardedRowSource([swapped, other])
    ids = np.arange(artefact.layout.rows[LAYER])
    sharded.read_rows(TABLE, ids, TIMEOUT_S)
    swapped.inner, other.inner = other.inner, swapped.inner
    with pytest.raises(TierRefusedError):
        sharded.read_rows(TABLE, ids, TIMEOUT_S)
    assert np.array_equal(sharded.read_rows(TABLE, ids, TIMEOUT_S), expected_rows(artefact, ids))


@pytest.mark.parametrize(
    ("heads", "sentence"),
    [
        ([[0], [1]], "is served by none of this process, this process"),
        ([[0], [2]], "is served by none of"),
        ([[1], [2]], "row 0 of layer1 is served by none of"),
        ([[0, 1], [1, 2]], "is served by more than one of"),
        ([None, None], "row 0 of layer1 is served by more than one of"),
    ],
)
def test_heads_that_do_not_add_up(artefact, heads, sentence):
    sharded = ShardedRowSource([shard_of(artefact, each) for each in heads])
    with pytest.raises(TierRefusedError, match=sentence):
        sharded.describe(TIMEOUT_S)


def test_servers_of_two_memories_are_refused_with_both_ids(artefact):
    description = replace(shard_of(artefact, [1, 2]).describe(), memory="other")

    class Other(ScriptedSource):
        def describe(self, timeout_s):
            return description

    sharded = ShardedRowSource([shard_of(artefact, [0]), Other(None)])
    with pytest.raises(TierRefusedError, match=f"expected {artefact.content}, found other"):
        sharded.read_rows(TABLE, np.array([0]), TIMEOUT_S)


def test_an_unknown_table_and_no_source(artefact):
    with pytest.raises(TierRefusedError, match="table 'layer9' is served by none of this process"):
        ShardedRowSource([shard_of(artefact)]).read_rows("layer9", np.array([0]), TIMEOUT_S)
    with pytest.raises(ConfigError, match="sources is empty"):
        ShardedRowSource([])


def test_a_shard_keeps_only_its_rows(artefact):
    whole, part = (shard_of(artefact, heads) for heads in (None, [1]))
    owned = [heads[1] for heads in artefact.layout.primes[LAYER]]
    assert part._tiers[TABLE].num_rows == sum(owned)
    assert part._tiers[TABLE].nbytes < 0.5 * whole._tiers[TABLE].nbytes


def test_tiers_and_description_agree(artefact):
    description = shard_of(artefact).describe()
    for tiers in ({}, {"layer1": _zeros(3, 8), "layer2": _zeros(3, 8)}):
        with pytest.raises(ConfigError, match="the tier of layer1 is"):
            LocalRowSource(RowSourceDescription("m", description.tables), tiers)


def _zeros(num_rows, row_dim):
    return HostTier(torch.zeros(num_rows, row_dim))
