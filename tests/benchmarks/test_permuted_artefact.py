import numpy as np
import pytest
import torch
from artefacts import tiny_content

from benchmarks.permuted_artefact import write_permuted
from engram_core.tables import SparseRows, open_table, write_artefact

STORED = [("sparse", "int4"), ("sparse", "bfloat16"), ("dense", "float32")]


@pytest.mark.parametrize(("storage", "dtype"), STORED)
def test_copy_opens_and_holds_the_same_rows_elsewhere(storage, dtype, tmp_path) -> None:
    write_artefact(tmp_path / "original", tiny_content(storage=storage, dtype=dtype))
    write_permuted(tmp_path / "original", tmp_path / "permuted", seed=0)
    original, permuted = open_table(tmp_path / "original"), open_table(tmp_path / "permuted")
    for layer in original.config.layer_ids:
        before, after = original.rows(layer), permuted.rows(layer)
        assert not torch.equal(before.values, after.values)
        assert _sorted(before.values) == _sorted(after.values)
        if isinstance(before, SparseRows):
            assert np.array_equal(before.row_ids, after.row_ids)
        assert original.module_state(layer).keys() == permuted.module_state(layer).keys()
    assert original.content != permuted.content


def _sorted(values: torch.Tensor) -> list[list[float]]:
    return sorted(values.float().tolist())
