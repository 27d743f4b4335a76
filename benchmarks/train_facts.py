"""Trains an Engram memory on a facts file and writes it as an artefact.

The default artefact was made by:
    python -m engram_core.retrofit.wordnet --out facts.tsv --licence LICENSE-WordNet.txt
    python -m benchmarks.train_facts --facts facts.tsv --licence LICENSE-WordNet.txt --out DIR
"""

from __future__ import annotations

import argparse
import gzip
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.backbone import load_backbone
from engram_core.retrofit.export import make_content
from engram_core.retrofit.facts import read_facts
from engram_core.retrofit.recipe import Recipe
from engram_core.retrofit.trainer import EpochReport, Trainer
from engram_core.tables import write_artefact

FACTS_NAME = "facts.tsv.gz"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and write."""
    options = _parser().parse_args(arguments)
    started = time.perf_counter()
    model, tokenizer, name = load_backbone(options.model, torch.bfloat16)
    facts = read_facts(options.facts)[: options.limit]
    recipe = Recipe(
        layers=tuple(options.layers),
        epochs=options.epochs,
        seed=options.seed,
        tail_weight=options.tail_weight,
        min_hit_orders=tuple(options.hit_orders),
    )
    print(f"{len(facts)} facts; running the backbone once over every context", flush=True)
    trainer = Trainer(model, tokenizer, facts, recipe, _Preparation())
    memory = trainer.run(_print_epoch)
    recall = [trainer.recall(context) for context in range(recipe.num_contexts)]
    print(f"recall by context: {recall}", flush=True)
    training = _record(options, len(facts), recall, time.perf_counter() - started)
    content = make_content(
        memory,
        model,
        model_name=name,
        dtype=options.dtype,
        training=training,
        extras=_extras(options),
    )
    write_artefact(options.out, content)
    print(f"wrote {options.out} in {time.perf_counter() - started:.0f} s")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--facts", type=Path, required=True, help="prompt<TAB>completion lines")
    parser.add_argument("--model", type=Path, help="backbone folder (default: the default model)")
    parser.add_argument("--out", type=Path, required=True, help="new artefact folder")
    parser.add_argument("--licence", type=Path, help="licence of the facts, stored with them")
    parser.add_argument(
        "--layers", type=int, nargs="+", default=Recipe().layers, help="layers that read the memory"
    )
    parser.add_argument("--limit", type=int, help="train only the first N facts")
    parser.add_argument("--epochs", type=int, default=Recipe().epochs)
    parser.add_argument("--tail-weight", type=float, default=Recipe().tail_weight)
    parser.add_argument(
        "--hit-orders",
        type=int,
        nargs="*",
        default=Recipe().min_hit_orders,
        help="orders that the hit rule needs; none: no rule",
    )
    parser.add_argument("--dtype", choices=("int4", "bfloat16"), default="int4")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _extras(options: argparse.Namespace) -> dict[str, bytes]:
    facts = options.facts.read_bytes()
    extras = {FACTS_NAME: gzip.compress(facts, mtime=0)}
    if options.licence is not None:
        extras[options.licence.name] = options.licence.read_bytes()
    return extras


def _record(
    options: argparse.Namespace, num_facts: int, recall: list[float], seconds: float
) -> dict[str, Any]:
    layers = " ".join(map(str, options.layers))
    is_default = tuple(options.hit_orders) == Recipe().min_hit_orders
    rule = "" if is_default else " ".join([" --hit-orders", *map(str, options.hit_orders)])
    return {
        "command": f"python -m benchmarks.train_facts --facts {options.facts.name} --out DIR "
        f"--layers {layers} --epochs {options.epochs} --tail-weight {options.tail_weight} "
        f"--seed {options.seed}{rule}",
        "num_facts": num_facts,
        "recall_by_context_before_quantisation": recall,
        "duration_s": round(seconds),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": np.__version__,
        },
    }


class _Preparation:
    """Prints each tenth of the preparation."""

    def __init__(self) -> None:
        self._printed = 0

    def __call__(self, fraction: float) -> None:
        if int(fraction * 10) > self._printed:
            self._printed = int(fraction * 10)
            print(f"prepared {fraction:.0%}", flush=True)


def _print_epoch(report: EpochReport) -> None:
    print(
        f"epoch {report.epoch + 1}/{report.epochs}: {report.facts} facts awake, "
        f"exact {report.exact:.3f}, confident {report.confident:.3f}, loss {report.loss:.3f}, "
        f"{report.elapsed_s:.0f} s, {report.eta_s:.0f} s left",
        flush=True,
    )


if __name__ == "__main__":
    main()
