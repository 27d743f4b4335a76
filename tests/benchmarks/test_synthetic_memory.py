import pytest
import torch
from artefacts import BACKBONE, tiny_compressor

from benchmarks import synthetic_rows
from benchmarks.synthetic_memory import SyntheticMemory
from benchmarks.synthetic_rows import SyntheticRows
from engram_core.errors import ArtefactError
from engram_core.tables import open_table

SIZE = 4_000_000


def memory(num_bytes: int = SIZE) -> SyntheticMemory:
    return SyntheticMemory(BACKBONE, tiny_compressor(), (1, 2), num_bytes)


def test_rows_are_finite_small_and_all_different(monkeypatch) -> None:
    monkeypatch.setattr(synthetic_rows, "_BLOCK_ROWS", 16)
    rows = SyntheticRows(5000, 64, seed=0).read(0, 5000)
    assert bool(torch.isfinite(rows).all())
    assert float(rows.abs().max()) < 1
    assert len({row.numpy().tobytes() for row in rows.view(torch.int16)}) == 5000


def test_any_piece_holds_the_same_rows(monkeypatch) -> None:
    monkeypatch.setattr(synthetic_rows, "_BLOCK_ROWS", 16)
    rows = SyntheticRows(100, 64, seed=0)
    assert torch.equal(torch.cat([rows.read(0, 37), rows.read(37, 100)]), rows.read(0, 100))


def test_an_artefact_of_the_size_asked_for(tmp_path) -> None:
    memory().write(tmp_path / "rows")
    artefact = open_table(tmp_path / "rows")
    assert artefact.manifest.storage == "packed"
    for layer in (1, 2):
        table = artefact.rows(layer)
        assert SIZE <= table.table_bytes < 1.1 * SIZE
        expected = SyntheticRows(table.num_rows, 64, layer).read(0, 50)
        assert torch.equal(table.read(0, 50), expected)


def test_it_is_known_again_and_another_one_is_refused(tmp_path) -> None:
    folder = tmp_path / "rows"
    assert not memory().is_there(folder)
    memory().write(folder)
    assert memory().is_there(folder)
    with pytest.raises(ArtefactError, match="another memory"):
        memory(2 * SIZE).is_there(folder)
