"""The three-arm experiment: hot cache and prefetch against the demo's synchronous lookup.

Arm 0 hashes and gathers in the layer, as the demo does; arm 1 reads through a hot cache of a tenth
of the rows; arm 2 also looks rows up from a request's arrival on; arm 3 is what the server would
choose by itself. docs/benchmarks.md describes the method. With --device simulated it computes the
article's own regime.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from benchmarks.documents import TokenRequests, chinese, english
from benchmarks.report import environment, write_json
from benchmarks.three_arm import article, result
from benchmarks.three_arm.experiment import Experiment
from benchmarks.three_arm.measure import Rounds
from benchmarks.three_arm.picture import draw
from engram_core.compression import TokenCompressor
from engram_core.device import make_device
from server.default_model import resolve_default_model

BACKINGS = ("dram", "ssd", "remote")
DTYPES = ("float32", "bfloat16")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the tables, write JSON and picture."""
    args = _parser().parse_args(argv)
    with ExitStack() as stack:
        folder = args.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        experiment = _experiment(args, folder)
        if args.device == "simulated":
            found = experiment.article()
            print(article.render(found))
            figures: Any = {name: series.to_dict() for name, series in found.items()}
        else:
            results = [
                experiment.run(backing, dtype) for backing in args.backing for dtype in args.dtype
            ]
            print(result.render(results))
            draw(results, args.plot or args.json.with_suffix(".png"))
            figures = [each.to_dict() for each in results]
    parameters = {key: str(value) for key, value in vars(args).items()}
    report = {"environment": environment(), "parameters": parameters, "results": figures}
    write_json(args.json, report)
    return 0


def _experiment(args: argparse.Namespace, folder: Path) -> Experiment:
    device = make_device(args.device)  # a wrong name is told before anything is written
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer or resolve_default_model())
    texts = [[path.read_text("utf-8") for path in args.text]] if args.text else _documents()
    return Experiment(
        folder=folder,
        compressor=TokenCompressor.from_tokenizer(tokenizer),
        source=TokenRequests(tokenizer, texts, args.tokens),
        device=device,
        rounds=Rounds(args.rounds, args.requests),
        warm_up=args.warm_up,
        table_bytes=args.table_bytes,
        ssd_bytes=args.ssd_bytes,
    )


def _documents() -> list[list[str]]:
    return [english(), chinese()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.three_arm", description=__doc__)
    add = parser.add_argument
    add("--device", default="auto", help="auto, cpu, cuda, npu, or simulated (default: auto)")
    add("--text", type=Path, nargs="+", help="UTF-8 files; default: documents of packages")
    add("--tokenizer", type=Path, help="folder of a tokenizer; default: the default model's")
    add("--tokens", type=int, default=4096, help="tokens of a request")
    add("--backing", nargs="+", choices=BACKINGS, default=list(BACKINGS), help="where tables lie")
    add("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES), help="compute of arms 0 to 2")
    add("--rounds", type=int, default=20, help="counted rounds")
    add("--requests", type=int, default=2, help="counted requests of an arm in a round")
    add("--warm-up", type=int, default=60, help="requests that hot caches meet before")
    add("--table-bytes", type=float, help="of each layer's table elsewhere; default: the demo's")
    add("--ssd-bytes", type=float, default=8e9, help="bytes of each layer's table on the SSD")
    add("--folder", type=Path, help="where the tables are written and kept; default: nowhere")
    add("--json", type=Path, default=Path("three_arm.json"), help="the report")
    add("--plot", type=Path, help="the picture (PNG); default: beside the report")
    return parser


if __name__ == "__main__":
    sys.exit(main())
