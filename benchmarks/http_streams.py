"""What HTTP costs: the server with 16 streams beside its engine alone, and 64 streams together.

The client runs in a process of its own, on the same processors. With `--split` the same is measured
with the engine in a process apart from HTTP (`benchmarks.split_server`).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from transformers import AutoTokenizer

from benchmarks.bootstrap import RatioInterval, ratio_interval
from benchmarks.catalogue import Surroundings
from benchmarks.client_process import ClientProcess
from benchmarks.comparison import Comparison, compare
from benchmarks.contender import Contender
from benchmarks.contenders.http import open_http
from benchmarks.contenders.remote import open_remote
from benchmarks.prompt_source import PromptSource
from benchmarks.report import environment, table, write_json
from benchmarks.run_times import RunTimes
from benchmarks.workload import Workload
from server.default_model import resolve_default_model

SPLIT_PROGRAM = (sys.executable, "-m", "benchmarks.split_server")


@dataclass(frozen=True, slots=True)
class Fairness:
    """How evenly streams that were opened together were served; rates in tokens per second.

    Attributes:
        num_streams: streams, none of which failed.
        mean_rate: mean over the streams of their rate from first to last token.
        slowest_rate: the smallest of them.
        slowest_share: slowest_rate / mean_rate.
        slowest_share_with_wait: the same for rates counted from the request on, queue included.
        last_first_token_s: when the last stream had its first token.
    """

    num_streams: int
    mean_rate: float
    slowest_rate: float
    slowest_share: float
    slowest_share_with_wait: float
    last_first_token_s: float


def fairness(run: RunTimes) -> Fairness:
    """Judge one run."""
    rates = [(len(times) - 1) / (times[-1] - times[0]) for times in run.token_times_s]
    waited = [len(times) / (times[-1] - run.start_s) for times in run.token_times_s]
    return Fairness(
        num_streams=len(rates),
        mean_rate=mean(rates),
        slowest_rate=min(rates),
        slowest_share=min(rates) / mean(rates),
        slowest_share_with_wait=min(waited) / mean(waited),
        last_first_token_s=max(times[0] for times in run.token_times_s) - run.start_s,
    )


def shares(found: Comparison) -> dict[str, RatioInterval]:
    """Each contender's rate as a share of the engine's, which comes first."""
    engine = found.entries[0]
    return {entry.name: ratio_interval(entry.rates, engine.rates) for entry in found.entries[1:]}


def measure(args: argparse.Namespace) -> tuple[Comparison, Fairness]:
    """Start everything and measure."""
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # for the processes that are started
    folder = Path(args.model) if args.model else resolve_default_model()
    prompts = PromptSource(AutoTokenizer.from_pretrained(folder))
    shape = Workload("streams", args.streams, args.context, args.new_tokens)
    around = Surroundings(
        args.model, str(folder), args.engram, args.dtype, "", args.streams, 0, args.threads
    )
    with ExitStack() as stack:
        client = stack.enter_context(ClientProcess())
        engine = stack.enter_context(open_remote("engine", [around.to_json()]))
        http = stack.enter_context(open_http(around.settings, client, prompts, bits=around.bits))
        contenders: list[Contender] = [engine, http]
        if args.split:
            split = open_http(
                around.settings, client, prompts, bits=around.bits, program=SPLIT_PROGRAM
            )
            contenders.append(stack.enter_context(split))
        found = compare(contenders, shape, prompts, args.rounds)
        many = prompts.take(args.many, args.context)
        return found, fairness(http.run(many, args.new_tokens))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write the report."""
    args = _parser().parse_args(argv)
    found, many = measure(args)
    print(render(found))
    print(
        f"{many.num_streams} streams, none failed: the slowest at {many.slowest_share:.2f} of the "
        f"mean rate while streaming, {many.slowest_share_with_wait:.2f} with the wait in the queue;"
        f" the last first token after {many.last_first_token_s:.1f} s"
    )
    write_json(args.output, report(args, found, many))
    return 0


def render(found: Comparison) -> str:
    """One line per contender."""
    lines = [[found.entries[0].name, f"{found.entries[0].median:.1f}", "", ""]]
    for entry, share in zip(found.entries[1:], shares(found).values(), strict=True):
        spread = f"{share.low:.3f} to {share.high:.3f}"
        lines.append([entry.name, f"{entry.median:.1f}", f"{share.ratio:.3f}", spread])
    return table(["", "tok/s", "share of the engine's", "95 % interval"], lines)


def report(args: argparse.Namespace, found: Comparison, many: Fairness) -> dict[str, Any]:
    """What the JSON file holds."""
    return {
        "environment": environment(),
        "parameters": {key: str(value) for key, value in vars(args).items()},
        "comparison": found.to_dict(),
        "shares": {name: asdict(share) for name, share in shares(found).items()},
        "many": asdict(many),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http_streams", description=__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=10, help="counted rounds")
    add("--streams", type=int, default=16, help="streams of the comparison")
    add("--many", type=int, default=64, help="streams that are opened together at the end")
    add("--split", action="store_true", help="also with the engine in a process of its own")
    add("--model", help="local folder; default: the default model")
    add("--engram", default="auto", help="artefact, as for engram-server serve")
    add("--dtype", default="bfloat16", help="number format of the weights")
    add("--context", type=int, default=64, help="prompt tokens")
    add("--new-tokens", type=int, default=64, help="tokens generated per stream")
    add("--threads", type=int, default=2, help="threads that compute")
    add("--output", type=Path, help="where the JSON report goes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
