"""`make bench`: decode and prefill speed of the engine beside transformers' `generate()`.

Both sides run the same model with the same Engram memory in one process, in alternating pairs.
docs/benchmarks.md describes the method.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch

from benchmarks.comparison import Comparison, Side, compare
from benchmarks.engine_side import EngineSide
from benchmarks.generate_side import GenerateSide
from benchmarks.report import environment, table, write_json
from benchmarks.workload import Workload, reference_text, workloads
from engram_core.device import make_device
from engram_core.prefetch import Prefetcher
from engram_core.splice import attach
from server.config import Settings
from server.engine.engine import Engine
from server.engine.limits import EngineLimits
from server.engine.linear.packing import pack_linears
from server.engine.types import NullRecorder
from server.loader import Loaded, load

HEADER = ["workload", "engine tok/s", "generate() tok/s", "ratio", "95 % interval", "same answers"]
STOP_TIMEOUT_S = 10.0


@contextmanager
def engine_side(loaded: Loaded, max_model_len: int) -> Iterator[EngineSide]:
    """An engine with the server's default limits but for the length, prefetching on the CPU."""
    prefetcher = Prefetcher(make_device("cpu"))
    limits = EngineLimits(max_model_len=max_model_len)
    model, tokenizer, version = loaded.model, loaded.tokenizer, loaded.version
    pack_linears(model)  # as `server.backend` does
    engine = Engine(model, tokenizer, version, prefetcher, limits, NullRecorder())
    engine.start()
    try:
        yield EngineSide(engine)
    finally:
        engine.stop(STOP_TIMEOUT_S)
        prefetcher.close()


def measure(
    first: Side, second: Side, rows: Sequence[Workload], token_ids: Sequence[int], num_pairs: int
) -> list[Comparison]:
    """Compare the sides on every workload, telling progress on stderr."""
    results = []
    for row in rows:
        print(f"{row.name}: {num_pairs} pairs", file=sys.stderr, flush=True)
        results.append(compare(first, second, row, token_ids, num_pairs))
    return results


def render(results: Sequence[Comparison]) -> str:
    """The table of docs/benchmarks.md."""
    rows = []
    for result in results:
        rates = [f"{rate:.1f}" for rate in result.medians().values()]
        found = result.interval
        spread = f"{found.low:.2f} to {found.high:.2f}"
        same = f"{result.equal_answers:.0%}"
        rows.append([result.workload.name, *rates, f"{found.ratio:.2f}", spread, same])
    return table(HEADER, rows)


def run(args: argparse.Namespace) -> list[Comparison]:
    """Load the model twice (the engine may rebuild its own copy) and measure."""
    torch.set_num_threads(args.threads)
    settings = Settings(model=args.model, engram=args.engram, device="cpu", dtype=args.dtype)
    ours, theirs = load(settings, _ignore), load(settings, _ignore)
    token_ids = ours.tokenizer(reference_text(), verbose=False)["input_ids"]
    rows = workloads(args.context, args.new_tokens, args.prefill_tokens)
    with (
        _spliced(ours),
        _spliced(theirs),
        engine_side(ours, max(row.total_tokens for row in rows)) as engine,
    ):
        return measure(engine, GenerateSide(theirs.model), rows, token_ids, args.pairs)


def _spliced(loaded: Loaded) -> AbstractContextManager[object]:
    """The model with its memory attached, as both sides run it."""
    return attach(loaded.model, loaded.version) if loaded.version else nullcontext()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and write the report."""
    args = _parser().parse_args(argv)
    results = run(args)
    print(render(results))
    parameters = {key: str(value) for key, value in vars(args).items()}
    report = {"environment": environment(), "parameters": parameters}
    write_json(args.output, {**report, "results": [result.to_dict() for result in results]})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode", description=__doc__)
    parser.add_argument("--model", help="local folder or hub id; default: the default model")
    parser.add_argument("--engram", default="auto", help="artefact, as for engram-server serve")
    parser.add_argument("--dtype", default="bfloat16", help="number format of the weights")
    parser.add_argument("--pairs", type=int, default=20, help="counted pairs of each workload")
    parser.add_argument("--context", type=int, default=128, help="prompt tokens when decoding")
    parser.add_argument("--new-tokens", type=int, default=32, help="tokens decoded per sequence")
    parser.add_argument("--prefill-tokens", type=int, default=512, help="prompt of the prefill row")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    parser.add_argument("--output", type=Path, help="where the JSON report goes")
    return parser


def _ignore(_phase: str, _fraction: float) -> None:
    """Loading is not measured here."""


if __name__ == "__main__":
    sys.exit(main())
