"""Loading, readiness, draining, death: what probes, clients and the supervisor see."""

import http.client
import json
import signal
import socket
import threading
import time

import httpx
import pytest
from fakes.backend import FakeLoader
from fakes.engine import Script
from fakes.http import frames, serve, wait_until
from fakes.process import process

from engram_core.errors import ArtefactError
from server.lifespan import load_failure


def test_while_loading(loader):
    loader.may_finish.clear()
    with serve(loader, ready=False, served_model_name="tiny") as served:
        assert served.client.get("/health").status_code == 200
        wait_until(lambda: served.client.get("/ready").json()["fraction"] == 0.5)
        answer = served.client.get("/ready")
        assert answer.status_code == 503
        assert answer.json() == {"status": "loading", "phase": "weights", "fraction": 0.5}
        for route in ("/generate", "/generate_stream", "/"):
            refused = served.client.post(route, json={"inputs": "a"})
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error_type"] == "unavailable"
        assert served.client.get("/info").json()["status"] == "loading"
        assert served.metric("engram_ready") == 0
        loader.may_finish.set()
        wait_until(lambda: served.client.get("/ready").status_code == 200)
        assert served.client.get("/ready").json() == {"status": "ready"}
        assert served.metric("engram_ready") == 1
        assert served.generate(max_new_tokens=1).status_code == 200


def test_info_and_version(served):
    info = served.client.get("/info").json()
    assert info["max_total_tokens"] == 2048
    assert info["max_concurrent_requests"] == 16 + 128
    assert info["model_device_type"] == "cpu"
    assert info["engram"]["enabled"] is True
    assert info["engram"]["layers"] == [1]
    assert info["engram"]["prefetch"] == {"path": "async", "why": "async: fake"}
    assert info["load_s"] == {"weights": 0.1, "tables": 0.2}
    assert served.client.get("/version").json()["version"]


def test_a_stalled_engine_is_not_ready_but_alive():
    with serve(engine_stall_timeout=1) as served:
        served.loader.script.hang.set()
        with served.client.stream("POST", "/generate_stream", json={"inputs": "a"}):
            wait_until(lambda: served.client.get("/ready").status_code == 503)
            assert served.client.get("/ready").json() == {"status": "stalled"}
            assert served.client.get("/health").status_code == 200
            served.loader.script.hang.clear()
            wait_until(lambda: served.client.get("/ready").status_code == 200)


def test_an_idle_engine_is_ready_however_old_its_last_step():
    with serve(engine_stall_timeout=1) as served:
        served.loader.script.hang.set()
        time.sleep(1.2)
        assert served.client.get("/ready").status_code == 200


@pytest.mark.parametrize("silently", [True, False])
def test_a_dead_engine_answers_everybody(silently):
    script = Script(step_s=0.01, die_silently=silently)
    with serve(FakeLoader(script)) as served:
        answers = {}

        def ask(route):
            body = {"inputs": "a", "parameters": {"max_new_tokens": 1500}}
            answers[route] = served.client.post(route, json=body)

        routes = ("/generate", "/generate_stream")
        threads = [threading.Thread(target=ask, args=(route,)) for route in routes]
        for thread in threads:
            thread.start()
        wait_until(lambda: served.engine.status().running == 2)
        script.die.set()
        for thread in threads:
            thread.join(5)
        assert answers["/generate"].status_code == 503
        assert answers["/generate"].json()["error_type"] == "engine_dead"
        assert frames(answers["/generate_stream"].content)[-1]["error_type"] == "engine_dead"
        assert served.client.get("/health").status_code == 503
        assert served.client.get("/ready").json() == {"status": "dead"}
        assert served.generate().status_code == 503


def test_load_failures_are_one_sentence(caplog):
    assert load_failure(ArtefactError("table.bin is too short\nmore")) == "table.bin is too short"
    assert not caplog.records
    assert load_failure(RuntimeError()) == "RuntimeError"
    assert "unexpectedly" in caplog.text


# the real process


def get(port, path):
    return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=5)


def open_stream(port, tokens):
    """A running stream, whose answer has begun."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body = json.dumps({"inputs": "a", "parameters": {"max_new_tokens": tokens}})
    connection.request("POST", "/generate_stream", body)
    return connection, connection.getresponse()


def test_sigterm_under_load_drains():
    with process(fake="step_s=0.02", wait="ready") as (child, port, _):
        connection, answer = open_stream(port, 120)
        child.send_signal(signal.SIGTERM)
        wait_until(lambda: get(port, "/ready").status_code == 503)
        assert get(port, "/ready").json() == {"status": "draining"}
        assert get(port, "/health").status_code == 200
        refused = httpx.post(f"http://127.0.0.1:{port}/generate", json={"inputs": "b"})
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        parts = frames(answer.read())
        connection.close()
        assert len(parts) == 120
        assert parts[-1]["generated_text"]
        assert child.wait(10) == 0


def test_sigterm_when_idle_ends_at_once():
    with process(wait="ready") as (child, port, _):
        idle = socket.create_connection(("127.0.0.1", port))
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == 0
        idle.close()


def test_the_shutdown_timeout_cancels_what_is_left():
    with process("--shutdown-timeout", "0.3", fake="step_s=0.05", wait="ready") as running:
        child, port, _ = running
        connection, answer = open_stream(port, 2000)
        child.send_signal(signal.SIGTERM)
        parts = frames(answer.read())
        connection.close()
        assert parts[-1]["error_type"] == "cancelled"
        assert child.wait(10) == 0


def test_a_second_signal_forces():
    with process("--shutdown-timeout", "60", fake="step_s=0.05", wait="ready") as running:
        child, port, _ = running
        connection, _answer = open_stream(port, 2000)
        child.send_signal(signal.SIGTERM)
        wait_until(lambda: get(port, "/ready").status_code == 503)
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == 5
        connection.close()


def test_sigterm_while_loading():
    with process(fake="load_forever=1") as (child, port, _):
        wait_until(lambda: get(port, "/health").status_code == 200)
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == 0


def test_a_load_failure_is_one_sentence_and_exit_1():
    with process(fake="load_error=table_0.bin_is_too_short", wait="\0") as (child, _, lines):
        assert child.wait(10) == 1
        wait_until(lambda: any("too short" in line for line in lines))
        assert lines[-1] == "engram-server: cannot serve: table 0.bin is too short\n"
        assert "Traceback" not in "".join(lines)


def test_a_dead_engine_ends_the_process():
    with process(fake="die_at_token=20", wait="ready") as (child, port, lines):
        connection, answer = open_stream(port, 2000)
        parts = frames(answer.read())
        connection.close()
        assert parts[-1]["error_type"] == "engine_dead"
        assert get(port, "/health").status_code == 503
        assert get(port, "/ready").status_code == 503
        assert child.wait(10) == 3
        wait_until(lambda: "the engine died: the script said so" in "".join(lines))


def test_a_taken_port_is_found_before_loading():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with process("--port", port, wait="\0") as (child, _, lines):
            assert child.wait(10) == 4
            wait_until(lambda: bool(lines))
            assert lines == [
                f"engram-server: cannot listen on 127.0.0.1:{port}: [Errno 98] Address already "
                "in use\n"
            ]


def test_a_wrong_certificate_is_a_sentence(tmp_path):
    (tmp_path / "c.pem").write_text("no certificate")
    flags = ("--ssl-certfile", str(tmp_path / "c.pem"), "--ssl-keyfile", str(tmp_path / "c.pem"))
    with process(*flags, wait="\0") as (child, _, lines):
        assert child.wait(10) == 2
        wait_until(lambda: "TLS certificate" in "".join(lines))
