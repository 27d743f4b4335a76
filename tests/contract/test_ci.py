"""`.ci/run` tells the truth: run here with stand-ins for make and apt-get."""

import shutil
import subprocess
from pathlib import Path

import pytest
from sources import ROOT

TARGETS = ["install", "check", "test", "test-system", "test-slow"]


@pytest.fixture
def ci(tmp_path: Path):
    """Runs a copy of the script; `make TARGET` does what `answers` says, or passes."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    programs = tmp_path / "bin"
    programs.mkdir()

    def program(name: str, text: str) -> None:
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)

    def run(**answers: str) -> subprocess.CompletedProcess[str]:
        cases = "".join(f"{t.replace('_', '-')}) {a};; " for t, a in answers.items())
        program("apt-get", "true")
        program("make", f'case "$1" in {cases} *) echo "3 passed in 0.1s";; esac')
        environment = {"PATH": f"{programs}:/usr/bin:/bin", "TMPDIR": str(tmp_path)}
        command = ["bash", tmp_path / ".ci" / "run"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run


def _targets_run(output: str) -> list[str]:
    lines = [line for line in output.splitlines() if line.startswith("=== make ")]
    return [line.split()[2] for line in lines]


def test_all_targets_pass(ci) -> None:
    done = ci()
    assert done.returncode == 0, done.stderr
    assert _targets_run(done.stdout) == TARGETS
    assert done.stdout.count("3 passed") == len(TARGETS)


def test_a_failed_target_fails_the_run_but_not_the_others(ci) -> None:
    done = ci(test="echo '1 failed, 2 passed'; exit 2")
    assert done.returncode == 1
    assert _targets_run(done.stdout) == TARGETS
    assert "1 failed, 2 passed" in done.stdout
    assert done.stderr.splitlines()[-1] == "failed: test"


def test_without_an_environment_nothing_else_runs(ci) -> None:
    done = ci(install="exit 2")
    assert done.returncode != 0
    assert _targets_run(done.stdout) == ["install"]


@pytest.mark.parametrize("status", [0, 5, 2])
def test_no_test_is_an_error(ci, status: int) -> None:
    done = ci(test_slow=f"echo 'no tests ran in 0.01s'; exit {status}")
    assert done.returncode == 1
    assert "make test-slow ran no test" in done.stderr


def test_only_deselected_tests_are_no_tests(ci) -> None:
    done = ci(test_slow="echo '7 deselected in 0.1s'; echo 'make: *** [test-slow] Error 5'; exit 2")
    assert "make test-slow ran no test" in done.stderr
