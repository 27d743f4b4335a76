"""GraphRunner: decode steps as replayed graphs where the device has them, everything else eager.

A launch of every kernel from Python costs more than the kernels of a small step take; a captured
step is one launch. Batch sizes and block-table widths are rounded up to a few shapes, each captured
when it is first needed. Says which path is active and why.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Literal

import torch

from engram_core.device import Device
from engram_core.errors import ConfigError
from engram_core.step import EngramStep
from engram_core.version import MemoryVersion
from server.engine.batch import Batch
from server.engine.decode_graph import DecodeGraph, GraphShape
from server.engine.inputs import InputBuilder
from server.engine.limits import EngineLimits
from server.engine.runner import Runner, StepOutput
from server.engine.tuning import GraphMode

SPARE_BLOCKS = 1  # KV blocks beyond the pool's: where places without a sequence write

_MAX_GRAPHS = 64  # the least recently used one is dropped
_MIN_WIDTH = 8  # blocks
_STEP = 32  # sequences; smaller batches are rounded up to a power of two

_log = logging.getLogger(__name__)


class GraphRunner:
    """Runs batches, the decoding ones through graphs.

    Args:
        runner: computes what no graph does; the last block of its cache belongs to nobody.
        limits: the engine's.
        device: where the model runs; None knows no graphs.
        mode: ``"on"`` refuses to go without, ``"off"`` never captures.
        version: the memory that batches read, tried out at once.

    Attributes:
        path: ``"graphs"`` or ``"eager"``. why_path: the same with its reason, for people.

    Raises:
        ConfigError: mode is ``"on"`` and there is a reason against it.
    """

    def __init__(
        self,
        runner: Runner,
        limits: EngineLimits,
        device: Device | None,
        mode: GraphMode = "auto",
        version: MemoryVersion | None = None,
    ) -> None:
        self._runner, self._limits, self._device = runner, limits, device
        self._inputs = InputBuilder(limits, runner.cache, torch.device("cpu"))
        self._graphs: OrderedDict[tuple[GraphShape, str | None], DecodeGraph] = OrderedDict()
        self.path: Literal["graphs", "eager"] = "eager"
        self.why_path = _why_eager(device, mode)
        if can_graph(device, mode):
            self._try_out(version)
        if mode == "on" and self.path == "eager":
            raise ConfigError(f'graphs is "on" ({self.why_path}); accepted here: "auto" or "off"')

    def _try_out(self, version: MemoryVersion | None) -> None:
        self.path = "graphs"
        self.why_path = "graphs: decode steps are captured once per shape and replayed"
        self._graph(self._shape(1, 1), version)

    def run(self, batch: Batch, engram_step: EngramStep | None = None) -> StepOutput:
        """Compute the batch; see `Runner.run`. Logits are valid until the next call."""
        if self.path == "graphs" and not batch.prefills:
            output = self._replay(batch, engram_step)
            if output is not None:
                return output
        return self._runner.run(batch, engram_step)

    def _replay(self, batch: Batch, engram_step: EngramStep | None) -> StepOutput | None:
        inputs = self._inputs.build(batch)
        decode = inputs.attention.decode
        if decode is None:
            return None
        version = None if engram_step is None else engram_step.version
        graph = self._graph(self._shape(decode.num_tokens, decode.width), version)
        return None if graph is None else StepOutput(graph.run(inputs, engram_step), inputs.rows)

    def _shape(self, count: int, width: int) -> GraphShape:
        limits = self._limits
        max_width = -(-(limits.max_model_len + 1) // limits.block_size)
        size = _power_of_two(count) if count <= _STEP else -(-count // _STEP) * _STEP
        return GraphShape(
            min(size, limits.max_num_seqs),
            min(_power_of_two(max(width, _MIN_WIDTH)), max_width),
        )

    def _graph(self, shape: GraphShape, version: MemoryVersion | None) -> DecodeGraph | None:
        """The graph of a shape, captured when it is new; None when that fails: then never again."""
        key = (shape, None if version is None else version.id)
        graph = self._graphs.get(key)
        if graph is None and self._device is not None:
            runner = self._runner
            spare = runner.cache.num_blocks
            try:
                graph = DecodeGraph(runner.model, runner.cache, self._device, shape, spare, version)
            except Exception as error:  # noqa: BLE001 - a model or driver may object in any way
                self._give_up(error)
                return None
            self._graphs[key] = graph
            if len(self._graphs) > _MAX_GRAPHS:
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(key)
        return graph

    def _give_up(self, error: Exception) -> None:
        _log.warning("a decode step cannot be captured; going on without graphs", exc_info=True)
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        self.path, self.why_path = "eager", f"eager: a decode step cannot be captured ({reason})"
        self._graphs.clear()


def can_graph(device: Device | None, mode: GraphMode) -> bool:
    """Whether graphs are worth a try: what `SPARE_BLOCKS` are needed for."""
    return mode != "off" and device is not None and device.supports_graphs


def _why_eager(device: Device | None, mode: GraphMode) -> str:
    if mode == "off":
        return "eager: graphs are switched off"
    return f"eager: {'no device' if device is None else device.name} has no graphs"


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
