"""What a known prefix saves: the time to the first token of a prompt, new and repeated.

Every pair takes text that the server has not seen: a prefix with a first ending is answered, then
the same prefix with a second one, then the first prompt again, whose answer must not have changed.
docs/benchmarks.md describes the method.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benchmarks.bootstrap import RatioInterval, ratio_interval
from benchmarks.prompt_source import reference_text
from benchmarks.report import environment, table, write_json
from benchmarks.server_process import serve
from benchmarks.token_stream import stream_frames
from server.default_model import resolve_default_model

ENDINGS = ("\n\nIn short, this means that", "\n\nA typical example of this is")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: seconds to its first token, its text, and what was known of its prompt."""

    first_token_s: float
    text: str
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Reuse:
    """All pairs: the first prompt, its prefix with another ending, the first prompt again."""

    new: list[Answer]
    repeated: list[Answer]
    again: list[Answer]

    @property
    def interval(self) -> RatioInterval:
        """How many times sooner the repeated prefix's first token came."""
        return ratio_interval(_times(self.new), _times(self.repeated))

    @property
    def unchanged(self) -> float:
        """Share of prompts that were answered the same way both times."""
        pairs = zip(self.new, self.again, strict=True)
        return float(np.mean([one.text == other.text for one, other in pairs]))


def ask(url: str, prompt: str, new_tokens: int) -> Answer:
    """Stream one greedy answer."""
    start_s = time.perf_counter()
    frames = list(stream_frames(url, prompt, max_new_tokens=new_tokens))
    details: dict[str, Any] = frames[-1].data["details"]
    return Answer(
        frames[0].arrived_s - start_s,
        frames[-1].data["generated_text"],
        details["input_length"],
        details["cached_tokens"],
    )


def measure(url: str, prefixes: Sequence[str], new_tokens: int) -> Reuse:
    """Three answers for every prefix."""
    first, second = ENDINGS
    found = Reuse([], [], [])
    for prefix in prefixes:
        found.new.append(ask(url, prefix + first, new_tokens))
        found.repeated.append(ask(url, prefix + second, new_tokens))
        found.again.append(ask(url, prefix + first, new_tokens))
    return found


def render(found: Reuse) -> str:
    """The table of docs/benchmarks.md."""
    rows = [
        _row("new", found.new),
        _row("the same prefix, another ending", found.repeated),
        _row("the same prompt again", found.again),
    ]
    ratio = found.interval
    return (
        f"{table(['prompt', 'tokens', 'of them known', 'first token ms'], rows)}\n\n"
        f"first token {ratio.ratio:.1f}x sooner ({ratio.low:.1f} to {ratio.high:.1f}); "
        f"answers unchanged {found.unchanged:.0%}"
    )


def _row(name: str, answers: Sequence[Answer]) -> list[str]:
    tokens = np.median([answer.prompt_tokens for answer in answers])
    known = np.median([answer.cached_tokens for answer in answers])
    return [name, f"{tokens:.0f}", f"{known:.0f}", f"{np.median(_times(answers)) * 1e3:.0f}"]


def _times(answers: Sequence[Answer]) -> list[float]:
    return [answer.first_token_s for answer in answers]


def prefixes_of(tokenizer: Tokenizer, num_tokens: int, count: int) -> list[str]:
    """Texts of so many tokens each that share no beginning."""
    token_ids = tokenizer.encode(reference_text()).ids
    starts = range(0, num_tokens * count, num_tokens)
    return [tokenizer.decode(token_ids[start : start + num_tokens]) for start in starts]


def main(argv: Sequence[str] | None = None) -> int:
    """Serve, measure, print and write the report."""
    args = _parser().parse_args(argv)
    tokenizer = Tokenizer.from_file(str(resolve_default_model() / "tokenizer.json"))
    # one more, for the first request of all, which also warms the process up
    prefixes = prefixes_of(tokenizer, args.prefix_tokens, args.pairs + 1)
    with serve(args.server) as served:
        measure(served.url, prefixes[:1], args.new_tokens)
        found = measure(served.url, prefixes[1:], args.new_tokens)
    print(render(found))
    report = {"environment": environment(), "server": args.server, "result": asdict(found)}
    write_json(args.output, report)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prefix_reuse", description=__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="prefixes that are measured")
    parser.add_argument("--prefix-tokens", type=int, default=1000, help="length of a prefix")
    parser.add_argument("--new-tokens", type=int, default=24, help="length of an answer")
    parser.add_argument("--output", type=Path, help="where the JSON report goes")
    parser.add_argument("server", nargs="*", help="after --: arguments of engram-server serve")
    return parser


if __name__ == "__main__":
    sys.exit(main())
