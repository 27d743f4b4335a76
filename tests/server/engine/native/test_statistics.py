"""The team's view of logits is torch's."""

import pytest
import torch

from server.engine.native.statistics import RowStatistics
from server.engine.native.team import shared_team
from server.engine.sampler import row_statistics

STATISTICS = RowStatistics(shared_team(2))


@pytest.mark.parametrize(("rows", "size"), [(1, 5), (3, 64), (16, 1000), (2, 49152)])
def test_places_and_norms_are_those_of_torch(rows, size):
    scores = torch.randn(rows, size, generator=torch.Generator().manual_seed(size)) * 8
    places, norms = STATISTICS(scores)
    expected_places, expected_norms = row_statistics(scores)
    assert torch.equal(places, expected_places)
    torch.testing.assert_close(norms, expected_norms, atol=1e-4, rtol=1e-5)


def test_rows_may_be_wider_than_what_counts():
    whole = torch.randn(4, 100)
    whole[:, 90:] = 1e9  # padding of the vocabulary
    places, norms = STATISTICS(whole[:, :90])
    torch.testing.assert_close(norms, torch.logsumexp(whole[:, :90], -1))
    assert (places < 90).all()


def test_the_first_of_equal_maxima_is_taken():
    scores = torch.zeros(1, 200)
    scores[0, [70, 150]] = 3.0
    assert STATISTICS(scores)[0].tolist() == [70]


def test_numbers_that_are_not_finite_show_in_the_norm():
    scores = torch.randn(4, 300)
    scores[1, 17], scores[2, 5], scores[3, 9] = torch.nan, torch.inf, -torch.inf
    norms = STATISTICS(scores)[1]
    assert torch.isfinite(norms).tolist() == [True, False, False, True]
