"""Published forms of the reference vectors, and memories made from what was imported."""

from __future__ import annotations

import json
from math import prod

import torch
from golden_cases import Case, strip
from safetensors.torch import save_file

from engram_core.config import EngramConfig
from engram_core.hashing import NgramHasher
from engram_core.layout import HashLayout
from engram_core.module import EngramModule
from engram_core.store.host import HostTier
from engram_core.tables import ImportedMemory
from engram_core.tables.safetensors_file import DTYPES
from engram_core.version import MemoryVersion


def version_of(imported: ImportedMemory) -> MemoryVersion:
    """A memory whose tables are read in slices of 7 rows."""
    tiers, modules = {}, {}
    for layer, table in imported.tables.items():
        starts = range(0, table.num_rows, 7)
        rows = [table.read(start, min(start + 7, table.num_rows)) for start in starts]
        tiers[layer] = HostTier(torch.cat(rows))
        modules[layer] = EngramModule(imported.config, layer).requires_grad_(False)
        modules[layer].load_state_dict(imported.modules[layer])
    hasher = NgramHasher(imported.layout, imported.compressor.class_ids)
    fingerprint = imported.compressor.fingerprint
    return MemoryVersion(hasher, fingerprint, tiers, modules, content="imported")


def embeddings_of(memory: MemoryVersion, token_ids, layer: int) -> torch.Tensor:
    """The concatenated rows of one sequence ``[tokens, F]``."""
    rows = memory.hasher.row_ids(token_ids, layer).reshape(-1)
    found = torch.empty(len(rows), memory.config.head_dim)
    memory.tiers[layer].gather(rows, found)
    return found.view(len(token_ids), -1)


def write_config(folder, data) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(data))


def demo_modules(case: Case) -> dict[int, dict[str, torch.Tensor]]:
    """The demo's state dict of every layer."""
    tensors = case.tensors
    return {layer: strip(tensors, f"weights.{layer}.") for layer in case.config.layer_ids}


def write_demo(folder, case: Case, *, one_file=True) -> None:
    write_config(folder, {**case.meta["engram"], **(case.meta["backbone"] or {})})
    modules = demo_modules(case)
    if one_file:
        tensors = {f"blocks.{k}.engram.{n}": v for k, m in modules.items() for n, v in m.items()}
        save_file(tensors, folder / "memory.safetensors")
        return
    for number, module in enumerate(reversed(modules.values())):
        save_file(module, folder / f"part{number}.safetensors")


def v41_tensors(case: Case) -> dict[str, torch.Tensor]:
    """The released names and dtypes; the vectors' projection is not quantised."""
    found = {}
    for layer in case.config.layer_ids:
        weights = strip(case.tensors, f"weights.{layer}.")
        prefix = f"layers.{layer}.engram."
        found |= {
            f"{prefix}embed.weight": weights["embed.weight_e4m3_bits"].view(torch.float8_e4m3fn),
            f"{prefix}embed.scale": weights["embed.scale_e8m0_bits"].view(torch.float8_e8m0fnu),
            f"{prefix}wkv.weight": weights["wkv.weight"],
            f"{prefix}q_weight": weights["q_weight"],
            f"{prefix}k_weight": weights["k_weight"],
        }
    return found


def write_shards(folder, tensors: dict[str, torch.Tensor]) -> None:
    """One file per layer and an index, which also names a shard that is not there."""
    places = {name: f"model-{int(name.split('.')[1]):05}.safetensors" for name in tensors}
    for shard in set(places.values()):
        save_file({k: tensors[k] for k in places if places[k] == shard}, folder / shard)
    places["layers.0.attn.wq_a.weight"] = "model-00000.safetensors"
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_sparse(path, shapes: dict[str, tuple[str, tuple[int, ...]]], values=None) -> None:
    """A safetensors file of zeros that takes no room on disk, with `values` where they are given.

    Args:
        shapes: dtype (as the format spells it) and shape by name.
        values: tensors by name.
    """
    header, stop = {}, 0
    for name, (dtype, shape) in shapes.items():
        start, stop = stop, stop + prod(shape) * DTYPES[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + stop)
        for name, tensor in (values or {}).items():
            file.seek(8 + len(text) + header[name]["data_offsets"][0])
            file.write(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def write_empty_demo(folder, data: dict, layout: HashLayout) -> None:
    """The demo's modules with all weights zero, at any size of table."""
    write_config(folder, data)
    config = layout.config
    width, memory, gates = config.hidden_size, config.memory_dim, range(config.num_streams)
    shapes, values = {}, {}
    for layer in config.layer_ids:
        embedding, prefix = "multi_head_embedding", f"{layer}."
        one = {
            f"{embedding}.embedding.weight": ("F32", (layout.rows[layer], config.head_dim)),
            f"{embedding}.offsets": ("I64", (config.num_columns,)),
            "short_conv.conv.weight": ("F32", (config.conv_channels, 1, config.kernel_size)),
        }
        for name in [*(f"key_projs.{g}" for g in gates), "value_proj"]:
            one |= {f"{name}.weight": ("F32", (width, memory)), f"{name}.bias": ("F32", (width,))}
        for norm in ("norm1", "norm2", "short_conv.norms"):
            one |= {f"{norm}.{g}.weight": ("F32", (width,)) for g in gates}
        shapes |= {prefix + name: entry for name, entry in one.items()}
        values[f"{prefix}{embedding}.offsets"] = torch.tensor(layout.offsets[layer])
    write_sparse(folder / "modules.safetensors", shapes, values)


def write_empty_v41(folder, data: dict, layout: HashLayout, values=None) -> None:
    """A V4.1 memory with all bytes zero, at any size of table, its projection in float32."""
    write_config(folder, data)
    config, shapes = layout.config, {}
    for layer in config.layer_ids:
        prefix, gate = f"layers.{layer}.engram.", (config.num_streams, config.hidden_size)
        height = (config.num_streams + 1) * config.hidden_size
        shapes |= {
            f"{prefix}embed.weight": ("F8_E4M3", (layout.rows[layer], config.head_dim)),
            f"{prefix}embed.scale": ("F8_E8M0", (layout.rows[layer], config.head_dim // 32)),
            f"{prefix}wkv.weight": ("F32", (height, config.memory_dim)),
            f"{prefix}q_weight": ("F32", gate),
            f"{prefix}k_weight": ("F32", gate),
        }
    write_sparse(folder / "model.safetensors", shapes, values)


TINY_V41 = {
    "engram_layer_ids": [1, 2], "engram_max_ngram_size": 3, "engram_vocab_size": 60,
    "engram_n_heads": 2, "engram_head_dim": 32, "engram_compressed_vocab_size": 100,
    "engram_pad_token_id": 2, "hidden_size": 32, "hc_mult": 1, "rms_norm_eps": 1e-6,
    "vocab_size": 128, "model_type": "deepseek_v4",
}  # fmt: skip


def tiny_v41_tensors(config, seed=0):
    """The six tensors of each layer, in the released dtypes."""
    generator = torch.Generator().manual_seed(seed)
    built = EngramConfig.from_v41(config)
    layout = HashLayout.build(built, built.compressed_size)

    def payload(*shape):
        return torch.randn(shape, generator=generator).to(torch.float8_e4m3fn)

    def scales(*shape):
        exponents = torch.randint(120, 128, shape, generator=generator, dtype=torch.uint8)
        return exponents.view(torch.float8_e8m0fnu)

    def weight():
        shape = (built.num_streams, built.hidden_size)
        return (1 + 0.2 * torch.randn(shape, generator=generator)).bfloat16()

    found, height = {}, (built.num_streams + 1) * built.hidden_size
    for layer, rows in layout.rows.items():
        prefix = f"layers.{layer}.engram."
        found |= {
            f"{prefix}embed.weight": payload(rows, built.head_dim),
            f"{prefix}embed.scale": scales(rows, built.head_dim // 32),
            f"{prefix}wkv.weight": payload(height, built.memory_dim),
            f"{prefix}wkv.scale": scales(height // 32, built.memory_dim // 32),
            f"{prefix}q_weight": weight(),
            f"{prefix}k_weight": weight(),
        }
    return found
