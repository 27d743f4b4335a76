"""Engines over tiny models, and requests whose events are collected."""

from __future__ import annotations

import queue
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from fakes.tokenizer import ByteTokenizer

from server.engine.engine import Engine
from server.engine.limits import EngineLimits
from server.engine.tuning import Tuning
from server.engine.types import (
    EngramParams,
    FailureEvent,
    FinishEvent,
    NullRecorder,
    Request,
    SamplingParams,
    TokenEvent,
)

KV_BYTES = 4 << 20


class Recording(NullRecorder):
    """Keeps what was recorded."""

    def __init__(self):
        self.steps, self.requests, self.unused = [], [], []

    def record_step(self, stats):
        self.steps.append(stats)

    def record_lookups(self, lookups):
        self.unused += lookups

    def record_request(self, stats):
        self.requests.append(stats)


@dataclass
class Stream:
    """The events of one request, gathered as they arrive."""

    id: str
    events: queue.Queue = field(default_factory=queue.Queue)
    tokens: list = field(default_factory=list)
    end: object = None

    def next(self):
        event = self.events.get(timeout=60)
        if isinstance(event, TokenEvent):
            self.tokens.append(event)
        else:
            self.end = event
        return event

    def wait(self):
        while self.end is None:
            self.next()
        return self

    @property
    def token_ids(self):
        return [event.token.id for event in self.tokens]

    @property
    def text(self):
        tail = self.end.text_tail if isinstance(self.end, FinishEvent) else ""
        return "".join(event.text_delta for event in self.tokens) + tail

    @property
    def failure(self):
        return self.end.kind if isinstance(self.end, FailureEvent) else None


class Client:
    """Submits requests to an engine."""

    def __init__(self, engine):
        self.engine = engine
        self._count = 0

    def submit(self, prompt, max_new_tokens=12, *, engram=None, queue_deadline_s=None,
               deadline_s=None, request_id=None, isolation="", priority=0,
               **sampling):  # fmt: skip
        self._count += 1
        stream = Stream(request_id or f"r{self._count}")
        request = Request(
            stream.id, tuple(prompt), SamplingParams(max_new_tokens=max_new_tokens, **sampling),
            engram or EngramParams(), queue_deadline_s=queue_deadline_s, deadline_s=deadline_s,
            isolation=isolation, priority=priority,
        )  # fmt: skip
        self.engine.submit(request, stream.events.put)
        return stream

    def generate(self, prompt, max_new_tokens=12, **rest):
        return self.submit(prompt, max_new_tokens, **rest).wait()


def make_engine(
    model, *, version=None, prefetcher=None, recorder=None, tokenizer=None, device=None,
    tuning=None, **limits,
):  # fmt: skip
    limits = {"max_model_len": 128, "kv_cache_bytes": KV_BYTES, "block_size": 8, **limits}
    tokenizer = tokenizer or ByteTokenizer(model.config.get_text_config().vocab_size)
    recorder = recorder or NullRecorder()
    return Engine(
        model, tokenizer, version, prefetcher, EngineLimits(**limits), recorder,
        device=device, tuning=tuning or Tuning(),
    )  # fmt: skip


@contextmanager
def running(model, **settings):
    """A started engine's client; on the way out nothing may be left behind."""
    engine = make_engine(model, **settings)
    engine.start()
    try:
        yield Client(engine)
        if engine.status().alive:
            assert engine._inbox.wait_until_empty(60)
            assert_baseline(engine)
    finally:
        engine.stop(0)


def assert_baseline(engine):
    status = engine.status()
    assert (status.running, status.waiting, status.waiting_tokens) == (0, 0, 0)
    assert (status.kv_blocks_used, status.open_tickets) == (0, 0)
    engine.check_integrity()


def random_prompt(length, seed=0, num_ids=128):
    generator = torch.Generator().manual_seed(1000 * length + seed)
    return torch.randint(2, num_ids, (length,), generator=generator).tolist()


def generate_alone(model, prompt, max_new_tokens=12):
    """Greedy tokens of transformers' own generate, up to and including the end token."""
    output = model.generate(
        torch.tensor([prompt]), max_new_tokens=max_new_tokens, do_sample=False,
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        eos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    return output[0, len(prompt) :].tolist()
