"""Row servers around tiny artefacts, in this process, for tests of remote rows."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

from artefacts import tiny_content

from engram_core.errors import TierRefusedError
from engram_core.row_shard import shard_of
from engram_core.store.flight_server import FlightRowServer
from engram_core.store.flight_source import FlightRowSource
from engram_core.tables import open_table, write_artefact

LAYER, TABLE = 1, "layer1"
TIMEOUT_S = 20.0  # where the test is not about time


def tiny_artefact(path, **change):
    """An opened artefact with two layers of two orders and two heads."""
    storage = change.pop("storage", "dense")
    dtype = {"dense": "bfloat16", "sparse": "int4"}[storage]
    write_artefact(path, tiny_content(storage=storage, dtype=dtype, **change))
    return open_table(path)


@contextmanager
def flight_source(artefact, heads=None, *, memory=None, token=None, sent_token=None):
    """A row server and a source that asks it."""
    with FlightRowServer(shard_of(artefact, heads), token=token) as server:
        source = FlightRowSource(
            f"127.0.0.1:{server.port}", memory or artefact.content, token=sent_token
        )
        yield source
        source.close()


@contextmanager
def one_source_per_head(artefact):
    """A row server for every head, and a source for each."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(flight_source(artefact, [head]))
            for head in range(artefact.config.num_heads)
        ]


class ScriptedSource:
    """A source that answers with what it is told: rows, or the next error of a list."""

    name = "row server scripted"

    def __init__(self, inner, failures=()):
        self.inner, self.failures = inner, list(failures)
        self.asked = []

    def describe(self, timeout_s):
        return self.inner.describe(timeout_s)

    def read_rows(self, table, row_ids, timeout_s):
        self.asked.append(row_ids.copy())
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        return self.inner.read_rows(table, row_ids, timeout_s)

    def close(self):
        self.inner.close()


REFUSED = TierRefusedError("no")
