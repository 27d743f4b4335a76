"""Products with packed weights: right for every shape, and the same for a row in any company."""

import itertools
import threading

import pytest
import torch
from numba import njit
from torch import nn

from server.engine.native.choice import FormatChoice
from server.engine.native.formats import FORMATS, pack, unpack
from server.engine.native.native_linear import NativeLinear
from server.engine.native.team import Team, shared_team
from server.engine.native.tile import make_tile

ROWS = (1, 2, 3, 4, 7, 8, 13, 16, 64, 65, 130)
SHAPES = [(32, 16), (64, 100), (96, 16 * 13), (576, 576)]  # inputs, outputs


def linear(inputs, outputs, *, bias=False, seed=0):
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias=bias).bfloat16().requires_grad_(False)


def native(given, form, **more):
    return NativeLinear(given, shared_team(2), FormatChoice(form, form), **more)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [False, True])
def test_products_are_those_of_the_unpacked_matrix(form, shape, bias):
    given = linear(*shape, bias=bias)
    layer = native(given, form, is_float=True)
    matrix = unpack(pack(given.weight, form))
    for rows in ROWS:
        x = torch.randn(rows, shape[0]).bfloat16()
        expected = x.float() @ matrix.T + (given.bias.float() if bias else 0)
        torch.testing.assert_close(layer(x), expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("form", FORMATS)
def test_a_rows_bits_do_not_depend_on_the_other_rows(form):
    layer = native(linear(576, 208), form)
    x = torch.randn(70, 576).bfloat16()
    together = layer(x)
    for first, count in itertools.product((0, 5, 33), (1, 2, 3, 6, 9, 17)):
        assert torch.equal(layer(x[first : first + count]), together[first : first + count])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads_gives_the_same_bits(threads):
    given = linear(64, 400)
    team = Team(threads)
    x = torch.randn(9, 64).bfloat16()
    found = NativeLinear(given, team, FormatChoice("bf16", "bf16"))(x)
    team.close()
    assert torch.equal(found, native(given, "bf16")(x))


def test_shapes_and_dtypes_of_the_input_are_kept():
    layer = native(linear(32, 20), "bf16")
    for dtype in (torch.bfloat16, torch.float32, torch.float16):
        out = layer(torch.ones(2, 3, 32, dtype=dtype))
        assert (out.shape, out.dtype) == ((2, 3, 20), dtype)
    assert layer(torch.ones(0, 32)).shape == (0, 20)


def test_nan_and_infinity_stay_visible():
    layer = native(linear(32, 16), "bf16", is_float=True)
    x = torch.ones(2, 32).bfloat16()
    x[1, 3] = torch.nan
    out = layer(x)
    assert torch.isfinite(out[0]).all()
    assert torch.isnan(out[1]).all()


def test_two_formats_meet_at_the_number_of_rows_where_they_change():
    given = linear(64, 32)
    layer = NativeLinear(given, shared_team(2), FormatChoice("int8", "bf16", 4))
    x = torch.randn(4, 64).bfloat16()
    assert torch.equal(layer(x[:3]), native(given, "int8")(x[:3]))
    assert torch.equal(layer(x), native(given, "bf16")(x))
    assert layer.nbytes == native(given, "int8").nbytes + native(given, "bf16").nbytes


def test_a_kept_result_is_overwritten_by_the_next_call_only():
    layer = native(linear(32, 16), "bf16", is_float=True, reuses_result=True)
    first = layer(torch.ones(4, 32).bfloat16())
    copy = first.clone()
    second = layer(torch.zeros(2, 32).bfloat16())
    assert second.data_ptr() == first.data_ptr()
    assert torch.equal(first[2:], copy[2:])


def test_callers_from_several_threads_take_turns():
    layer = native(linear(64, 48), "bf16")
    x = [torch.randn(5, 64).bfloat16() for _ in range(4)]
    expected = [layer(each) for each in x]
    wrong = []

    def call(index):
        for _ in range(50):
            if not torch.equal(layer(x[index]), expected[index]):
                wrong.append(index)

    callers = [threading.Thread(target=call, args=(index,)) for index in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("rows", "blocks"), [(1, 3), (4, 2)])
def test_processors_without_the_pair_product_multiply_the_same(form, rows, blocks):
    """The portable loop against the matrix itself; on other processors it is the only one."""
    tile = make_tile(form, rows, blocks, native=False)

    @njit
    def call(table, x, stride, pairs, out, out_stride):
        tile(table, x, stride, pairs, out, out_stride, 0)

    torch.manual_seed(1)
    packed = pack(torch.randn(blocks * 16, 64), form)
    table = torch.tensor([packed.address + i * packed.block_bytes for i in range(blocks)])
    x = torch.randn(rows, 64).bfloat16()
    out = torch.zeros(rows, blocks * 16)
    call(table.data_ptr(), x.data_ptr(), 128, 32, out.data_ptr(), blocks * 64)
    torch.testing.assert_close(out, x.float() @ unpack(packed).T, atol=1e-4, rtol=1e-4)
