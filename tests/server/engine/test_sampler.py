"""Choices: greedy, seeded, refused; their log-probabilities; what the neighbours cannot change."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sequences import make_sequence

from server.engine.sampler import Sampler, draw, random_number, token_logprobs

VOCABULARY = 50


def logits(rows, seed=0):
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def choose(row, **sampling):
    (choice,) = Sampler(VOCABULARY).sample(row.unsqueeze(0), [make_sequence(**sampling)])
    return choice


def test_greedy_is_the_argmax_with_its_log_probability():
    rows = logits(3)
    choices = Sampler(VOCABULARY).sample(rows, [make_sequence() for _ in range(3)])
    assert [choice.token_id for choice in choices] == rows.argmax(-1).tolist()
    expected = torch.log_softmax(rows, -1).amax(-1)
    torch.testing.assert_close(torch.tensor([c.logprob for c in choices]), expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_is_refused_and_its_neighbours_are_not(bad):
    rows = logits(3)
    rows[1, 7] = bad
    first, broken, last = Sampler(VOCABULARY).sample(rows, [make_sequence() for _ in range(3)])
    assert broken is None
    assert [first.token_id, last.token_id] == rows[[0, 2]].argmax(-1).tolist()


def test_minus_infinity_marks_impossible_tokens():
    row = torch.full((VOCABULARY,), float("-inf"))
    row[7] = 1.0
    assert choose(row).token_id == choose(row, do_sample=True, seed=1).token_id == 7
    assert choose(torch.full((VOCABULARY,), float("-inf"))) is None


def test_ids_beyond_the_tokenizer_are_never_chosen():
    row = logits(1)[0]
    row[40:] = 1e6
    (choice,) = Sampler(40).sample(row.unsqueeze(0), [make_sequence()])
    assert choice.token_id == int(row[:40].argmax())
    assert choice.logprob > -5  # what is masked takes no probability


@given(seed=st.integers(0, 2**64 - 1), batch=st.integers(0, 5), place=st.integers(0, 5))
def test_a_seed_gives_one_token_whatever_the_batch(seed, batch, place):
    row = logits(1)[0]
    alone = choose(row, generated=(1, 2), do_sample=True, seed=seed, temperature=0.7, top_p=0.9)
    rows = logits(batch + 1, seed=5)
    place = min(place, batch)
    rows[place] = row
    sequences = [make_sequence(do_sample=True, seed=index) for index in range(batch + 1)]
    sequences[place] = make_sequence(
        generated=(1, 2), do_sample=True, seed=seed, temperature=0.7, top_p=0.9
    )
    assert Sampler(VOCABULARY).sample(rows, sequences)[place] == alone


def test_a_seed_counts_from_the_first_generated_token_however_long_the_prompt():
    row = logits(1)[0]

    def texts(length):
        settings = {"generated": (1, 2), "do_sample": True, "temperature": 5.0}
        return [choose(row, prompt=range(length), seed=seed, **settings) for seed in range(20)]

    assert texts(2) == texts(9)


def test_random_numbers_are_pinned():
    """They are part of what a seed promises, so they must not change with a release."""
    found = [random_number(seed, position) for seed, position in [(0, 0), (0, 1), (7, 0)]]
    assert found == [float.fromhex(text) for text in PINNED]
    assert len(set(found)) == 3


PINNED = ["0x1.7a5d3204726c0p-7", "0x1.0137e64510730p-1", "0x1.be80697053d3fp-1"]


def test_the_draw_follows_the_distribution():
    row = torch.tensor([0.0, 1.0, 2.0, float("-inf")])
    drawn = [draw(row, random_number(3, position)) for position in range(4000)]
    share = np.bincount(drawn, minlength=4) / len(drawn)
    np.testing.assert_allclose(share, torch.softmax(row, -1).numpy(), atol=0.03)
    assert share[3] == 0


@pytest.mark.parametrize("number", [0.0, 1.0 - 2**-53])
def test_the_draw_never_leaves_the_possible_tokens(number):
    row = torch.tensor([float("-inf"), 0.0, 0.0, float("-inf")])
    assert draw(row, number) in (1, 2)


def test_top_tokens():
    row = logits(1)[0]
    choice = choose(row, top_n_tokens=3)
    values, ids = torch.log_softmax(row, -1).topk(3)
    assert choice.top_ids == tuple(ids.tolist())
    assert choice.top_logprobs == pytest.approx(values.tolist(), abs=1e-5)


def test_log_probabilities_are_the_models_own():
    row = logits(1)[0]
    sampled = choose(row, do_sample=True, temperature=5.0, top_k=3, repetition_penalty=2.0)
    expected = torch.log_softmax(row, -1)[sampled.token_id]
    assert sampled.logprob == pytest.approx(float(expected), abs=1e-5)


def test_token_logprobs():
    rows = logits(3).bfloat16()
    expected = torch.log_softmax(rows.float(), -1)[[0, 1, 2], [4, 5, 6]]
    assert token_logprobs(rows, [4, 5, 6]) == pytest.approx(expected.tolist(), abs=1e-5)
