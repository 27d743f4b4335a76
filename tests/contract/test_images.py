"""The images and shell scripts, as far as they can be checked without an engine to build them."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sources import ROOT, name

DOCKERFILES = [ROOT / "Dockerfile.cuda", ROOT / "Dockerfile.npu"]
SCRIPTS = [ROOT / ".ci" / "run", *sorted((ROOT / "docker").glob("*.sh"))]


@pytest.mark.parametrize("path", DOCKERFILES, ids=name)
def test_dockerfile_has_no_lint(path: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", DOCKERFILES, ids=name)
def test_dockerfile_copies_what_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    sources = [s for line in re.findall(r"^COPY (.+) \S+$", text, re.M) for s in line.split()]
    assert sources
    assert all((ROOT / source).exists() for source in sources)


@pytest.mark.parametrize("path", DOCKERFILES, ids=name)
def test_image_runs_without_root_and_receives_signals(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.search(r"^USER (?!0|root)\d+", text, re.M)
    assert re.search(r'^ENTRYPOINT \["', text, re.M)
    assert re.search(r"^HEALTHCHECK ", text, re.M)


@pytest.mark.system
@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_shell_script_has_no_lint(path: Path) -> None:
    shellcheck = shutil.which("shellcheck")
    done = subprocess.run([shellcheck, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_entrypoint_serves_with_the_images_settings(tmp_path: Path) -> None:
    assert _run_entrypoint(tmp_path) == "serve --config /etc/engram/config.yaml"
    assert _run_entrypoint(tmp_path, "serve", "--port", "1") == (
        "serve --config /etc/engram/config.yaml --port 1"
    )
    assert _run_entrypoint(tmp_path, "version") == "version"


def test_npu_entrypoint_says_that_cann_is_missing(tmp_path: Path) -> None:
    script = ROOT / "docker" / "entrypoint-npu.sh"
    environment = {"ASCEND_TOOLKIT_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "CANN is not installed" in done.stderr


def _run_entrypoint(tmp_path: Path, *arguments: str) -> str:
    """What the entrypoint would start, told by a stand-in that prints its arguments."""
    program = tmp_path / "engram-server"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    command = [ROOT / "docker" / "entrypoint.sh", *arguments]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    return subprocess.check_output(command, env=environment, text=True).strip()
