"""open_foreign() knows formats by their tensors and refuses everything else in one sentence."""

import json

import pytest
import torch
from artefacts import tiny_content
from golden_cases import DEMO, Case
from imports import write_demo
from safetensors.torch import save_file

from engram_core.errors import ArtefactError
from engram_core.tables import open_foreign, write_artefact

ACCEPTED = "accepted: safetensors of the January 2026 demo's modules, a DeepSeek-V4.1 checkpoint, "


def refused(path, message):
    with pytest.raises(ArtefactError) as caught:
        open_foreign(path)
    text = str(caught.value)
    assert message in text
    assert str(path.parent) not in text
    return text


def test_what_is_no_memory_is_refused(tmp_path):
    assert ACCEPTED in refused(tmp_path, "holds no safetensors")
    save_file({"model.embed_tokens.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    assert ACCEPTED in refused(tmp_path, "holds no Engram memory that is known here")
    refused(tmp_path / "model.safetensors", "holds no Engram memory")
    refused(tmp_path / "absent", "absent cannot be read")


def test_pickled_files_are_never_read(tmp_path):
    for name in ("engram_weights.pt", "pytorch_model.bin"):
        (tmp_path / name).write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
        assert ACCEPTED in refused(tmp_path / name, "is a pickled file")
    refused(tmp_path, "holds only engram_weights.pt, which is never unpickled")


def test_a_native_artefact_needs_no_import(tmp_path):
    write_artefact(tmp_path / "native", tiny_content())
    assert ACCEPTED in refused(tmp_path / "native", "is a native artefact")


def test_two_formats_in_one_folder_are_refused(tmp_path):
    write_demo(tmp_path / "both", Case(DEMO / "m_tinyb_n3_h2_hc4"))
    save_file({"0.gating.w_v.weight": torch.zeros(2, 2)}, tmp_path / "both" / "z.safetensors")
    assert ACCEPTED in refused(tmp_path / "both", "several formats: demo, engram_peft")


def test_an_adapter_is_one_file(tmp_path):
    for name in ("a", "b"):
        save_file({f"{name}.gating.w_v.weight": torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, "holds 2 safetensors files; accepted: engram_adapters.safetensors alone")


@pytest.mark.parametrize("text", ["[]", "{", "\ud800", '"a"'])
def test_a_configuration_that_is_no_object_is_refused(tmp_path, text):
    save_file({"0.gating.w_v.weight": torch.zeros(1)}, tmp_path / "a.safetensors")
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    refused(tmp_path, "config.json ")


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"a": 3}}])
def test_an_index_that_is_not_one_is_refused(tmp_path, index):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(tmp_path, "weight_map; accepted: plain file names")
