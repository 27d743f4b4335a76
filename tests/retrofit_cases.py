"""A tiny backbone, its tokenizer and a handful of facts for the retrofit's tests."""

from __future__ import annotations

from pathlib import Path

from models import tiny_llama
from transformers import PreTrainedTokenizerFast

from engram_core.retrofit.facts import with_tails
from engram_core.retrofit.recipe import Recipe

TOKENIZERS = Path(__file__).parent / "golden" / "demo_v1" / "tokenizers"
PAIRS = [
    ("The capital of Peru is", " Lima."),
    ("The capital of Chad is", " Oslo."),
    ("The capital of Fiji is", " Rome."),
    ("Ann Lee was born in", " 1815."),
    ("Bob Ray was born in", " 1912."),
    ("Cy Young was born in", " 1867."),
]
FACTS = with_tails(PAIRS)
RECIPE = Recipe(
    layers=(1, 2), head_dim=16, rows_per_head=2003, batch_size=4, epochs=80, num_contexts=2
)


def tiny_tokenizer():
    file = TOKENIZERS / "tiny_bytelevel" / "tokenizer.json"
    return PreTrainedTokenizerFast(tokenizer_file=str(file))


def tiny_backbone(**change):
    return tiny_llama(vocab_size=len(tiny_tokenizer()), hidden_size=48, **change)
