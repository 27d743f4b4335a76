"""`python -m benchmarks.agreement`: how often number formats agree with float32 on the next token.

The argmax of the served model, computed as the engine computes it, is compared with that of the
model's own forward in float32, at every position of three texts: prose, Python code and
documentation, all from files that every Python carries. docs/benchmarks.md describes the method.
"""

from __future__ import annotations

import argparse
import heapq
import inspect
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.bootstrap import ShareInterval, share_interval
from benchmarks.prompt_source import reference_text
from benchmarks.report import environment, table, write_json
from benchmarks.teacher_forcing import PHASES, Phase, TeacherForcing
from server.backend import load_backend
from server.config import Settings
from server.engine.engine import Engine
from server.engine.types import NullRecorder
from server.loader import load

FORMATS = ("none", "int8", "int4", "auto")
BLOCK = 25  # positions that are drawn together: neighbours share most of their context
ALL = "all"
HEADER = ["quantize", "computed as", "text", "positions", "agreement", "95 % interval"]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often one format found the token that float32 found.

    Attributes:
        quantize: the setting of that name.
        phase: whether tokens were computed as a prompt or one a step.
        text: which text, or "all".
        positions: how many were compared.
        share: of them with the same likeliest token, with its interval.
    """

    quantize: str
    phase: Phase
    text: str
    positions: int
    share: ShareInterval


def texts() -> dict[str, str]:
    """Name -> text."""
    return {
        "prose": str(vars(heapq)["__about__"]),
        "code": inspect.getsource(textwrap),
        "documentation": reference_text(),
    }


def tokenised(tokenizer: Any, positions: int) -> dict[str, list[int]]:
    """The first tokens of each text.

    Raises:
        ValueError: a text is too short.
    """
    found = {}
    for name, text in texts().items():
        token_ids = tokenizer(text, verbose=False)["input_ids"]
        if len(token_ids) < positions:
            raise ValueError(
                f"positions is {positions}; accepted: at most {len(token_ids)}, the {name}'s tokens"
            )
        found[name] = token_ids[:positions]
    return found


def judge(
    quantize: str,
    phase: Phase,
    found: dict[str, list[int]],
    expected: dict[str, list[int]],
) -> list[Agreement]:
    """Compare the likeliest tokens of each text, and of all together."""
    same = {
        name: [one == other for one, other in zip(found[name], expected[name], strict=True)]
        for name in expected
    }
    blocks = {name: _blocks(flags) for name, flags in same.items()}
    blocks[ALL] = [block for each in blocks.values() for block in each]
    return [
        Agreement(quantize, phase, name, sum(map(len, each)), share_interval(each))
        for name, each in blocks.items()
    ]


def _blocks(flags: list[bool]) -> list[list[bool]]:
    return [flags[start : start + BLOCK] for start in range(0, len(flags), BLOCK)]


@torch.inference_mode()
def reference(model: Any, token_ids: Sequence[int], num_ids: int) -> list[int]:
    """The likeliest next tokens by the model's own forward."""
    logits = model(input_ids=torch.tensor([list(token_ids)]), use_cache=False).logits[0]
    found: list[int] = logits[:, :num_ids].argmax(-1).tolist()
    return found


def measure(args: argparse.Namespace) -> tuple[list[Agreement], dict[str, Any]]:
    """All formats; also what each of them was served with, as /info says it."""
    plain = Settings(model=args.model, engram="none", device="cpu", dtype="float32")
    loaded = load(plain)
    num_ids = len(loaded.tokenizer)
    inputs = tokenised(loaded.tokenizer, args.positions)
    expected = {name: reference(loaded.model, ids, num_ids) for name, ids in inputs.items()}
    del loaded
    rows: list[Agreement] = []
    served: dict[str, Any] = {}
    for quantize in args.formats:
        chosen = {"dtype": args.dtype, "quantize": quantize, "kernels": args.kernels}
        settings = plain.model_copy(update=chosen)
        backend = load_backend(settings, NullRecorder(), _ignore)
        served[quantize] = dict(backend.model_info)
        teacher = TeacherForcing(cast(Engine, backend.engine), num_ids)
        for phase in PHASES:
            _say(f"{quantize}, {phase}")
            found = {name: teacher.likeliest(ids, phase) for name, ids in inputs.items()}
            rows += judge(quantize, phase, found, expected)
        backend.close()
    return rows, served


def render(rows: Sequence[Agreement]) -> str:
    """The table of docs/benchmarks.md."""
    lines = [
        [
            row.quantize,
            row.phase,
            row.text,
            str(row.positions),
            f"{row.share.share:.1%}",
            f"{row.share.low:.1%} to {row.share.high:.1%}",
        ]
        for row in rows
    ]
    return table(HEADER, lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write the report."""
    args = _parser().parse_args(argv)
    rows, served = measure(args)
    print(render(rows))
    parameters = {key: str(value) for key, value in vars(args).items()}
    report = {"environment": environment(), "parameters": parameters, "served": served}
    write_json(args.output, {**report, "results": [asdict(row) for row in rows]})
    return 0


def _ignore(_phase: str, _fraction: float) -> None:
    """Loading is not measured here."""


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agreement", description=__doc__)
    add = parser.add_argument
    add("--formats", nargs="+", choices=FORMATS, default=list(FORMATS), help="settings to compare")
    add("--positions", type=int, default=300, help="positions of each text")
    add("--model", help="local folder; default: the default model")
    add("--dtype", default="bfloat16", help="number format of the weights that are not quantized")
    add("--kernels", default="auto", help="as for engram-server serve")
    add("--output", type=Path, help="where the JSON report goes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
