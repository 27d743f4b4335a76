"""Four-bit rows: a value is bf16(code * scale), and a written row never vanishes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engram_core.errors import ConfigError
from engram_core.tables.int4 import dequantise, quantise


@given(st.integers(1, 20), st.integers(1, 8), st.floats(1e-9, 1e4), st.integers(0, 2**31))
def test_error_is_at_most_half_a_step(count, pairs, size, seed) -> None:
    rows = torch.randn(count, 2 * pairs, generator=torch.Generator().manual_seed(seed)) * size
    codes, scales = quantise(rows)
    assert codes.shape == (count, pairs)
    assert codes.dtype == torch.uint8
    error = (dequantise(codes, scales).float() - rows).abs()
    # half a code, one rounding of the scale to fp16 and one of the value to bf16
    bound = scales.float()[:, None] * (0.5 + 7 * 2**-10) + rows.abs() * 2**-8
    assert bool((error <= bound).all())


def test_values_are_code_times_scale() -> None:
    rows = torch.tensor([[7.0, -7.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    codes, scales = quantise(rows)
    assert dequantise(codes, scales).tolist() == rows.tolist()
    assert scales[0] == 1


@pytest.mark.parametrize("value", [1e-3, 1e-4])
def test_a_written_row_stays_written(value) -> None:
    rows = torch.full((1, 4), value)
    assert bool((dequantise(*quantise(rows)) != 0).any())


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="row width 3"):
        quantise(torch.zeros(1, 3))
    with pytest.raises(ConfigError, match="finite"):
        quantise(torch.full((1, 2), float("inf")))
