"""From an artefact to a memory that serves."""

import hashlib
import json

import numpy as np
import pytest
import torch
from artefacts import tiny_compressor, tiny_content
from safetensors.torch import load_file, save_file

from engram_core.assembly import open_version
from engram_core.errors import MismatchError
from engram_core.store.host import HostTier
from engram_core.store.sparse import SparseTier
from engram_core.tables import open_table, write_artefact


@pytest.mark.parametrize(
    ("storage", "dtype", "tier"),
    [("sparse", "int4", SparseTier), ("dense", "float32", HostTier)],
)
def test_version_holds_the_artefacts_rows_and_weights(tmp_path, storage, dtype, tier) -> None:
    write_artefact(tmp_path / "a", tiny_content(storage=storage, dtype=dtype))
    artefact = open_table(tmp_path / "a")
    version = open_version(artefact, tiny_compressor())
    assert version.layer_ids == (1, 2)
    for layer in version.layer_ids:
        assert isinstance(version.tiers[layer], tier)
        assert torch.equal(
            version.modules[layer].kv_weight, artefact.module_state(layer)["kv_weight"]
        )
        rows = artefact.rows(layer)
        ids = getattr(rows, "row_ids", np.arange(rows.num_rows))
        out = torch.empty(len(ids), rows.row_dim, dtype=torch.bfloat16)
        version.tiers[layer].gather(ids, out)
        assert torch.equal(out, rows.values.bfloat16())


def test_the_id_depends_on_the_content(tmp_path) -> None:
    write_artefact(tmp_path / "a", tiny_content(dtype="int4"))
    write_artefact(tmp_path / "b", tiny_content(dtype="bfloat16"))
    ids = {open_version(open_table(tmp_path / n), tiny_compressor()).id for n in ("a", "b")}
    assert len(ids) == 2


def test_last_release_is_passed_on(tmp_path) -> None:
    write_artefact(tmp_path / "a", tiny_content())
    released = []
    version = open_version(
        open_table(tmp_path / "a"), tiny_compressor(), on_last_release=lambda: released.append(1)
    )
    version.release()
    assert released == [1]


def test_another_tokenizer_is_refused(tmp_path) -> None:
    write_artefact(tmp_path / "a", tiny_content())
    with pytest.raises(MismatchError, match="token classes"):
        open_version(open_table(tmp_path / "a"), tiny_compressor(num_classes=50))


def test_weights_of_another_shape_are_refused(tmp_path) -> None:
    folder = tmp_path / "a"
    write_artefact(folder, tiny_content())
    name = "module.safetensors"
    weights = load_file(folder / name)
    save_file({**weights, "layers.1.kv_weight": torch.zeros(3, 3)}, folder / name)
    blob = (folder / name).read_bytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(MismatchError, match=r"module\.safetensors: weights of layer 1.*\(3, 3\)"):
        open_version(open_table(folder), tiny_compressor())
