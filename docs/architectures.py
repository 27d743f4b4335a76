"""Writes architectures.md from the check that runs at every start: `python docs/architectures.py`.

Each row is a tiny random model of a family that went through that check. A test compares the page
with what this renders.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))

from engram_core.errors import UnsupportedModelError  # noqa: E402
from server.engine.self_check import ModelReport, check_model  # noqa: E402

MAX_MODEL_LEN = 64
AGREEMENT = 1e-5
INTRO = f"""# Architectures

When a model is loaded, two short sequences go through the server's attention alone, packed
together and in chunks, and their logits are compared with the model's own attention. A model that
differs, or in which a layer does not call that attention, is refused in one sentence.

Made by `python docs/architectures.py` from tiny random models in float32 with a window of 5 tokens
where there is one. "Agrees" means that no row of logits differs by more than {AGREEMENT:g} of its
size. Families that are not listed are checked at their own start all the same.

| family | class | agrees | heads (keys:queries) | window | soft cap |
| --- | --- | --- | --- | --- | --- |
"""
REFUSED = """
Refused, with the sentence that the server prints:

| family | sentence |
| --- | --- |
"""
BASE: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_MODEL_LEN,
    "pad_token_id": 0,
}
EXPERTS = {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "factor": 2.0,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": MAX_MODEL_LEN // 2,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "cohere2": {"sliding_window": 5},
    "gemma2": {"head_dim": 8, "sliding_window": 5},
    "gemma3_text": {"head_dim": 8, "sliding_window": 5},
    "glm4": {"head_dim": 8},
    "gpt2": {},
    "gpt_neox": {},
    "granite": {},
    "llama": {},
    "mistral": {"sliding_window": 5},
    "mixtral": {"num_local_experts": 4},
    "olmo": {},
    "olmo2": {},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "phi": {},
    "phi3": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "qwen3_moe": EXPERTS,
    "starcoder2": {},
}
NOT_SERVED: dict[str, dict[str, Any]] = {
    "bloom": {},
    "gpt_oss": {"head_dim": 8, "num_local_experts": 4},
    "llama4_text": {"head_dim": 8},
    "mamba": {},
    "phi3": {"rope_parameters": LONGROPE, "original_max_position_embeddings": MAX_MODEL_LEN // 2},
    "qwen3_next": {},
}


def page() -> str:
    """The whole document."""
    served = [served_row(family, check(family, change)) for family, change in FAMILIES.items()]
    refused = [f"| {family} | {sentence} |" for family, sentence in refusals()]
    return INTRO + "\n".join(served) + "\n" + REFUSED + "\n".join(refused) + "\n"


def check(family: str, change: dict[str, Any]) -> ModelReport:
    """Build a tiny model of the family and check it."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**BASE, **change})
    return check_model(AutoModelForCausalLM.from_config(config).eval(), MAX_MODEL_LEN)


def served_row(family: str, report: ModelReport) -> str:
    """A row of the first table."""
    windows = {option.sliding_window for option in report.options}
    layers = "some layers" if None in windows else "every layer"
    grouped = f"{report.shapes[0].num_heads}:{BASE['num_attention_heads']}"
    cells = (
        family,
        f"`{report.architecture}`",
        "yes" if report.error <= AGREEMENT else "no",
        grouped,
        layers if windows - {None} else "none",
        "yes" if any(option.softcap for option in report.options) else "no",
    )
    return f"| {' | '.join(cells)} |"


def refusals() -> Iterator[tuple[str, str]]:
    """Each family that is refused, with the reason."""
    for family, change in NOT_SERVED.items():
        try:
            check(family, change)
        except UnsupportedModelError as error:
            yield family, str(error)


if __name__ == "__main__":
    (FOLDER / "architectures.md").write_text(page(), encoding="utf-8")
    print(f"wrote {FOLDER / 'architectures.md'}")
