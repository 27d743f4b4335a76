"""The command line: help, sentences, exit codes."""

import json
import os
import subprocess
import sys

import pytest
from in_place import write_checkpoint

from server import __version__, cli
from server.config import Settings
from server.flags import flag


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("ENGRAM_SERVER_")]:
        monkeypatch.delenv(name)


def run(capsys, *arguments):
    code = cli.main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def test_version(capsys):
    assert run(capsys, "version") == (0, f"{__version__}\n", "")


def test_help_names_every_flag_and_the_exit_codes(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    for name, field in Settings.model_fields.items():
        assert flag(name) in text
        assert field.description.split()[0] in text
    assert "Exit codes: 0" in text
    assert "ENGRAM_SERVER_PORT" in text
    assert "(default: 8000)" in text


@pytest.mark.parametrize("arguments", [[], ["nope"], ["serve", "--prot", "1"], ["serve", "a", "b"]])
def test_usage_errors_exit_2(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_flags_are_not_abbreviated():
    with pytest.raises(SystemExit):
        cli.main(["serve", "--por", "1"])


@pytest.mark.parametrize("command", ["serve", "pull", "info"])
def test_a_wrong_setting_is_one_line_and_exit_2(capsys, tmp_path, command):
    file = tmp_path / "c.yaml"
    file.write_text("port: 70000\n")
    code, out, err = run(capsys, command, "--config", str(file))
    assert (code, out) == (2, "")
    expected = "port in the settings file is '70000'; accepted: a whole number from 0 to 65535"
    assert err == f"engram-server: {expected}\n"


def test_a_missing_settings_file_is_one_line(capsys):
    code, _, err = run(capsys, "info", "--config", "no-such-file.yaml")
    assert code == 2
    assert err.startswith("engram-server: cannot read the settings file no-such-file.yaml: No such")


def test_contradicting_limits_are_found_before_loading(capsys):
    code, _, err = run(capsys, "serve", "--max-num-seqs", "64", "--max-num-batched-tokens", "32")
    assert code == 2
    assert "max_num_batched_tokens is 32; accepted: at least max_num_seqs (64)" in err


def test_variables_that_name_nothing_are_told(capsys, monkeypatch):
    monkeypatch.setenv("ENGRAM_SERVER_PROT", "1")
    code, _, err = run(capsys, "info", "--engram", "none")
    assert code == 0
    assert "ENGRAM_SERVER_PROT names no setting" in err


def test_info_says_what_would_be_loaded(capsys):
    code, out, _ = run(capsys, "info", "owner/model", "--engram", "none", "--dtype", "float32")
    assert code == 0
    assert json.loads(out)["model"] == "owner/model"
    assert json.loads(out)["dtype"] == "float32"


def test_info_knows_a_checkpoint_that_is_read_in_place(capsys, tmp_path):
    folder = write_checkpoint(tmp_path / "v41")
    code, out, _ = run(capsys, "info", "owner/model", "--engram", str(folder))
    (found,) = json.loads(out)["artefacts"]
    assert (code, found["artefact"], found["storage"]) == (0, "v41", "in place")


def test_failures_are_sentences(capsys):
    code, _, err = run(capsys, "info", "--engram", "no-such-artefact")
    assert code == 1
    assert err.startswith("engram-server: the Engram artefact 'no-such-artefact' does not exist")
    code, _, err = run(capsys, "pull", "./no-such-model")
    assert code == 1
    assert err.startswith("engram-server: cannot download the model: the model folder")


def test_wrong_flags_answer_without_heavy_imports():
    program = (
        "import sys; from server import cli; cli.main(['serve', '--port', 'x']);"
        "print([m for m in ('torch', 'transformers', 'fastapi') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_names_of_models(tmp_path):
    assert Settings().model_name == "default"
    assert Settings(model="owner/name").model_name == "owner/name"
    assert Settings(model=str(tmp_path)).model_name == tmp_path.name
    assert Settings(model="./x/y", served_model_name="mine").model_name == "mine"
