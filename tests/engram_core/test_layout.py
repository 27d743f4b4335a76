"""HashLayout beyond the reference vectors: primes, declared sizes, any set of orders."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram_core.config import EngramConfig
from engram_core.errors import ConfigError, MismatchError
from engram_core.layout import HashLayout, is_prime


def config(**change):
    base = {
        "form": "v41", "layer_ids": (3, 1), "orders": (3, 5), "num_heads": 2,
        "rows_per_head": (50, 50), "head_dim": 4, "hidden_size": 8,
    }  # fmt: skip
    return EngramConfig(**{**base, **change})


@given(st.integers(-5, 50_000))
def test_is_prime_agrees_with_trial_division(number):
    divisible = any(number % d == 0 for d in range(2, int(max(number, 0) ** 0.5) + 1))
    assert is_prime(number) == (number > 1 and not divisible)


@pytest.mark.parametrize("number", [2**61 - 1, 18_014_398_509_482_143])
def test_is_prime_knows_large_primes(number):
    assert is_prime(number)
    assert not is_prime(number + 2)


def test_primes_are_distinct_and_follow_the_order_of_layers():
    layout = HashLayout.build(config(), 100)
    assert layout.primes[3] == ((53, 59), (61, 67))
    assert layout.primes[1] == ((71, 73), (79, 83))
    assert layout.offsets[3] == (0, 53, 112, 173)
    assert layout.rows == {3: 240, 1: 306}
    assert layout.column_primes(1) == (71, 73, 79, 83)


@given(st.integers(1, 2**40), st.integers(0, 60))
def test_products_of_any_class_fit_int64(classes, layer):
    layout = HashLayout.build(config(layer_ids=(layer,)), classes)
    assert all(m % 2 == 1 and m > 0 for m in layout.multipliers[layer])
    assert max(layout.multipliers[layer]) * (classes - 1) < 2**63
    assert len(layout.multipliers[layer]) == 5


def test_declared_sizes_are_held():
    with pytest.raises(MismatchError, match="expected 99, found 100"):
        HashLayout.build(config(compressed_size=99), 100)
    with pytest.raises(MismatchError, match=r"table rows .*\(1, 2\).*\(240, 306\)"):
        HashLayout.build(config(expected_rows=(1, 2)), 100)
    with pytest.raises(ConfigError, match="compressed_size is 0"):
        HashLayout.build(config(), 0)
