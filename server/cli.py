"""The command line: serve, pull, info, plan, table, rows, version.

Every mistake is one sentence on stderr and an exit code; see `server.process.ExitCode`. Heavy
imports happen inside the commands, so that --help and a wrong flag answer at once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from engram_core.errors import ConfigError, EngramError
from server import __version__
from server.config import ENV_PREFIX, Settings, SettingsFileError, unknown_variables
from server.flags import add_settings, explain
from server.load_errors import LoadError
from server.plan_options import PLAN_EPILOG, add_plan_options
from server.progress_lines import ProgressLines
from server.row_settings import RowsUsageError
from server.rows_command import add_rows
from server.table_options import add_table_options

USAGE = 2
FAILED = 1
FAILURES = (LoadError, EngramError, OSError, ValueError)

SERVE_EPILOG = f"""\
Every flag is also an environment variable ({ENV_PREFIX}PORT for --port) and a key of the --config
file (port). A flag wins over the environment, that over the file, the file over the default.

Exit codes: 0 stopped cleanly, 1 the model could not be loaded, 2 a setting is wrong,
3 the engine died, 4 the address cannot be bound, 5 stopped by a second signal.
"""

PULL_SETTINGS = {"revision", "config"}
INFO_SETTINGS = {
    "revision",
    "config",
    "device",
    "dtype",
    "engram",
    "engram_dir",
    "engram_config",
    "max_model_len",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    given = vars(build_parser().parse_args(arguments))
    command: Callable[[dict[str, Any]], int] = given.pop("command")
    try:
        return command(given)
    except (SettingsFileError, RowsUsageError) as error:
        return _say(USAGE, str(error))
    except KeyboardInterrupt:
        return _say(FAILED, "interrupted")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="engram-server",
        description="Serve a language model with an Engram memory over HTTP.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add(commands, "serve", serve, "load a model and serve it", None, SERVE_EPILOG)
    _add(commands, "pull", pull, "download a model without serving it", PULL_SETTINGS)
    _add(commands, "info", info, "say what serve would load, without loading it", INFO_SETTINGS)
    add_table_options(commands, table)
    add_rows(commands)
    planner = commands.add_parser(
        "plan",
        help="say what a memory needs of its hosts, without building it",
        description="Say what a memory needs of its hosts, without building it.",
        epilog=PLAN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_plan_options(planner)
    planner.set_defaults(command=plan)
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(command=show_version)
    return parser


def _add(
    commands: Any,
    name: str,
    command: Callable[[dict[str, Any]], int],
    text: str,
    names: set[str] | None,
    epilog: str = "",
) -> None:
    parser = commands.add_parser(
        name,
        help=text,
        description=text.capitalize() + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter if epilog else argparse.HelpFormatter,
        allow_abbrev=False,
    )
    add_settings(parser, names)
    parser.set_defaults(command=command)


def read_settings(given: dict[str, Any]) -> Settings | None:
    """Settings from flags, environment and file; None after saying what is wrong."""
    for name in unknown_variables(os.environ):
        _say(0, f"warning: the environment variable {name} names no setting")
    try:
        return Settings(**given)
    except ValidationError as error:
        _say(USAGE, explain(error, given, os.environ))
        return None


def serve(given: dict[str, Any]) -> int:
    """Load a model and serve it until told to stop."""
    settings = read_settings(given)
    if settings is None:
        return USAGE
    from server.backend import load_backend  # noqa: PLC0415
    from server.process import run  # noqa: PLC0415

    return run(settings, load_backend)


def pull(given: dict[str, Any]) -> int:
    """Download a model into the cache."""
    settings = read_settings(given)
    if settings is None:
        return USAGE
    from server.fetch import fetch_model  # noqa: PLC0415

    try:
        folder = fetch_model(settings, ProgressLines(sys.stderr))
    except FAILURES as error:
        return _say(FAILED, f"cannot download the model: {_first_line(error)}")
    print(folder)
    return 0


def info(given: dict[str, Any]) -> int:
    """Print what serve would load."""
    settings = read_settings(given)
    if settings is None:
        return USAGE
    from server.preview import preview  # noqa: PLC0415

    try:
        facts = preview(settings)
    except FAILURES as error:
        return _say(FAILED, _first_line(error))
    print(json.dumps(facts, indent=2))
    return 0


def table(given: dict[str, Any]) -> int:
    """Look at, check or convert an artefact."""
    from server.table_command import ACTIONS  # noqa: PLC0415

    try:
        return ACTIONS[given.pop("action")](given)
    except FAILURES as error:
        return _say(FAILED, _first_line(error))


def plan(given: dict[str, Any]) -> int:
    """Print what a memory would need of its hosts."""
    from server.plan_command import run_plan  # noqa: PLC0415

    try:
        print(run_plan(given))
    except ConfigError as error:
        return _say(USAGE, _first_line(error))
    except FAILURES as error:
        return _say(FAILED, _first_line(error))
    return 0


def show_version(given: dict[str, Any]) -> int:
    """Print the version."""
    print(__version__)
    return 0


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _say(code: int, sentence: str) -> int:
    print(f"engram-server: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
