"""A tiny model in a folder, and an artefact made for it, as a user has them on disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from artefacts import tiny_content
from models import tiny_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

from engram_core.compression import TokenCompressor
from engram_core.tables import write_artefact
from engram_core.tables.backbone_record import describe_backbone

TOKENIZER = Path(__file__).parent / "golden" / "demo_v1" / "tokenizers" / "tiny_bytelevel"


def write_model(folder: Path) -> Path:
    """A random Llama with a real byte-level tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    model = tiny_llama(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / file, folder)
    return folder


def write_memory(folder: Path, model_folder: Path) -> Path:
    """An artefact with random rows that fits the model of `write_model`."""
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    backbone = describe_backbone(model, "tiny")
    compressor = TokenCompressor.from_tokenizer(AutoTokenizer.from_pretrained(TOKENIZER))
    write_artefact(folder, tiny_content(compressor=compressor, backbone=backbone))
    return folder
