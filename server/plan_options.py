"""The flags of `engram-server plan`: their help, and how each text becomes a value.

What a value may be is checked by `engram_core.planner`; here only its spelling is.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from engram_core.errors import ConfigError
from server.sizes import parse_size

COUNT_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_COUNT = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)([A-Za-z]?)")

PLAN_EPILOG = """\
Sizes are bytes or a number with KB ... TiB, bandwidths are such sizes per second, counts may end
in K, M, B or T. Memory, SSD and bandwidths are those of EACH host. docs/planning.md explains the
output and what is assumed.

Exit codes: 0 planned (whether the target is met is in the output), 1 the token ids are not the
tokenizer's, 2 a value or a file is wrong.
"""


@dataclass(frozen=True, slots=True)
class PlanOption:
    """One flag: ``--num-heads`` for ``num_heads``."""

    name: str
    parse: Callable[[str], Any]
    metavar: str
    text: str
    required: bool = False

    @property
    def flag(self) -> str:
        """The command line spelling."""
        return "--" + self.name.replace("_", "-")


def parse_count(text: str) -> int:
    """A whole number such as ``8``, ``16M`` or ``671B``. Raises ValueError."""
    match = _COUNT.fullmatch(text.strip())
    if match is None or match[2].upper() not in COUNT_UNITS:
        raise ValueError("accepted: a whole number, or a number with K, M, B or T")
    value = Decimal(match[1]) * COUNT_UNITS[match[2].upper()]
    if value != int(value):
        raise ValueError("accepted: a whole number")
    return int(value)


def parse_counts(text: str) -> tuple[int, ...]:
    """Counts with commas between them. Raises ValueError."""
    return tuple(parse_count(part) for part in text.split(","))


def parse_number(text: str) -> float:
    """A number. Raises ValueError."""
    try:
        return float(text)
    except ValueError:
        raise ValueError("accepted: a number") from None


def parse_dtype(text: str) -> str:
    """A row format; tables on disk call fp8 by its full name."""
    return "fp8" if text == "float8_e4m3" else text


OPTIONS = (
    PlanOption("rows", parse_counts, "N,...", "Rows of each layer's table, or one number for all."),
    PlanOption("rows_per_head", parse_count, "N", "Instead: rows of one head; primes follow it."),
    PlanOption("num_layers", parse_count, "N", "Layers that read the memory."),
    PlanOption("orders", parse_counts, "N,...", "N-gram orders, such as 2,3.", True),
    PlanOption("num_heads", parse_count, "N", "Hash heads of each order.", True),
    PlanOption("row_dim", parse_count, "N", "Values in a row.", True),
    PlanOption("dtype", parse_dtype, "DTYPE", "bfloat16, float16, int8, fp8 or int4.", True),
    PlanOption("tokens_per_s", parse_count, "N", "Target of all hosts together.", True),
    PlanOption("zipf", parse_number, "S", "Rows are read by Zipf's law with this exponent."),
    PlanOption("token_file", str, "FILE", "Instead: ids (.npy, .json), or a text in UTF-8."),
    PlanOption(
        "tokenizer", str, "PATH", "tokenizer.json or its folder: ids and classes of tokens."
    ),
    PlanOption("num_hosts", parse_count, "N", "Hosts that share the rows by head."),
    PlanOption("dram", parse_size, "SIZE", "Host memory for rows."),
    PlanOption("device_memory", parse_size, "SIZE", "Accelerator memory for the hottest rows."),
    PlanOption("extra_memory", parse_size, "SIZE", "One more memory node: CXL or NUMA."),
    PlanOption("extra_latency_ns", parse_number, "NS", "Latency of a read from that node."),
    PlanOption("extra_bandwidth", parse_size, "SIZE", "Bandwidth of that node."),
    PlanOption("ssd_iops", parse_count, "N", "Reads of 4 KiB that the SSDs do in a second."),
    PlanOption("ssd_bandwidth", parse_size, "SIZE", "Bandwidth of the SSDs."),
    PlanOption("network_bandwidth", parse_size, "SIZE", "Bandwidth to the other hosts, one way."),
    PlanOption("dram_bandwidth", parse_size, "SIZE", "Bandwidth of random row reads in DRAM."),
    PlanOption("device_bandwidth", parse_size, "SIZE", "Bandwidth from host to accelerator."),
    PlanOption("backbone_parameters", parse_count, "N", "Parameters of the model itself."),
    PlanOption("active_parameters", parse_count, "N", "Those of them that every token uses."),
)


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Add every flag; only given ones appear in the result, still as text."""
    for option in OPTIONS:
        parser.add_argument(
            option.flag,
            dest=option.name,
            default=argparse.SUPPRESS,
            required=option.required,
            metavar=option.metavar,
            help=option.text,
        )
    parser.add_argument("--json", action="store_true", help="Print the plan as JSON.")
    parser.add_argument(
        "--check-host", action="store_true", help="Hold the plan against this machine's limits."
    )


def parse_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the given flags.

    Raises:
        ConfigError: a text is not a value; names the flag, the text and what is accepted.
    """
    values = {}
    for option in OPTIONS:
        if option.name in given:
            text = given[option.name]
            try:
                values[option.name] = option.parse(text)
            except ValueError as error:
                raise ConfigError(f"{option.flag} is {text[:100]!r}; {error}") from None
    return values
