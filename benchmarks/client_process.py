"""Owner of the client process: hands it jobs, each a set of streams that are opened together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from benchmarks.json_process import JsonProcess


class ClientProcess(JsonProcess):
    """`benchmarks.stream_client`."""

    def __init__(self) -> None:
        super().__init__("benchmarks.stream_client")

    def stream(self, url: str, path: str, bodies: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Open one stream per body together; see `stream_client.run_job` for the answer.

        Raises:
            RuntimeError: the client process ended.
        """
        address = urlsplit(url)
        job = {"host": address.hostname, "port": address.port, "path": path, "bodies": bodies}
        return self.ask(job)
