import numpy as np

from benchmarks.permutation import shuffle_within_heads

FIRST_ROWS = [0, 40, 100]
ROW_IDS = np.array([n for n in range(150) if n % 3])


def test_rows_move_only_inside_their_head() -> None:
    order = shuffle_within_heads(ROW_IDS, FIRST_ROWS, seed=0)
    assert sorted(order) == list(range(len(ROW_IDS)))
    heads = np.searchsorted(FIRST_ROWS, ROW_IDS, side="right")
    assert np.array_equal(heads, heads[order])


def test_most_rows_are_wrong_afterwards() -> None:
    order = shuffle_within_heads(ROW_IDS, FIRST_ROWS, seed=0)
    assert np.mean(order == np.arange(len(ROW_IDS))) < 0.2


def test_seed_decides() -> None:
    first = shuffle_within_heads(ROW_IDS, FIRST_ROWS, seed=1)
    assert np.array_equal(first, shuffle_within_heads(ROW_IDS, FIRST_ROWS, seed=1))
    assert not np.array_equal(first, shuffle_within_heads(ROW_IDS, FIRST_ROWS, seed=2))


def test_a_head_without_written_rows_is_passed_over() -> None:
    order = shuffle_within_heads(np.array([1, 2, 120]), FIRST_ROWS, seed=0)
    assert sorted(order[:2]) == [0, 1]
    assert order[2] == 2
