"""attach(): plain forwards and generate() read the memory, chunked equals whole, detach undoes."""

import pytest
import torch
from models import NUM_IDS, random_memory, tiny_llama
from transformers import DynamicCache

from engram_core.errors import MismatchError, StateError, UnsupportedModelError
from engram_core.splice import attach


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


def ids(batch, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, NUM_IDS, (batch, length), generator=generator)


def test_memory_changes_the_output_and_detach_undoes_it(model):
    before = model(ids(2, 9)).logits
    with attach(model, random_memory(model)):
        assert not torch.allclose(model(ids(2, 9)).logits, before, atol=1e-2)
    torch.testing.assert_close(model(ids(2, 9)).logits, before, atol=0, rtol=0)


@pytest.mark.parametrize("form", ["v41", "demo", "peft"])
@pytest.mark.parametrize("chunk", [1, 4])
def test_chunks_with_a_cache_equal_the_whole(model, form, chunk):
    tokens = ids(2, 24)
    with attach(model, random_memory(model, form=form, orders=(2, 3, 4))):
        whole = model(tokens).logits
        cache = DynamicCache()
        parts = [model(part, cache=cache).logits for part in tokens.split(chunk, dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-4, rtol=1e-4)


def test_each_layer_sees_the_hidden_state_before_its_attention(model):
    """Contribution computed by hand from the layer's own input gives the layer's real input."""
    memory = random_memory(model, layer_ids=(2,))
    tokens, seen = ids(1, 7), {}
    layers = model.model.layers
    plain = layers[2].register_forward_pre_hook(lambda m, a: seen.setdefault("before", a[0]))
    with attach(model, memory):
        model(tokens)
        handle = layers[2].register_forward_pre_hook(lambda m, a: seen.setdefault("after", a[0]))
        model(tokens)
    plain.remove()
    handle.remove()
    rows = memory.hasher.row_ids(tokens[0], 2).reshape(-1)
    embeddings = torch.empty(len(rows), 8)
    memory.tiers[2].gather(rows, embeddings)
    expected = memory.modules[2](seen["before"].view(7, 1, -1), embeddings.view(7, -1)).hidden
    torch.testing.assert_close(seen["after"].view(7, 1, -1), expected)


def test_generate_reads_the_memory_token_by_token(model):
    with attach(model, random_memory(model)):
        generated = model.generate(ids(2, 5), max_new_tokens=12, do_sample=False, eos_token_id=None)
        for length in range(5, 17):
            logits = model(generated[:, :length]).logits[:, -1]
            assert logits.argmax(-1).tolist() == generated[:, length].tolist()


def test_refuses_padding_embeddings_and_foreign_caches(model):
    with attach(model, random_memory(model)):
        mask = torch.tensor([[0, 1, 1]])
        with pytest.raises(UnsupportedModelError, match="equal length"):
            model(ids(1, 3), attention_mask=mask)
        with pytest.raises(UnsupportedModelError, match="input_ids"):
            model(inputs_embeds=torch.zeros(1, 3, 32))
    cache = DynamicCache()
    model(ids(1, 3), cache=cache)
    with attach(model, random_memory(model)), pytest.raises(StateError, match="holds 3 tokens"):
        model(ids(1, 1), cache=cache)


def test_refuses_a_memory_of_another_shape(model):
    wide = tiny_llama(hidden_size=64)
    with pytest.raises(MismatchError, match=r"hidden size .*expected 64, found 32"):
        attach(model, random_memory(wide))
    deep = tiny_llama(num_hidden_layers=8)
    with pytest.raises(MismatchError, match=r"decoder layers .*expected > 7, found 4"):
        attach(model, random_memory(deep, layer_ids=(7,)))
