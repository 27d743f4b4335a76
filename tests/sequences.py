"""Sequences without an engine, for tests of its parts."""

from __future__ import annotations

from server.engine.sequence import Sequence
from server.engine.types import Request, SamplingParams


def make_sequence(prompt=(5, 6, 7), generated=(), *, request_id="s", version=None, **sampling):
    request = Request(request_id, tuple(prompt), SamplingParams(**sampling))
    sequence = Sequence(request, lambda event: None)
    sequence.token_ids += list(generated)
    sequence.version = version
    return sequence
