"""Log lines as text or JSON, on stderr; one format for the server's and uvicorn's loggers.

Knows nothing about requests: whoever logs puts facts under ``extra={"facts": {...}}``.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, TextIO

import orjson

OWN_LOGGERS = ("engram", "engram_core", "server")  # by topic, and by module where no topic fits
LOGGERS = (*OWN_LOGGERS, "uvicorn", "uvicorn.error")


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00Z INFO engram.access request id=... status=200``."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """The line without a traceback."""
        facts = getattr(record, "facts", {})
        return " ".join([super().formatMessage(record), *(f"{k}={v}" for k, v in facts.items())])


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """The whole record, traceback included."""
        line: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def configure_logging(form: str, level: str, stream: TextIO | None = None) -> None:
    """Send the server's and uvicorn's log lines to a stream (stderr) in one form."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [] if name == "uvicorn.error" else [handler]
        logger.propagate = name == "uvicorn.error"  # its parent "uvicorn" has the handler
        logger.setLevel(level.upper() if name in OWN_LOGGERS else "WARNING")
