"""Reads the reference vectors under tests/golden."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from engram_core.config import EngramConfig

ROOT = Path(__file__).parent / "golden"
DEMO, V41, V41_FORM = ROOT / "demo_v1", ROOT / "v41", ROOT / "v41_form"


@dataclass(frozen=True)
class Case:
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def meta(self) -> dict[str, Any]:
        return json.loads((self.folder / "case.json").read_text())

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return load_file(self.folder / "tensors.safetensors")

    @property
    def config(self) -> EngramConfig:
        if "config" in self.meta:
            return EngramConfig.from_v41(self.meta["config"])
        return EngramConfig.from_demo({**self.meta["engram"], **(self.meta["backbone"] or {})})

    @property
    def class_ids(self) -> np.ndarray:
        return class_map(self.meta["tokenizer"])


@cache
def class_map(tokenizer: str) -> np.ndarray:
    return np.load(DEMO / "maps" / f"{tokenizer}.npz")["lookup"].astype(np.int64)


def cases(root: Path, prefix: str = "") -> list[Case]:
    return [Case(path.parent) for path in sorted(root.glob(f"{prefix}*/case.json"))]


def strip(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def e4m3_rows(bits: torch.Tensor, scale_bits: torch.Tensor) -> torch.Tensor:
    values = bits.view(torch.float8_e4m3fn).float()
    scales = torch.exp2(scale_bits.float() - 127)
    return values * scales.repeat_interleave(bits.shape[1] // scale_bits.shape[1], dim=1)
