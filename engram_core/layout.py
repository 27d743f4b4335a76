"""HashLayout: multipliers, primes and offsets, the constants that address an Engram memory.

Knows the configuration and how many token classes there are; knows no tokenizer and no ids.
The rules are the public demo's (engram_demo_v1.py, NgramHashMapping), which DeepSeek-V4.1 shares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import numpy as np

from engram_core.config import EngramConfig
from engram_core.errors import ConfigError, MismatchError

LAYER_SEED_STRIDE = 10007
MAX_INT64 = 2**63 - 1


@dataclass(frozen=True, slots=True)
class HashLayout:
    """The hash constants of every Engram layer, keyed by layer id.

    Attributes:
        config: the configuration they were built from.
        compressed_size: number of token classes C; it bounds every multiplier.
        multipliers: per layer N odd numbers; entry 0 belongs to the newest token of an n-gram, or
            to its oldest one, as the configuration's `multiplier_order` says.
        primes: per layer, per order, per head: the rows of that head.
        offsets: per layer, the first row of each column (order-major, then head).
        rows: per layer, the rows of its table.
    """

    config: EngramConfig
    compressed_size: int
    multipliers: Mapping[int, tuple[int, ...]]
    primes: Mapping[int, tuple[tuple[int, ...], ...]]
    offsets: Mapping[int, tuple[int, ...]]
    rows: Mapping[int, int]

    @classmethod
    def build(cls, config: EngramConfig, compressed_size: int) -> Self:
        """Compute the constants for `compressed_size` token classes.

        Raises:
            ConfigError: `compressed_size` is below 1.
            MismatchError: the configuration declares another number of classes or rows.
        """
        if compressed_size < 1:
            raise ConfigError(f"compressed_size is {compressed_size}; accepted: a number >= 1")
        if config.compressed_size not in (None, compressed_size):
            raise MismatchError(
                "number of token classes", expected=config.compressed_size, found=compressed_size
            )
        layout = cls._assemble(
            config,
            compressed_size,
            {layer: _multipliers(config, layer, compressed_size) for layer in config.layer_ids},
            _primes(config),
        )
        layout._check_declared_rows()
        return layout

    @classmethod
    def _assemble(
        cls,
        config: EngramConfig,
        compressed_size: int,
        multipliers: Mapping[int, tuple[int, ...]],
        primes: Mapping[int, tuple[tuple[int, ...], ...]],
    ) -> Self:
        flat = {layer: [p for order in primes[layer] for p in order] for layer in config.layer_ids}
        return cls(
            config=config,
            compressed_size=compressed_size,
            multipliers=multipliers,
            primes=primes,
            offsets={k: tuple(accumulate(v[:-1], initial=0)) for k, v in flat.items()},
            rows={layer: sum(sizes) for layer, sizes in flat.items()},
        )

    def _check_declared_rows(self) -> None:
        if self.config.expected_rows is None:
            return
        found = tuple(self.rows[layer] for layer in self.config.layer_ids)
        if found != self.config.expected_rows:
            raise MismatchError("table rows", expected=self.config.expected_rows, found=found)

    def column_primes(self, layer: int) -> tuple[int, ...]:
        """The M primes of a layer in column order."""
        return tuple(prime for order in self.primes[layer] for prime in order)

    def window_multipliers(self, layer: int) -> tuple[tuple[int, ...], ...]:
        """What each order multiplies the class k tokens back with: ``[orders, N]``.

        A 0 takes a token out of the n-gram: its product changes nothing in an exclusive or.
        """
        config, drawn = self.config, self.multipliers[layer]
        lags = config.lags or (0,) * len(config.orders)
        table = []
        for order, lag in zip(config.orders, lags, strict=True):
            used = drawn[:order]
            newest_first = used if config.multiplier_order == "newest_first" else used[::-1]
            table.append((0,) * lag + newest_first + (0,) * (config.max_order - lag - order))
        return tuple(table)

    def to_dict(self) -> dict[str, Any]:
        """The constants as JSON-ready data, for an artefact's manifest."""
        return {
            "compressed_size": self.compressed_size,
            "multipliers": {str(k): list(v) for k, v in self.multipliers.items()},
            "primes": {str(k): [list(o) for o in v] for k, v in self.primes.items()},
        }

    @classmethod
    def from_dict(cls, config: EngramConfig, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote.

        Stored constants win over recomputed ones: numpy promises no stable random stream across
        its versions, and a memory trained with other multipliers is noise.
        """
        return cls._assemble(
            config,
            int(data["compressed_size"]),
            {int(k): tuple(v) for k, v in data["multipliers"].items()},
            {int(k): tuple(tuple(o) for o in v) for k, v in data["primes"].items()},
        )


def _multipliers(config: EngramConfig, layer: int, compressed_size: int) -> tuple[int, ...]:
    """N odd numbers so small that class * multiplier never overflows int64."""
    bound = max(1, MAX_INT64 // compressed_size // 2)
    generator = np.random.default_rng(config.seed + LAYER_SEED_STRIDE * layer)
    drawn = generator.integers(0, bound, size=config.max_order, dtype=np.int64)
    return tuple(2 * int(r) + 1 for r in drawn)


def _primes(config: EngramConfig) -> dict[int, tuple[tuple[int, ...], ...]]:
    """Distinct primes for the whole model, taken in the order of layers, orders and heads."""
    used: set[int] = set()

    def take(start: int) -> Iterator[int]:
        candidate = start
        while True:
            if candidate not in used and is_prime(candidate):
                used.add(candidate)
                yield candidate
            candidate += 1

    def heads(start: int) -> tuple[int, ...]:
        found = take(start)
        return tuple(next(found) for _ in range(config.num_heads))

    return {
        layer: tuple(heads(base) for base in config.rows_per_head) for layer in config.layer_ids
    }


def is_prime(number: int) -> bool:
    """Deterministic Miller-Rabin, exact below 3.3e24 (Sorenson and Webster, 2015)."""
    witnesses = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
    if number < 2:
        return False
    for small in witnesses:
        if number % small == 0:
            return number == small
    odd, shift = number - 1, 0
    while odd % 2 == 0:
        odd, shift = odd // 2, shift + 1
    return all(_passes(number, witness, odd, shift) for witness in witnesses)


def _passes(number: int, witness: int, odd: int, shift: int) -> bool:
    x = pow(witness, odd, number)
    if x in (1, number - 1):
        return True
    for _ in range(shift - 1):
        x = x * x % number
        if x == number - 1:
            return True
    return False
