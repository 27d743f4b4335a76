"""What /info and `engram-server info` say about a memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engram_core.layout import HashLayout
from engram_core.prefetch import Prefetcher
from engram_core.store.tier_stats import bytes_by_tier
from engram_core.tables import Artefact, ImportedMemory
from engram_core.tables.in_place import IN_PLACE, tables_of
from engram_core.version import MemoryVersion


def describe_artefact(artefact: Artefact) -> dict[str, Any]:
    """What an artefact's manifest declares, as JSON-ready data."""
    manifest = artefact.manifest
    return {
        **_describe_layout(artefact.name, artefact.layout),
        "storage": manifest.storage,
        "dtype": manifest.dtype,
        "tokenizer_fingerprint": manifest.tokenizer.fingerprint,
        "backbone": manifest.backbone.name,
    }


def describe_foreign(name: str, memory: ImportedMemory) -> dict[str, Any]:
    """The same of a checkpoint that is read in place; it records no model and no tokenizer."""
    tables = tables_of(memory, name)
    return {
        **_describe_layout(name, memory.layout),
        "storage": IN_PLACE,
        "dtype": next(iter(tables.values())).dtype,
        "tokenizer_fingerprint": memory.compressor.fingerprint if memory.compressor else None,
        "backbone": None,
    }


def _describe_layout(name: str, layout: HashLayout) -> dict[str, Any]:
    config = layout.config
    return {
        "artefact": name,
        "form": config.form,
        "layers": list(config.layer_ids),
        "orders": list(config.orders),
        "heads": config.num_heads,
        "head_dim": config.head_dim,
        "min_hit_orders": list(config.min_hit_orders),
        "rows": {str(layer): layout.rows[layer] for layer in config.layer_ids},
    }


def describe_memory(
    artefact: Artefact | None, version: MemoryVersion | None, prefetcher: Prefetcher | None
) -> dict[str, Any]:
    """A served memory: its artefact, where the rows lie, and how they get to compute."""
    if artefact is None or version is None or prefetcher is None:
        return {}
    return {
        **describe_artefact(artefact),
        "version": version.id,
        "tiers": {
            str(layer): {
                "tier": tier.name,
                "bytes": tier.nbytes,
                "bytes_by_tier": bytes_by_tier(tier),
            }
            for layer, tier in version.tiers.items()
        },
        "why_tiers": version.why_tiers,
        "served_orders": list(version.served.orders),
        "why_orders": version.served.why,
        "prefetch": {
            "path": prefetcher.path,
            "why": _why_path(version, prefetcher),
            "audit": 0 if prefetcher.audit is None else prefetcher.audit.share,
        },
    }


def _why_path(version: MemoryVersion, prefetcher: Prefetcher) -> str:
    """The prefetcher's reason, and the memory's for its decode steps where that has a choice."""
    if version.inline_limit is None or prefetcher.path != "async":
        return prefetcher.why_path
    return f"{prefetcher.why_path}; {version.inline_limit.why}"


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """What a memory tells about itself.

    Attributes:
        id: of the version. info: JSON-ready, for /info.
        table_bytes: of each layer's table.
        resident_bytes: what each layer's tiers occupy, the outermost first.
        why: where the tables lie and why. version: for what its tiers count.
    """

    id: str
    info: Mapping[str, Any]
    table_bytes: Mapping[int, int]
    resident_bytes: Mapping[int, Mapping[str, int]]
    why: str = ""
    version: MemoryVersion | None = None


def memory_facts(
    artefact: Artefact | None, version: MemoryVersion | None, prefetcher: Prefetcher | None
) -> MemoryFacts:
    """All of them; of no memory the id ``none``."""
    if version is None:
        return MemoryFacts("none", {}, {}, {})
    resident = {layer: bytes_by_tier(tier) for layer, tier in version.tiers.items()}
    return MemoryFacts(
        version.id,
        describe_memory(artefact, version, prefetcher),
        {layer: list(occupied.values())[-1] for layer, occupied in resident.items()},
        resident,
        version.why_tiers,
        version,
    )
