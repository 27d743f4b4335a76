"""Tuning: how a forward is computed, as far as an operator may choose. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GraphMode = Literal["auto", "on", "off"]
QuantizeMode = Literal["none", "int8", "int4", "auto"]
KernelMode = Literal["auto", "native", "torch"]


@dataclass(frozen=True, slots=True)
class Tuning:
    """Choices that change how fast answers come, and how their last digits are rounded.

    Attributes:
        quantize: number format of the linear layers' weights on a CPU; activations keep the
            model's. ``"none"`` keeps the weights as they are, ``"auto"`` holds int8 beside
            bfloat16 and picks by batch size, from a measurement at load.
        deterministic: an answer's bits do not depend on which requests run beside it.
        kernels: ``"native"`` insists on the compiled kernels for CPUs, ``"torch"`` does without,
            ``"auto"`` takes what is there.
        graphs: whether decode steps are captured and replayed: ``"auto"`` where the device can,
            ``"on"`` insists, ``"off"`` never.
    """

    quantize: QuantizeMode = "none"
    deterministic: bool = False
    kernels: KernelMode = "auto"
    graphs: GraphMode = "auto"

    @property
    def kernels_key(self) -> tuple[str, bool, str]:
        """What decides how a model's layers are replaced."""
        return self.quantize, self.deterministic, self.kernels
