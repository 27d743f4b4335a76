"""RemoteTier: the host tier's bits, bounded attempts, a breaker, counters."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from row_servers import (
    LAYER,
    REFUSED,
    TABLE,
    TIMEOUT_S,
    ScriptedSource,
    flight_source,
    one_source_per_head,
    tiny_artefact,
)

from engram_core.assembly import make_tier
from engram_core.errors import (
    ConfigError,
    IdRangeError,
    TierRefusedError,
    TierTimeoutError,
    TierUnreachableError,
)
from engram_core.row_shard import shard_of
from engram_core.store.circuit_breaker import CircuitBreaker
from engram_core.store.patient_source import PatientRowSource
from engram_core.store.remote import RemoteTier
from engram_core.store.sharded import ShardedRowSource

LATE, GONE = TierTimeoutError("late"), TierUnreachableError("gone")


@pytest.fixture(scope="module", params=["dense", "sparse"])
def artefact(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "memory"
    return tiny_artefact(folder, storage=request.param)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return tiny_artefact(tmp_path_factory.mktemp("small") / "memory")


def remote(artefact, source, *, name="remote", **patience):
    """A tier behind one patient server."""
    server = PatientRowSource(source, **{"timeout_s": TIMEOUT_S, **patience})
    rows = artefact.layout.rows[LAYER]
    return RemoteTier(
        server, TABLE, rows, 8, timeout_s=server.longest_s, servers=[server], name=name
    )


def assert_equal_to_host(artefact, tier, ids):
    host = make_tier(artefact.rows(LAYER))
    for dtype in (torch.bfloat16, torch.float32):
        ours, theirs = (torch.full((len(ids), 8), 7.0, dtype=dtype) for _ in range(2))
        report = tier.gather(ids, ours)
        host.gather(ids, theirs)
        assert torch.equal(ours, theirs)
        assert report.rows_by_tier == {"remote": len(ids)}


@pytest.mark.parametrize("count", [0, 1, 20_000])
def test_bits_are_the_host_tiers(artefact, count):
    ids = np.random.default_rng(0).integers(0, artefact.layout.rows[LAYER], count)
    with flight_source(artefact) as source:
        assert_equal_to_host(artefact, remote(artefact, source), ids)
    with one_source_per_head(artefact) as sources:
        assert_equal_to_host(artefact, remote(artefact, ShardedRowSource(sources)), ids)


@given(st.lists(st.integers(0, 800)), st.sampled_from([torch.bfloat16, torch.float32]))
def test_each_row_is_asked_for_once(small, ids, dtype):
    source = ScriptedSource(shard_of(small))
    tier, ids = remote(small, source), np.array(ids, dtype=np.int64)
    out, expected = (torch.empty(len(ids), 8, dtype=dtype) for _ in range(2))
    report = tier.gather(ids, out)
    make_tier(small.rows(LAYER)).gather(ids, expected)
    assert torch.equal(out, expected)
    unique = np.unique(ids)
    assert [list(asked) for asked in source.asked] == ([list(unique)] if len(ids) else [])
    assert report.transferred_bytes == len(unique) * (8 + 8 * 2) == tier.transferred_bytes


def gather(tier, ids=(1, 2)):
    out = torch.full((len(ids), 8), 7.0)
    try:
        tier.gather(np.array(ids), out)
    except Exception:
        assert (out == 7).all()
        raise
    return out


def counters(tier):
    stats = tier.servers[0].stats()
    return stats.attempts, stats.failures, stats.retries, stats.turned_away


def breaker_state(tier):
    state = tier.servers[0].breaker_state
    assert tier.servers[0].stats().is_open == (state != "closed")
    return state


def test_a_failed_read_is_repeated(small):
    tier = remote(small, ScriptedSource(shard_of(small), [LATE, GONE]), retries=2)
    gather(tier)
    assert counters(tier) == (3, 2, 2, 0)
    assert breaker_state(tier) == "closed"


def test_the_last_failure_is_told_when_retries_are_used_up(small):
    tier = remote(small, ScriptedSource(shard_of(small), [GONE, GONE, LATE]), retries=2)
    with pytest.raises(TierTimeoutError, match="late"):
        gather(tier)
    assert counters(tier) == (3, 3, 2, 0)


def test_a_refusal_is_not_repeated(small):
    tier = remote(small, ScriptedSource(shard_of(small), [REFUSED]), retries=5)
    with pytest.raises(TierRefusedError):
        gather(tier)
    assert counters(tier) == (1, 1, 0, 0)
    assert tier.transferred_bytes == 0


def test_the_breaker_opens_turns_away_and_recovers(small):
    now_s = [0.0]
    breaker = CircuitBreaker(3, 5.0, clock=lambda: now_s[0])
    source = ScriptedSource(shard_of(small), [GONE] * 4)
    tier = remote(small, source, retries=1, breaker=breaker)
    for sentence in ("gone", "gone", "failed 3 times in a row and is asked again only every 5 s"):
        with pytest.raises(TierUnreachableError, match=sentence):
            gather(tier)
    assert counters(tier) == (3, 3, 1, 1)
    assert breaker_state(tier) == "open"
    now_s[0] += 5
    with pytest.raises(TierUnreachableError, match="gone"):
        gather(tier)  # the probe, alone
    assert counters(tier) == (4, 4, 1, 1)
    now_s[0] += 5
    assert breaker_state(tier) == "half-open"
    gather(tier)
    assert breaker_state(tier) == "closed"


def test_a_breaker_is_shared(small):
    breaker = CircuitBreaker(1, 1000.0)
    broken = remote(small, ScriptedSource(shard_of(small), [GONE]), breaker=breaker)
    other = remote(small, ScriptedSource(shard_of(small)), breaker=breaker)
    with pytest.raises(TierUnreachableError):
        gather(broken)
    with pytest.raises(TierUnreachableError, match="in a row"):
        gather(other)


def test_a_probe_that_dies_of_something_else_does_not_block_the_next(small):
    breaker = CircuitBreaker(1, 0.0)
    tier = remote(small, ScriptedSource(shard_of(small), [GONE, MemoryError()]), breaker=breaker,
                  retries=0)  # fmt: skip
    with pytest.raises(TierUnreachableError):
        gather(tier)
    with pytest.raises(MemoryError):
        gather(tier)
    gather(tier)


@pytest.mark.parametrize("bad", [-1, 2**40])
def test_a_bad_id_is_the_callers_error_and_asks_nobody(small, bad):
    source = ScriptedSource(shard_of(small))
    tier = remote(small, source)
    with pytest.raises(IdRangeError):
        gather(tier, [0, bad])
    assert source.asked == []
    assert counters(tier) == (0, 0, 0, 0)


def test_a_bad_output_is_the_callers_error(small):
    with pytest.raises(ConfigError, match="accepted"):
        remote(small, shard_of(small)).gather(np.array([1]), torch.empty(2, 8))


def test_rows_of_another_width_are_refused(small):
    tier = RemoteTier(shard_of(small), TABLE, small.layout.rows[LAYER], 4)
    with pytest.raises(TierRefusedError, match=r"delivers rows \(1, 8\); accepted: \(1, 4\)"):
        tier.gather(np.array([1]), torch.empty(1, 4))


def test_it_says_what_it_is(small):
    tier = remote(small, shard_of(small), name="rows")
    assert (tier.name, tier.num_rows, tier.row_dim) == ("rows", small.layout.rows[LAYER], 8)
    assert tier.is_blocking
    assert tier.nbytes == 0


@pytest.mark.parametrize("wrong", [{"timeout_s": 0}, {"timeout_s": float("inf")}, {"retries": -1}])
def test_numbers_out_of_range(small, wrong):
    with pytest.raises(ConfigError, match="accepted: a number >"):
        remote(small, shard_of(small), **wrong)
