import pytest

from benchmarks.run_times import RunTimes


def test_decode_rate_counts_only_the_full_batch() -> None:
    early = [1.0, 2.0, 3.0, 4.0]
    late = [2.0, 3.0, 4.0, 5.0]
    run = RunTimes(0.0, [early, late], [[0] * 4] * 2)
    assert run.decode_rate() == pytest.approx(4 / 2.0)  # two tokens each in (2, 4]


def test_prefill_rate_waits_for_the_last_first_token() -> None:
    run = RunTimes(10.0, [[11.0], [12.0]], [[0], [0]])
    assert run.prefill_rate(prompt_tokens=100) == pytest.approx(50.0)


def test_sequences_that_never_overlap_are_refused() -> None:
    run = RunTimes(0.0, [[1.0, 2.0], [3.0, 4.0]], [[0, 0], [0, 0]])
    with pytest.raises(ValueError, match="more tokens"):
        run.decode_rate()
