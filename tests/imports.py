"""Published forms of the reference vectors, and memories made from what was imported."""

from __future__ import annotations

import json

import torch
from golden_cases import Case, strip
from safetensors.torch import save_file

from engram_core.hashing import NgramHasher
from engram_core.module import EngramModule
from engram_core.store.host import HostTier
from engram_core.tables import ImportedMemory
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
