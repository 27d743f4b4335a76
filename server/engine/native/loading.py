"""Moves a fused model to the compiled kernels, each layer only if its numbers stay the same.

The one module here that decides anything; numba is imported with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from engram_core.backbone import find_decoder_layers
from engram_core.version import MemoryVersion
from server.engine.attention_batch import AttentionBatch, PrefillPart
from server.engine.fuse.calls import Call, record_calls
from server.engine.fuse.fused_layer import FusedLayer
from server.engine.fuse.verify import relative_error, tolerance
from server.engine.hooks import carry_over
from server.engine.kv_cache import KVCache
from server.engine.linear.packing import projection_of
from server.engine.native.choice import FormatChoice
from server.engine.native.formats import why_not
from server.engine.native.layer_weights import why_not_native
from server.engine.native.measure import measured_choice
from server.engine.native.native_layer import NativeLayer
from server.engine.native.native_linear import NativeLinear
from server.engine.native.projection import Projection
from server.engine.native.stack import LayerStack
from server.engine.native.statistics import RowStatistics
from server.engine.native.team import Team, default_threads, shared_team
from server.engine.native.tile import has_pair_product
from server.engine.native_report import NativeReport
from server.engine.self_check import ModelReport
from server.engine.tuning import QuantizeMode, Tuning

_BF16 = FormatChoice("bf16", "bf16")
_ONE_FORMAT: dict[QuantizeMode, FormatChoice] = {
    "none": _BF16,
    "int8": FormatChoice("int8", "int8"),
    "int4": FormatChoice("int4", "int4"),
}


def choice_of(quantize: QuantizeMode, team: Team, *, deterministic: bool) -> FormatChoice:
    """The formats that weights are held in."""
    if quantize != "auto":
        return _ONE_FORMAT[quantize]
    # two formats round differently: one batch size would not answer like another
    return _ONE_FORMAT["int8"] if deterministic else measured_choice(team)


def head_choice(choice: FormatChoice) -> FormatChoice:
    """The head's formats: four bits would cost it too many of its answers."""
    few, many = ("int8" if form == "int4" else form for form in (choice.few, choice.many))
    return FormatChoice(few, many, choice.switch_rows)


def why_not_layers(model: nn.Module, report: ModelReport, block_size: int) -> str | None:
    """Why the decoder layers do not run on the kernels; None when all of them do."""
    calls = record_calls(model, find_decoder_layers(model))
    for index, layer in enumerate(find_decoder_layers(model)):
        if not isinstance(layer, FusedLayer):
            return f"layer {index} is not fused"
        reason = why_not_native(layer, block_size)
        if reason is None:
            reason = _difference(layer, calls[index], report, block_size)
        if reason is not None:
            return f"layer {index}: {reason}"
    return None


def replace_layers(model: nn.Module, team: Team, choice: FormatChoice) -> LayerStack:
    """Replace every decoder layer, in place; the fused weights are let go one by one."""
    layers = find_decoder_layers(model)
    stack = LayerStack(team, choice)
    for index, fused in enumerate(layers):
        if isinstance(fused, FusedLayer):
            native = NativeLayer(fused, stack)
            carry_over(fused, native)
            layers[index] = native
    return stack


def replace_linears(
    model: nn.Module, team: Team, choice: FormatChoice
) -> tuple[list[NativeLinear], str | None]:
    """Replace every plain linear layer, in place; also says what was left alone and why.

    A head keeps eight bits at least. An embedding that shares a head's weight keeps its own copy.
    """
    head = getattr(model, "get_output_embeddings", lambda: None)()
    replaced: list[NativeLinear] = []
    left: str | None = None
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not nn.Linear:  # a subclass may do more than multiply
                continue
            formats = head_choice(choice) if child is head else choice
            reason = next(
                filter(None, (why_not(f, child.in_features) for f in formats.formats)), None
            )
            if reason is not None:
                left = left or f"{name}: {reason}"
                continue
            native = NativeLinear(
                child, team, formats, is_float=child is head, reuses_result=child is head
            )
            setattr(parent, name, native)
            replaced.append(native)
    return replaced, left


def native_statistics() -> RowStatistics:
    """The sampler's statistics, computed by the team."""
    return RowStatistics(shared_team(default_threads()))


def project_natively(version: MemoryVersion, *, is_fixed: bool = False) -> None:
    """Let the kernels compute the keys and values of a memory, in bfloat16 whatever the choice.

    Args:
        version: the memory. is_fixed: see `Projection`.
    """
    for module in version.modules.values():
        linear = projection_of(module)
        if linear.weight.dtype == torch.bfloat16 and why_not("bf16", linear.in_features) is None:
            native = NativeLinear(linear, shared_team(default_threads()), _BF16)
            module.projection = Projection(linear, native, is_fixed=is_fixed)


@torch.inference_mode()
def _difference(fused: FusedLayer, call: Call, report: ModelReport, block_size: int) -> str | None:
    """Why the kernels' numbers are not the fused layer's; None when they are."""
    if call.hidden is None:
        return "it is not called with a hidden state"
    stack = LayerStack(shared_team(default_threads()), _BF16)
    native = NativeLayer(fused, stack)
    hidden = _small_state(call.hidden)
    answers = [
        layer.forward(
            hidden, **{**call.kwargs, "engram_batch": _one_sequence(hidden, report, block_size)}
        )
        for layer in (fused, native)
    ]
    error, accepted = relative_error(answers[1], answers[0]), tolerance(hidden.dtype)
    if error <= accepted:
        return None
    return f"the kernels differ by {error:.2g}, accepted: {accepted:.2g}"


def _small_state(like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(like.shape, generator=generator) * 0.1).to(like.dtype)


def _one_sequence(hidden: Tensor, report: ModelReport, block_size: int) -> AttentionBatch:
    num_tokens = hidden.shape[1]
    num_blocks = -(-num_tokens // block_size)
    cache = KVCache(report.shapes, num_blocks, block_size, hidden.dtype, hidden.device)
    blocks = torch.arange(1, num_blocks + 1)
    slots = torch.arange(num_tokens) + block_size
    return AttentionBatch(cache, slots, None, [PrefillPart(0, num_tokens, 0, blocks)])


def go_native(model: Any, report: ModelReport, block_size: int, tuning: Tuning) -> NativeReport:
    """Move what can be moved, in place."""
    if tuning.quantize == "none" and not has_pair_product():
        return NativeReport(0, 0, "as loaded", 0, "torch: this processor has no bfloat16 product")
    team = shared_team(default_threads())
    reason = why_not_layers(model, report, block_size)
    if reason is not None and tuning.quantize == "none":
        return NativeReport(0, 0, "as loaded", 0, f"torch: {reason}")
    choice = choice_of(tuning.quantize, team, deterministic=tuning.deterministic)
    num_layers, num_bytes = 0, 0
    if reason is None and _fits(model, choice):
        stack = replace_layers(model, team, choice)
        num_layers, num_bytes = len(stack.weights), stack.nbytes
    linears, left = replace_linears(model, team, choice)
    _let_go_of_files(model)
    num_bytes += sum(linear.nbytes for linear in linears)
    told = f"native: {num_layers} layers and {len(linears)} linear layers"
    for each in (reason, left):
        told += "" if each is None else f"; {each}"
    return NativeReport(num_layers, len(linears), str(choice), num_bytes, told)


def _let_go_of_files(model: nn.Module) -> None:
    """Copy what is left of the weights: views of a mapped file would keep all of it in memory."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def _fits(model: nn.Module, choice: FormatChoice) -> bool:
    """Whether every matrix of the layers can have the formats."""
    linears = [
        m for layer in find_decoder_layers(model) for m in layer.modules() if type(m) is nn.Linear
    ]
    return all(why_not(f, m.in_features) is None for f in choice.formats for m in linears)
