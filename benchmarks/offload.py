"""`python -m benchmarks.offload`: what a large table costs the engine, and what an SSD costs it.

``--question size`` compares tables of two sizes, both in memory; ``--question ssd`` the same tables
in memory and on a disk whose page cache is bounded. docs/benchmarks.md describes the method.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.artefact_shelf import ArtefactShelf
from benchmarks.bounded_pages import MOST_RESIDENT, BoundedPages
from benchmarks.contenders.memory_engine import MemoryContender, MemoryRun, open_memory_engine
from benchmarks.offload_rounds import Measured, measure_shape, warm_up
from benchmarks.offload_tables import counters, disk_reads, rates, warm_up_lines
from benchmarks.package_text import package_text
from benchmarks.prompt_source import PromptSource
from benchmarks.report import environment, write_json
from benchmarks.synthetic_memory import SyntheticMemory, table_files
from benchmarks.workload import Workload
from engram_core.compression import TokenCompressor
from engram_core.tables.backbone_record import describe_backbone
from server.default_model import resolve_default_model
from server.sizes import parse_size

SIZE, SSD = "size", "ssd"
BYTES_PER_LAYER = {SIZE: 4 * 10**9, SSD: 8 * 10**9}
SMALLER = 10  # times: the table that a large one is compared with
BITS = {"bfloat16": "bf16", "float32": "fp32"}
CHARS_PER_TOKEN = 6  # more than English has, so that the text suffices


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a question: tables of this size, lying where `engram_config` says."""

    name: str
    bytes_per_layer: int
    engram_config: dict[str, Any]


def sides(question: str, bytes_per_layer: int) -> list[Side]:
    """The two sides; the first is the one whose cost is asked for."""
    if question == SIZE:
        small = bytes_per_layer // SMALLER
        dram = {"tier": "dram"}
        return [Side("large table", bytes_per_layer, dram), Side("small table", small, dram)]
    # the question is what a warm cache leaves of the disk's cost, so no start-up probe decides
    ssd = {"tier": "ssd", "hot_cache": "on", "verify": "header"}
    return [
        Side("rows on ssd", bytes_per_layer, ssd),
        Side("rows in dram", bytes_per_layer, {"tier": "dram"}),
    ]


def shapes(args: argparse.Namespace) -> list[Workload]:
    """What is measured, in this order."""
    most = max(args.sequences)
    decode = [
        Workload(f"decode-{n}", n, args.context, args.new_tokens)
        for n in sorted(args.sequences, reverse=True)
    ]
    prefill = Workload(f"prefill-{most}", most, args.context, 1)
    return [prefill, *decode] if args.question == SIZE else decode


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that was found."""

    warm_up: list[MemoryRun]
    results: list[Measured]
    contenders: list[MemoryContender]
    pages: BoundedPages
    laps: int


def measure(args: argparse.Namespace, shelf: ArtefactShelf) -> Outcome:
    """Write the artefacts that are missing, then measure."""
    folder = Path(args.model) if args.model else resolve_default_model()
    artefacts = _artefacts(args, folder, shelf)
    prompts = _prompts(args, folder)
    with ExitStack() as stack:
        contenders = [stack.enter_context(_opened(args, *each)) for each in artefacts]
        files = {file for _, path in artefacts for file in table_files(path, args.layers)}
        pages = BoundedPages(sorted(files))
        for contender in contenders:
            contender.pages = pages
        longest = max(shapes(args), key=lambda shape: (shape.num_seqs, shape.new_tokens))
        num_rounds = args.warm_up if args.question == SSD else 0  # only a cache gets warm
        warmed = warm_up(contenders[0], longest, prompts, num_rounds)
        results: list[Measured] = []
        for shape in shapes(args):
            start_s, repeats = time.monotonic(), args.question == SSD
            results += measure_shape(contenders, shape, prompts, args.rounds, repeats=repeats)
            _say(f"{shape.name}: {args.rounds} rounds in {time.monotonic() - start_s:.0f} s")
        return Outcome(warmed, results, contenders, pages, prompts.laps)


def _artefacts(
    args: argparse.Namespace, folder: Path, shelf: ArtefactShelf
) -> list[tuple[Side, Path]]:
    """Each side with its artefact."""
    backbone = describe_backbone(AutoModelForCausalLM.from_pretrained(folder), "")
    compressor = TokenCompressor.from_tokenizer(AutoTokenizer.from_pretrained(folder))
    return [
        (
            side,
            shelf.place(
                SyntheticMemory(backbone, compressor, tuple(args.layers), side.bytes_per_layer)
            ),
        )
        for side in sides(args.question, args.bytes_per_layer)
    ]


def _prompts(args: argparse.Namespace, folder: Path) -> PromptSource:
    used = [(shape, args.rounds + 1) for shape in shapes(args)]
    used.append((shapes(args)[0], args.warm_up))
    tokens = sum(shape.num_seqs * shape.prompt_tokens * rounds for shape, rounds in used)
    text = package_text(CHARS_PER_TOKEN * tokens)
    return PromptSource(AutoTokenizer.from_pretrained(folder), text)


@contextmanager
def _opened(args: argparse.Namespace, side: Side, artefact: Path) -> Iterator[MemoryContender]:
    settings = {
        "model": args.model,
        "engram": str(artefact),
        "engram_config": side.engram_config,
        "dtype": args.dtype,
        "device": "cpu",
    }
    bits = BITS.get(args.dtype, args.dtype)
    with open_memory_engine(side.name, bits, settings, args.threads) as contender:
        print(f"{side.name}: {contender.why_tiers}", flush=True)
        yield contender


def render(found: Outcome, question: str) -> str:
    """Both tables, and what makes them believable."""
    parts = [rates(found.results), counters(found.results), disk_reads(found.results)]
    if question == SSD:
        parts += [warm_up_lines(found.warm_up), _resident_line(found.pages)]
    seen = (
        "no text was in two prompts" if not found.laps else f"the text ran out {found.laps} times"
    )
    return "\n\n".join([*parts, f"new prompts: {seen}"])


def _resident_line(pages: BoundedPages) -> str:
    kept = "kept" if pages.is_bounded else "NOT kept"
    return (
        f"largest share of a table's file in the page cache: {pages.largest_before:.2%} before a "
        f"run, {pages.largest_after:.2%} after one; at most {MOST_RESIDENT:.0%}: {kept}"
    )


def report(args: argparse.Namespace, found: Outcome) -> dict[str, Any]:
    """What the JSON file holds."""
    tiers = {c.name: {"why_tiers": c.why_tiers, "tiers": c.tiers} for c in found.contenders}
    return {
        "environment": environment(),
        "parameters": {key: str(value) for key, value in vars(args).items()},
        "contenders": tiers,
        "largest_resident_share": {
            "before": found.pages.largest_before,
            "after": found.pages.largest_after,
        },
        "passes_over_the_text": found.laps,
        "warm_up": [asdict(run) for run in found.warm_up],
        "results": [result.to_dict() for result in found.results],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the tables and write the report."""
    args = _parser().parse_args(argv)
    args.bytes_per_layer = args.bytes_per_layer or BYTES_PER_LAYER[args.question]
    args.sequences = args.sequences or ([16] if args.question == SIZE else [1, 16])
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # for the processes that are started
    with ArtefactShelf(args.folder, keep=args.keep) as shelf:
        found = measure(args, shelf)
    print(render(found, args.question))
    write_json(args.output, report(args, found))
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _num_bytes(text: str) -> int:
    """A size as people write it: ``8GB``, or a number such as ``8e9``."""
    try:
        return int(float(text))
    except ValueError:
        return int(parse_size(text))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.offload", description=__doc__)
    add = parser.add_argument
    add("--question", choices=(SIZE, SSD), required=True, help="what to compare")
    add("--folder", type=Path, help="where the artefacts lie; default: a temporary folder")
    add("--keep", action="store_true", help="leave the artefacts that were written")
    add("--bytes-per-layer", type=_num_bytes, help="of the (large) table; default: 4GB, ssd: 8GB")
    add("--layers", type=int, nargs="+", default=[2, 15], help="layers that read the memory")
    add("--rounds", type=int, default=20, help="counted rounds of each shape")
    add("--warm-up", type=int, default=30, help="uncounted rounds of the first side before them")
    add("--sequences", type=int, nargs="+", help="side by side; default: 16, ssd: 1 and 16")
    add("--context", type=int, default=128, help="prompt tokens of each sequence")
    add("--new-tokens", type=int, default=128, help="tokens of each answer")
    add("--model", help="local folder; default: the default model")
    add("--dtype", default="bfloat16", help="number format of the weights")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="that compute")
    add("--output", type=Path, help="where the JSON report goes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
