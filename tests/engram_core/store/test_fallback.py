"""ZeroFallbackTier: zeros instead of a TierError, counted; the caller's errors stay errors."""

import numpy as np
import pytest
import torch
from fakes.tiers import FaultyTier

from engram_core.errors import ConfigError, IdRangeError, TierError
from engram_core.store.fallback import FailurePolicy, ZeroFallbackTier, with_policy
from engram_core.store.host import HostTier


@pytest.fixture
def faulty():
    return FaultyTier(HostTier(torch.ones(10, 4)))


def test_a_failed_gather_reads_as_zeros_and_is_counted(faulty):
    tier, out = ZeroFallbackTier(faulty), torch.full((3, 4), 7.0)
    report = tier.gather(np.array([1, 1, 2]), out)
    assert (out == 0).all()
    assert report.rows_by_tier == {"zero": 3}
    faulty.broken = False
    report = tier.gather(np.array([1, 1, 2]), out)
    assert (out == 1).all()
    assert report.rows_by_tier == {"host": 3}
    assert (tier.zeroed_gathers, tier.zeroed_rows) == (1, 3)


def test_the_callers_errors_stay_errors(faulty):
    tier = ZeroFallbackTier(faulty)
    faulty.broken = False
    with pytest.raises(IdRangeError):
        tier.gather(np.array([10]), torch.empty(1, 4))
    with pytest.raises(ConfigError):
        tier.gather(np.array([1]), torch.empty(2, 4))
    assert (tier.zeroed_gathers, tier.zeroed_rows) == (0, 0)


def test_it_is_otherwise_the_inner_tier(faulty):
    tier = ZeroFallbackTier(faulty)
    inner = (faulty.name, faulty.num_rows, faulty.row_dim, faulty.nbytes, faulty.is_blocking)
    assert (tier.name, tier.num_rows, tier.row_dim, tier.nbytes, tier.is_blocking) == inner


def test_policies(faulty):
    assert with_policy(faulty, FailurePolicy("fail")) is faulty
    with pytest.raises(TierError):
        with_policy(faulty, FailurePolicy.FAIL).gather(np.array([1]), torch.empty(1, 4))
    assert isinstance(with_policy(faulty, FailurePolicy("off")), ZeroFallbackTier)
