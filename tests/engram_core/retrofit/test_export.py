"""From trained rows to the rows of a file."""

import numpy as np
import torch
from models import tiny_llama

from engram_core.retrofit.export import MARK, sparse_rows
from engram_core.retrofit.row_parameters import RowParameters
from engram_core.tables.backbone_record import describe_backbone
from engram_core.tables.int4 import dequantise, quantise


def test_every_row_of_a_trained_position_counts_as_written() -> None:
    rows = RowParameters(np.array([3, 8, 9]), 4)
    rows.update(torch.tensor([1]), torch.ones(1, 4), 0.3)
    found = sparse_rows(rows, 20)
    assert found.row_ids.tolist() == [3, 8, 9]
    assert found.num_rows == 20
    torch.testing.assert_close(found.values[1], torch.full((4,), -0.3))
    assert found.values[0].tolist() == found.values[2].tolist() == [MARK, 0, 0, 0]
    assert not bool(rows.values[0].any()), "the trained rows stay as they are"


def test_a_mark_survives_four_bits() -> None:
    marked = torch.tensor([[MARK, 0.0, 0.0, 0.0]])
    restored = dequantise(*quantise(marked))
    assert float(restored[0, 0]) != 0
    assert bool((restored[0, 1:] == 0).all())


def test_backbone_record() -> None:
    record = describe_backbone(tiny_llama(), "tiny")
    assert (record.name, record.hidden_size, record.num_layers) == ("tiny", 32, 4)
    assert len(record.fingerprint) == 64
