import json

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, dequantize
from model_folder import write_model
from safetensors.torch import load_file
from transformers import LlamaConfig

from benchmarks.gguf_export import export_gguf
from server.gguf_convert import _read_weights


def test_bfloat16_carries_equal_bits(tmp_path) -> None:
    folder = write_model(tmp_path / "model")
    export_gguf(folder, tmp_path / "model.gguf", "bf16")
    reader = GGUFReader(tmp_path / "model.gguf")
    config = LlamaConfig.from_pretrained(folder)
    found = _read_weights(reader, config, lambda _fraction: None)
    expected = load_file(folder / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(found[name], values.to(torch.bfloat16)), name


@pytest.mark.parametrize(("bits", "kind"), [("int8", "Q8_0"), ("int4", "Q4_0")])
def test_quantised_weights_are_near_the_original(bits, kind, tmp_path) -> None:
    folder = write_model(tmp_path / "model")
    export_gguf(folder, tmp_path / "model.gguf", bits)
    tensors = {tensor.name: tensor for tensor in GGUFReader(tmp_path / "model.gguf").tensors}
    down = tensors["blk.0.ffn_down.weight"]
    assert down.tensor_type == GGMLQuantizationType[kind]
    assert tensors["token_embd.weight"].tensor_type == GGMLQuantizationType.Q8_0
    expected = load_file(folder / "model.safetensors")["model.layers.0.mlp.down_proj.weight"]
    error = np.abs(dequantize(down.data, down.tensor_type) - expected.numpy()).max()
    assert error < expected.abs().max().item() / 6


def test_another_architecture_is_refused(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(ValueError, match="model_type is 'gpt2'; accepted: 'llama'"):
        export_gguf(tmp_path, tmp_path / "model.gguf", "bf16")
