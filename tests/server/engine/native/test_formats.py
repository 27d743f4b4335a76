"""Packing weights: nothing is lost but the rounding that a format stands for."""

import pytest
import torch

from engram_core.errors import ConfigError
from server.engine.native.formats import FORMATS, pack, unpack

SHAPES = [(16, 32), (48, 64), (33, 96), (5, 64)]  # outputs that fill their blocks or do not


def weight(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16_is_kept_bit_for_bit(shape):
    exact = weight(shape).bfloat16()
    assert torch.equal(unpack(pack(exact, "bf16")), exact.float())


@pytest.mark.parametrize("shape", SHAPES)
def test_int8_rounds_to_a_127th_of_each_rows_largest(shape):
    exact = weight(shape)
    step = exact.abs().amax(1, keepdim=True) / 127
    assert ((unpack(pack(exact, "int8")) - exact).abs() <= step * 0.501).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_int4_rounds_within_each_group_of_32(shape):
    exact = weight(shape)
    largest = exact.view(shape[0], -1, 32).abs().amax(2).repeat_interleave(32, 1)
    error = (unpack(pack(exact, "int4")) - exact).abs()
    assert (error <= largest / 7).all()
    assert (error / largest).mean() < 0.05


def test_int4_keeps_what_it_can_hold():
    codes = torch.arange(-8, 8).repeat(16, 4).float()
    assert torch.equal(unpack(pack(codes * 0.5, "int4")), codes * 0.5)


@pytest.mark.parametrize("form", FORMATS)
def test_zeros_stay_zeros(form):
    assert torch.equal(unpack(pack(torch.zeros(16, 64), form)), torch.zeros(16, 64))


@pytest.mark.parametrize(("form", "inputs"), [("bf16", 33), ("int8", 7), ("int4", 48)])
def test_inputs_that_do_not_fit_are_named(form, inputs):
    with pytest.raises(ConfigError, match=f"{inputs} inputs are no multiple of"):
        pack(torch.zeros(16, inputs), form)


@pytest.mark.parametrize("form", FORMATS)
def test_data_begins_on_a_cache_line(form):
    assert pack(weight((32, 64)), form).address % 64 == 0
