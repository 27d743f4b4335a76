"""Layer lists found by structure; fingerprints that tell checkpoints apart."""

import pytest
import torch
from models import random_model, tiny_llama
from torch import nn
from transformers import GPT2Config, GPTNeoXConfig

from engram_core.backbone import backbone_fingerprint, find_decoder_layers, hidden_size
from engram_core.errors import UnsupportedModelError


def test_finds_layers_of_differently_named_models():
    llama = tiny_llama()
    gpt2 = random_model(GPT2Config(vocab_size=64, n_embd=16, n_layer=3, n_head=2, n_positions=32))
    neox = random_model(
        GPTNeoXConfig(
            vocab_size=64,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
        )
    )
    assert find_decoder_layers(llama) is llama.model.layers
    assert find_decoder_layers(gpt2) is gpt2.transformer.h
    assert find_decoder_layers(neox) is neox.gpt_neox.layers
    assert [hidden_size(m) for m in (llama, gpt2, neox)] == [32, 16, 16]


def test_refuses_what_it_cannot_tell_apart():
    llama = tiny_llama()
    llama.second = nn.ModuleList([nn.Identity() for _ in range(4)])
    with pytest.raises(UnsupportedModelError, match="2 lists of 4 layers"):
        find_decoder_layers(llama)


def test_fingerprint_ignores_the_dtype_and_sees_every_weight():
    model = tiny_llama().bfloat16()
    fingerprint = backbone_fingerprint(model)
    assert backbone_fingerprint(model.float()) == fingerprint
    with torch.no_grad():
        model.model.layers[3].mlp.down_proj.weight[0, 0] += 1
    assert backbone_fingerprint(model) != fingerprint
