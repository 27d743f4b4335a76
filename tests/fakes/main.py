"""`python -m fakes.main FLAGS...`: the real process around a fake backend, for signal tests.

ENGRAM_FAKE holds what is special about the fake, e.g. ``step_s=0.05 load_error=broken``.
"""

from __future__ import annotations

import os
import sys

from fakes.backend import FakeLoader
from fakes.engine import Script
from server.cli import build_parser, read_settings
from server.process import run


def _die_at(last: int, index: int, script: Script) -> str:
    if index == last:
        script.die.set()
    return " w"


def main() -> int:
    special = dict(item.split("=", 1) for item in os.environ.get("ENGRAM_FAKE", "").split())
    given = vars(build_parser().parse_args(["serve", *sys.argv[1:]]))
    given.pop("command")
    settings = read_settings(given)
    if settings is None:
        return 2
    script = Script(step_s=float(special.get("step_s", 0)))
    loader = FakeLoader(script)
    if "load_error" in special:
        loader.error = OSError(special["load_error"].replace("_", " "))
    if "load_forever" in special:
        loader.may_finish.clear()
    if "die_at_token" in special:
        script.die_silently = True
        script.text = lambda request, index: _die_at(int(special["die_at_token"]), index, script)
    return run(settings, loader)


if __name__ == "__main__":
    sys.exit(main())
