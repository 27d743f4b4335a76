"""`make bench`: decode and prefill speed of this server beside transformers and llama.cpp.

Everybody gets the same prompts and lengths, in alternating rounds. docs/benchmarks.md describes
the method.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from benchmarks.catalogue import Surroundings, contenders, opened
from benchmarks.client_process import ClientProcess
from benchmarks.comparison import Comparison, compare
from benchmarks.plot import draw
from benchmarks.prompt_source import PromptSource
from benchmarks.report import environment, table, write_json
from benchmarks.rows import QUICK, ROWS, Row
from benchmarks.workload import Workload, workloads
from server.default_model import resolve_default_model

HEADER = ["row", "contender", "bits", "memory", "tok/s", "first / it", "95 % interval", "same"]
LIBRARIES = Path("build/llama.cpp")


def render(results: Sequence[tuple[Row, Comparison]]) -> str:
    """The table of docs/benchmarks.md."""
    lines = []
    for row, result in results:
        for entry in result.entries:
            found = entry.first
            ratio = "" if found is None else f"{found.ratio:.2f}"
            spread = "" if found is None else f"{found.low:.2f} to {found.high:.2f}"
            is_told = found is not None and entry.same_answers is not None
            same = f"{entry.same_answers:.0%}" if is_told else ""
            memory = "on" if entry.has_memory else "off"
            rate = f"{entry.median:.1f}"
            lines.append([row.name, entry.name, entry.bits, memory, rate, ratio, spread, same])
    return table(HEADER, lines)


def measure(args: argparse.Namespace) -> tuple[list[tuple[Row, Comparison]], list[str]]:
    """Run the selected rows; also says who could not take part, and why."""
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # for the processes that are started
    folder = Path(args.model) if args.model else resolve_default_model()
    shapes = workloads(args.context, args.new_tokens, args.prefill_tokens)
    rows = [_restricted(ROWS[name], args.contenders) for name in args.rows]
    prompts = PromptSource(AutoTokenizer.from_pretrained(folder))
    around = _surroundings(args, folder, [shapes[row.workload] for row in rows])
    names = list(dict.fromkeys(name for row in rows for name in row.contenders))
    results: list[tuple[Row, Comparison]] = []
    with (
        ClientProcess() as client,
        opened(names, contenders(around, client, prompts)) as (found, missing),
    ):
        for row in rows:
            present = [found[name] for name in row.contenders if name in found]
            if len(present) < 2:
                missing.append(f"{row.name}: nobody to compare with")
                continue
            start_s = time.monotonic()
            results.append((row, compare(present, shapes[row.workload], prompts, args.rounds)))
            _say(f"{row.name}: {args.rounds} rounds in {time.monotonic() - start_s:.0f} s")
        return results, missing


def _surroundings(args: argparse.Namespace, folder: Path, used: Sequence[Workload]) -> Surroundings:
    return Surroundings(
        model=args.model,
        model_folder=str(folder),
        engram=args.engram,
        dtype=args.dtype,
        libraries=str(args.llama_cpp.resolve()),
        num_seqs=max(shape.num_seqs for shape in used),
        seq_tokens=max(shape.total_tokens for shape in used),
        threads=args.threads,
    )


def _restricted(row: Row, names: Sequence[str] | None) -> Row:
    """The row with only these contenders; its own first one stays."""
    if names is None:
        return row
    kept = tuple(each for each in row.contenders[1:] if each in names)
    return Row(row.name, row.workload, (row.contenders[0], *kept))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the report and the plot."""
    args = _parser().parse_args(argv)
    results, missing = measure(args)
    print(render(results))
    for sentence in missing:
        print(f"left out: {sentence}")
    write_json(args.output, report(args, results, missing))
    if args.plot is not None:
        draw([(row.name, found) for row, found in results], args.plot)
    return 0


def report(
    args: argparse.Namespace, results: Sequence[tuple[Row, Comparison]], missing: Sequence[str]
) -> dict[str, Any]:
    """What the JSON file holds."""
    return {
        "environment": environment(),
        "parameters": {key: str(value) for key, value in vars(args).items()},
        "results": [{"row": row.name, **found.to_dict()} for row, found in results],
        "left_out": list(missing),
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode", description=__doc__)
    add = parser.add_argument
    add("--rows", nargs="+", choices=list(ROWS), default=list(QUICK), help="rows to measure")
    add("--contenders", nargs="+", help="measure only these beside a row's first one")
    add("--rounds", type=int, default=3, help="counted rounds of each row")
    add("--model", help="local folder; default: the default model")
    add("--engram", default="auto", help="artefact, as for engram-server serve")
    add("--dtype", default="bfloat16", help="number format of the weights")
    add("--context", type=int, default=128, help="prompt tokens when decoding")
    add("--new-tokens", type=int, default=128, help="tokens decoded per sequence")
    add("--prefill-tokens", type=int, default=512, help="prompt of the prefill row")
    add("--threads", type=int, default=2, help="threads that compute, of each contender")
    add("--llama-cpp", type=Path, default=LIBRARIES, help="folder of llama.cpp's libraries")
    add("--output", type=Path, help="where the JSON report goes")
    add("--plot", type=Path, help="where the plot goes (PNG)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
