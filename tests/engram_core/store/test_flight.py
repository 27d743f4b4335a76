"""FlightRowSource and FlightRowServer: the same bits over a socket, and sentences for the rest."""

import builtins
import contextlib
import socket
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from row_servers import LAYER, TABLE, TIMEOUT_S, flight_source, tiny_artefact

from engram_core.assembly import make_tier
from engram_core.errors import (
    ConfigError,
    MismatchError,
    TierRefusedError,
    TierTimeoutError,
    TierUnreachableError,
)
from engram_core.row_shard import shard_of
from engram_core.store.flight import MAX_ROWS_PER_CALL, RowTicket, import_arrow
from engram_core.store.flight_server import FlightRowServer
from engram_core.store.flight_source import FlightRowSource
from engram_core.store.kernels import as_words
from engram_core.store.local_rows import LocalRowSource
from engram_core.store.row_source import check_description


@pytest.fixture(scope="module", params=["dense", "sparse"])
def artefact(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "memory"
    return tiny_artefact(folder, storage=request.param)


@pytest.fixture(scope="module")
def source(artefact):
    with flight_source(artefact) as source:
        yield source


def expected_words(artefact, ids):
    tier = make_tier(artefact.rows(LAYER))
    out = torch.empty(len(ids), tier.row_dim, dtype=torch.bfloat16)
    tier.gather(np.asarray(ids, dtype=np.int64), out)
    return as_words(out)


@pytest.mark.parametrize("count", [0, 1, 3000, MAX_ROWS_PER_CALL + 1])
def test_rows_are_the_host_tiers(artefact, source, count):
    ids = np.random.default_rng(count).integers(0, artefact.layout.rows[LAYER], count)
    words = source.read_rows(TABLE, ids, TIMEOUT_S)
    assert words.dtype == np.int16
    assert np.array_equal(words, expected_words(artefact, ids))


def test_many_threads_share_a_source(artefact, source):
    def read(seed):
        ids = np.random.default_rng(seed).integers(0, artefact.layout.rows[LAYER], 500)
        for _ in range(5):
            words = source.read_rows(TABLE, ids, TIMEOUT_S)
            results.append(np.array_equal(words, expected_words(artefact, ids)))

    results = []
    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 30


def test_it_says_what_it_serves(artefact, source):
    found = source.describe(TIMEOUT_S)
    assert found.memory == artefact.content
    shapes = {f"layer{layer}": (artefact.layout.rows[layer], 8) for layer in (1, 2)}
    check_description(found, artefact.content, shapes, source.name)
    with pytest.raises(MismatchError, match=f"expected other, found {artefact.content}"):
        check_description(found, "other", shapes, source.name)
    for wanted in ({"layer1": (7, 8)}, {"layer9": (7, 8)}):
        with pytest.raises(MismatchError, match=r"row server 127.+expected \(7, 8\)"):
            check_description(found, artefact.content, wanted, source.name)


def test_a_head_has_its_own_rows_and_no_others(artefact):
    with flight_source(artefact, [1]) as source:
        first, stop = source.describe(TIMEOUT_S).tables[TABLE].ranges[1]
        ids = np.array([stop - 1, first, first])
        words = source.read_rows(TABLE, ids, TIMEOUT_S)
        assert np.array_equal(words, expected_words(artefact, ids))
        with pytest.raises(TierRefusedError, match="layer1: row id 0 is not among the rows here"):
            source.read_rows(TABLE, np.array([first, 0]), TIMEOUT_S)


def test_another_memory_is_refused_with_both_ids(artefact):
    with flight_source(artefact, memory="other") as source:
        with pytest.raises(TierRefusedError) as refused:
            source.read_rows(TABLE, np.array([1]), TIMEOUT_S)
        assert "other" in str(refused.value)
        assert artefact.content in str(refused.value)


def test_an_unknown_table_is_refused(source):
    with pytest.raises(TierRefusedError, match="table 'layer7' is not served; accepted: layer1, "):
        source.read_rows("layer7", np.array([1]), TIMEOUT_S)


@pytest.mark.parametrize("sent", [None, "wrong"])
def test_every_call_needs_the_token(artefact, sent):
    with flight_source(artefact, token="right", sent_token=sent) as source:
        for call in (
            lambda: source.read_rows(TABLE, np.array([1]), TIMEOUT_S),
            lambda: source.describe(TIMEOUT_S),
        ):
            with pytest.raises(TierRefusedError, match="does not accept the token"):
                call()
    with flight_source(artefact, token="right", sent_token="right") as source:
        assert len(source.read_rows(TABLE, np.array([1]), TIMEOUT_S)) == 1
        assert source.describe(TIMEOUT_S).memory == artefact.content


def test_nobody_there(artefact):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        source = FlightRowSource(f"127.0.0.1:{unused.getsockname()[1]}", artefact.content)
        with pytest.raises(TierUnreachableError, match=r"row server 127.+ cannot be reached"):
            source.read_rows(TABLE, np.array([1]), TIMEOUT_S)
        with pytest.raises(TierUnreachableError):
            source.describe(TIMEOUT_S)


def test_somebody_who_never_answers(artefact):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = FlightRowSource(f"127.0.0.1:{silent.getsockname()[1]}", artefact.content)
        started = time.monotonic()
        with pytest.raises(TierTimeoutError, match=r"did not answer within 0\.3 s"):
            source.read_rows(TABLE, np.array([1]), 0.3)
        with pytest.raises(TierTimeoutError):
            source.describe(0.3)
        assert time.monotonic() - started < TIMEOUT_S


def test_rows_that_come_too_slowly(artefact):
    shard, let_go = shard_of(artefact), threading.Event()

    class Slow(LocalRowSource):
        def read_rows(self, *arguments):
            let_go.wait(TIMEOUT_S)
            return super().read_rows(*arguments)

    slow = Slow(shard.describe(), {f"layer{i}": make_tier(artefact.rows(i)) for i in (1, 2)})
    with FlightRowServer(slow) as server:
        source = FlightRowSource(f"127.0.0.1:{server.port}", artefact.content)
        with pytest.raises(TierTimeoutError):
            source.read_rows(TABLE, np.array([1]), 0.2)
        let_go.set()
        assert len(source.read_rows(TABLE, np.array([1]), TIMEOUT_S)) == 1


def test_it_finds_a_server_that_came_back_on_its_port(artefact):
    with FlightRowServer(shard_of(artefact)) as server:
        source = FlightRowSource(f"127.0.0.1:{server.port}", artefact.content)
        source.read_rows(TABLE, np.array([1]), TIMEOUT_S)
    for _ in range(3):
        with pytest.raises(TierUnreachableError):
            source.read_rows(TABLE, np.array([1]), TIMEOUT_S)
    with FlightRowServer(shard_of(artefact), port=server.port):
        assert len(source.read_rows(TABLE, np.array([1]), TIMEOUT_S)) == 1


def test_a_failure_of_the_server_travels_without_its_inside(artefact):
    class Broken(LocalRowSource):
        def read_rows(self, *arguments):
            raise KeyError("/a/secret/path")

    broken = Broken(
        shard_of(artefact).describe(), {f"layer{i}": make_tier(artefact.rows(i)) for i in (1, 2)}
    )
    with FlightRowServer(broken) as server:
        source = FlightRowSource(f"127.0.0.1:{server.port}", artefact.content)
        with pytest.raises(TierRefusedError, match="the row server failed") as failed:
            source.read_rows(TABLE, np.array([1]), TIMEOUT_S)
    assert "secret" not in str(failed.value)


def test_a_taken_port_is_an_error(artefact):
    with FlightRowServer(shard_of(artefact)) as server, pytest.raises(OSError, match="is taken"):
        FlightRowServer(shard_of(artefact), port=server.port)


def test_tickets_of_others_are_refused(source):
    flight = import_arrow().flight
    client = flight.FlightClient(f"grpc://{source.name.rpartition(' ')[2]}")
    too_many = RowTicket("m", TABLE, np.zeros(MAX_ROWS_PER_CALL + 1, dtype=np.int64)).encode()
    for ticket, sentence in [
        (b"", "the ticket is none of this server's"),
        (b"SELECT 1", "the ticket is none of this server's"),
        (b"{}\n123", "the ticket is none of this server's"),
        (b"{}\n", "names no memory or table"),
        (b"[[\n", "names no memory or table"),
        (too_many, "65537 rows at once; accepted: up to 65536"),
    ]:
        with pytest.raises(flight.FlightServerError, match=sentence):
            client.do_get(flight.Ticket(ticket)).read_all()
    with pytest.raises(flight.FlightServerError, match="accepted: describe"):
        list(client.do_action("drop"))
    client.close()


@given(st.binary(max_size=80))
def test_any_ticket_is_read_or_refused(ticket):
    with contextlib.suppress(TierRefusedError):
        RowTicket.decode(ticket)


@given(st.text(max_size=20), st.text(max_size=20), st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_tickets_come_back(memory, table, ids):
    ticket = RowTicket(memory, table, np.array(ids, dtype=np.int64))
    found = RowTicket.decode(ticket.encode())
    assert found[:2] == ticket[:2]
    assert np.array_equal(found.row_ids, ticket.row_ids)


@pytest.mark.parametrize("address", ["", "host", "host:0", "host:70000", "grpc://h:1", "a b:1"])
def test_addresses(address):
    with pytest.raises(ConfigError, match="accepted: HOST:PORT"):
        FlightRowSource(address, "m")


@pytest.mark.parametrize("token", ["", "two words", "ü", "line\n"])
def test_tokens_that_no_header_can_carry(token):
    with pytest.raises(ConfigError, match="printable ASCII") as refused:
        FlightRowSource("127.0.0.1:1", "m", token=token)
    assert not token or token not in str(refused.value)


def test_without_pyarrow_there_is_a_sentence(monkeypatch, artefact):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.split(".")[0] == "pyarrow":
            raise ModuleNotFoundError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    for make in (
        lambda: FlightRowSource("127.0.0.1:1", "m"),
        lambda: FlightRowServer(shard_of(artefact)),
    ):
        with pytest.raises(ConfigError, match=r"need pyarrow.+'engram-server\[remote\]'"):
            make()
