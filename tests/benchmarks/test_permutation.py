import torch

from benchmarks.permutation import permute_written_rows

FIRST_ROWS = [0, 40, 100]


def _table() -> torch.Tensor:
    rows = torch.arange(1.0, 151.0).unsqueeze(1).repeat(1, 4)
    rows[::3] = 0
    return rows


def test_rows_move_only_inside_their_head() -> None:
    rows, moved = _table(), permute_written_rows(_table(), FIRST_ROWS, seed=0)
    for start, end in ((0, 40), (40, 100), (100, 150)):
        assert torch.equal(rows[start:end].sort(dim=0).values, moved[start:end].sort(dim=0).values)
    assert not torch.equal(rows, moved)


def test_unwritten_rows_stay_unwritten() -> None:
    rows, moved = _table(), permute_written_rows(_table(), FIRST_ROWS, seed=0)
    assert torch.equal(rows.any(dim=1), moved.any(dim=1))


def test_most_rows_are_wrong_afterwards() -> None:
    rows, moved = _table(), permute_written_rows(_table(), FIRST_ROWS, seed=0)
    written = rows.any(dim=1)
    kept = (rows[written] == moved[written]).all(dim=1).float().mean()
    assert kept < 0.2


def test_seed_decides_and_the_input_is_left_alone() -> None:
    rows = _table()
    first = permute_written_rows(rows, FIRST_ROWS, seed=1)
    assert torch.equal(first, permute_written_rows(rows, FIRST_ROWS, seed=1))
    assert not torch.equal(first, permute_written_rows(rows, FIRST_ROWS, seed=2))
    assert torch.equal(rows, _table())
