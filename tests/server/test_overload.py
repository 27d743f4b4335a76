"""More work than the server takes: queues, deadlines, leaving clients, slow readers."""

import asyncio
import json
import socket
import threading
import time

import pytest
from fakes.backend import FakeLoader
from fakes.engine import Script
from fakes.http import frames, post_bytes, serve, wait_until


def body(**parameters):
    return {"inputs": "hello", "parameters": parameters}


async def ask(port, data):
    """Status, headers and JSON of one answer on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    head, _, content = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, json.loads(content)


async def burst(port, count, **parameters):
    """The answers to many requests sent at once."""
    data = post_bytes("/generate", json.dumps(body(**parameters)).encode())
    return await asyncio.gather(*(ask(port, data) for _ in range(count)))


def test_500_at_once_over_the_limit():
    script = Script(step_s=0.002)
    with serve(FakeLoader(script), max_num_seqs=4, max_queue_len=16) as served:
        answers = asyncio.run(burst(served.port, 500, max_new_tokens=20))
        codes = [code for code, _, _ in answers]
        assert set(codes) == {200, 429}
        assert codes.count(200) >= 20
        for code, headers, content in answers:
            if code == 429:
                assert int(headers["retry-after"]) >= 1
                assert content["error_type"] == "overloaded"
            else:
                assert len(content["generated_text"].split()) == 20
        assert served.engine.max_waiting_seen <= 16
        # a refused request was not tokenised
        assert served.metric("engram_tokenize_duration_seconds_count") == codes.count(200)
        refused = served.metric("engram_request_failures_total", reason="overloaded")
        assert refused == codes.count(429)
        wait_until(lambda: served.runtime.admission.in_use == 0)
        assert served.generate(max_new_tokens=1).status_code == 200


def test_a_full_engine_queue_is_429(served, monkeypatch):
    monkeypatch.setattr(served.engine, "max_queue_len", 0)
    monkeypatch.setattr(served.engine, "max_num_seqs", 0)
    answer = served.generate()
    assert (answer.status_code, answer.json()["error_type"]) == (429, "overloaded")
    assert answer.headers["retry-after"]


def test_waiting_too_long_is_503():
    script = Script(step_s=0.01)
    with serve(FakeLoader(script), max_num_seqs=1, queue_timeout=0.1) as served:
        with served.client.stream("POST", "/generate_stream", json=body(max_new_tokens=1000)):
            wait_until(lambda: served.engine.status().running == 1)
            answer = served.generate()
            assert (answer.status_code, answer.json()["error_type"]) == (503, "queue_timeout")
            assert answer.headers["retry-after"]
            (frame,) = served.stream()
            assert frame["error_type"] == "queue_timeout"
        wait_until(
            lambda: served.metric("engram_request_failures_total", reason="queue_timeout") == 2
        )


def test_taking_too_long_is_504():
    script = Script(step_s=0.01)
    with serve(FakeLoader(script), request_timeout=0.2) as served:
        answer = served.generate(max_new_tokens=1000)
        assert (answer.status_code, answer.json()["error_type"]) == (504, "deadline")
        *tokens, failure = served.stream(max_new_tokens=1000)
        assert tokens
        assert failure["error_type"] == "deadline"
        wait_until(lambda: served.engine.status().kv_blocks_used == 0)


def test_a_hanging_engine_does_not_hang_its_clients(monkeypatch):
    monkeypatch.setattr("server.generation.BACKSTOP_S", 0.1)
    with serve(request_timeout=0.2, engine_stall_timeout=1) as served:
        served.loader.script.hang.set()
        answer = served.generate()
        assert (answer.status_code, answer.json()["error_type"]) == (504, "deadline")
        assert served.engine.aborted


def leave_midway(served, route):
    """Start a long request, and close the connection while it runs."""
    data = json.dumps(body(max_new_tokens=1500)).encode()
    with socket.create_connection(("127.0.0.1", served.port)) as sock:
        sock.sendall(post_bytes(route, data))
        wait_until(lambda: served.engine.status().running == 1)


@pytest.mark.parametrize("route", ["/generate", "/generate_stream", "/"])
def test_a_client_that_leaves_frees_everything(served, route):
    served.engine.script = Script(step_s=0.01)
    before = served.metric("engram_request_failures_total", reason="disconnected")
    leave_midway(served, route)
    wait_until(lambda: len(served.engine.aborted) == 1)
    status = served.engine.status()
    assert (status.running, status.kv_blocks_used, status.open_tickets) == (0, 0, 0)
    wait_until(
        lambda: served.metric("engram_request_failures_total", reason="disconnected") == before + 1
    )


def test_a_client_that_leaves_the_queue_is_forgotten():
    script = Script(step_s=0.01)
    long = {"json": body(max_new_tokens=1500)}
    with (
        serve(FakeLoader(script), max_num_seqs=1) as served,
        served.client.stream("POST", "/generate_stream", **long),
    ):
        wait_until(lambda: served.engine.status().running == 1)
        with socket.create_connection(("127.0.0.1", served.port)) as sock:
            sock.sendall(post_bytes("/generate", json.dumps(body()).encode()))
            wait_until(lambda: served.engine.status().waiting == 1)
        wait_until(lambda: served.engine.status().waiting == 0)
        assert served.engine.status().running == 1


def test_a_client_that_leaves_before_its_body_is_complete(served):
    data = b"POST /generate HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", served.port)) as sock:
        sock.sendall(data)
        wait_until(lambda: served.runtime.admission.in_use == 1)
    wait_until(lambda: served.runtime.admission.in_use == 0)
    assert not served.engine.submitted


def test_a_reader_that_stands_still_is_dropped_and_its_neighbour_is_not():
    big = "x" * 200_000
    script = Script(
        step_s=0.001, text=lambda request, _: big if request.sampling.top_k == 1 else " w"
    )
    with serve(FakeLoader(script), stream_stall_timeout=0.5) as served:
        data = json.dumps(body(max_new_tokens=1500, top_k=1)).encode()
        with socket.create_connection(("127.0.0.1", served.port)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(post_bytes("/generate_stream", data))
            sock.recv(1)
            assert len(served.stream(max_new_tokens=300)) == 300
            wait_until(lambda: served.runtime.num_open == 0)
            assert served.engine.aborted or served.engine.status().running == 0
            wait_until(lambda: not served.server.server_state.connections - idle(served))
        wait_until(
            lambda: served.metric("engram_request_failures_total", reason="stream_stall") == 1
        )


def idle(served):
    """Connections whose request is over: they are kept for the next one."""
    return {
        c for c in served.server.server_state.connections if c.cycle and c.cycle.response_complete
    }


def test_a_slow_but_steady_reader_is_served():
    script = Script(text=lambda request, _: "x" * 20_000)
    with serve(FakeLoader(script), stream_stall_timeout=0.5) as served:
        received = b""
        data = json.dumps(body(max_new_tokens=60)).encode()
        with socket.create_connection(("127.0.0.1", served.port)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            sock.sendall(post_bytes("/generate_stream", data))
            while chunk := sock.recv(65536):
                received += chunk
                time.sleep(0.005)
        assert received.endswith(b"0\r\n\r\n")
        assert received.count(b'"index":') == 60


def test_many_streams_side_by_side(served):
    served.engine.script = Script(step_s=0.0005)
    results = {}

    def read(number):
        data = served.client.post("/generate_stream", json=body(max_new_tokens=10 + number))
        results[number] = len(frames(data.content))

    threads = [threading.Thread(target=read, args=(n,)) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: 10 + n for n in range(24)}
