import numpy as np
import pytest

from benchmarks.bootstrap import pair_ratio_interval, ratio_interval


def test_equal_sides_give_one() -> None:
    result = ratio_interval([2.0, 3.0, 4.0], [2.0, 3.0, 4.0])
    assert (result.ratio, result.low, result.high) == (1.0, 1.0, 1.0)


def test_constant_factor_has_no_spread_even_when_the_machine_drifts() -> None:
    drifting = np.linspace(10, 20, 21)
    result = ratio_interval(1.5 * drifting, drifting)
    assert result.ratio == pytest.approx(1.5)
    assert (result.low, result.high) == (pytest.approx(1.5), pytest.approx(1.5))


def test_interval_covers_the_true_ratio_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(200):
        first, second = rng.lognormal(np.log(1.2), 0.2, 25), rng.lognormal(0, 0.2, 25)
        result = ratio_interval(first, second, num_resamples=400, seed=trial)
        assert result.low <= result.ratio <= result.high
        covered += result.low <= 1.2 <= result.high
    assert 0.88 <= covered / 200 <= 1.0


def test_pairs_ratio_is_blind_to_what_slows_whole_pairs_down() -> None:
    rng = np.random.default_rng(3)
    pace = rng.lognormal(0, 0.5, 21)  # of the machine, round by round
    found = pair_ratio_interval(0.98 * pace * rng.lognormal(0, 0.01, 21), pace)
    assert found.low <= found.ratio <= found.high
    assert found.ratio == pytest.approx(0.98, abs=0.01)
    assert found.high - found.low < 0.03


def test_same_seed_gives_the_same_interval() -> None:
    first, second = [1.0, 2.0, 5.0], [2.0, 2.5, 3.0]
    assert ratio_interval(first, second) == ratio_interval(first, second)


def test_wider_confidence_gives_a_wider_interval() -> None:
    rng = np.random.default_rng(2)
    first, second = rng.uniform(1, 2, 30), rng.uniform(1, 2, 30)
    narrow = ratio_interval(first, second, confidence=0.5)
    wide = ratio_interval(first, second, confidence=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.parametrize(
    ("first", "second"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([1.0], [float("nan")])]
)
def test_samples_that_are_no_pairs_are_refused(first, second) -> None:
    for compare in (ratio_interval, pair_ratio_interval):
        with pytest.raises(ValueError, match=r"pairs|positive"):
            compare(first, second)
