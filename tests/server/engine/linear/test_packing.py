"""Packed layers compute what the originals did, and replace them."""

import pytest
import torch
from engines import random_prompt, running
from models import tiny_llama
from torch import nn

from engram_core.config import EngramConfig
from engram_core.module import EngramModule
from server.engine.linear.packed import PackedLinear, can_pack
from server.engine.linear.packing import pack_linears, pack_projection

pytestmark = pytest.mark.skipif(
    not can_pack(nn.Linear(8, 8).bfloat16()), reason="no packed bfloat16 product on this processor"
)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1,), (2, 7), (1, 40)])
def test_the_product_is_the_same(bias, shape):
    torch.manual_seed(0)
    linear = nn.Linear(48, 33, bias=bias).bfloat16().requires_grad_(False)
    x = torch.randn(*shape, 48).bfloat16()
    torch.testing.assert_close(PackedLinear(linear)(x), linear(x), atol=0.02, rtol=0.02)


def test_every_linear_is_replaced_and_its_parameter_is_gone():
    model = tiny_llama().bfloat16()
    names = [name for name, module in model.named_modules() if type(module) is nn.Linear]
    assert pack_linears(model) == len(names) == 4 * 7 + 1
    assert not any(type(module) is nn.Linear for module in model.modules())
    assert not {f"{name}.weight" for name in names} & {name for name, _ in model.named_parameters()}
    assert pack_linears(model) == 0


def test_a_tied_head_and_float32_stay_as_they_are():
    tied = tiny_llama(tie_word_embeddings=True).bfloat16()
    assert pack_linears(tied) == 4 * 7
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert pack_linears(tiny_llama()) == 0


def test_an_engine_serves_the_packed_model():
    prompt = random_prompt(9)
    settings = {"pad_token_id": 1, "eos_token_id": 0}
    with running(tiny_llama(**settings).bfloat16()) as client:
        expected = client.generate(prompt, 8, ignore_eos=True)
    model = tiny_llama(**settings).bfloat16()
    pack_linears(model)
    with running(model) as client:
        found = client.generate(prompt, 8, ignore_eos=True)
    first = [stream.tokens[0].token.logprob for stream in (found, expected)]
    assert first[0] == pytest.approx(first[1], abs=0.1)
    assert found.end.generated_tokens == 8


def test_a_memory_multiplies_with_a_packed_copy():
    config = EngramConfig(
        form="demo", layer_ids=(0,), orders=(2,), num_heads=2, rows_per_head=(53,), head_dim=16,
        hidden_size=32,
    )  # fmt: skip
    module = EngramModule(config, 0, dtype=torch.bfloat16).requires_grad_(False)
    module.kv_weight.normal_()
    module.kv_bias.normal_()
    x = torch.randn(5, 32).bfloat16()
    names = list(module.state_dict())
    pack_projection(module)
    expected = nn.functional.linear(x, module.kv_weight, module.kv_bias)
    torch.testing.assert_close(module.projection(x), expected, atol=0.1, rtol=0.02)
    assert list(module.state_dict()) == names
