"""Trainer: writes facts into the rows of a memory while the backbone stays frozen.

It receives a loaded model and tokenizer. Only positions from a fact's subject on run through the
layers (see `upper_layers`), only value tokens that are not yet confident are in the loss, and
facts that are confident sleep. The same seed, machine and thread count give the same rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)

from engram_core.backbone import hidden_size
from engram_core.compression import TokenCompressor
from engram_core.config import EngramConfig
from engram_core.hashing import NgramHasher
from engram_core.layout import HashLayout
from engram_core.module import EngramModule
from engram_core.retrofit.examples import make_examples
from engram_core.retrofit.facts import Fact
from engram_core.retrofit.recipe import Recipe
from engram_core.retrofit.row_batch import RowBatch
from engram_core.retrofit.row_parameters import RowParameters
from engram_core.retrofit.schedule import Schedule
from engram_core.retrofit.suffixes import SuffixBatch
from engram_core.retrofit.upper_layers import UpperLayers, retrofit_attention

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EpochReport:
    """What one epoch did, for a progress line."""

    epoch: int
    epochs: int
    facts: int  # trained in this epoch; the others slept
    confident: float  # share of them
    exact: float  # share whose every value token was the likeliest one
    loss: float
    elapsed_s: float
    eta_s: float


@dataclass(frozen=True, slots=True)
class TrainedMemory:
    """What training made: everything that an artefact stores."""

    recipe: Recipe
    compressor: TokenCompressor
    hasher: NgramHasher
    rows: dict[int, RowParameters]
    modules: dict[int, EngramModule]


class Trainer:
    """One training run.

    Args:
        model: a causal language model; it is frozen and left as it was.
        tokenizer: its fast tokenizer.
        facts: what to remember.
        recipe: how.
        progress: receives the fraction of the preparation that is done.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        facts: Sequence[Fact],
        recipe: Recipe,
        progress: Callable[[float], None] = lambda _fraction: None,
    ) -> None:
        self.recipe, self.num_facts = recipe, len(facts)
        self._model = model.eval().requires_grad_(False)
        contexts = make_examples(tokenizer, facts, recipe.num_contexts, recipe.seed)
        self._examples = [example for context in contexts for example in context]
        self._upper = UpperLayers(model, min(recipe.layers))
        with retrofit_attention(model):
            self._cache = self._upper.capture(self._examples, progress)
        compressor = TokenCompressor.from_tokenizer(tokenizer)
        hasher = _make_hasher(recipe, compressor, hidden_size(model), tokenizer.pad_token_id or 0)
        row_ids = {layer: self._row_ids(hasher, layer) for layer in recipe.layers}
        self.memory = _blank_memory(recipe, compressor, hasher, row_ids)
        self._slots = {
            layer: [self.memory.rows[layer].slots(ids) for ids in row_ids[layer]]
            for layer in recipe.layers
        }
        modules = self.memory.modules.values()
        self._dense = torch.optim.Adam([p for module in modules for p in module.parameters()])

    def run(self, report: Callable[[EpochReport], None]) -> TrainedMemory:
        """Train all epochs; `report` hears of each one."""
        recipe = self.recipe
        schedule = Schedule(
            [e.suffix_length for e in self._examples[: self.num_facts]],
            epochs=recipe.epochs,
            num_contexts=recipe.num_contexts,
            batch_size=recipe.batch_size,
            sleep_epochs=recipe.sleep_epochs,
            seed=recipe.seed,
        )
        started = time.perf_counter()
        with retrofit_attention(self._model):
            for epoch in range(recipe.epochs):
                steps = self._run_epoch(schedule, epoch)
                report(_summary(steps, epoch, recipe.epochs, time.perf_counter() - started))
        return self.memory

    @torch.no_grad()
    def recall(self, context: int) -> float:
        """Share of facts whose every value token is the likeliest one behind `context`."""
        exact = 0
        size = self.recipe.batch_size
        with retrofit_attention(self._model):
            for start in range(0, self.num_facts, size):
                facts = range(start, min(start + size, self.num_facts))
                step = self._forward([self._example_index(context, f) for f in facts])
                exact += sum(step.exact)
        return exact / self.num_facts

    def _run_epoch(self, schedule: Schedule, epoch: int) -> list[_Step]:
        context = schedule.context(epoch)
        batches = schedule.batches(epoch)
        steps = []
        for number, facts in enumerate(batches):
            factor = schedule.learning_rate_factor(epoch, number / len(batches))
            step = self._forward([self._example_index(context, f) for f in facts])
            self._learn(step, factor)
            schedule.report(epoch, facts, step.confident)
            steps.append(step.detached())
        return steps

    def _forward(self, chosen: Sequence[int]) -> _Step:
        batch = self._cache.batch(chosen)
        rows = {
            layer: RowBatch(self.memory.rows[layer], torch.cat([slots[i] for i in chosen]))
            for layer, slots in self._slots.items()
        }

        def before_layer(layer: int, hidden: torch.Tensor) -> torch.Tensor:
            if layer not in rows:
                return hidden
            module = self.memory.modules[layer]
            added: torch.Tensor = module(hidden[0][:, None], rows[layer].embeddings).hidden
            return added[:, 0][None]

        final = self._upper(batch, before_layer)
        return self._score(chosen, batch, final, rows)

    def _score(
        self,
        chosen: Sequence[int],
        batch: SuffixBatch,
        final: torch.Tensor,
        rows: dict[int, RowBatch],
    ) -> _Step:
        examples = [self._examples[i] for i in chosen]
        is_value = torch.cat([torch.arange(e.suffix_length) >= e.tail_length for e in examples])
        targets = torch.tensor([t for e in examples for t in e.token_ids[e.value_start :]])
        logits = self._upper.logits(final[is_value])
        losses = F.cross_entropy(logits, targets, reduction="none")
        confident = losses.detach() < -np.log(self.recipe.confidence)
        loss = (losses * ~confident).sum() / (~confident).sum().clamp_min(1)
        if self.recipe.tail_weight:
            loss = loss + self.recipe.tail_weight * _drift(final[~is_value], batch.plain[~is_value])
        sizes = [len(e.token_ids) - e.value_start for e in examples]
        likeliest = logits.argmax(-1) == targets
        return _Step(loss, rows, _all_of(confident, sizes), _all_of(likeliest, sizes))

    def _learn(self, step: _Step, factor: float) -> None:
        self._dense.zero_grad(set_to_none=True)
        step.loss.backward()  # type: ignore[no-untyped-call]
        for group in self._dense.param_groups:
            group["lr"] = self.recipe.dense_learning_rate * factor
        self._dense.step()
        for rows in step.rows.values():
            rows.step(self.recipe.row_learning_rate * factor)

    def _example_index(self, context: int, fact: int) -> int:
        return context * self.num_facts + fact

    def _row_ids(self, hasher: NgramHasher, layer: int) -> list[Int64Array]:
        """Per example, int64 ``[suffix positions, columns]``."""
        return [hasher.row_ids(e.token_ids, layer)[e.key_last : -1] for e in self._examples]


@dataclass(frozen=True, slots=True)
class _Step:
    loss: torch.Tensor
    rows: dict[int, RowBatch]
    confident: list[bool]
    exact: list[bool]

    def detached(self) -> _Step:
        """The figures without the graph."""
        return _Step(self.loss.detach(), {}, self.confident, self.exact)


def _make_hasher(
    recipe: Recipe, compressor: TokenCompressor, width: int, pad_id: int
) -> NgramHasher:
    layout = HashLayout.build(recipe.config(width, pad_id), compressor.size)
    return NgramHasher(layout, compressor.class_ids)


def _blank_memory(
    recipe: Recipe,
    compressor: TokenCompressor,
    hasher: NgramHasher,
    row_ids: Mapping[int, Sequence[Int64Array]],
) -> TrainedMemory:
    config = hasher.layout.config
    rows = {
        layer: RowParameters(np.concatenate(ids).ravel(), config.head_dim)
        for layer, ids in row_ids.items()
    }
    generator = torch.Generator().manual_seed(recipe.seed)
    modules = {layer: _fresh_module(config, layer, generator) for layer in recipe.layers}
    return TrainedMemory(recipe, compressor, hasher, rows, modules)


def _fresh_module(config: EngramConfig, layer: int, generator: torch.Generator) -> EngramModule:
    # without the hit rule: every position here is one whose rows will have been written
    module = EngramModule(replace(config, min_hit_orders=()), layer)
    nn.init.normal_(module.kv_weight, std=config.memory_dim**-0.5, generator=generator)
    return module


def _drift(final: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
    """Mean squared distance from the backbone's final hidden state, relative to its size."""
    plain = plain.float()
    return (final.float() - plain).square().sum() / plain.square().sum().clamp_min(1e-6)


def _all_of(flags: torch.Tensor, sizes: Sequence[int]) -> list[bool]:
    return [bool(part.all()) for part in torch.split(flags, list(sizes))]


def _summary(steps: Sequence[_Step], epoch: int, epochs: int, elapsed_s: float) -> EpochReport:
    confident = [flag for step in steps for flag in step.confident]
    exact = [flag for step in steps for flag in step.exact]
    return EpochReport(
        epoch=epoch,
        epochs=epochs,
        facts=len(confident),
        confident=sum(confident) / max(1, len(confident)),
        exact=sum(exact) / max(1, len(exact)),
        loss=float(torch.stack([step.loss for step in steps]).mean()) if steps else 0.0,
        elapsed_s=elapsed_s,
        eta_s=elapsed_s / (epoch + 1) * (epochs - epoch - 1),
    )
