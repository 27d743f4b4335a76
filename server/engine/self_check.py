"""The check that a model is served right, run once at load.

Two tiny sequences go through our attention alone, packed together and in chunks, and are compared
with the model's own eager attention. Every layer must call our function, once. Along the way the
shapes of each layer's keys and values are learned, from which the KV cache is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from engram_core.backbone import text_config
from engram_core.errors import UnsupportedModelError
from server.engine.attention import NAME, AttentionOptions
from server.engine.attention_math import attend_stretch
from server.engine.batch import Batch, Span
from server.engine.kv_cache import KVCache, LayerShape
from server.engine.limits import EngineLimits
from server.engine.model_rules import refuse_by_config, refuse_windows
from server.engine.runner import Runner
from server.engine.sequence import Sequence
from server.engine.types import Request, SamplingParams

_LENGTHS = (8, 12)
_LIMITS = EngineLimits(max_num_seqs=2, max_num_batched_tokens=20, max_model_len=16, block_size=4)
# relative error of a row of logits: rounding stays far below, a wrong mask or key far above
_TOLERANCE_FULL = 1e-4  # float32 and wider, for every position
_TOLERANCE_HALF = 0.1  # bfloat16 and float16, for the median position: a router may flip one


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What the check found; docs/architectures.md is made of these.

    Attributes:
        architecture: the model's class.
        shapes: what each layer stores for a token.
        options: what each layer asks of its attention.
        error: the largest relative difference of any row of logits.
    """

    architecture: str
    shapes: tuple[LayerShape, ...]
    options: tuple[AttentionOptions, ...]
    error: float


@torch.inference_mode()
def check_model(model: Any, max_model_len: int) -> ModelReport:
    """Verify the model and leave it with our attention switched on.

    Raises:
        UnsupportedModelError: it would be served wrong; the model keeps its own attention.
        ConfigError: ``max_model_len`` exceeds the model's positions.
    """
    refuse_by_config(model, max_model_len)
    before = model.config._attn_implementation
    prompts = [_token_ids(model, length) for length in _LENGTHS]
    try:
        return _check(model, prompts, max_model_len)
    except BaseException:
        model.set_attn_implementation("eager" if before == NAME else before)
        raise


def _check(model: Any, prompts: list[Tensor], max_model_len: int) -> ModelReport:
    _use(model, NAME)  # a class that ignores it is refused before anything runs
    _use(model, "eager")
    expected = [
        model(input_ids=ids.unsqueeze(0), use_cache=False, engram_step=None).logits[0]
        for ids in prompts
    ]
    _use(model, NAME)
    probe = _probe(model, prompts[-1])
    options = [probe.options[layer] for layer in sorted(probe.options)]
    windows = {layer: option.sliding_window for layer, option in probe.options.items()}
    refuse_windows(model, windows, max_model_len)
    shapes = [probe.shapes[layer] for layer in sorted(probe.shapes)]
    error = max(
        _compare(model, f"{name} sequences", found, expected)
        for name, found in (
            ("lone", _run_alone(model, shapes, prompts)),
            ("packed", _run_packed(model, shapes, prompts)),
            ("chunked", _run_chunked(model, shapes, prompts)),
        )
    )
    return ModelReport(type(model).__name__, tuple(shapes), tuple(options), error)


def _token_ids(model: Any, length: int) -> Tensor:
    vocabulary = text_config(model).vocab_size
    ids = [(7 * place * place + 11 * length + 3) % vocabulary for place in range(length)]
    return torch.tensor(ids, device=model.device)


def _use(model: Any, implementation: str) -> None:
    model.set_attn_implementation(implementation)
    if text_config(model)._attn_implementation != implementation:
        raise UnsupportedModelError(
            f"{type(model).__name__}: layer 0 does not call the attention it is told to "
            f"({implementation}); its class ignores transformers' attention interface"
        )


# --- which layers call us, and with what ---


@dataclass
class _Probe:
    """An `AttentionStep` over one whole sequence that remembers who called."""

    shapes: dict[int, LayerShape] = field(default_factory=dict)
    options: dict[int, AttentionOptions] = field(default_factory=dict)
    calls: Counter[int] = field(default_factory=Counter)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions
    ) -> Tensor:
        """See `attention.AttentionStep.attend`."""
        self.calls[layer] += 1
        self.shapes[layer] = LayerShape(key.shape[0], key.shape[2], value.shape[2])
        self.options[layer] = options
        return attend_stretch(query, key, value, None, options)


def _probe(model: Any, ids: Tensor) -> _Probe:
    probe = _Probe()
    positions = torch.arange(len(ids), device=ids.device)
    model(
        input_ids=ids.unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        use_cache=False,
        engram_batch=probe,
        engram_step=None,
    )
    for layer in range(text_config(model).num_hidden_layers):
        if probe.calls[layer] != 1:
            raise UnsupportedModelError(
                f"{type(model).__name__}: layer {layer} called the attention function "
                f"{probe.calls[layer]} times instead of once; state-space, linear and cross "
                "attention layers are not supported"
            )
    return probe


# --- the same two sequences in three ways ---


def _run_alone(model: Any, shapes: Many[LayerShape], prompts: Many[Tensor]) -> list[Tensor]:
    return [_run_packed(model, shapes, [ids])[0] for ids in prompts]


def _run_packed(model: Any, shapes: Many[LayerShape], prompts: Many[Tensor]) -> list[Tensor]:
    steps = [[(index, 0, len(ids)) for index, ids in enumerate(prompts)]]
    return _run_steps(model, shapes, prompts, steps)


def _run_chunked(model: Any, shapes: Many[LayerShape], prompts: Many[Tensor]) -> list[Tensor]:
    steps = [[(0, 0, 3), (1, 0, 5)], [(0, 3, 4), (1, 5, 6)], [(0, 7, 1), (1, 11, 1)]]
    return _run_steps(model, shapes, prompts, steps)


def _run_steps(
    model: Any,
    shapes: Many[LayerShape],
    prompts: Many[Tensor],
    steps: list[list[tuple[int, int, int]]],  # per step: (prompt, first token, tokens)
) -> list[Tensor]:
    """Logits [tokens, vocabulary] of each prompt; spans of one token run as decodes."""
    cache = KVCache(shapes, 8, _LIMITS.block_size, model.dtype, model.device)
    runner = Runner(model, cache, _LIMITS, model.device)
    sequences = [_sequence(index, ids) for index, ids in enumerate(prompts)]
    parts: list[list[Tensor]] = [[] for _ in prompts]
    for step in steps:
        spans = tuple(Span(sequences[index], start, count) for index, start, count in step)
        is_decode = all(count == 1 for _, _, count in step)
        output = runner.run(Batch(spans, len(spans) if is_decode else 0))
        _refuse_all_logits(model, output.logits, spans)
        for (index, _, _), rows in zip(step, output.rows, strict=True):
            parts[index].append(output.logits[rows])
    return [torch.cat(part) for part in parts]


def _sequence(index: int, ids: Tensor) -> Sequence:
    params = SamplingParams(prompt_logprobs=True)  # so that every position's logits come back
    sequence = Sequence(Request(str(index), tuple(ids.tolist()), params), lambda event: None)
    sequence.block_table = [4, 2, 6] if index == 0 else [3, 7, 1]  # in no order
    return sequence


def _refuse_all_logits(model: nn.Module, logits: Tensor, spans: tuple[Span, ...]) -> None:
    wanted = sum(span.num_tokens for span in spans)
    if logits.shape[0] != wanted:
        raise UnsupportedModelError(
            f"{type(model).__name__} returned {logits.shape[0]} rows of logits where {wanted} were "
            "asked for; its head ignores logits_to_keep"
        )


def _compare(model: nn.Module, name: str, found: Many[Tensor], expected: Many[Tensor]) -> float:
    errors = torch.cat([_errors(*pair) for pair in zip(found, expected, strict=True)])
    is_half = found[0].dtype.itemsize < 4
    error = float(errors.median() if is_half else errors.max())
    tolerance = _TOLERANCE_HALF if is_half else _TOLERANCE_FULL
    if not error <= tolerance:  # also refuses NaN
        raise UnsupportedModelError(
            f"{type(model).__name__}: the logits of {name} differ from the model's own attention "
            f"by {error:.2g} of their size (accepted: {tolerance}); one of its layers attends in a "
            "way that this server does not reproduce"
        )
    return error


def _errors(found: Tensor, expected: Tensor) -> Tensor:
    """Relative error of each row, measured against the spread of its logits: [tokens]."""
    centred = expected.double() - expected.double().mean(-1, keepdim=True)
    difference = found.double() - expected.double()
    spread = torch.linalg.vector_norm(centred, dim=-1)
    errors: Tensor = torch.linalg.vector_norm(difference, dim=-1) / spread.clamp_min(1e-30)
    return errors
