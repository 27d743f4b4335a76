"""`engram-server table`: what operators read, and what damage says."""

import json

import pytest
from artefacts import tiny_content

from engram_core.tables import write_artefact
from engram_core.tables.manifest import COMPRESSIONS
from engram_core.tables.records import PACKED_DTYPES
from server import table_options
from server.cli import main


@pytest.fixture
def shelf(tmp_path):
    write_artefact(tmp_path / "tiny", tiny_content(storage="dense", dtype="float32"))
    return tmp_path


def run(capsys, *words):
    code = main(["table", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_info_says_what_an_artefact_is(shelf, capsys):
    code, out, _ = run(capsys, "info", "tiny", "--engram-dir", shelf)
    facts = json.loads(out)
    assert code == 0
    assert (facts["storage"], facts["dtype"], facts["layers"]) == ("dense", "float32", [1, 2])
    assert sum(map(sum, facts["primes"]["1"])) == facts["rows"]["1"]
    assert facts["files"]["module.safetensors"] > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
def test_convert_writes_an_artefact_that_verifies(shelf, capsys, dtype):
    code, out, err = run(capsys, "convert", shelf / "tiny", shelf / "new", "--dtype", dtype)
    assert (code, out.strip()) == (0, str(shelf / "new"))
    assert "convert: 100%" in err
    code, out, err = run(capsys, "verify", shelf / "new")
    assert code == 0
    assert out.startswith("new: 3 files, ")
    assert "verify: 100%" in err


def test_a_compressed_copy_comes_back_bit_by_bit(shelf, capsys):
    run(capsys, "convert", shelf / "tiny", shelf / "plain", "--dtype", "bfloat16")
    code, out, err = run(capsys, "convert", shelf / "plain", shelf / "copy", "--compress", "zstd")
    assert (code, out.strip()) == (0, str(shelf / "copy"))
    assert "convert: 100%" in err
    code, out, _ = run(capsys, "info", shelf / "copy")
    facts = json.loads(out)
    compression = facts["compression"]
    assert (code, facts["dtype"], compression["codec"]) == (0, "bfloat16", "zstd")
    assert (
        f"zstd: {compression['expanded_bytes']} bytes of tables became {compression['bytes']} "
        f"(ratio {compression['ratio']:.3f})\n"
    ) in err
    code, out, err = run(capsys, "verify", shelf / "copy")
    assert (code, out[:14]) == (0, "copy: 3 files,")
    assert "verify: 100%" in err
    assert run(capsys, "convert", shelf / "copy", shelf / "back", "--compress", "none")[0] == 0
    for path in (shelf / "plain").iterdir():
        assert path.read_bytes() == (shelf / "back" / path.name).read_bytes()
    assert len(list((shelf / "back").iterdir())) == len(list((shelf / "plain").iterdir()))


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [((), "int8"), (("--compress", "none"), "int4"), (("--dtype", "float16"), "float16")],
)
def test_the_format_stays_where_only_compression_is_named(shelf, capsys, flags, dtype):
    run(capsys, "convert", shelf / "tiny", shelf / "packed", "--dtype", "int4")
    run(capsys, "convert", shelf / "packed", shelf / "new", *flags)
    assert json.loads(run(capsys, "info", shelf / "new")[1])["dtype"] == dtype


def test_damage_is_named_with_both_values(shelf, capsys):
    run(capsys, "convert", shelf / "tiny", shelf / "new")
    path = shelf / "new" / "table-layer1.safetensors"
    blob = bytearray(path.read_bytes())
    blob[5000] ^= 255
    path.write_bytes(blob)
    code, out, err = run(capsys, "verify", shelf / "new")
    assert (code, out) == (1, "")
    assert "table-layer1.safetensors: sha256 of chunk 0" in err
    assert str(shelf) not in err


def test_mistakes_are_one_sentence(shelf, capsys):
    code, _, err = run(capsys, "convert", shelf / "tiny", shelf / "tiny")
    assert (code, err) == (1, "engram-server: tiny exists already; accepted: a new name\n")
    code, _, err = run(capsys, "info", "nothing")
    assert code == 1
    assert "'nothing' does not exist" in err
    with pytest.raises(SystemExit):
        main(["table", "convert", "a", "b", "--dtype", "int2"])
    assert "invalid choice: 'int2'" in capsys.readouterr().err


def test_the_words_name_the_formats():
    assert table_options.PACKED_DTYPES == PACKED_DTYPES
    assert table_options.COMPRESSIONS == COMPRESSIONS
