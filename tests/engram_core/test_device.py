"""make_device and the self-check; an accelerator's own promises are checked where there is one."""

import re
import subprocess
import sys

import pytest
import torch

from engram_core.device import make_device, why_not
from engram_core.device_check import CHECKS, main
from engram_core.errors import DeviceError

NAMES = ["cpu", "simulated", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]


@pytest.mark.parametrize("name", NAMES)
def test_the_self_check_passes(name, capsys):
    assert main([name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"info  torch {torch.__version__}")
    assert lines[1].startswith(f"ok    open: {name}")
    names = [line.split(":")[0].removeprefix("ok    ") for line in lines[2:]]
    assert names == [check.__name__.removeprefix("check_") for check in CHECKS]


def test_the_self_check_is_a_command_that_fails_loudly():
    def run(*names):
        command = [sys.executable, "-m", "engram_core.device", *names]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run("cpu").returncode == 0
    missing = run("cuda:4000")
    assert missing.returncode == 1
    assert '\nFAIL  open: device "cuda' in missing.stdout
    assert run("cpu", "cpu").returncode == 2


def test_a_check_that_fails_is_named(monkeypatch, capsys):
    device = make_device("cpu")
    monkeypatch.setattr(type(device), "memory", lambda self: (2, 1))
    assert main(["cpu"]) == 1
    assert "FAIL  memory: free 2 of 1 bytes" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:-1", "cpu:0", "cuda:x", "CPU"])
def test_unknown_names_are_refused_with_what_is_accepted(name):
    with pytest.raises(DeviceError, match='accepted: "auto", "cpu"'):
        make_device(name)


def test_a_missing_npu_says_what_it_needs():
    if "torch_npu" in sys.modules:
        pytest.skip("there is an NPU runtime here")
    with pytest.raises(DeviceError, match="needs torch_npu and CANN"):
        make_device("npu:1")


def test_auto_takes_what_is_there():
    expected = "cuda:0" if torch.cuda.is_available() else "cpu"
    assert make_device("auto").name == expected


def test_the_host_copies_at_once():
    device = make_device("cpu")
    target = device.empty((3,), torch.float32, device.stream())
    event = device.copy_async(torch.arange(3.0), target, None)
    assert event.query()
    assert target.tolist() == [0, 1, 2]
    assert device.event(None).query()
    free, total = device.memory()
    assert 0 < free <= total


@pytest.mark.parametrize("name", ["cpu", "simulated"])
def test_a_copy_never_converts_or_broadcasts(name):
    device = make_device(name)
    stream = device.stream()
    target = device.empty((3,), torch.float32, stream)
    for source in (torch.zeros(1), torch.zeros(3, dtype=torch.float64)):
        with pytest.raises(DeviceError, match="equal shapes and dtypes"):
            device.copy_async(source, target, stream)


def test_auto_says_why_it_took_what_it_took(capsys):
    main([])
    printed = capsys.readouterr().out
    for kind in ("npu", "cuda"):
        assert f"info  {kind}: {why_not(kind) or 'available'}" in printed


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch has CUDA here")
def test_a_torch_without_cuda_is_named():
    with pytest.raises(DeviceError, match=re.escape(f"torch {torch.__version__} is built without")):
        make_device("cuda")


def test_an_operation_that_is_wrong_or_missing_is_named(monkeypatch, capsys):
    runs = []

    def differs(values):
        runs.append(1)
        return values["x"] * len(runs)

    def missing(values):
        runs.append(1)
        if len(runs) % 2 == 0:
            raise NotImplementedError("no such kernel\nand a trace")
        return values["x"]

    monkeypatch.setattr(
        "engram_core.device_operations.OPERATIONS", {"product": differs, "sum": missing}
    )
    assert main(["cpu"]) == 1
    assert (
        "FAIL  operations: product differs by 1; sum is refused (NotImplementedError: "
        "no such kernel)\n" in capsys.readouterr().out
    )
