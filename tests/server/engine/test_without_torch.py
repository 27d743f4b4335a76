"""Scheduling is plain logic: importing it must not bring torch in."""

import subprocess
import sys


def test_the_scheduler_and_the_types_do_not_import_torch():
    code = (
        "import sys, server.engine.scheduler, server.engine.types, server.engine.inbox\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
