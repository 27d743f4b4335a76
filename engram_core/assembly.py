"""Assembles a MemoryVersion from an opened artefact: tiers out of rows, modules out of weights.

Chooses between host memory and disk for packed tables; other rows are always in host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from engram_core import compiled
from engram_core.compression import TokenCompressor
from engram_core.cpu_cores import CpuCores, usable_cores
from engram_core.errors import ConfigError, EngramError, MismatchError
from engram_core.hashing import NgramHasher
from engram_core.host_memory import free_host_memory
from engram_core.inline_limit import InlineLimit, choose_inline_limit
from engram_core.memory_config import MemoryConfig
from engram_core.module import EngramModule
from engram_core.placement import Placement, place_remotely, place_tables, with_cost
from engram_core.remote_tables import open_remote
from engram_core.row_cost import RowCost
from engram_core.start_probe import measure_handoff, measure_rows
from engram_core.store.base import Tier
from engram_core.store.disk import DiskTier
from engram_core.store.fallback import FailurePolicy, with_policy
from engram_core.store.host import HostTier
from engram_core.store.hot_cache import HotCache
from engram_core.store.in_place import InPlaceMemory
from engram_core.store.packed import PackedTier
from engram_core.store.sparse import SparseTier
from engram_core.store.table_memory import TableMemory, verify
from engram_core.tables import Artefact, SparseRows, TableRows
from engram_core.tables.float8_reader import Float8Reader
from engram_core.tables.in_place import IN_PLACE, NO_CHECKSUMS
from engram_core.tables.manifest import FileRecord
from engram_core.tables.native import MODULE_NAME
from engram_core.tables.packed_file import PackedFile, Progress
from engram_core.version import MemoryVersion

_SAMPLED_TOKENS = 8192  # whose rows stand for all that can be asked for


def open_version(
    artefact: Artefact,
    compressor: TokenCompressor,
    memory: MemoryConfig | None = None,
    *,
    progress: Progress = lambda _bytes: None,
    on_last_release: Callable[[], None] | None = None,
) -> MemoryVersion:
    """The memory of an artefact.

    Args:
        artefact: the opened artefact.
        compressor: of the served tokenizer.
        memory: where tables lie; by default where they fit.
        progress: receives the bytes of packed tables as they are read.
        on_last_release: see `MemoryVersion`.

    Raises:
        MismatchError: the tokenizer's class map is not the artefact's, a weight's shape is not
            the configuration's, or a table's bytes are not what the manifest says.
        ConfigError: `memory` asks for what this artefact cannot do, for example for orders that it
            lacks.
        TierError: a row server cannot be reached.
    """
    artefact.check_tokenizer(compressor)
    compiled.load()  # now, and never within a request
    layers = artefact.config.layer_ids
    config = memory or MemoryConfig()
    # refuses orders that the artefact lacks before a table is read
    hasher = NgramHasher(artefact.layout, compressor.class_ids, config.orders)
    placement = place(artefact, config)
    modules = {layer: make_module(artefact, layer) for layer in layers}
    bare, close = _open_tiers(artefact, placement, config, progress)
    try:
        placement = with_cost(placement, config, _measure(bare, hasher))
        tiers = {layer: _stack(bare[layer], artefact, placement, config) for layer in layers}
    except EngramError:
        close()
        raise

    def finish() -> None:
        close()
        if on_last_release is not None:
            on_last_release()

    return MemoryVersion(
        hasher,
        compressor.fingerprint,
        tiers,
        modules,
        content=artefact.content,
        why_tiers=placement.why,
        inline_limit=_limit_inline(config, placement, tiers, usable_cores()),
        on_last_release=finish,
    )


def _open_tiers(
    artefact: Artefact, placement: Placement, memory: MemoryConfig, progress: Progress
) -> tuple[Mapping[int, Tier], Callable[[], None]]:
    """The bare tier of every layer, and what to call when nobody reads them any more."""
    if placement.tier == "remote":
        return open_remote(artefact, memory)
    layers = artefact.config.layer_ids
    tiers = {layer: open_tier(artefact, layer, placement, memory, progress) for layer in layers}
    return tiers, lambda: None


def _measure(tiers: Mapping[int, Tier], hasher: NgramHasher) -> RowCost | None:
    """What a row costs: of the largest table, which caches hold the least of.

    Rows of orders that are not served are not read here either.
    """
    layer = max(tiers, key=lambda each: tiers[each].num_rows)
    among = hasher.any_rows(layer, _SAMPLED_TOKENS) if hasher.served.dropped else None
    return measure_rows(tiers[layer], among=among)


def _limit_inline(
    memory: MemoryConfig, placement: Placement, tiers: Mapping[int, Tier], cores: CpuCores
) -> InlineLimit:
    """How large a decode step may be for its layer to look it up."""
    blocking = placement.tier if any(tier.is_blocking for tier in tiers.values()) else None
    told, cost = memory.inline_max_rows, placement.cost
    is_open = told == "auto" and blocking is None and cost is not None and cores.count >= 2
    row_s = None if cost is None else cost.hit_s if placement.hot_cache else cost.first_s
    handoff_s = measure_handoff() if is_open else None
    return choose_inline_limit(told, cores, handoff_s, row_s, blocking)


def packed_bytes(artefact: Artefact) -> int:
    """Bytes of an artefact's packed tables together, those read in place among them."""
    tables = [artefact.rows(layer) for layer in artefact.config.layer_ids]
    return sum(rows.table_bytes for rows in tables if not isinstance(rows, TableRows))


def place(artefact: Artefact, memory: MemoryConfig) -> Placement:
    """Where the tables of an artefact will lie.

    Raises:
        ConfigError: a table that is not packed is told to stay on the SSD, one that is read in
            place to come from row servers, or what `memory` says does not fit the free memory.
    """
    storage = artefact.manifest.storage
    if memory.tier == "remote" and storage == IN_PLACE:
        raise ConfigError(
            f"tier is 'remote' for {artefact.name}, which is read in place; accepted: auto, dram, "
            "ssd, or an artefact made of it (engram-server table convert)"
        )
    if memory.tier == "remote":
        return place_remotely(memory, free_host_memory())
    table_bytes = packed_bytes(artefact)
    if table_bytes:
        placement = place_tables(table_bytes, memory, free_host_memory())
        why = f"{placement.why_tier}; read in place: {NO_CHECKSUMS}"
        return replace(placement, why_tier=why) if storage == IN_PLACE else placement
    for name, value in (("tier", memory.tier), ("hot_cache", memory.hot_cache)):
        if value in ("ssd", "on"):
            raise ConfigError(
                f"{name} is {value!r} for a {storage} artefact, whose rows are always in memory; "
                "accepted: auto, or a packed artefact (engram-server table convert)"
            )
    return Placement("dram", f"a {storage} artefact is always read into memory")


def open_tier(
    artefact: Artefact,
    layer: int,
    placement: Placement,
    memory: MemoryConfig,
    progress: Progress = lambda _bytes: None,
) -> Tier:
    """The tier of a layer's table where `placement` says, its bytes verified.

    Raises:
        MismatchError: bytes are not what the manifest says. TierError: they changed meanwhile.
    """
    rows = artefact.rows(layer)
    if isinstance(rows, TableRows):
        return make_tier(rows)
    if isinstance(rows, Float8Reader):
        tier = _open_in_place(rows, placement, progress)
    else:
        tier = _open_packed(rows, artefact.table_record(layer), placement, memory, progress)
    return tier


def _stack(tier: Tier, artefact: Artefact, placement: Placement, memory: MemoryConfig) -> Tier:
    """The tier with what stands in front of it."""
    cached = _cached(tier, artefact, placement, memory)
    if placement.tier != "remote":
        return cached
    return with_policy(cached, FailurePolicy(memory.on_row_failure))  # zeros are never cached


def _cached(tier: Tier, artefact: Artefact, placement: Placement, memory: MemoryConfig) -> Tier:
    """The tier, behind a hot cache if so decided; a table's part of the memory goes by its rows."""
    if not placement.hot_cache:
        return tier
    budget_bytes = memory.hot_cache_bytes
    if budget_bytes is not None:
        budget_bytes = budget_bytes * tier.num_rows // sum(artefact.layout.rows.values())
    return HotCache(tier, budget_bytes=budget_bytes)


def _open_packed(
    rows: PackedFile,
    record: FileRecord,
    placement: Placement,
    memory: MemoryConfig,
    progress: Progress,
) -> Tier:
    if placement.tier == "dram":
        held = TableMemory(rows, record, progress)
        return PackedTier(held.data, rows.format, rows.num_rows)
    tier = DiskTier(rows)  # opened first: what changes from here on is noticed
    if memory.verify == "full":
        verify(rows, record, progress)
        tier.check_unchanged()
    return tier


def _open_in_place(table: Float8Reader, placement: Placement, progress: Progress) -> Tier:
    if placement.tier == "dram":
        return PackedTier(InPlaceMemory(table, progress).data, table.format, table.num_rows)
    return DiskTier(table)


def make_tier(rows: TableRows) -> Tier:
    """The host tier that holds these rows."""
    if isinstance(rows, SparseRows):
        return SparseTier(rows.row_ids, rows.values, rows.num_rows)
    return HostTier(rows.values)


def make_module(artefact: Artefact, layer: int) -> EngramModule:
    """The frozen module of a layer with the artefact's weights."""
    state = artefact.module_state(layer)
    dtype = next(iter(state.values())).dtype if state else None
    module = EngramModule(artefact.config, layer, **({"dtype": dtype} if dtype else {}))
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if expected != found:
        raise MismatchError(
            f"weights of layer {layer}", expected=expected, found=found, where=MODULE_NAME
        )
    module.load_state_dict(state)
    return module.requires_grad_(False).eval()
