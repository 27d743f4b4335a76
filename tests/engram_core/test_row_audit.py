"""RowAudit: right rows match, and whatever else compute is given does not."""

import logging

import numpy as np
import pytest
import torch
from fakes.tiers import FaultyTier, WrappedTier
from hypothesis import given
from hypothesis import strategies as st
from memories import LAYERS, NUM_IDS, expected_rows, small_memory

from engram_core.cpu_cores import CpuCores
from engram_core.cpu_device import CpuDevice
from engram_core.errors import ConfigError
from engram_core.prefetch import Prefetcher
from engram_core.row_audit import CommittedTokens, RowAudit
from engram_core.stats import AuditStats
from engram_core.step import EngramStep, RowSpan
from engram_core.store.hot_cache import HotCache

COLUMNS = 4  # two orders, two heads
IDS = [5, 9, 9, 63, 0, 5, 9, 7]
TOKENS = CommittedTokens("r1", IDS, 2, 6)


def audited(memory, layer, tokens, rows, live=None, *, share=1.0):
    audit = RowAudit(share)
    audit.check(memory, layer, tokens, rows, live)
    return audit.drain()


def rows_of(memory, layer, tokens):
    stretch = list(tokens.token_ids[tokens.start : tokens.stop])
    return expected_rows(memory, layer, stretch, list(tokens.token_ids[: tokens.start]))


@given(st.lists(st.integers(0, NUM_IDS - 1), min_size=1, max_size=20), st.data())
def test_right_rows_match_wherever_a_stretch_begins(ids, data):
    memory = small_memory()
    start = data.draw(st.integers(0, len(ids) - 1))
    tokens = CommittedTokens("r", ids, start, data.draw(st.integers(start + 1, len(ids))))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    for layer in LAYERS:
        rows = rows_of(memory, layer, tokens).to(dtype)
        found = audited(memory, layer, tokens, rows)
        assert found == AuditStats(match=tokens.num_tokens * COLUMNS)


def test_one_wrong_bit_is_one_wrong_row(caplog):
    memory, audit = small_memory(), RowAudit(1.0)
    rows = rows_of(memory, 1, TOKENS)
    rows[1, 5] = torch.nextafter(rows[1, 5], torch.tensor(9.0))
    with caplog.at_level(logging.ERROR, logger="engram_core"):
        for _ in range(3):
            audit.check(memory, 1, TOKENS, rows, None)
        audit.check(memory, 3, TOKENS, rows, None)
    assert audit.drain().mismatch == 3 + 4 * COLUMNS
    assert audit.drain() == AuditStats()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2  # once per layer
    assert "request r1, position 3, layer 1" in told[0]
    assert "request r1, position 2, layer 3" in told[1]


def test_a_zero_of_the_other_sign_is_another_row():
    memory = small_memory(rows=lambda layer, n, d: torch.zeros(n, d))
    rows = rows_of(memory, 1, TOKENS)
    assert audited(memory, 1, TOKENS, rows) == AuditStats(match=16)
    assert audited(memory, 1, TOKENS, -rows) == AuditStats(mismatch=16)


@pytest.mark.parametrize("shift", [-1, 1])
def test_shifted_rows_do_not_match(shift):
    memory = small_memory()
    shifted = CommittedTokens("r1", IDS, TOKENS.start + shift, TOKENS.stop + shift)
    found = audited(memory, 1, TOKENS, rows_of(memory, 1, shifted))
    assert found.mismatch > 0


def test_a_token_that_is_left_out_has_to_be_one_that_contributes_nothing(caplog):
    def half(layer, num_rows, row_dim):
        rows = torch.randn(num_rows, row_dim)
        rows[::2] = 0
        return rows

    memory = small_memory(min_hit_orders=(2,), rows=half)
    ids = np.random.default_rng(0).integers(0, NUM_IDS, 64).tolist()
    tokens = CommittedTokens("r1", ids, 0, 64)
    rows = rows_of(memory, 1, tokens)
    own_ids = memory.hasher.row_ids(ids, 1)
    live = (own_ids[:, :2] % 2 == 1).all(1)
    assert live.any()
    assert not live.all()
    assert audited(memory, 1, tokens, rows, live) == AuditStats(match=64 * COLUMNS)
    wrong = rows.clone()
    wrong[torch.from_numpy(~live)] = 7  # rows that nobody uses may be anything
    assert audited(memory, 1, tokens, wrong, live) == AuditStats(match=64 * COLUMNS)
    nothing = audited(memory, 1, tokens, None)
    assert nothing.mismatch == live.sum() * COLUMNS
    assert audited(memory, 1, tokens, rows, ~live).mismatch >= live.sum() * COLUMNS


def test_without_a_hit_rule_nothing_may_be_left_out(caplog):
    assert audited(small_memory(), 1, TOKENS, None) == AuditStats(mismatch=16)


def test_the_share_is_drawn_the_same_way_every_time():
    memory = small_memory()
    rows = rows_of(memory, 1, TOKENS)

    def drawn(share):
        audit, found = RowAudit(share, seed=3), []
        for _ in range(400):
            audit.check(memory, 1, TOKENS, rows, None)
            found.append(audit.drain().match)
        return found

    assert drawn(0.1) == drawn(0.1)
    assert 15 < np.count_nonzero(drawn(0.1)) < 80
    assert not any(drawn(0.0))
    assert all(drawn(1.0))


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(ConfigError, match="accepted: 0 to 1"):
        Prefetcher(CpuDevice(), audit_share=share)


def test_no_share_is_no_audit():
    assert Prefetcher(CpuDevice(), enabled=False).audit is None


def test_what_cannot_be_read_again_is_counted_and_told_once(caplog):
    memory = small_memory(wrap=lambda layer, tier: Broken(tier))
    audit = RowAudit(1.0)
    for _ in range(2):
        audit.check(memory, 1, TOKENS, torch.zeros(4, 16), None)
    audit.skip(memory, TOKENS)
    assert audit.drain() == AuditStats(unread=48)
    assert [record.getMessage() for record in caplog.records] == [
        "the rows of layer 1 could not be audited"
    ]


class Broken(FaultyTier):
    """Broken itself: behind it there is nothing to read."""

    def __init__(self, inner):
        super().__init__(inner)
        self._rows, self.inner = inner, None
        self.num_rows, self.row_dim = self._rows.num_rows, self._rows.row_dim


class Lying(WrappedTier):
    """Writes the rows, and then something else into the last of them."""

    def gather(self, row_ids, out):
        report = super().gather(row_ids, out)
        out[-1] = 7
        return report


@pytest.mark.parametrize("wrap", [Lying, lambda tier: HotCache(Lying(tier), capacity_rows=64)])
def test_what_stands_in_front_of_the_rows_is_audited_too(wrap):
    memory = small_memory(wrap=lambda layer, tier: wrap(tier))
    prefetcher = Prefetcher(CpuDevice(), cores=CpuCores(2, "a test"), audit_share=1.0)
    ticket = prefetcher.submit_prompt(memory, IDS)

    def audit(index, layer, rows, live):
        prefetcher.audit.check(memory, layer, CommittedTokens("r", IDS, 0, len(IDS)), rows, live)

    step = EngramStep(memory, [len(IDS)], [RowSpan(ticket, 0, len(IDS))], audit=audit)
    hits = memory.tiers[1].hits if isinstance(memory.tiers[1], HotCache) else 0
    step.embeddings(1)
    found = prefetcher.audit.drain()
    assert found.mismatch >= 1
    assert found.match + found.mismatch == len(IDS) * COLUMNS
    if isinstance(memory.tiers[1], HotCache):
        assert memory.tiers[1].hits == hits  # an audit warms no cache and counts in none
    ticket.release()
    prefetcher.close()
