"""What the memory knows and what it costs, through a running server.

Exact recall of trained facts with the memory on, off and with its rows permuted, and the
perplexity of unrelated text with it on and off. docs/benchmarks.md describes the method.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.knowledge import exact_recall, passages, perplexity
from benchmarks.permuted_artefact import write_permuted
from benchmarks.prompt_source import reference_text
from benchmarks.report import environment, table, write_json
from benchmarks.served_model import ServedModel
from benchmarks.server_process import serve
from engram_core.retrofit.facts import Fact, read_facts
from engram_core.tables.manifest import MANIFEST_NAME
from server.artefact_choice import packaged_folder

FACTS_NAME = "facts.tsv.gz"  # an artefact's record of what it was taught
NUM_THREADS = 8
HEADER = ["", "memory on", "memory off", "rows permuted"]


def measure(served: ServedModel, facts: Sequence[Fact], args: argparse.Namespace) -> dict[str, Any]:
    """Recall and perplexity of one server, its memory on and off."""
    texts = passages(reference_text(), args.passages, args.passage_chars)
    figures: dict[str, Any] = {}
    for name, memory in (("on", True), ("off", False)):
        print(f"{served.url}: memory {name}", file=sys.stderr, flush=True)
        ask = partial(served.answer, memory=memory)
        logprobs = partial(served.prompt_logprobs, memory=memory)
        recall = exact_recall(facts, ask, NUM_THREADS)
        figures[name] = {"recall": recall, "perplexity": perplexity(texts, logprobs, NUM_THREADS)}
    return figures


def measure_permuted(facts: Sequence[Fact], args: argparse.Namespace) -> dict[str, Any]:
    """Recall of a second server whose table holds the same rows at wrong addresses."""
    with tempfile.TemporaryDirectory() as folder:
        artefact = Path(folder) / "permuted"
        write_permuted(args.artefact, artefact, args.seed)
        model = [args.model] if args.model else []
        with serve([*model, "--engram", str(artefact)]) as served:
            ask = partial(served.answer, memory=True)
            return {"recall": exact_recall(facts, ask, NUM_THREADS)}


def render(figures: dict[str, Any]) -> str:
    """The table of docs/benchmarks.md."""
    on, off, permuted = figures["on"], figures["off"], figures.get("permuted")
    control = f"{permuted['recall']:.1%}" if permuted else "not run"
    change = on["perplexity"] / off["perplexity"] - 1
    rows = [
        ["exact recall", f"{on['recall']:.1%}", f"{off['recall']:.1%}", control],
        ["perplexity of unrelated text", f"{on['perplexity']:.3f}", f"{off['perplexity']:.3f}", ""],
        ["change of perplexity", f"{change:+.2%}", "", ""],
    ]
    return table(HEADER, rows)


def packaged_artefact() -> Path:
    """The one artefact that is installed with the server."""
    found = [path.parent for path in packaged_folder().glob(f"*/{MANIFEST_NAME}")]
    if len(found) != 1:
        raise SystemExit(f"{len(found)} artefacts are installed; name one with --artefact")
    return found[0]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and write the report."""
    args = _parser().parse_args(argv)
    args.artefact = args.artefact or packaged_artefact()
    facts = read_facts(args.facts or args.artefact / FACTS_NAME)
    facts = random.Random(args.seed).sample(facts, min(args.num_facts, len(facts)))
    with ServedModel(args.url, args.api_key) as served:
        figures = measure(served, facts, args)
        info = served.info()
    if not args.no_permuted:
        figures["permuted"] = measure_permuted(facts, args)
    print(render(figures))
    report = {"environment": environment(), "server": info, "num_facts": len(facts)}
    write_json(args.output, {**report, "figures": figures})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_table", description=__doc__)
    parser.add_argument("url", help="a running server, for example http://127.0.0.1:8000")
    parser.add_argument("--api-key", help="key of that server")
    parser.add_argument("--artefact", type=Path, help="its artefact; default: the packaged one")
    parser.add_argument("--facts", type=Path, help="trained facts; default: the artefact's")
    parser.add_argument("--model", help="its model, for the second server; default: the default")
    parser.add_argument("--num-facts", type=int, default=300, help="facts asked for")
    parser.add_argument("--passages", type=int, default=40, help="passages of unrelated text")
    parser.add_argument("--passage-chars", type=int, default=1500, help="length of a passage")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the choice of facts and the shuffle"
    )
    parser.add_argument("--no-permuted", action="store_true", help="leave the control out")
    parser.add_argument("--output", type=Path, help="where the JSON report goes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
