"""Every reference vector: integers exact, float32 within 1e-5, chunked equals whole."""

import hashlib
import json

import numpy as np
import pytest
import torch
from golden_cases import DEMO, ROOT, V41, V41_FORM, Case, cases, class_map, e4m3_rows, strip
from safetensors.torch import load_file
from tokenizers import Tokenizer

from engram_core.compression import TokenCompressor
from engram_core.config import EngramConfig
from engram_core.conv_state import ConvState
from engram_core.hashing import NgramHasher
from engram_core.layout import HashLayout
from engram_core.module import EngramModule

HASH_CASES = cases(DEMO) + cases(V41_FORM)
DEMO_MODULES, V41_MODULES = cases(DEMO, "m_"), cases(V41_FORM)
by_name = {"ids": lambda case: case.name}


def test_all_reference_files_are_covered():
    assert (len(cases(DEMO, "m_")), len(cases(DEMO, "h_")), len(cases(V41_FORM))) == (7, 5, 2)
    assert sorted(p.name for p in V41.iterdir() if p.suffix != ".md") == [
        "v41_compressed_map.safetensors",
        "v41_compressed_map_sample.json",
        "v41_fp8_rows.safetensors",
        "v41_full_hash.json",
        "v41_gate_small.safetensors",
        "v41_small_hash.json",
    ]
    assert len(list(ROOT.glob("*/*/case.json"))) == len(HASH_CASES)


@pytest.mark.parametrize("name", ["tiny_bytelevel", "tiny_metaspace"])
def test_compression_map(name):
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizers" / name / "tokenizer.json"))
    compressor = TokenCompressor.from_tokenizer(tokenizer)
    facts = json.loads((DEMO / "maps" / "tokenizers.json").read_text())[name]
    np.testing.assert_array_equal(compressor.class_ids, class_map(name))
    assert compressor.size == facts["compressed_size"]
    assert compressor.fingerprint == facts["map_sha256_int64_le"]


@pytest.mark.parametrize("case", HASH_CASES, **by_name)
def test_layout(case: Case):
    meta = case.meta
    layout = HashLayout.build(case.config, meta["compressed_size"])
    for layer in case.config.layer_ids:
        key = str(layer)
        assert list(layout.multipliers[layer]) == meta["multipliers"][key]
        assert [list(order) for order in layout.primes[layer]] == meta["primes"][key]
        if "offsets" in meta:
            assert list(layout.offsets[layer]) == meta["offsets"][key]
            assert layout.rows[layer] == meta["table_rows"][key]
    assert HashLayout.from_dict(case.config, json.loads(json.dumps(layout.to_dict()))) == layout


def hasher_of(case: Case) -> NgramHasher:
    return NgramHasher(HashLayout.build(case.config, case.meta["compressed_size"]), case.class_ids)


@pytest.mark.parametrize("case", HASH_CASES, **by_name)
def test_row_ids(case: Case):
    tensors, hasher = case.tensors, hasher_of(case)
    masks = tensors.get("text_mask", torch.ones_like(tensors["input_ids"]).bool())
    for layer in case.config.layer_ids:
        rows = np.stack(
            [
                hasher.row_ids(ids, layer, barrier=~mask)
                for ids, mask in zip(tensors["input_ids"].numpy(), masks.numpy(), strict=True)
            ]
        )
        local = rows - np.array(hasher.layout.offsets[layer])
        np.testing.assert_array_equal(local, tensors[f"hash_ids.{layer}"].numpy())
        digest = hashlib.sha256(local.astype("<i8").tobytes()).hexdigest()
        assert digest == case.meta["hash_sha256_int64_le"][str(layer)]


@pytest.mark.parametrize("case", HASH_CASES, **by_name)
@pytest.mark.parametrize("chunk", [1, 3])
def test_row_ids_in_chunks(case: Case, chunk: int):
    tensors, hasher = case.tensors, hasher_of(case)
    ids = tensors["input_ids"].numpy()[0][:96]
    barrier = (
        ~tensors["text_mask"].numpy()[0] if "text_mask" in tensors else np.zeros(len(ids), bool)
    )
    layer = case.config.layer_ids[-1]
    whole = hasher.row_ids(ids, layer, barrier=barrier)
    parts = [
        hasher.row_ids(ids[i : i + chunk], layer, history=ids[:i], barrier=barrier[: i + chunk])
        for i in range(0, len(ids), chunk)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_demo_defaults_full():
    full = json.loads((DEMO / "full_default.json").read_text())
    class_ids = class_map(full["tokenizer"])
    layout = HashLayout.build(EngramConfig.from_demo({}), int(class_ids.max()) + 1)
    hasher = NgramHasher(layout, class_ids)
    assert len(full["cases"]) == 4
    for name, case in full["cases"].items():
        for layer, expected in case["hash_ids"].items():
            rows = hasher.row_ids(case["input_ids"][0], int(layer))
            local = rows - np.array(layout.offsets[int(layer)])
            np.testing.assert_array_equal(local, expected[0], err_msg=name)


def test_v41_map_is_the_v3_map_extended():
    released = load_file(V41 / "v41_compressed_map.safetensors")["token_map_int32"].numpy()
    base = class_map("ds3")
    np.testing.assert_array_equal(released[: len(base)], base)
    extra = np.arange(base.max() + 1, base.max() + 1 + len(released) - len(base))
    np.testing.assert_array_equal(released[len(base) :], extra)


def test_v41_full_hash():
    full = json.loads((V41 / "v41_full_hash.json").read_text())
    class_ids = load_file(V41 / "v41_compressed_map.safetensors")["token_map_int32"].numpy()
    config = EngramConfig.from_v41(full["config"])
    layout = HashLayout.build(config, config.compressed_size)
    assert [list(layout.multipliers[layer]) for layer in config.layer_ids] == full["multipliers"]
    assert [layout.rows[layer] for layer in config.layer_ids] == [384_006_168, 384_016_682]
    assert_v41_cases(NgramHasher(layout, class_ids), full, count=5)


def test_v41_small_hash():
    small = json.loads((V41 / "v41_small_hash.json").read_text())
    layout = HashLayout.build(EngramConfig.from_v41(small["config"]), 64)
    assert_v41_cases(NgramHasher(layout, small["token_map"]), small, count=5)


def assert_v41_cases(hasher: NgramHasher, stored: dict, count: int) -> None:
    layers = hasher.layout.config.layer_ids
    assert len(stored["cases"]) == count
    for case in stored["cases"]:
        expected = case["rows"] if "rows" in case else [case[f"rows_layer{la}"] for la in layers]
        for layer, rows in zip(layers, expected, strict=True):
            found = hasher.row_ids(case["token_ids"], layer, barrier=case.get("dead"))
            np.testing.assert_array_equal(found, rows, err_msg=case["name"])


@pytest.mark.parametrize("case", DEMO_MODULES, **by_name)
def test_demo_module(case: Case):
    tensors = case.tensors
    hidden = tensors["hidden_states"]  # [batch, tokens, G, D]
    for layer in case.config.layer_ids:
        module, embeddings = demo_module(case, layer, tensors)
        assert_close(embeddings, tensors[f"embeddings.{layer}"])
        batch, length = hidden.shape[:2]
        out, gates = module.contribution(
            hidden.flatten(0, 1), embeddings.flatten(0, 1), lengths=[length] * batch
        )
        assert_close(gates.unflatten(0, (batch, length)), tensors[f"gates.{layer}"])
        assert_close(out.unflatten(0, (batch, length)), tensors[f"output.{layer}"])


def demo_module(case: Case, layer: int, tensors: dict) -> tuple[EngramModule, torch.Tensor]:
    weights = strip(tensors, f"weights.{layer}.")
    module = EngramModule(case.config, layer).requires_grad_(False)
    module.load_demo_state_dict(weights)
    rows = tensors[f"hash_ids.{layer}"] + weights["multi_head_embedding.offsets"]
    return module, weights["multi_head_embedding.embedding.weight"][rows].flatten(-2)


@pytest.mark.parametrize("case", DEMO_MODULES, **by_name)
@pytest.mark.parametrize("chunk", [1, 5])
def test_demo_module_in_chunks(case: Case, chunk: int):
    tensors, layer = case.tensors, case.config.layer_ids[0]
    module, embeddings = demo_module(case, layer, tensors)
    hidden, embeddings = tensors["hidden_states"][0], embeddings[0]
    channels = hidden.shape[1] * hidden.shape[2]
    state = ConvState(case.config.conv_history, channels, max_draft=4)
    outputs = []
    for start in range(0, len(hidden), chunk):
        part = slice(start, start + chunk)
        if start:  # a rejected draft in between leaves no trace
            draft = hidden[part][:4].flip(0)
            module.contribution(draft, embeddings[part][:4], conv_states=[state])
            state.truncate(start)
        outputs.append(module.contribution(hidden[part], embeddings[part], conv_states=[state])[0])
    assert_close(torch.cat(outputs), tensors[f"output.{layer}"][0])


def test_demo_module_in_bfloat16():
    [case] = [case for case in DEMO_MODULES if "output_bf16.1" in case.tensors]
    tensors = case.tensors
    for layer in case.config.layer_ids:
        module, embeddings = demo_module(case, layer, tensors)
        out, _ = module.bfloat16().contribution(
            tensors["hidden_states"][0].bfloat16(), embeddings[0].bfloat16()
        )
        expected = tensors[f"output_bf16.{layer}"][0].float()
        torch.testing.assert_close(out.float(), expected, atol=5e-2, rtol=2e-2)


@pytest.mark.parametrize("case", V41_MODULES, **by_name)
def test_v41_module(case: Case):
    tensors = case.tensors
    for layer in case.config.layer_ids:
        weights = strip(tensors, f"weights.{layer}.")
        module = EngramModule(case.config, layer).requires_grad_(False)
        module.load_v41_state_dict(weights)
        table = e4m3_rows(weights["embed.weight_e4m3_bits"], weights["embed.scale_e8m0_bits"])
        offsets = torch.tensor(
            HashLayout.build(case.config, case.meta["compressed_size"]).offsets[layer]
        )
        embeddings = table[tensors[f"hash_ids.{layer}"][0] + offsets].flatten(-2)
        assert_close(embeddings, tensors[f"embeddings.{layer}"][0])
        result = module(tensors["hidden_states"][0], embeddings, live=tensors["text_mask"][0])
        assert_close(result.gates, tensors[f"gates.{layer}"][0])
        assert_close(result.hidden, tensors[f"output.{layer}"][0])


@pytest.mark.parametrize(("kind", "dtype"), [("f32", torch.float32), ("bf16", torch.bfloat16)])
def test_v41_gate(kind, dtype):
    data = strip(load_file(V41 / "v41_gate_small.safetensors"), f"{kind}.")
    config = EngramConfig(
        form="v41", layer_ids=(1,), orders=(2, 3, 4), num_heads=2, rows_per_head=(101,) * 3,
        head_dim=32, hidden_size=64, num_streams=4, norm_eps=1e-20, use_bias=False,
    )  # fmt: skip
    module = EngramModule(config, 1, dtype=dtype).requires_grad_(False)
    module.load_v41_state_dict(
        {"wkv.weight": data["wkv"], "q_weight": data["q_weight"], "k_weight": data["k_weight"]}
    )
    for suffix, live in (("", None), ("_masked", data["mask"].bool())):
        result = module(data["x"], data["emb"], live=live)
        assert_close(result.gates, data[f"gate{suffix}"])
        assert_close(result.hidden, data[f"out{suffix}"])
        assert result.hidden.dtype == dtype


def test_fp8_rows():
    data = load_file(V41 / "v41_fp8_rows.safetensors")
    rows = e4m3_rows(data["weight_bytes"], data["scale_bytes"])
    torch.testing.assert_close(rows, data["f32"], atol=0, rtol=0)
    torch.testing.assert_close(rows.bfloat16(), data["bf16"], atol=0, rtol=0)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
