"""A GGUF file becomes the very model and tokenizer that it was made from."""

from copy import deepcopy

import pytest
import torch
from gguf_files import CONTROL, write_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from server.gguf_convert import convert_gguf
from server.load_errors import LoadError


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    original = write_gguf(folder / "tiny.gguf")
    fractions = []
    (folder / "out").mkdir()
    convert_gguf(folder / "tiny.gguf", folder / "out", fractions.append)
    return original, folder / "out", fractions


def test_weights_are_the_originals_in_bf16(converted) -> None:
    original, folder, fractions = converted
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert model.dtype == torch.bfloat16
    expected = original.state_dict()
    assert model.state_dict().keys() == expected.keys()
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, expected[name].bfloat16()), name
    assert fractions[-1] == 1
    assert fractions == sorted(fractions)


def test_model_answers_like_the_original(converted) -> None:
    original, folder, _ = converted
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.arange(12)[None]
    rounded = deepcopy(original)
    for weight in rounded.parameters():
        weight.copy_(weight.bfloat16())
    torch.testing.assert_close(model(ids).logits, rounded(ids).logits, rtol=1e-4, atol=1e-4)


def test_configuration(converted) -> None:
    original, folder, _ = converted
    model = AutoModelForCausalLM.from_pretrained(folder)
    for name in ("hidden_size", "num_key_value_heads", "rms_norm_eps", "rope_parameters"):
        assert getattr(model.config, name) == getattr(original.config, name), name
    assert model.config.tie_word_embeddings
    assert model.generation_config.eos_token_id == 2
    assert not hasattr(model.config, "quantization_config")


def test_tokenizer(converted) -> None:
    tokenizer = AutoTokenizer.from_pretrained(converted[1])
    assert tokenizer.is_fast
    text = "Born in 1961 and  12,345.\n\nna\u00efve \u4f60\u597d \U0001f600"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    pieces = [tokenizer.decode([i]) for i in ids]
    assert not any(len(piece) > 1 and piece.strip().isdigit() for piece in pieces)
    assert tokenizer("<|im_start|>x")["input_ids"][0] == CONTROL.index("<|im_start|>")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert chat == "Hi"


def test_quantised_weights_are_close(tmp_path) -> None:
    original = write_gguf(tmp_path / "tiny.gguf", quantised=True)
    (tmp_path / "out").mkdir()
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out", lambda _: None)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    for name, weight in original.state_dict().items():
        error = (model.state_dict()[name] - weight).abs().max()
        assert error < 0.1 * weight.abs().max(), name


@pytest.mark.parametrize("change", [{"pre": "other"}, {"arch": "gemma"}])
def test_other_kinds_are_refused(tmp_path, change) -> None:
    write_gguf(tmp_path / "tiny.gguf", **change)
    with pytest.raises(LoadError, match="accepted"):
        convert_gguf(tmp_path / "tiny.gguf", tmp_path, lambda _: None)
