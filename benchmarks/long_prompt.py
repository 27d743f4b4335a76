"""What a long prompt does to streams that are running: the time between their tokens.

Starts a server, lets eight streams run, sends one long prompt into them, and compares the gaps
between their tokens while that prompt is computed with those before and after, in one run.
docs/benchmarks.md describes the method.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.prompt_source import reference_text
from benchmarks.report import environment, table, write_json
from benchmarks.server_process import serve
from benchmarks.token_stream import stream_frames

STREAM_PROMPT_CHARS = 600
LONG_PROMPT_CHARS_PER_TOKEN = 16  # more than any text needs; the server cuts it to length
_MS = 1e3


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Gaps between tokens of the running streams, in milliseconds.

    Attributes:
        quiet_p50_ms, quiet_p99_ms: while nothing but the streams ran.
        busy_p50_ms, busy_p99_ms, busy_max_ms: while the long prompt was computed.
        ratio: the second p99 over the first.
        long_first_token_s: from sending the long prompt to its first token.
        long_tokens: its length.
        quiet_gaps, busy_gaps: how many gaps the figures are made of.
    """

    quiet_p50_ms: float
    quiet_p99_ms: float
    busy_p50_ms: float
    busy_p99_ms: float
    busy_max_ms: float
    ratio: float
    long_first_token_s: float
    long_tokens: int
    quiet_gaps: int
    busy_gaps: int


class RunningStreams:
    """Streams of one server that note when each token arrives, until they are closed."""

    def __init__(self, url: str, prompts: Sequence[str], max_new_tokens: int) -> None:
        self.times_s: list[list[float]] = [[] for _ in prompts]
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(url, prompt, times, max_new_tokens))
            for prompt, times in zip(prompts, self.times_s, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def wait_until_all_run(self) -> None:
        """Return once every stream has a few tokens."""
        while any(len(times) < 5 for times in self.times_s):
            self._check()
            time.sleep(0.05)

    def watch(self, seconds: float) -> tuple[float, float]:
        """Let them run for so long; returns the window."""
        start_s = time.perf_counter()
        time.sleep(seconds)
        self._check()
        return start_s, time.perf_counter()

    def close(self) -> None:
        """Hang up."""
        self._closed.set()
        for thread in self._threads:
            thread.join()

    def _check(self) -> None:
        if not all(thread.is_alive() for thread in self._threads):
            raise RuntimeError("a stream ended before its time")

    def _run(self, url: str, prompt: str, times_s: list[float], max_new_tokens: int) -> None:
        with closing(stream_frames(url, prompt, max_new_tokens=max_new_tokens)) as frames:
            for frame in frames:
                times_s.append(frame.arrived_s)
                if self._closed.is_set():
                    return


def gaps_ms(
    times_s: Sequence[Sequence[float]], windows_s: Sequence[tuple[float, float]]
) -> list[float]:
    """Gaps between a stream's tokens that ended within one of the windows."""
    return [
        (later - earlier) * _MS
        for times in times_s
        for earlier, later in pairwise(times)
        if any(start <= later <= stop for start, stop in windows_s)
    ]


def measure(
    url: str, *, num_streams: int, long_tokens: int, quiet_s: float, new_tokens: int
) -> Disturbance:
    """Run the streams and the long prompt against a server."""
    text = reference_text()
    prompts = [text[STREAM_PROMPT_CHARS * n :][:STREAM_PROMPT_CHARS] for n in range(num_streams)]
    with _running(url, prompts, new_tokens) as streams:
        streams.wait_until_all_run()
        before_s = streams.watch(quiet_s)
        long_text = text[-LONG_PROMPT_CHARS_PER_TOKEN * long_tokens :]
        started_s = time.perf_counter()
        frames = list(stream_frames(url, long_text, truncate=long_tokens, max_new_tokens=1))
        busy_s = (started_s, frames[0].arrived_s)
        after_s = streams.watch(quiet_s)
        quiet = np.array(gaps_ms(streams.times_s, [before_s, after_s]))
        busy = np.array(gaps_ms(streams.times_s, [busy_s]))
    return _disturbance(quiet, busy, busy_s[1] - busy_s[0], frames[-1].data["details"])


def _disturbance(
    quiet: np.ndarray, busy: np.ndarray, first_token_s: float, details: dict[str, int]
) -> Disturbance:
    quiet_p99, busy_p99 = (float(np.percentile(gaps, 99)) for gaps in (quiet, busy))
    return Disturbance(
        quiet_p50_ms=float(np.median(quiet)),
        quiet_p99_ms=quiet_p99,
        busy_p50_ms=float(np.median(busy)),
        busy_p99_ms=busy_p99,
        busy_max_ms=float(busy.max()),
        ratio=busy_p99 / quiet_p99,
        long_first_token_s=first_token_s,
        long_tokens=details["input_length"],
        quiet_gaps=len(quiet),
        busy_gaps=len(busy),
    )


@contextmanager
def _running(url: str, prompts: Sequence[str], new_tokens: int) -> Iterator[RunningStreams]:
    streams = RunningStreams(url, prompts, new_tokens)
    try:
        yield streams
    finally:
        streams.close()


def render(found: Disturbance) -> str:
    """The table of docs/benchmarks.md."""
    quiet, busy = (
        [name, f"{p50:.1f}", f"{p99:.1f}"]
        for name, p50, p99 in (
            ("streams alone", found.quiet_p50_ms, found.quiet_p99_ms),
            (f"beside {found.long_tokens} tokens", found.busy_p50_ms, found.busy_p99_ms),
        )
    )
    rows = table(["between two tokens", "median ms", "p99 ms"], [quiet, busy])
    return (
        f"{rows}\n\np99 ratio {found.ratio:.2f}; the long prompt's first token after "
        f"{found.long_first_token_s:.1f} s"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Serve, measure, print and write the report."""
    args = _parser().parse_args(argv)
    with serve(args.server) as served:
        found = measure(
            served.url,
            num_streams=args.streams,
            long_tokens=args.long_tokens,
            quiet_s=args.quiet_s,
            new_tokens=args.new_tokens,
        )
    print(render(found))
    report = {"environment": environment(), "server": args.server, "result": asdict(found)}
    write_json(args.output, report)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_prompt", description=__doc__)
    parser.add_argument("--streams", type=int, default=8, help="streams that run")
    parser.add_argument("--long-tokens", type=int, default=4000, help="the long prompt's length")
    parser.add_argument("--quiet-s", type=float, default=8.0, help="seconds before, and after")
    parser.add_argument("--new-tokens", type=int, default=2000, help="longest stream")
    parser.add_argument("--output", type=Path, help="where the JSON report goes")
    parser.add_argument(
        "server",
        nargs="*",
        default=["--max-model-len", "8192", "--kv-cache-memory", "1GiB"],
        help="after --: arguments of engram-server serve",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
