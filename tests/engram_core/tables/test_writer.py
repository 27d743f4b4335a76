"""Writing an artefact: all or nothing, and only what fits together."""

import errno
import os
from dataclasses import replace

import pytest
from artefacts import tiny_content

from engram_core.errors import ArtefactError, ConfigError
from engram_core.tables import open_table, write_artefact
from engram_core.tables.rows import DenseRows


def test_writing_twice_is_refused(tmp_path) -> None:
    write_artefact(tmp_path / "a", tiny_content())
    with pytest.raises(ArtefactError, match="a exists already"):
        write_artefact(tmp_path / "a", tiny_content())


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch) -> None:
    def crash(*_):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(ArtefactError, match=r"a cannot be written \(no space left\) and nothing"):
        write_artefact(tmp_path / "a", tiny_content())
    assert list(tmp_path.iterdir()) == []


def test_extras_are_kept_and_checked(tmp_path) -> None:
    write_artefact(tmp_path / "a", replace(tiny_content(), extras={"LICENSE": b"take it"}))
    assert (tmp_path / "a" / "LICENSE").read_bytes() == b"take it"
    (tmp_path / "a" / "LICENSE").write_bytes(b"take me")
    with pytest.raises(ArtefactError, match="LICENSE"):
        open_table(tmp_path / "a")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: replace(c, dtype="int3"), "int3"),
        (lambda c: replace(c, tables={1: c.tables[1]}), "tables covers layers"),
        (lambda c: replace(c, modules={}), "modules covers layers"),
        (lambda c: replace(c, tables={1: c.tables[2], 2: c.tables[1]}), "table of layer"),
        (lambda c: replace(c, tokenizer=replace(c.tokenizer, compressed_size=90)), "token classes"),
        (
            lambda c: replace(c, tables={**c.tables, 2: tiny_content(storage="dense").tables[2]}),
            "mix dense and sparse",
        ),
    ],
)
def test_content_that_does_not_fit(tmp_path, change, message) -> None:
    with pytest.raises(ConfigError, match=message):
        write_artefact(tmp_path / "a", change(tiny_content()))
    assert list(tmp_path.iterdir()) == []


def test_dense_rows_know_their_shape() -> None:
    rows = tiny_content(storage="dense").tables[1]
    assert isinstance(rows, DenseRows)
    assert (rows.num_rows, rows.row_dim) == tuple(rows.values.shape)
