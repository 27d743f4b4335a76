"""`engram-server table`: what operators read, and what damage says."""

import json

import pytest
from artefacts import tiny_content
from imports import write_config
from in_place import served_compressor, write_checkpoint
from model_folder import TOKENIZER, write_model

from engram_core.tables import write_artefact
from engram_core.tables.manifest import COMPRESSIONS
from engram_core.tables.records import PACKED_DTYPES
from server import table_options
from server.cli import main


@pytest.fixture
def shelf(tmp_path):
    write_artefact(tmp_path / "tiny", tiny_content(storage="dense", dtype="float32"))
    return tmp_path


def read_config(folder):
    return json.loads((folder / "config.json").read_text())


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


def test_a_checkpoint_is_looked_at_where_it_lies(tmp_path, capsys):
    write_checkpoint(tmp_path / "v41")
    code, out, _ = run(capsys, "info", "v41", "--engram-dir", tmp_path)
    facts = json.loads(out)
    assert code == 0
    assert (facts["storage"], facts["dtype"]) == ("in place", "float8_e4m3")
    assert (facts["backbone"], facts["tokenizer_fingerprint"]) == (None, None)
    assert sum(map(sum, facts["primes"]["1"])) == facts["rows"]["1"]
    path = tmp_path / "v41" / "model-00001.safetensors"
    assert facts["files"]["model-00001.safetensors"] == path.stat().st_size
    assert len(facts["files"]) == 2


def test_verify_says_what_a_checkpoint_cannot_show(tmp_path, capsys):
    write_checkpoint(tmp_path / "v41", sharded=False)
    path = tmp_path / "v41" / "model.safetensors"
    num_bytes = path.stat().st_size
    code, out, _ = run(capsys, "verify", tmp_path / "v41")
    assert (code, out) == (
        0,
        f"v41: tables in model.safetensors ({num_bytes} bytes); shapes, dtypes, byte spans and "
        "sums of primes checked, the format has no checksums\n",
    )
    with path.open("r+b") as file:
        file.truncate(num_bytes - 1)
    code, _, err = run(capsys, "verify", tmp_path / "v41")
    assert (code, "file size in bytes" in err) == (1, True)
    assert str(tmp_path) not in err
    write_checkpoint(tmp_path / "v41", sharded=False)
    write_config(tmp_path / "v41", {**read_config(tmp_path / "v41"), "engram_vocab_size": 59})
    code, _, err = run(capsys, "verify", tmp_path / "v41")
    assert (code, "rows of layer 1 (the sum of its primes)" in err) == (1, True)


def test_a_tokenizer_gives_a_checkpoint_its_classes(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ENGRAM_SERVER_CACHE_DIR", str(tmp_path / "cache"))
    folder = write_checkpoint(tmp_path / "v41")
    config = read_config(folder)
    del config["engram_compressed_vocab_size"]
    write_config(folder, config)
    (tmp_path / "a.txt").write_text("the memory of the memory")
    for action in ("info", "verify"):
        code, _, err = run(capsys, action, folder)
        assert (code, "--tokenizer or --model" in err) == (1, True)
    compressor = served_compressor()
    code, out, _ = run(capsys, "verify", folder, "--tokenizer", TOKENIZER)
    assert (code, out.endswith(f"; the tokenizer gives its {compressor.size} token classes\n")) == (
        0,
        True,
    )
    code, out, _ = run(capsys, "info", folder, "--tokenizer", TOKENIZER)
    facts = json.loads(out)
    assert (code, facts["tokenizer_fingerprint"]) == (0, compressor.fingerprint)
    assert "tokens" not in facts
    words = ("info", folder, "--tokens", tmp_path / "a.txt", "--tokenizer", TOKENIZER)
    tokens = json.loads(run(capsys, *words)[1])["tokens"]
    assert tokens["tokens"] > 0
    assert {load["layer"] for load in tokens["loads"]} == set(facts["layers"])


def test_a_checkpoint_with_another_tokenizer_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ENGRAM_SERVER_CACHE_DIR", str(tmp_path / "cache"))
    folder = write_checkpoint(tmp_path / "v41", engram_compressed_vocab_size=7)
    code, out, err = run(capsys, "verify", folder, "--tokenizer", TOKENIZER)
    assert (code, out) == (1, "")
    assert "number of token classes does not match: expected 7" in err


def test_a_checkpoint_travels_compressed_with_its_own_bytes(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ENGRAM_SERVER_CACHE_DIR", str(tmp_path / "cache"))
    folder, model = write_checkpoint(tmp_path / "v41"), write_model(tmp_path / "model")
    small, back, direct = (tmp_path / name for name in ("small", "back", "direct"))
    code, _, err = run(capsys, "convert", folder, small, "--model", model, "--compress", "zstd")
    assert (code, "zstd: " in err) == (0, True)
    assert run(capsys, "verify", small)[0] == 0
    assert run(capsys, "convert", small, back, "--compress", "none")[0] == 0
    words = ("--model", model, "--dtype", "float8_e4m3")
    assert run(capsys, "convert", folder, direct, *words)[0] == 0
    facts = json.loads(run(capsys, "info", back)[1])
    assert facts["dtype"] == "float8_e4m3"
    for name in facts["files"]:
        assert (back / name).read_bytes() == (direct / name).read_bytes()


def test_the_words_name_the_formats():
    assert table_options.PACKED_DTYPES == PACKED_DTYPES
    assert table_options.COMPRESSIONS == COMPRESSIONS
