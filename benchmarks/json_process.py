"""A child process that is asked one JSON line at a time and answers with one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Self

STOP_TIMEOUT_S = 20.0


class JsonProcess:
    """`python -m MODULE ARGUMENTS...`, started at once; use as a context manager.

    While nobody asks it, the child waits in a read and computes nothing.
    """

    def __init__(self, module: str, arguments: Sequence[str] = ()) -> None:
        self._module = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Send a line and wait for the answer. Raises RuntimeError when the child has ended."""
        stdin = self._process.stdin
        if stdin is None:
            raise RuntimeError(f"{self._module} has no input")
        stdin.write(json.dumps(question) + "\n")
        stdin.flush()
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """Wait for a line. Raises RuntimeError when the child has ended."""
        stdout = self._process.stdout
        line = stdout.readline() if stdout is not None else ""
        if not line:
            raise RuntimeError(f"{self._module} ended with exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End its input, which ends the process; one that goes on is killed."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
