"""Rows that train: only the batch's rows move, exactly as Adam says."""

import numpy as np
import torch

from engram_core.retrofit.row_batch import RowBatch
from engram_core.retrofit.row_parameters import BETAS, EPS, RowParameters


def test_slots_lead_back_to_rows() -> None:
    rows = RowParameters(np.array([90, 5, 5, 40]), 2)
    assert rows.row_ids.tolist() == [5, 40, 90]
    assert rows.slots(np.array([[40, 5], [90, 90]])).tolist() == [[1, 0], [2, 2]]
    assert not bool(rows.is_written.any())


def test_updates_equal_adam_and_leave_other_rows_alone() -> None:
    rows = RowParameters(np.arange(4), 3)
    reference = torch.zeros(2, 3, requires_grad=True)
    adam = torch.optim.Adam([reference], lr=0.1, betas=BETAS, eps=EPS)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        gradient = torch.randn(2, 3, generator=generator)
        rows.update(torch.tensor([1, 3]), gradient, 0.1)
        reference.grad = gradient
        adam.step()
    torch.testing.assert_close(rows.values[[1, 3]], reference.detach())
    assert not bool(rows.values[[0, 2]].any())
    assert rows.is_written.tolist() == [False, True, False, True]


def test_a_repeated_row_gets_the_sum_of_its_gradients() -> None:
    rows = RowParameters(np.arange(3), 2)
    batch = RowBatch(rows, torch.tensor([[0, 1], [1, 1]]))
    assert batch.embeddings.shape == (2, 4)
    (batch.embeddings * torch.tensor([[1.0, 1, -1, -1], [-1, -1, 3, 3]])).sum().backward()
    batch.step(0.5)
    # Adam's first step is the learning rate against the gradient's sign
    torch.testing.assert_close(rows.values, torch.tensor([[-0.5, -0.5], [-0.5, -0.5], [0, 0]]))


def test_a_batch_without_gradient_changes_nothing() -> None:
    rows = RowParameters(np.arange(3), 2)
    RowBatch(rows, torch.tensor([[0]])).step(0.5)
    assert not bool(rows.values.any())
