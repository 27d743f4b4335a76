"""The real application on a real socket, in a thread; and a client that speaks raw HTTP."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI

from fakes.backend import FakeLoader
from server.app import create_app
from server.config import Settings
from server.process import DrainingServer, bind, make_server
from server.runtime import Runtime


@dataclass
class Served:
    app: FastAPI
    server: DrainingServer
    loader: FakeLoader
    port: int
    client: httpx.Client

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def runtime(self) -> Runtime:
        return self.app.state.runtime

    @property
    def engine(self):
        assert self.loader.engine is not None
        return self.loader.engine

    def generate(self, prompt: str = "hello", route: str = "/generate", **parameters: Any):
        body = {"inputs": prompt, "parameters": parameters}
        return self.client.post(route, json=body)

    def stream(self, prompt: str = "hello", **parameters: Any) -> list[dict[str, Any]]:
        body = {"inputs": prompt, "parameters": parameters}
        answer = self.client.post("/generate_stream", json=body)
        assert answer.status_code == 200, answer.text
        return frames(answer.content)

    def metric(self, name: str, **labels: str) -> float:
        return metric_value(self.client.get("/metrics").text, name, **labels)


def frames(content: bytes) -> list[dict[str, Any]]:
    """The JSON of every event of a stream; checks the framing."""
    assert content.endswith(b"\n\n")
    events = content.split(b"\n\n")[:-1]
    assert all(event.startswith(b"data: {") for event in events), content
    return [json.loads(event[len(b"data: ") :]) for event in events]


def metric_value(text: str, name: str, **labels: str) -> float:
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    raise AssertionError(f"no sample {name} {labels}")


def wait_until(condition, timeout_s: float = 10.0, what: str = "the condition") -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, f"{what} did not come true in {timeout_s} s"
        time.sleep(0.005)


@contextlib.contextmanager
def serve(
    loader: FakeLoader | None = None, *, ready: bool = True, **settings: Any
) -> Iterator[Served]:
    """Run the application on a free port until the block ends."""
    loader = loader or FakeLoader()
    config = Settings(**{"port": 0, "shutdown_timeout": 5, **settings})
    app = create_app(config, loader)
    sock = bind(config)
    server = make_server(app, config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    port = sock.getsockname()[1]
    limits = httpx.Limits(max_connections=None)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, limits=limits) as client:
        served = Served(app, server, loader, port, client)
        try:
            if ready:
                wait_until(served.runtime.is_ready, what="ready")
            yield served
        finally:
            loader.may_finish.set()
            client.close()
            server.handle_exit(15, None)
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive(), "the server did not stop"


def raw(port: int, data: bytes, *, timeout_s: float = 10.0) -> bytes:
    """Send bytes, and read until the server closes or is silent."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(data)
        return read_all(sock)


def read_all(sock: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(OSError):
        while chunk := sock.recv(65536):
            received += chunk
    return received


def post_bytes(path: str, body: bytes, headers: str = "") -> bytes:
    """A whole POST request that closes its connection."""
    head = f"POST {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{headers}"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
