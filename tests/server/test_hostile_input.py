"""Bodies and heads that nobody sends in good faith: always a 4xx, never an echo."""

import contextlib
import json
import socket
import time

import httpx
import psutil
import pytest
from fakes.backend import FakeLoader
from fakes.engine import Script
from fakes.http import post_bytes, raw, read_all, serve, wait_until
from fakes.process import process

CANARY = "canary-7f3a"

BODIES = {
    "empty": b"",
    "array": b"[]",
    "string": b'"canary-7f3a"',
    "null": b"null",
    "truncated": b'{"inputs": "canary-7f3a"',
    "bad utf-8": b'{"inputs": "canary-7f3a\xff"}',
    "overlong utf-8": b'{"inputs": "canary-7f3a\xc0\xaf"}',
    "utf-16": '{"inputs": "canary-7f3a"}'.encode("utf-16"),
    "bom": b'\xef\xbb\xbf{"inputs": "a"}',
    "lone surrogate in value": b'{"inputs": "canary-7f3a\\ud800"}',
    "lone surrogate in key": b'{"inputs": "a", "canary-7f3a\\udfff": 1}',
    "lone surrogate in stop": b'{"inputs": "a", "parameters": {"stop": ["canary-7f3a\\ud83d"]}}',
    "encoded surrogate": b'{"inputs": "canary-7f3a\xed\xa0\x80"}',
    "nan": b'{"inputs": "a", "parameters": {"temperature": NaN}}',
    "infinity": b'{"inputs": "a", "parameters": {"repetition_penalty": Infinity}}',
    "minus infinity": b'{"inputs": "a", "parameters": {"frequency_penalty": -Infinity}}',
    "1e999": b'{"inputs": "a", "parameters": {"temperature": 1e999}}',
    "nan for an int": b'{"inputs": "a", "parameters": {"top_k": NaN}}',
    "nan for anything": b'{"inputs": "a", "parameters": {"best_of": NaN}}',
    "deep anything": b'{"inputs": "a", "parameters": {"grammar": ' + b"[" * 100_000,
    "long int": b'{"inputs": "a", "parameters": {"seed": ' + b"9" * 5000 + b"}}",
    "long int for anything": b'{"inputs": "a", "parameters": {"grammar": ' + b"9" * 4000 + b"}}",
    "deep array": b"[" * 100_000,
    "deep object": b'{"a":' * 100_000,
    "deep and closed": b"[" * 100_000 + b"]" * 100_000,
    "bool for int": b'{"inputs": "a", "parameters": {"top_k": true}}',
    "string for int": b'{"inputs": "a", "parameters": {"top_k": "canary-7f3a"}}',
    "numeric string": b'{"inputs": "a", "parameters": {"max_new_tokens": "12"}}',
    "float for int": b'{"inputs": "a", "parameters": {"max_new_tokens": 1.0}}',
    "int for bool": b'{"inputs": "a", "parameters": {"details": 1}}',
    "string for bool": b'{"inputs": "a", "parameters": {"details": "true"}}',
    "number for text": b'{"inputs": 12}',
    "list for text": b'{"inputs": ["canary-7f3a"]}',
    "misspelt key": b'{"inputs": "a", "parameters": {"canary-7f3a": 12}}',
    "misspelt key above": b'{"inputs": "a", "canary-7f3a": 12}',
    "no inputs": b"{}",
    "empty prompt": b'{"inputs": ""}',
    "parameters as list": b'{"inputs": "a", "parameters": ["canary-7f3a"]}',
    "zero temperature": b'{"inputs": "a", "parameters": {"temperature": 0}}',
    "negative top_k": b'{"inputs": "a", "parameters": {"top_k": -1}}',
    "zero top_p": b'{"inputs": "a", "parameters": {"top_p": 0}}',
    "top_p above one": b'{"inputs": "a", "parameters": {"top_p": 1.5}}',
    "no tokens": b'{"inputs": "a", "parameters": {"max_new_tokens": 0}}',
    "huge max_new_tokens": b'{"inputs": "a", "parameters": {"max_new_tokens": 1000000000}}',
    "huge best_of": b'{"inputs": "a", "parameters": {"best_of": 1000000000}}',
    "negative seed": b'{"inputs": "a", "parameters": {"seed": -1}}',
    "seed over 64 bits": b'{"inputs": "a", "parameters": {"seed": 18446744073709551616}}',
    "five stops": b'{"inputs": "a", "parameters": {"stop": ["a","b","c","d","e"]}}',
    "long stop": b'{"inputs": "a", "parameters": {"stop": ["' + b"x" * 65 + b'"]}}',
    "empty stop": b'{"inputs": "a", "parameters": {"stop": [""]}}',
    "too many top tokens": b'{"inputs": "a", "parameters": {"top_n_tokens": 6}}',
    "zero truncate": b'{"inputs": "a", "parameters": {"truncate": 0}}',
    "gate scale": b'{"inputs": "a", "parameters": {"engram": {"gate_scale": -1}}}',
    "gate scale nan": b'{"inputs": "a", "parameters": {"engram": {"gate_scale": NaN}}}',
    "engram as bool": b'{"inputs": "a", "parameters": {"engram": true}}',
    "many unknown keys": json.dumps({f"canary-7f3a{i}": 1 for i in range(50_000)}).encode(),
    "many stops": json.dumps({"inputs": "a", "parameters": {"stop": [1] * 300_000}}).encode(),
    "nul": b"\x00",
}


@pytest.mark.parametrize("route", ["/generate", "/generate_stream", "/"])
@pytest.mark.parametrize("name", BODIES)
def test_hostile_bodies_are_refused(served, route, name):
    answer = served.client.post(route, content=BODIES[name])
    assert answer.status_code == 422, answer.text
    body = answer.json()
    assert set(body) == {"error", "error_type"}
    assert body["error_type"] == "validation"
    assert CANARY not in answer.text
    assert len(body["error"]) < 600
    assert not served.engine.submitted


@pytest.mark.parametrize(
    "name", ["many unknown keys", "many stops", "huge max_new_tokens", "negative top_k"]
)
def test_refusing_is_fast_for_everybody(served, name):
    """A neighbour's small request does not wait long behind a hostile one."""
    served.client.get("/health")
    start_s = time.perf_counter()
    served.client.post("/generate", content=BODIES[name])
    assert time.perf_counter() - start_s < 2  # loose: the machine is shared
    assert served.client.get("/health").status_code == 200


def test_messages_name_field_and_limit(served):
    def told(**parameters):
        return served.generate(**parameters).json()["error"]

    assert told(top_k=-1) == "`parameters.top_k` must be at least 1"
    assert told(temperature=0) == "`parameters.temperature` must be greater than 0"
    assert told(stop=["a", ""]) == "`parameters.stop[1]` must not be empty"
    assert told(seed="1") == "`parameters.seed` must be a whole number"
    assert told(sead=1) == "`parameters` has an unknown field"
    assert told(engram={"gate_scale": 11}) == "`parameters.engram.gate_scale` must be at most 10"
    many = told(top_k=-1, top_p=0, seed=-1, temperature=0, details=1)
    assert many.endswith("; and 2 more")
    missing = served.client.post("/generate", json={}).json()["error"]
    assert missing == "`inputs` is missing"


def test_content_type_does_not_matter(served):
    body = b'{"inputs": "a", "parameters": {"max_new_tokens": 1}}'
    for kind in ("text/plain", "application/json; charset=utf-16", "nonsense", ""):
        answer = served.client.post("/generate", content=body, headers={"content-type": kind})
        assert answer.status_code == 200


def test_bodies_over_the_limit_take_no_memory():
    def chunks():
        for _ in range(60):
            yield b" " * 2**20

    with process(wait="ready") as (child, port, _):
        url, memory = f"http://127.0.0.1:{port}/generate", psutil.Process(child.pid).memory_info
        httpx.post(url, content=b" " * 2_500_000)  # whatever a first one allocates
        before = memory().rss
        for body in (chunks(), b" " * (60 * 2**20)):  # chunked, and with a length
            answer = httpx.post(url, content=body, timeout=30)
            assert answer.status_code == 413
            assert answer.json()["error_type"] == "too_large"
            assert "2000000" in answer.json()["error"]
        assert memory().rss - before < 10 * 2**20


def test_a_declared_length_is_enough_to_refuse(served):
    """Nothing of the body was sent, and the client waits for a go-ahead."""
    head = (
        b"POST /generate HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\n"
        b"content-length: 3000000000\r\n\r\n"
    )
    answer = raw(served.port, head, timeout_s=5)
    assert answer.startswith(b"HTTP/1.1 413")


def test_bad_http_gets_our_error_shape(served):
    for data in (b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"):
        answer = raw(served.port, data)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b'"error_type":"validation"' in answer


def test_contradicting_lengths_are_refused(served):
    data = (
        b"POST /generate HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n"
        b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    )
    assert raw(served.port, data).startswith(b"HTTP/1.1 400 ")


def test_large_heads():
    with serve(max_header_size=2048) as served:
        answer = served.client.get("/health", headers={"x-big": "a" * 3000})
        assert answer.status_code == 431
        assert answer.json()["error_type"] == "too_large"
        data = b"GET /health HTTP/1.1\r\nhost: a\r\nx-big: " + b"a" * 100_000
        assert raw(served.port, data).startswith(b"HTTP/1.1 431 ")
        assert served.client.get("/health?" + "a" * 3000).status_code == 431
        assert served.client.get("/health").status_code == 200


def test_half_a_head_is_not_waited_for():
    with serve(header_timeout=0.2) as served:
        for data in (b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nhost: a\r\n"):
            answer = raw(served.port, data, timeout_s=5)
            assert answer.startswith(b"HTTP/1.1 408 ") or not data
        kept = socket.create_connection(("127.0.0.1", served.port), timeout=5)
        with kept:  # an idle kept-alive connection is something else
            kept.sendall(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
            assert kept.recv(65536).startswith(b"HTTP/1.1 200")
            time.sleep(0.4)
            kept.sendall(b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            assert read_all(kept).startswith(b"HTTP/1.1 200")


def test_half_a_body_is_not_waited_for():
    with serve(body_timeout=0.2) as served:
        data = b"POST /generate HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{"
        answer = raw(served.port, data, timeout_s=5)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert served.runtime.admission.in_use == 0


def test_a_body_that_goes_on_after_the_refusal_is_cut_off(monkeypatch):
    monkeypatch.setattr("server.protocol.LINGER_S", 0.2)
    with serve(api_key="k") as served:
        head = b"POST /generate HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000\r\n\r\n"
        with socket.create_connection(("127.0.0.1", served.port), timeout=10) as sock:
            sock.sendall(head)
            assert sock.recv(65536).startswith(b"HTTP/1.1 401")
            end_s = time.monotonic() + 10
            with contextlib.suppress(OSError):
                while time.monotonic() < end_s:
                    sock.sendall(b" ")
                    time.sleep(0.02)
            assert time.monotonic() < end_s


def test_an_answer_that_nobody_reads_is_given_up():
    script = Script(text=lambda request, index: "x" * 1_000_000)
    with serve(FakeLoader(script), stream_stall_timeout=0.2) as served:
        body = b'{"inputs": "a", "parameters": {"max_new_tokens": 8}}'
        with socket.create_connection(("127.0.0.1", served.port)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(post_bytes("/generate", body))
            wait_until(lambda: served.engine.submitted and served.runtime.admission.in_use == 0)
            wait_until(lambda: not served.server.server_state.connections)


@pytest.mark.parametrize("host", ["evil.example", "", "a b", "[::1", "evil.example:99999"])
def test_the_host_header_steers_nothing(served, host):
    data = b"GET /health/ HTTP/1.1\r\nhost: %s\r\nconnection: close\r\n\r\n" % host.encode()
    answer = raw(served.port, data)
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"evil" not in answer


def test_odd_paths(served):
    for path in (
        b"/%00",
        b"/%ff",
        b"/..%2f..%2fhealth",
        b"//health",
        b"/health%20",
        b"*",
        b"/\xff",
    ):
        data = b"GET " + path + b" HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
        assert raw(served.port, data)[:12] in (b"HTTP/1.1 404", b"HTTP/1.1 400")
    whole = b"GET http://evil.example/health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    assert raw(served.port, whole)[:12] in (b"HTTP/1.1 200", b"HTTP/1.1 400")


def test_probes_may_ask_for_heads_only(served):
    for path in ("/health", "/ready"):
        answer = served.client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")


def test_methods(served):
    for method, path in (("GET", "/generate"), ("DELETE", "/"), ("POST", "/health")):
        answer = served.client.request(method, path)
        assert answer.status_code == 405
        assert answer.json()["error_type"] == "method_not_allowed"
        assert answer.headers["allow"]


def test_pipelined_requests_are_answered_in_order(served):
    one = post_bytes("/generate", b'{"inputs": "a"}').replace(b"connection: close\r\n", b"")
    last = b"GET /version HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    answer = raw(served.port, one + one + last)
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.endswith(b"}")
