"""AcceleratorDevice's host staging: what it registers, and that it lets go in time.

Streams, events and copies are checked by the self-check where an accelerator exists.
"""

import gc
import mmap
from contextlib import nullcontext

import pytest
import torch

from engram_core.accelerator import AcceleratorDevice
from engram_core.errors import DeviceError


class Registrar:
    """Stands for torch.cuda: keeps what is page-locked."""

    def __init__(self, code=0):
        self.code, self.locked = code, {}

    def device(self, device):
        return nullcontext()

    def cudart(self):
        return self

    def cudaHostRegister(self, address, nbytes, flags):  # noqa: N802 (CUDA's name)
        self.locked[address] = nbytes
        return self.code

    def cudaHostUnregister(self, address):  # noqa: N802 (CUDA's name)
        del self.locked[address]


@pytest.mark.parametrize("shape", [(1,), (1000, 7), (5, 3, mmap.PAGESIZE)])
def test_staging_is_exact_and_owns_its_pages(shape):
    registrar = Registrar()
    staging = AcceleratorDevice("cuda", 0, registrar).pinned_empty(shape, torch.bfloat16)
    assert (tuple(staging.shape), staging.dtype) == (shape, torch.bfloat16)
    assert staging.data_ptr() % mmap.PAGESIZE == 0
    (span,) = registrar.locked.values()
    assert list(registrar.locked) == [staging.data_ptr()]
    assert staging.nbytes <= span < staging.nbytes + mmap.PAGESIZE
    staging.fill_(2)
    view = staging.view(-1)[-1:]
    del staging
    gc.collect()
    assert registrar.locked, "a view still needs the memory"
    del view
    gc.collect()
    assert not registrar.locked


def test_memory_that_cannot_be_locked_is_an_error():
    with pytest.raises(DeviceError, match="cuda:0 refused to page-lock"):
        AcceleratorDevice("cuda", 0, Registrar(code=2)).pinned_empty((4,), torch.float32)
