"""Maximum and log-sum-exp of rows of logits, by the team."""

from __future__ import annotations

import torch
from torch import Tensor

from server.engine.native.program import STATISTICS
from server.engine.native.team import Team


class RowStatistics:
    """Computes them; see `server.engine.sampler.row_statistics`, whose place it takes."""

    def __init__(self, team: Team) -> None:
        self._team = team

    def __call__(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """float32 [rows, vocabulary] -> the place of each maximum, and the log of the norm."""
        num_rows, size = scores.shape
        places = torch.empty(num_rows, dtype=torch.int64)
        norms = torch.empty(num_rows)
        self._team.run(
            kind=STATISTICS,
            num_rows=num_rows,
            num_columns=size,
            input=scores.data_ptr(),
            row_bytes=4 * scores.stride(0),
            result=places.data_ptr(),
            norms=norms.data_ptr(),
        )
        return places, norms
