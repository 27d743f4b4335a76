"""The words of `engram-server table`; imports nothing heavy, so that --help answers at once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PACKED_DTYPES = ("bfloat16", "float16", "int8", "float8_e4m3", "int4")
COMPRESSIONS = ("none", "zstd")
_ACTIONS = (
    ("info", "print what an artefact declares, its sizes and its primes"),
    (
        "verify",
        "compare an artefact with its checksums, byte spans, constants, weights and tokenizer",
    ),
    ("convert", "write an artefact's tables packed in a row format, for the SSD or less memory"),
)


def add_table_options(commands: Any, run: Callable[[dict[str, Any]], int]) -> None:
    """Add ``table`` with its actions; `run` receives what was said, ``action`` among it."""
    text = "look at, check or convert a memory's tables"
    table = commands.add_parser("table", help=text, description=text.capitalize() + ".")
    actions = table.add_subparsers(required=True, metavar="ACTION")
    for name, text in _ACTIONS:
        parser = actions.add_parser(name, help=text, description=text.capitalize() + ".")
        parser.add_argument("artefact", help="a folder, or a name inside --engram-dir")
        parser.add_argument("--engram-dir", type=Path, help="folder of artefacts")
        _ADDERS[name](parser)
        parser.set_defaults(command=run, action=name)


def _add_tokenizer(parser: argparse.ArgumentParser, why: str) -> None:
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--model", help=f"a folder or a hub id, whose tokenizer {why} (default: the default model)"
    )
    either.add_argument(
        "--tokenizer", type=Path, help=f"tokenizer.json or its folder, which {why} instead"
    )


def _add_info(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokens",
        type=Path,
        metavar="FILE",
        help="count what these tokens do to the rows: ids (.npy, .json), or a text in UTF-8",
    )
    _add_tokenizer(parser, "gives ids and classes of tokens")


def _add_convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="the new artefact; must not exist")
    parser.add_argument(
        "--model",
        help="the model that a memory in another format will be served with: a folder or a hub id "
        "(default: the default model)",
    )
    parser.add_argument(
        "--dtype",
        choices=PACKED_DTYPES,
        help="row format (default: int8; with --compress that of packed or DeepSeek-V4.1 rows)",
    )
    parser.add_argument(
        "--compress",
        choices=COMPRESSIONS,
        help="zstd: for a copy to another place, not for serving; none: expands such a copy",
    )


_ADDERS: Mapping[str, Callable[[argparse.ArgumentParser], None]] = {
    "info": _add_info,
    "verify": lambda parser: _add_tokenizer(parser, "is held against the artefact's class map"),
    "convert": _add_convert,
}
