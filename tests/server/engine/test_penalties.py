"""Penalties: transformers' repetition penalty, the OpenAI API's frequency and presence."""

import torch
from sequences import make_sequence
from transformers import RepetitionPenaltyLogitsProcessor

from server.engine.penalties import apply_penalties, has_penalties

ROW = torch.tensor([2.0, -1.0, 0.5, 3.0, 0.0])


def penalised(sequence):
    row = ROW.clone()
    apply_penalties(row, sequence)
    return row


def test_repetition_counts_prompt_and_generated_tokens_once():
    sequence = make_sequence((0, 1, 1), generated=(3,), repetition_penalty=1.5)
    reference = RepetitionPenaltyLogitsProcessor(1.5)
    expected = reference(torch.tensor([[0, 1, 1, 3]]), ROW.unsqueeze(0).clone())[0]
    torch.testing.assert_close(penalised(sequence), expected)


def test_frequency_and_presence_count_generated_tokens_only():
    sequence = make_sequence(
        (0,), generated=(1, 1, 3), frequency_penalty=0.5, presence_penalty=0.25
    )
    torch.testing.assert_close(penalised(sequence), torch.tensor([2.0, -2.25, 0.5, 2.25, 0.0]))


def test_nothing_generated_yet():
    sequence = make_sequence((0,), presence_penalty=1.0)
    assert has_penalties(sequence.request.sampling)
    torch.testing.assert_close(penalised(sequence), ROW)
