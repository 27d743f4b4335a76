"""MemoryConfig: where a memory's rows lie and how they reach compute, as the operator says it.

What the memory computes is `EngramConfig`'s; nothing here changes a row's value, but the operator
may do without rows: of orders that are not served, or of servers that cannot be reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import Any, Literal, Self

from engram_core.config import check, refuse_unknown
from engram_core.errors import ConfigError

CHOICES: Mapping[str, tuple[str, ...]] = {
    "tier": ("auto", "dram", "ssd", "remote"),
    "on_row_failure": ("fail", "off"),
    "hot_cache": ("auto", "on", "off"),
    "device_cache": ("auto", "on", "off"),
    "verify": ("full", "header"),
}


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """How rows reach compute: what ``--engram-config`` may say.

    Attributes:
        inline_max_rows: a decode step with at most so many rows per layer is looked up in the
            layer: handing it to the worker would cost more (0 hands everything over); ``"auto"``
            measures at start what both cost.
        staging_bytes: what rows fetched ahead for waiting prompts may occupy together.
        tier: where the rows lie: ``"dram"``, ``"ssd"`` (a packed table stays in its file),
            ``"remote"`` (with row servers) or ``"auto"`` (dram where it fits, else ssd).
        hot_cache: ``"on"`` keeps the hottest rows in memory in front of the tier, ``"off"`` does
            not, ``"auto"`` does in front of an SSD and of row servers where its hits cost less than
            their rows, as measured at start: before rows in DRAM it only costs.
        hot_cache_bytes: memory of all layers' hot caches together; None: room for a tenth of the
            rows.
        device_cache: ``"on"`` keeps the hottest rows in an accelerator's own memory, ``"off"`` does
            not, ``"auto"`` does where a measurement at start finds it faster; never on a CPU.
        device_cache_bytes: device memory of all layers' caches together; None: room for a tenth of
            the rows.
        hot_list_dir: folder in which the hot caches' rows outlast the server: a list per layer and
            cache, saved when it stops or serves another memory, loaded at start; None saves
            nothing.
        verify: ``"full"`` compares every byte of a packed table that stays on the SSD with its
            checksums at start; ``"header"`` only its header and length. In DRAM every byte is.
        row_servers: ``"host:port"`` of the row servers that have every head together.
        row_timeout_s: seconds that one attempt to read rows may take, also for the longest prompt.
        row_retries: attempts after the first.
        row_token_file: file with the row servers' shared token, if they want one.
        on_row_failure: ``"fail"`` fails the requests whose rows cannot be had, ``"off"`` answers
            them as if those rows had never been written, and counts the rows (tier ``zero``).
        orders: n-gram orders whose rows are read; the others' read as if they had never been
            written, and are looked up nowhere. None: every order that the memory has.
    """

    inline_max_rows: int | Literal["auto"] = "auto"
    staging_bytes: int = 256 * 2**20
    tier: Literal["auto", "dram", "ssd", "remote"] = "auto"
    hot_cache: Literal["auto", "on", "off"] = "auto"
    hot_cache_bytes: int | None = None
    device_cache: Literal["auto", "on", "off"] = "auto"
    device_cache_bytes: int | None = None
    hot_list_dir: str | None = None
    verify: Literal["full", "header"] = "full"
    row_servers: tuple[str, ...] = ()
    row_timeout_s: float = 1.0
    row_retries: int = 1
    row_token_file: str | None = None
    on_row_failure: Literal["fail", "off"] = "fail"
    orders: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            check(value in choices, name, value, ", ".join(choices))
        for name in ("hot_cache_bytes", "device_cache_bytes"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        self._check_hot_list_dir()
        self._check_row_servers()
        for name in ("staging_bytes", "row_retries"):
            _check_count(name, getattr(self, name))
        if self.inline_max_rows != "auto":
            _check_count("inline_max_rows", self.inline_max_rows, "auto, or ")
        if self.orders is not None:
            _check_orders(self.orders)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a JSON object. Raises ConfigError on unknown keys and wrong values."""
        names = {field.name for field in fields(cls)}
        refuse_unknown(set(data) - names, names)
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
        }
        return cls(**values)

    def _check_hot_list_dir(self) -> None:
        folder = self.hot_list_dir
        is_name = folder is None or (isinstance(folder, str) and folder != "")
        check(is_name, "hot_list_dir", folder, "a folder's path")
        if folder is not None and self.hot_cache == "off" and self.device_cache != "on":
            raise ConfigError(
                f"hot_list_dir is {PurePath(folder).name!r} beside hot_cache 'off', which has no "
                "rows to list; accepted: no folder, another hot_cache, or device_cache on"
            )

    def _check_row_servers(self) -> None:
        servers = self.row_servers
        is_list = isinstance(servers, tuple) and all(isinstance(each, str) for each in servers)
        accepted = '["HOST:PORT", ...] with tier "remote", and with no other tier'
        is_remote = self.tier == "remote"
        check(is_list and bool(servers) == is_remote, "row_servers", servers, accepted)
        timeout_s = self.row_timeout_s
        is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
        check(is_number and 0 < timeout_s < 3600, "row_timeout_s", timeout_s, "seconds > 0")
        file = self.row_token_file
        check(file is None or isinstance(file, str), "row_token_file", file, "a file's path")


def _check_count(name: str, value: object, other: str = "") -> None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    check(is_count, name, value, f"{other}a whole number >= 0")


def _check_orders(orders: object) -> None:
    """What can be told without knowing the memory."""
    is_list = isinstance(orders, tuple) and all(type(each) is int and each >= 2 for each in orders)
    accepted = "[2, 3, ...], one or more n-gram orders >= 2, each once"
    shown = list(orders) if isinstance(orders, tuple) else orders
    is_set = isinstance(orders, tuple) and 0 < len(orders) == len(set(orders))
    check(is_list and is_set, "orders", shown, accepted)
