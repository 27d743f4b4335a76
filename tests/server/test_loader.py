"""Loading: everything that fits is loaded, everything else is refused in one clear sentence."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from artefacts import tiny_content
from models import tiny_llama
from retrofit_cases import tiny_tokenizer

from engram_core.backbone import backbone_fingerprint
from engram_core.compression import TokenCompressor
from engram_core.errors import MismatchError
from engram_core.splice import attach
from engram_core.tables import write_artefact
from engram_core.tables.manifest import BackboneRecord
from server import loader
from server.load_errors import LoadError
from server.loader import load


@dataclass(frozen=True)
class Settings:
    model: str | None
    engram_dir: Path | None = None
    engram: str = "auto"
    dtype: str = "auto"
    revision: str | None = None


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("ENGRAM_SERVER_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def folder(tmp_path):
    """A model folder in Hugging Face format."""
    path = tmp_path / "models" / "tiny"
    tiny_llama(vocab_size=904).bfloat16().save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def shelf(folder, tmp_path):
    """A folder with one artefact, made for that model."""
    model = load(Settings(str(folder), engram="none")).model
    backbone = BackboneRecord("tiny", backbone_fingerprint(model), 32, 4)
    compressor = TokenCompressor.from_tokenizer(tiny_tokenizer())
    path = tmp_path / "shelf"
    write_artefact(path / "facts", tiny_content(backbone=backbone, compressor=compressor))
    return path


def edit_json(path, **change) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


def refused(settings, *texts) -> None:
    with pytest.raises(LoadError) as caught:
        load(settings)
    for text in texts:
        assert text in str(caught.value)
    assert "/" not in str(caught.value).replace(settings.model, "").replace("owner/name", "")


def test_loads_model_tokenizer_and_the_matching_memory(folder, shelf) -> None:
    phases = []
    loaded = load(Settings(str(folder), shelf), lambda *each: phases.append(each))
    assert loaded.name == "tiny"
    assert loaded.model.dtype == torch.bfloat16
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert loaded.tokenizer.is_fast
    assert loaded.artefact.name == "facts"
    assert loaded.version.layer_ids == (1, 2)
    assert loaded.version.references == 1
    assert list(loaded.timings) == ["source", "tokenizer", "weights", "memory"]
    assert phases[0] == ("source", 0.0)
    assert phases[-1] == ("memory", 1.0)
    ids = torch.arange(20)[None]
    plain = loaded.model(ids).logits
    with attach(loaded.model, loaded.version):
        assert not torch.equal(loaded.model(ids).logits, plain)


def test_without_a_memory(folder) -> None:
    loaded = load(Settings(str(folder), engram="none", dtype="float32"))
    assert loaded.version is None
    assert loaded.artefact is None
    assert loaded.model.dtype == torch.float32


def test_no_memory_for_this_model(folder) -> None:
    refused(Settings(str(folder)), "--engram none")


def test_a_named_memory_of_another_backbone(folder, shelf, tmp_path) -> None:
    other = tmp_path / "models" / "other"
    tiny_llama(vocab_size=904, initializer_range=0.2).save_pretrained(other)
    tiny_tokenizer().save_pretrained(other)
    with pytest.raises(MismatchError, match="facts: backbone fingerprint"):
        load(Settings(str(other), shelf, engram="facts"))


def test_a_memory_of_another_tokenizer(folder, shelf) -> None:
    file = folder / "tokenizer.json"
    data = json.loads(file.read_text())
    vocab = data["model"]["vocab"]
    first, second = [token for token in vocab if token.isascii() and len(token) == 1][:2]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    file.write_text(json.dumps(data))
    with pytest.raises(MismatchError, match="facts: tokenizer fingerprint"):
        load(Settings(str(folder), shelf))


@pytest.mark.parametrize("model", ["/no/such/folder", "./folder", "~/folder", "a/b/folder"])
def test_a_missing_folder_is_named_without_its_path(model) -> None:
    refused(Settings(model), "'folder' does not exist")


def test_an_unreachable_hub_id(monkeypatch) -> None:
    refused(Settings("nobody/nothing"), "'nobody/nothing'", "hub")


def test_remote_code_is_refused(folder) -> None:
    edit_json(folder / "config.json", auto_map={"AutoModel": "evil.Model"})
    refused(Settings(str(folder)), "auto_map", "'tiny'")


def test_remote_tokenizer_code_is_refused(folder) -> None:
    edit_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Slow", None]})
    refused(Settings(str(folder)), "auto_map", "'tiny'")


def test_pickled_weights_are_refused(folder) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(Settings(str(folder)), "safetensors", "pickled")


def test_damaged_weights(folder) -> None:
    (folder / "model.safetensors").write_bytes(b"\x08")
    refused(Settings(str(folder)), "weights of the model 'tiny' cannot be loaded")


def test_missing_tokenizer(folder) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    refused(Settings(str(folder)), "tokenizer", "'tiny'")


def test_a_folder_without_configuration(tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    refused(Settings(str(tmp_path / "empty")), "'empty' has no configuration")


def test_an_unknown_dtype(folder) -> None:
    refused(Settings(str(folder), dtype="int1"), "int1", "bfloat16")


def test_no_name_means_the_default_model(folder, monkeypatch) -> None:
    monkeypatch.setattr(loader, "resolve_default_model", lambda _cache, _progress: folder)
    loaded = load(Settings(None, engram="none"))
    assert loaded.name == "SmolLM2-135M-Instruct"
