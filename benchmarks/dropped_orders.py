"""What a memory says without some of its n-gram orders: exact recall, unrelated text, rows read.

    python -m benchmarks.dropped_orders [--engram DIR] [--count 300] [--output FILE]

Measures every choice that the switch of docs/memory.md accepts for the artefact, and the memory
off. A hit rule leaves few choices: the table says which. To see the others, train a memory without
one (`python -m benchmarks.train_facts --hit-orders`, see docs/training.md).
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.backbone import load_backbone
from benchmarks.memory_table import FACTS_NAME, packaged_artefact
from benchmarks.prompt_source import reference_text
from benchmarks.report import environment, table, write_json
from engram_core.assembly import open_version
from engram_core.backbone import backbone_fingerprint, find_decoder_layers, hidden_size
from engram_core.compression import TokenCompressor
from engram_core.config import EngramConfig
from engram_core.memory_config import MemoryConfig
from engram_core.retrofit.evaluation import exact_recall, perplexity
from engram_core.retrofit.facts import read_facts
from engram_core.splice import attach
from engram_core.tables import Artefact, open_table

HEADER = ["orders", "rows per token", "exact recall", "perplexity"]


class Measured(NamedTuple):
    """One choice of orders; none of them is the memory off."""

    orders: tuple[int, ...]
    rows_per_token: int
    recall: float
    perplexity: float


def choices(config: EngramConfig) -> list[tuple[int, ...]]:
    """Every choice of orders that a memory accepts, the most orders first."""
    sizes = range(len(config.orders), 0, -1)
    found = [some for size in sizes for some in combinations(config.orders, size)]
    return [some for some in found if set(config.min_hit_orders) <= set(some)]


@contextmanager
def served(
    model: Any, artefact: Artefact, compressor: TokenCompressor, orders: tuple[int, ...]
) -> Iterator[int]:
    """The model with these orders of the memory; gives the rows that a token reads."""
    if not orders:
        yield 0
        return
    version = open_version(artefact, compressor, MemoryConfig(orders=orders))
    try:
        with attach(model, version):
            yield len(version.layer_ids) * version.served.num_columns
    finally:
        version.release()


def measure(args: argparse.Namespace, artefact: Artefact) -> Iterator[Measured]:
    """Each choice, and the memory off, one after the other."""
    model, tokenizer, _ = load_backbone(args.model, getattr(torch, args.dtype))
    layers = len(find_decoder_layers(model))
    artefact.check_backbone(backbone_fingerprint(model), hidden_size(model), layers)
    num_ids, fold = artefact.manifest.tokenizer.num_ids, artefact.config.folds_tokens
    compressor = TokenCompressor.from_tokenizer(tokenizer, num_ids, fold=fold)
    facts = read_facts(args.facts or args.engram / FACTS_NAME)
    facts = random.Random(0).sample(facts, min(args.count, len(facts)))
    text = args.text.read_text(encoding="utf-8") if args.text else reference_text()
    for orders in [*choices(artefact.config), ()]:
        print(f"orders {orders or 'off'}", file=sys.stderr, flush=True)
        with served(model, artefact, compressor, orders) as rows:
            recall = exact_recall(model, tokenizer, facts)
            harm = perplexity(model, tokenizer, text, max_tokens=args.tokens)
        yield Measured(orders, rows, recall, harm)


def render(found: Sequence[Measured], config: EngramConfig) -> str:
    """The table, and what the hit rule has to do with it."""
    rows = [
        [
            _name(each.orders),
            str(each.rows_per_token),
            f"{each.recall:.1%}",
            f"{each.perplexity:.3f}",
        ]
        for each in found
    ]
    needed = ", ".join(map(str, config.min_hit_orders))
    rule = f"its hit rule needs orders {needed}" if needed else "it has no hit rule"
    return f"{table(HEADER, rows)}\n\nEvery choice that this memory accepts: {rule}."


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and write the report."""
    args = _parser().parse_args(argv)
    args.engram = args.engram or packaged_artefact()
    artefact = open_table(args.engram)
    found = list(measure(args, artefact))
    print(render(found, artefact.config))
    figures = [each._asdict() for each in found]
    report = {"environment": environment(), "artefact": artefact.name, "figures": figures}
    write_json(args.output, report)
    return 0


def _name(orders: Sequence[int]) -> str:
    return ", ".join(map(str, orders)) or "memory off"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dropped_orders",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--engram", type=Path, help="artefact's folder; default: the packaged one")
    parser.add_argument("--model", type=Path, help="backbone folder; default: the default model")
    parser.add_argument("--facts", type=Path, help="trained facts; default: the artefact's")
    parser.add_argument("--count", type=int, default=300, help="facts drawn from the file")
    parser.add_argument("--text", type=Path, help="unrelated text; default: Python's topics")
    parser.add_argument("--tokens", type=int, default=20_000, help="tokens of unrelated text")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--output", type=Path, help="where the JSON report goes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
