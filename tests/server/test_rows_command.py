"""``rows serve`` as a process: ready line, exit codes, and servers that die and come back."""

import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from row_processes import READY_S, address, row_server
from row_servers import LAYER, TABLE, tiny_artefact

from engram_core.assembly import make_tier
from engram_core.errors import TierError, TierTimeoutError, TierUnreachableError
from engram_core.store.circuit_breaker import CircuitBreaker
from engram_core.store.flight_source import FlightRowSource
from engram_core.store.patient_source import PatientRowSource
from engram_core.store.remote import RemoteTier
from engram_core.store.sharded import ShardedRowSource
from engram_core.tables import open_table
from server import cli
from server.artefact_choice import packaged_folder
from server.row_settings import RowsUsageError, parse_heads, read_rows_settings

PACKAGED = "smollm2-135m-wordnet"
ROOT = Path(__file__).parents[2]
ATTEMPT_S, RETRIES = 0.5, 1
SLACK_S = 1.0  # for a machine that is busy with something else


def test_the_packaged_artefact_is_served_until_sigterm():
    artefact = open_table(packaged_folder() / PACKAGED)
    with row_server("--engram", PACKAGED, "--port", "0") as (child, line):
        assert re.match(r"rows of layer20, layer26 \(all heads, memory [0-9a-f]{64}\) on ", line)
        source = FlightRowSource(address(line), artefact.content)
        written = artefact.rows(20).row_ids[:1000]
        words = source.read_rows("layer20", written, READY_S)
        out = torch.empty(len(written), artefact.config.head_dim, dtype=torch.bfloat16)
        make_tier(artefact.rows(20)).gather(written, out)
        assert torch.equal(torch.from_numpy(words.copy()).view(torch.bfloat16), out)
        child.send_signal(signal.SIGTERM)
        assert child.wait(READY_S) == 0
        assert child.stderr.read() == ""


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "memory"
    return path, tiny_artefact(path)


def remote(artefact, addresses, cooldown_s=0.2):
    servers = [
        PatientRowSource(
            FlightRowSource(each, artefact.content), timeout_s=ATTEMPT_S, retries=RETRIES,
            breaker=CircuitBreaker(3, cooldown_s), label=each,
        )
        for each in addresses
    ]  # fmt: skip
    return RemoteTier(
        ShardedRowSource(servers), TABLE, artefact.layout.rows[LAYER], 8,
        timeout_s=servers[0].longest_s, servers=servers,
    )  # fmt: skip


def gather(tier):
    """All rows and the seconds that took, or the error."""
    out = torch.empty(tier.num_rows, tier.row_dim, dtype=torch.bfloat16)
    started = time.monotonic()
    try:
        tier.gather(np.arange(tier.num_rows), out)
    except TierError as error:
        return error, time.monotonic() - started
    return out, time.monotonic() - started


def gather_until(tier, done):
    """Gather again and again, every one within its bound; the last result."""
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s:
        result, took_s = gather(tier)
        assert took_s < (RETRIES + 1) * ATTEMPT_S + SLACK_S
        if done(result):
            return result
    raise AssertionError("it never came to that")


def is_rows(result):
    return isinstance(result, torch.Tensor)


def test_one_of_two_servers_is_killed_and_comes_back(memory):
    path, artefact = memory
    expected = artefact.rows(LAYER).values.bfloat16()
    flags = ("--engram", str(path))
    with row_server(*flags, "--heads", "0", "--port", "0") as (_, first):
        with row_server(*flags, "--heads", "1", "--port", "0") as (second, line):
            tier = remote(artefact, [address(first), address(line)])
            assert torch.equal(gather(tier)[0], expected)
            threading.Timer(0.1, second.kill).start()  # while rows are on their way
            failure = gather_until(tier, lambda result: not is_rows(result))
            assert isinstance(failure, TierUnreachableError)
            gather_until(tier, lambda result: "in a row" in str(result))
            assert [server.stats().is_open for server in tier.servers] == [False, True]
            assert [server.stats().turned_away > 0 for server in tier.servers] == [False, True]
            assert tier.servers[0].stats().failures == 0
        port = address(line).rpartition(":")[2]
        with row_server(*flags, "--heads", "1", "--port", port):
            assert torch.equal(gather_until(tier, is_rows), expected)
            assert not tier.servers[1].stats().is_open


def test_a_frozen_server_costs_its_timeout_and_is_found_again(memory):
    path, artefact = memory
    with row_server("--engram", str(path), "--port", "0") as (child, line):
        tier = remote(artefact, [address(line)], cooldown_s=1000)
        assert is_rows(gather(tier)[0])
        child.send_signal(signal.SIGSTOP)
        failure = gather_until(tier, lambda result: not is_rows(result))
        assert isinstance(failure, TierTimeoutError)
        child.send_signal(signal.SIGCONT)
        assert is_rows(gather_until(tier, is_rows))


def test_another_memory_on_the_same_port_is_refused(memory, tmp_path):
    path, artefact = memory
    other = tiny_artefact(tmp_path / "other", storage="sparse")
    with row_server("--engram", str(path), "--port", "0") as (_, line):
        tier = remote(artefact, [address(line)], cooldown_s=0)
        assert is_rows(gather(tier)[0])
    port = address(line).rpartition(":")[2]
    with row_server("--engram", str(tmp_path / "other"), "--port", port):
        refusal = gather_until(tier, lambda result: "refuses" in str(result))
    assert f"expected {artefact.content}, found {other.content}" in str(refusal)


def test_a_reader_that_stopped_reading_cannot_keep_it(memory):
    path, artefact = memory
    with row_server("--engram", str(path), "--port", "0") as (child, line):
        from pyarrow import flight

        from engram_core.store.flight import MAX_ROWS_PER_CALL, RowTicket

        ids = np.zeros(MAX_ROWS_PER_CALL, dtype=np.int64)
        ticket = flight.Ticket(RowTicket(artefact.content, TABLE, ids).encode())
        client = flight.FlightClient(f"grpc://{address(line)}")
        held = [client.do_get(ticket) for _ in range(8)]
        time.sleep(0.5)
        child.send_signal(signal.SIGTERM)
        assert child.wait(READY_S) in (0, 5)  # 0 where the system's buffers took all of it
        assert len(held) == 8


def test_the_token_comes_from_file_or_environment(memory, tmp_path, monkeypatch):
    path, artefact = memory
    file = tmp_path / "token"
    file.write_text("secret\n")
    with row_server("--engram", str(path), "--port", "0", "--token-file", str(file)) as (_, line):
        source = FlightRowSource(address(line), artefact.content, token="secret")
        assert len(source.read_rows(TABLE, np.array([1]), READY_S)) == 1
        with pytest.raises(TierError, match="does not accept the token"):
            FlightRowSource(address(line), artefact.content).describe(READY_S)
    given = {"engram": "x", "engram_dir": None, "host": "h", "port": "1", "heads": "all"}
    environment = {"ENGRAM_ROWS_TOKEN": "other"}
    settings = read_rows_settings({**given, "token_file": None}, environment)
    assert settings.token == "other"
    settings = read_rows_settings({**given, "token_file": str(file)}, environment)
    assert settings.token == "secret"
    file.write_text("\n")
    for wrong in (str(file), "no-such-file"):
        with pytest.raises(RowsUsageError, match="token"):
            read_rows_settings({**given, "token_file": wrong}, environment)


@pytest.mark.parametrize(
    ("text", "heads"),
    [("all", None), ("0", (0,)), ("0-3", (0, 1, 2, 3)), ("5,0-1", (0, 1, 5)), ("2,2", (2,))],
)
def test_heads(text, heads):
    assert parse_heads(text) == heads


@pytest.mark.parametrize("text", ["", "a", "-1", "3-1", "0-", "1,,2", "1 2", "0-99999", "²"])
def test_other_heads(text):
    with pytest.raises(RowsUsageError, match=r"--heads is .+; accepted: all, 0-3 or 0,2"):
        parse_heads(text)


def run(capsys, *flags):
    code = cli.main(["rows", "serve", *flags])
    out, err = capsys.readouterr()
    assert out == ""
    return code, err


@pytest.fixture
def _signals():
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_signals")
def test_mistakes_are_one_sentence_each(capsys, memory, tmp_path):
    path = str(memory[0])
    code, err = run(capsys, "--engram", path, "--port", "x")
    assert (code, err) == (
        2, "engram-server: --port is 'x'; accepted: a whole number from 0 to 65535\n"
    )  # fmt: skip
    code, err = run(capsys, "--engram", "nothing/here")
    assert code == 1
    assert err.startswith("engram-server: cannot serve rows: the Engram artefact 'here' does not")
    code, err = run(capsys, "--engram", path, "--heads", "0-7", "--port", "0")
    assert code == 1
    assert "accepted: numbers from 0 to 1" in err
    code, err = run(capsys, "--engram", path, "--host", "192.0.2.1")
    assert code == 4
    assert err.startswith("engram-server: cannot listen on 192.0.2.1:9100: Cannot assign")


@pytest.mark.usefixtures("_signals")
def test_a_flipped_byte_is_found(capsys, tmp_path):
    tiny_artefact(tmp_path / "memory")
    table = tmp_path / "memory" / "table-layer2.safetensors"
    blob = bytearray(table.read_bytes())
    blob[-1] ^= 1
    table.write_bytes(blob)
    code, err = run(capsys, "--engram", str(tmp_path / "memory"), "--port", "0")
    assert code == 1
    assert "table-layer2.safetensors: sha256 does not match" in err
    assert str(tmp_path) not in err


def test_help_says_that_it_is_open(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["rows", "serve", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "unencrypted" in text
    assert "private network" in text
    assert "ENGRAM_ROWS_TOKEN" in text
