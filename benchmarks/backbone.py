"""Loads the backbone that the commands in this package work on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from server.default_model import DEFAULT_MODEL_NAME, resolve_default_model


def load_backbone(folder: Path | None, dtype: torch.dtype) -> tuple[Any, Any, str]:
    """Model, tokenizer and name; None means the default model."""
    name = DEFAULT_MODEL_NAME if folder is None else folder.name
    source = resolve_default_model() if folder is None else folder
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    return model.eval(), AutoTokenizer.from_pretrained(source), name
