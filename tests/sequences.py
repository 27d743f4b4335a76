"""Sequences without an engine, for tests of its parts."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

from server.engine.sequence import Sequence
from server.engine.types import EngramParams, Request, SamplingParams


@cache
def version_named(name):
    """A stand-in for a memory version: the same object for the same name."""
    return None if name is None else SimpleNamespace(id=name)


def make_sequence(
    prompt=(5, 6, 7), generated=(), *, request_id="s", version=None, priority=0, isolation="",
    engram=None, **sampling,
):  # fmt: skip
    request = Request(
        request_id, tuple(prompt), SamplingParams(**sampling), engram or EngramParams(),
        priority=priority, isolation=isolation,
    )  # fmt: skip
    sequence = Sequence(request, lambda event: None)
    sequence.token_ids += list(generated)
    sequence.version = version_named(version)
    return sequence
