"""How long the server takes to get ready, and how much memory it holds then and under load."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import psutil

from benchmarks.report import environment, table, write_json
from benchmarks.served_model import ServedModel
from benchmarks.server_process import PROGRAM, free_port, stop, wait_until_ready

MIB = 1 << 20
REST = "everything else"
PROMPT = "The capital of France is a city that "


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the server.

    Attributes:
        ready_s: from the start of the process to the first 200 of /ready.
        phases_s: seconds of each phase of loading, as /info tells them, and of everything else:
            Python's imports, and the model's preparation behind the phases.
        ready_rss_bytes: resident memory when it was ready.
        used_rss_bytes: resident memory after a long prompt and its answer.
    """

    ready_s: float
    phases_s: dict[str, float]
    ready_rss_bytes: int
    used_rss_bytes: int


def measure(arguments: Sequence[str], prompt_words: int) -> Start:
    """Start `engram-server serve`, use it once and stop it."""
    port = free_port()
    command = [*PROGRAM, "serve", *arguments, "--host", "127.0.0.1", "--port", str(port)]
    start_s = time.monotonic()
    process = psutil.Popen([*command, "--log-level", "warning"])
    try:
        with ServedModel(f"http://127.0.0.1:{port}") as served:
            wait_until_ready(served, process)
            ready_s = time.monotonic() - start_s
            ready_bytes = process.memory_info().rss
            words = (PROMPT * prompt_words).split()[:prompt_words]
            served.answer(" ".join(words), max_new_tokens=16, memory=False)
            phases_s: dict[str, float] = served.info()["load_s"]
            phases_s = {**phases_s, REST: ready_s - sum(phases_s.values())}
            return Start(ready_s, phases_s, ready_bytes, process.memory_info().rss)
    finally:
        stop(process)


def render(starts: Sequence[Start]) -> str:
    """Medians over the starts."""
    lines = [["start to /ready, s", f"{median(s.ready_s for s in starts):.1f}"]]
    for phase in starts[0].phases_s:
        lines.append([f"of it {phase}, s", f"{median(s.phases_s[phase] for s in starts):.1f}"])
    lines += [
        ["resident when ready, MiB", f"{median(s.ready_rss_bytes for s in starts) / MIB:.0f}"],
        ["resident after use, MiB", f"{median(s.used_rss_bytes for s in starts) / MIB:.0f}"],
    ]
    return table(["", "median"], lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write the report."""
    args, arguments = _parser().parse_known_args(argv)
    starts = [measure(arguments, args.prompt_words) for _ in range(args.starts + 1)][1:]
    print(render(starts))
    found = {"environment": environment(), "arguments": arguments}
    write_json(args.output, {**found, "starts": [asdict(start) for start in starts]})
    return 0


def _parser() -> argparse.ArgumentParser:
    description = f"{__doc__} Further arguments go to `engram-server serve`."
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start_up", description=description)
    parser.add_argument("--starts", type=int, default=3, help="counted starts; one more warms up")
    parser.add_argument("--prompt-words", type=int, default=1000, help="length of the prompt")
    parser.add_argument("--output", type=Path, help="where the JSON report goes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
