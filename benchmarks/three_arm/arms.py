"""The arms of one backing, in one dtype."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Mapping, Sequence

import torch

from benchmarks.documents import TokenIds
from benchmarks.three_arm.ahead import Ahead
from benchmarks.three_arm.arm import Arm, Layer
from benchmarks.three_arm.backings import Backing
from benchmarks.three_arm.demo_engram import DemoEngram
from benchmarks.three_arm.in_layer import InLayer
from benchmarks.three_arm.layer_hash import LayerHash
from benchmarks.three_arm.lookups import Gather, Lookups, tier_gather
from benchmarks.three_arm.shape import Embedding
from engram_core.device import Device
from engram_core.module import EngramModule, EngramOutput
from engram_core.prefetch import Prefetcher
from engram_core.store.base import Tier
from engram_core.store.hot_cache import HotCache
from engram_core.version import MemoryVersion
from server.engine.linear.packing import pack_projection

NAMES = ("0 in the layer", "1 hot cache", "2 + prefetch", "3 auto")


class Arms:
    """Makes the arms of one backing.

    Args:
        backing: where the tables lie. device: where compute runs.
        dtype: of arms 0 to 2; `auto` computes in bfloat16, as the server does.
    """

    def __init__(self, backing: Backing, device: Device, dtype: torch.dtype) -> None:
        self._backing, self._device, self._dtype = backing, device, dtype
        self._hash = LayerHash(backing.plain.hasher)
        self._demo_layers = demo_layers(backing.plain, device, dtype)
        self._caches: list[dict[int, HotCache]] = []

    def make(self) -> list[Arm]:
        """Arms 0 to 3."""
        in_layer = self.in_layer(self._backing.demo_gather(self._dtype))
        return [
            self._demo(NAMES[0], in_layer),
            self._demo(NAMES[1], self._cached()),
            self._demo(NAMES[2], self._ahead()),
            auto_arm(self._backing.auto, self._device),
        ]

    def in_layer(self, gather: Gather, count_hits: Callable[[], int] = lambda: 0) -> InLayer:
        """Synchronous lookups out of any gather."""
        return InLayer(self._hash, gather, self._device, count_hits)

    def peer(self, name: str, gather: Gather) -> Arm:
        """An arm like 0 whose rows somebody else's store delivers."""
        return self._demo(name, self.in_layer(gather))

    def warm_up(self, requests: Sequence[TokenIds]) -> None:
        """Let every hot cache meet earlier requests."""
        hasher = self._backing.plain.hasher
        for token_ids in requests:
            for tiers in (*self._caches, self._backing.auto.tiers):
                for layer, tier in tiers.items():
                    warm(tier, hasher.row_ids(token_ids, layer))

    def _demo(self, name: str, lookups: Lookups) -> Arm:
        embedding = _embedding(self._backing.plain, self._dtype, self._device)
        return Arm(name, self._dtype, lookups, self._demo_layers, embedding, self._device)

    def _cached(self) -> InLayer:
        caches = self._new_caches()
        gather = tier_gather(caches, self._dtype)
        return self.in_layer(gather, lambda: sum(cache.hits for cache in caches.values()))

    def _ahead(self) -> Ahead:
        plain = self._backing.plain
        cached = MemoryVersion(
            plain.hasher,
            plain.compressor_fingerprint,
            self._new_caches(),
            plain.modules,
            content="behind hot caches",
        )
        return Ahead(cached, Prefetcher(self._device, dtype=self._dtype))

    def _new_caches(self) -> dict[int, HotCache]:
        """Room for a tenth of the rows, which is the server's default too."""
        tiers: Mapping[int, Tier] = self._backing.plain.tiers
        caches = {layer: HotCache(tier) for layer, tier in tiers.items()}
        self._caches.append(caches)
        return caches


def warm(tier: Tier, row_ids: TokenIds) -> None:
    """Let a tier meet these rows ``[tokens, columns]``."""
    tier.gather(row_ids.reshape(-1), torch.empty(row_ids.size, tier.row_dim, dtype=torch.bfloat16))


def demo_layers(version: MemoryVersion, device: Device, dtype: torch.dtype) -> dict[int, Layer]:
    """The Engram layers as arms 0 to 2 compute them."""
    return {
        layer: DemoEngram(copy.deepcopy(module).to(device.torch_device, dtype))
        for layer, module in version.modules.items()
    }


def auto_arm(version: MemoryVersion, device: Device) -> Arm:
    """What the server would really run on this device with this memory."""
    dtype = torch.bfloat16
    for module in version.modules.values():
        module.to(device.torch_device, dtype)
    if device.torch_device.type == "cpu":
        _speed_up(version)
    lookups = Ahead(version, Prefetcher(device, dtype=dtype))
    layers = {layer: _served(module) for layer, module in version.modules.items()}
    embedding = _embedding(version, dtype, device)
    return Arm(NAMES[3], dtype, lookups, layers, embedding, device)


def _speed_up(version: MemoryVersion) -> None:
    """The projections' kernels, as the server gives them to a memory (`engine.served`)."""
    if importlib.util.find_spec("numba") is not None:
        from server.engine.native.loading import project_natively  # noqa: PLC0415 (needs numba)

        project_natively(version)
    for module in version.modules.values():
        if module.projection is None:
            pack_projection(module)


def _served(module: EngramModule) -> Layer:
    def layer(hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        output: EngramOutput = module(hidden, rows)
        return output.hidden

    return layer


def _embedding(version: MemoryVersion, dtype: torch.dtype, device: Device) -> Embedding:
    num_ids = len(version.hasher.class_ids)
    return Embedding.make(num_ids, version.config, dtype, device.torch_device)
