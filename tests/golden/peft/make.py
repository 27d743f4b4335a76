"""Makes the vectors of this folder with the real library engram-peft (see README.md).

Run from the repository root, in an environment of its own that has `engram-peft==1.2.7` and
`torch==2.13.0`; nothing of this project is imported.
"""

from __future__ import annotations

import typing
from pathlib import Path

import torch
import typing_extensions
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

if not hasattr(typing, "override"):  # the library asks for it, Python 3.11 does not have it yet
    typing.override = typing_extensions.override

from engram_peft import EngramConfig, get_engram_model

HERE = Path(__file__).parent
TOKENIZER = HERE.parent / "demo_v1" / "tokenizers" / "tiny_bytelevel" / "tokenizer.json"
BACKBONE = {
    "vocab_size": 912, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128,
    "initializer_range": 0.3, "tie_word_embeddings": True,
}  # fmt: skip
ADAPTERS = {
    "orders23": {
        "ngram_sizes": [2, 3], "engram_vocab_size_per_ngram": [65, 97], "n_head_per_ngram": 2,
        "embedding_dim": 16, "target_layers": [2, 0], "hc_mult": 3, "seed": 5,
    },
    "orders24_uncompressed": {
        "ngram_sizes": [2, 4], "engram_vocab_size_per_ngram": [40, 40], "n_head_per_ngram": 1,
        "embedding_dim": 8, "target_layers": [1], "hc_mult": 1, "conv_kernel_size": 3,
        "conv_dilation": 2, "enable_tokenizer_compression": False, "pad_id": 903,
    },
}  # fmt: skip
TEXT = "The capital of France is Paris, and the café in Köln sells Crème brûlée."


def main() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER), pad_token="<pad>")
    ids = token_ids(tokenizer)
    torch.manual_seed(0)
    weights = LlamaForCausalLM(LlamaConfig(**BACKBONE)).state_dict()
    weights = {k: v.bfloat16().float() for k, v in weights.items() if k != "lm_head.weight"}
    save_file({k: v.bfloat16() for k, v in weights.items()}, HERE / "backbone.safetensors")
    for name, settings in ADAPTERS.items():
        make_adapter(name, settings, tokenizer, weights, ids)


def token_ids(tokenizer: PreTrainedTokenizerFast) -> torch.Tensor:
    """Text, and random ids that include those beyond tokenizer.vocab_size: [2, 24]."""
    text = tokenizer(TEXT, add_special_tokens=False)["input_ids"][:24]
    assert len(text) == 24
    random = torch.randint(0, len(tokenizer), (24,), generator=torch.Generator().manual_seed(1))
    random[[0, 5, 6, 7]] = torch.tensor([901, 903, 900, 902])
    assert tokenizer.vocab_size == 900
    return torch.stack([torch.tensor(text), random])


def make_adapter(name, settings, tokenizer, weights, ids) -> None:
    model = LlamaForCausalLM(LlamaConfig(**BACKBONE)).eval()
    model.load_state_dict(weights, strict=False)
    settings = {"tokenizer_name_or_path": "tiny_bytelevel", **settings}
    adapted = get_engram_model(model, EngramConfig(**settings), tokenizer=tokenizer).eval()
    randomise(adapted.engram_layers)
    recorded = {"input_ids": ids}
    for layer in adapted.config.target_layers:
        watch(adapted.engram_layers[str(layer)], layer, recorded)
    with torch.no_grad():
        adapted.load_engram()
        model.model.register_forward_hook(
            lambda _m, _a, out: recorded.__setitem__("last_hidden_state", out.last_hidden_state)
        )
        adapted(input_ids=ids)
    (HERE / name).mkdir(exist_ok=True)
    adapted.save_pretrained(str(HERE / name))
    recorded["class_map"] = class_map(adapted)
    record_constants(adapted, recorded)
    tensors = {k: v.detach().clone().contiguous() for k, v in recorded.items()}
    save_file(tensors, HERE / name / "reference.safetensors")


def randomise(layers) -> None:
    """Values that bfloat16 holds exactly, so that a reader of bf16 rows loses nothing."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for key, parameter in layers.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if "norm" in key:
                values = 1 + 0.2 * values
            elif "embedding" not in key:
                values = 0.4 * values
            parameter.copy_(values.bfloat16().float())


def watch(layer, number: int, recorded: dict) -> None:
    def before(_module, args, kwargs):
        rows = kwargs["engram_hash_indices"]
        recorded[f"row_ids.{number}"] = rows + layer.multi_head_embedding.offsets
        recorded[f"hidden.{number}"] = kwargs["hidden_states"]

    def after(_module, _args, output):
        recorded[f"output.{number}"] = output
        recorded[f"gates.{number}"] = layer.gating.last_gate.squeeze(-1)

    layer.register_forward_pre_hook(before, with_kwargs=True)
    layer.register_forward_hook(after)


def class_map(adapted) -> torch.Tensor:
    size = adapted.config.compressed_vocab_size
    return torch.arange(size) if adapted.compressor is None else adapted.compressor.lookup


def record_constants(adapted, recorded: dict) -> None:
    for layer in adapted.config.target_layers:
        multipliers = adapted.hash_mapping.all_multipliers[layer]
        recorded[f"multipliers.{layer}"] = torch.from_numpy(multipliers)
        primes = adapted.hash_mapping.prime_tables[layer]
        recorded[f"primes.{layer}"] = torch.tensor(primes)


if __name__ == "__main__":
    main()
