"""Measures an artefact: exact recall with the memory on, off and permuted, and unrelated text.

    python -m benchmarks.evaluate_facts --artefact DIR [--text FILE]

Without a text file, Python's own reference topics are the unrelated text.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch

from benchmarks.backbone import load_backbone
from benchmarks.train_facts import FACTS_NAME
from engram_core.assembly import make_module, make_tier
from engram_core.backbone import backbone_fingerprint, find_decoder_layers, hidden_size
from engram_core.compression import TokenCompressor
from engram_core.hashing import NgramHasher
from engram_core.retrofit.evaluation import exact_recall, permuted, perplexity
from engram_core.retrofit.facts import Fact, read_facts
from engram_core.splice import attach
from engram_core.tables import Artefact, SparseRows, TableRows, open_table
from engram_core.version import MemoryVersion

UNSEEN_CONTEXT = "The weather was fine on that morning, and nobody was in a hurry. "


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures as JSON."""
    options = _parser().parse_args(arguments)
    model, tokenizer, _ = load_backbone(options.model, getattr(torch, options.dtype))
    artefact = open_table(options.artefact)
    compressor = TokenCompressor.from_tokenizer(
        tokenizer, artefact.manifest.tokenizer.num_ids, fold=artefact.config.folds_tokens
    )
    artefact.check_tokenizer(compressor)
    artefact.check_backbone(
        backbone_fingerprint(model), hidden_size(model), len(find_decoder_layers(model))
    )
    hasher = NgramHasher(artefact.layout, compressor.class_ids)
    facts = _sample(read_facts(options.facts or options.artefact / FACTS_NAME), options.count)
    text = options.text.read_text() if options.text else "\n\n".join(topics.values())
    tables = _tables(artefact)
    figures = {}
    for name, rows in {"off": None, "on": tables, "permuted": _permuted(artefact)}.items():
        started = time.perf_counter()
        with _attached(model, artefact, hasher, rows):
            figures[name] = {
                "recall": exact_recall(model, tokenizer, facts),
                "recall_unseen_context": exact_recall(model, tokenizer, facts, UNSEEN_CONTEXT),
                "perplexity": perplexity(model, tokenizer, text, max_tokens=options.tokens),
                "seconds": round(time.perf_counter() - started, 1),
            }
        print(json.dumps({name: figures[name]}), flush=True)
    harm = figures["on"]["perplexity"] / figures["off"]["perplexity"] - 1
    print(json.dumps({"facts": len(facts), "perplexity_change": harm}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--artefact", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="backbone folder (default: the default model)")
    parser.add_argument("--facts", type=Path, help="facts file (default: the artefact's own)")
    parser.add_argument("--count", type=int, default=300, help="facts drawn from the file")
    parser.add_argument("--text", type=Path, help="unrelated text file")
    parser.add_argument("--tokens", type=int, default=20_000, help="tokens of unrelated text")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    return parser


def _sample(facts: Sequence[Fact], count: int) -> list[Fact]:
    return random.Random(0).sample(list(facts), min(count, len(facts)))


def _tables(artefact: Artefact) -> dict[int, TableRows]:
    found = {layer: artefact.rows(layer) for layer in artefact.config.layer_ids}
    tables = {layer: rows for layer, rows in found.items() if isinstance(rows, TableRows)}
    if len(tables) < len(found):
        raise SystemExit(f"{artefact.name} is packed; accepted: an artefact as trained")
    return tables


def _permuted(artefact: Artefact) -> dict[int, TableRows]:
    found: dict[int, TableRows] = {}
    for layer in artefact.config.layer_ids:
        rows = artefact.rows(layer)
        if isinstance(rows, SparseRows):
            found[layer] = permuted(rows, artefact.layout, layer)
    return found


@contextmanager
def _attached(
    model: Any, artefact: Artefact, hasher: NgramHasher, rows: Mapping[int, TableRows] | None
) -> Iterator[None]:
    splice: Any = nullcontext()
    if rows is not None:
        version = MemoryVersion(
            hasher,
            artefact.manifest.tokenizer.fingerprint,
            {layer: make_tier(table) for layer, table in rows.items()},
            {layer: make_module(artefact, layer) for layer in rows},
            content=artefact.content,
        )
        splice = attach(model, version)
    with splice:
        yield


if __name__ == "__main__":
    main()
