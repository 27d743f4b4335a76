"""The shared token of row servers: what its file may hold, on either side."""

import pytest

from engram_core.errors import ConfigError
from engram_core.store.row_token import read_row_token
from server.row_settings import RowsUsageError, read_rows_settings


def given(path):
    flags = {"engram": "a", "engram_dir": None, "host": "localhost", "port": "0", "heads": "all"}
    return flags | {"token_file": str(path)}


def test_a_line_is_the_token(tmp_path):
    (tmp_path / "t").write_text("secret\n")
    assert read_row_token("row_token_file", str(tmp_path / "t")) == "secret"
    assert read_rows_settings(given(tmp_path / "t"), {}).token == "secret"


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "cannot be read (No such file"), (b"\xff", "cannot be read (it is not ASCII)"),
     (b" \n", "is empty")],
)  # fmt: skip
def test_a_file_without_a_token_is_refused_by_readers_and_servers(tmp_path, content, reason):
    if content is not None:
        (tmp_path / "t").write_bytes(content)
    with pytest.raises(ConfigError) as reader:
        read_row_token("row_token_file", str(tmp_path / "t"))
    with pytest.raises(RowsUsageError) as server:
        read_rows_settings(given(tmp_path / "t"), {})
    for error, name in ((reader, "row_token_file"), (server, "--token-file")):
        assert f"{name} is 't', which {reason}" in str(error.value)
        assert str(error.value).endswith("; accepted: a file with one line of ASCII")
