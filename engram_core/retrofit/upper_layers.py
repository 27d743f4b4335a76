"""Runs only what a memory can change: the layers from the first Engram layer on, behind the key.

Rows are written from the subject's last token on, so every position before it, and every layer
below the first Engram layer, equals the plain backbone. Both are computed once and kept: the
prefix's keys and values, and the hidden state with which the suffix enters the first Engram
layer. A training step then runs about six positions of a fact through a third of the layers.

Works for decoders whose layers take ``position_embeddings`` and call a registered attention
function (Llama and its kin). Knows nothing about rows or losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own idiom)
from transformers import AttentionInterface

from engram_core.backbone import find_decoder_layers
from engram_core.errors import UnsupportedModelError
from engram_core.retrofit.examples import Example
from engram_core.retrofit.suffixes import SuffixBatch, SuffixCache

ATTENTION_NAME = "engram_retrofit"
CAPTURE_BATCH = 64  # examples per forward of the plain backbone

# (layer, hidden [1, tokens, D]) -> hidden; applied before the layer
BeforeLayer = Callable[[int, torch.Tensor], torch.Tensor]


class UpperLayers:
    """The decoder layers of `model` from `first` on, its last norm and its output matrix."""

    def __init__(self, model: nn.Module, first: int) -> None:
        self.model, self.first = model, first
        self.layers = find_decoder_layers(model)
        self.base: Any = getattr(model, "base_model", model)
        if not isinstance(getattr(self.base, "norm", None), nn.Module):
            raise UnsupportedModelError("the retrofit trainer needs a decoder with a last norm")
        if not 0 <= first < len(self.layers):
            raise UnsupportedModelError(
                f"layer {first} does not exist; accepted: 0 to {len(self.layers) - 1}"
            )

    def __call__(self, batch: SuffixBatch, before_layer: BeforeLayer) -> torch.Tensor:
        """Final hidden states of the batch: ``[T, D]``, after the last norm."""
        hidden = batch.hidden[None]
        rotary = (batch.rotary[0][None], batch.rotary[1][None])
        for layer in range(self.first, len(self.layers)):
            hidden = before_layer(layer, hidden)
            hidden = self.layers[layer](
                hidden, position_embeddings=rotary, retrofit=_Attend(batch, layer - self.first)
            )
        final: torch.Tensor = self.base.norm(hidden)[0]
        return final

    def logits(self, final: torch.Tensor) -> torch.Tensor:
        """``[n, D]`` -> ``[n, vocabulary]`` float32."""
        head: Any = self.model.get_output_embeddings()  # type: ignore[operator]
        logits: torch.Tensor = head(final).float()
        return logits

    @torch.no_grad()
    def capture(
        self, examples: Sequence[Example], progress: Callable[[float], None]
    ) -> SuffixCache:
        """Run the plain backbone once over all examples and keep what training needs."""
        order = sorted(range(len(examples)), key=lambda i: len(examples[i].token_ids))
        pieces: dict[int, _Piece] = {}
        for start in range(0, len(order), CAPTURE_BATCH):
            chosen = order[start : start + CAPTURE_BATCH]
            pieces.update(zip(chosen, self._capture([examples[i] for i in chosen]), strict=True))
            progress((start + len(chosen)) / len(order))
        inorder = [pieces[i] for i in range(len(examples))]
        return SuffixCache(
            examples,
            hidden=torch.cat([p.hidden for p in inorder]),
            plain=torch.cat([p.plain for p in inorder]),
            rotary=torch.cat([p.rotary for p in inorder], dim=1),
            prefix=torch.cat([p.prefix for p in inorder]),
        )

    def _capture(self, examples: Sequence[Example]) -> Iterator[_Piece]:
        # right padding needs no mask: attention is causal and padded positions are dropped
        longest = max(len(e.token_ids) for e in examples)
        ids = torch.zeros(len(examples), longest, dtype=torch.long)
        for row, example in enumerate(examples):
            ids[row, : len(example.token_ids)] = torch.tensor(example.token_ids)
        seen = _Capture(self.first)
        with _entering(self.layers[self.first], seen):
            final = self.base(ids, use_cache=False, retrofit=seen).last_hidden_state
        prefix = torch.stack(seen.keys_values, dim=2)  # [B, T, upper layers, 2, kv heads, dim]
        rotary = seen.rotary.expand(-1, len(examples), -1, -1)
        for row, example in enumerate(examples):
            suffix = slice(example.key_last, len(example.token_ids) - 1)
            yield _Piece(
                hidden=seen.hidden[row, suffix].clone(),
                plain=final[row, suffix].clone(),
                rotary=rotary[:, row, suffix].clone(),
                prefix=prefix[row, : example.key_last].clone(),
            )


@contextmanager
def retrofit_attention(model: Any) -> Iterator[None]:
    """Let the model's layers call this module's attention function; restored on exit."""
    AttentionInterface.register(ATTENTION_NAME, _attention)
    before = model.config._attn_implementation
    model.set_attn_implementation(ATTENTION_NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@dataclass(slots=True)
class _Piece:
    """One example's part of a `SuffixCache`."""

    hidden: torch.Tensor
    plain: torch.Tensor
    rotary: torch.Tensor
    prefix: torch.Tensor


class _Capture:
    """Collects keys and values of the upper layers and the first Engram layer's input."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.keys_values: list[torch.Tensor] = []  # per layer [B, T, 2, kv heads, dim]
        self.hidden = self.rotary = torch.empty(0)

    def enter(self, hidden: torch.Tensor, kwargs: Mapping[str, Any]) -> None:
        if kwargs.get("position_embeddings") is None:
            raise UnsupportedModelError(
                f"layer {self.first} gets no position_embeddings; the retrofit trainer needs a "
                "rotary decoder"
            )
        self.hidden, self.rotary = hidden, torch.stack(kwargs["position_embeddings"])

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        if layer >= self.first:
            self.keys_values.append(torch.stack([k, v], dim=1).permute(0, 3, 1, 2, 4))
        mixed = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=True
        )
        return mixed.transpose(1, 2)


@dataclass(slots=True)
class _Attend:
    """Attention of packed suffixes over their cached prefixes, for one upper layer."""

    batch: SuffixBatch
    upper_layer: int

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        past = self.batch.prefix[self.upper_layer]  # [2, B, kv heads, P, dim]
        keys = torch.cat([past[0], self.batch.pad(k)], dim=2)
        values = torch.cat([past[1], self.batch.pad(v)], dim=2)
        mixed = F.scaled_dot_product_attention(
            self.batch.pad(q), keys, values, attn_mask=self.batch.mask, scale=scale, enable_gqa=True
        )
        return self.batch.pack(mixed)


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    retrofit: _Capture | _Attend,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    layer: int = module.layer_idx  # type: ignore[assignment]
    return retrofit.attend(layer, query, key, value, scaling), None


@contextmanager
def _entering(layer: nn.Module, seen: _Capture) -> Iterator[None]:
    def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.enter(args[0] if args else kwargs["hidden_states"], kwargs)

    handle = layer.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
