"""A live server that reads some orders answers as one whose rows of the others are empty."""

import json
import logging

import pytest
from artefacts import tiny_content
from dropped_orders import zeroed_content
from fakes.http import metric_value, serve
from model_folder import TOKENIZER, write_model
from real_backend import LoadReal
from row_processes import address, row_server
from transformers import AutoModelForCausalLM, AutoTokenizer

from engram_core.compression import TokenCompressor
from engram_core.tables import write_artefact
from engram_core.tables.backbone_record import describe_backbone

KEY = "an-admin-key-of-a-test"
PROMPTS = ["Some orders are not read, whatever they say.", "again " * 40]
SHAPES = {
    "first": {"orders": (2, 3, 4), "rows_per_head": (211,) * 3},
    "second": {"orders": (2, 4), "rows_per_head": (211,) * 2, "seed": 7},
    "lacking": {},  # orders 2 and 3
    "ruled": {"orders": (2, 3, 4), "rows_per_head": (211,) * 3, "min_hit_orders": (3,)},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model, and a shelf of memories; ``NAME-24`` has no rows of other orders than 2 and 4."""
    shelf = tmp_path_factory.mktemp("shelf")
    path = write_model(shelf / "model")
    compressor = TokenCompressor.from_tokenizer(AutoTokenizer.from_pretrained(TOKENIZER))
    backbone = describe_backbone(AutoModelForCausalLM.from_pretrained(path), "tiny")
    for name, shape in SHAPES.items():
        content = tiny_content(compressor=compressor, backbone=backbone, **shape)
        write_artefact(shelf / "memories" / name, content)
        write_artefact(shelf / "memories" / f"{name}-24", zeroed_content(content, [3]))
    return path, shelf / "memories"


def live(folders, name, settings=None, **config):
    model, shelf = folders
    told = {"model": str(model), "engram": str(shelf / name), "engram_dir": str(shelf)}
    told |= {"dtype": "float32", "admin_key": KEY, "engram_config": json.dumps(config)}
    return serve(LoadReal(), max_model_len=256, **told, **(settings or {}))


def answers(served):
    found = []
    for prompt in PROMPTS:
        body = served.generate(prompt, max_new_tokens=8, details=True, ignore_eos=True)
        assert body.status_code == 200, body.text
        found.append([(each["id"], each["logprob"]) for each in body.json()["details"]["tokens"]])
    return found


def swap(served, name):
    headers = {"authorization": f"Bearer {KEY}"}
    return served.client.post("/admin/tables", json={"name": name}, headers=headers)


@pytest.fixture(scope="module")
def expected(folders):
    found = {}
    for name in ("first", "second"):
        with live(folders, f"{name}-24") as served:
            found[name] = answers(served)
    return found


def test_answers_info_log_and_metrics(folders, expected, caplog):
    audited = {"prefetch_audit": 1.0}
    with caplog.at_level(logging.INFO), live(folders, "first", audited, orders=[2, 4]) as served:
        assert answers(served) == expected["first"]
        info = served.client.get("/info").json()["engram"]
        assert info["orders"] == [2, 3, 4]
        assert info["served_orders"] == [2, 4]
        assert "orders 2, 4: as told; rows of 3 read as zeros" in caplog.messages
        text = served.client.get("/metrics").text
        for layer in ("1", "2"):
            read = [
                metric_value(text, "engram_rows_looked_up_total", layer=layer, order=order)
                for order in ("2", "4")
            ]
            assert read[0] == read[1] > 0
        assert 'order="3"' not in text
        audit = {
            result: metric_value(text, "engram_prefetch_audit_rows_total", result=result)
            for result in ("match", "mismatch", "unread")
        }
        assert audit["match"] > 0 == audit["mismatch"] == audit["unread"]
    with live(folders, "first") as served:
        assert answers(served) != expected["first"]
        assert served.client.get("/info").json()["engram"]["served_orders"] == [2, 3, 4]


def test_a_swap_keeps_the_switch_or_is_refused(folders, expected):
    with live(folders, "first", orders=[2, 4]) as served:
        for name, why in (("lacking", "accepted: some of the memory's [2, 3]"),
                          ("ruled", "with [3] among them")):  # fmt: skip
            refused = swap(served, name)
            assert refused.status_code == 422
            assert "orders is [2, 4]; " in refused.json()["error"]
            assert why in refused.json()["error"]
        assert answers(served) == expected["first"]
        assert swap(served, "second").status_code == 200
        assert answers(served) == expected["second"]
        assert served.client.get("/info").json()["engram"]["served_orders"] == [2, 4]


def test_rows_from_row_servers(folders, expected):
    told = ["--engram", str(folders[1] / "first"), "--port", "0", "--heads"]
    with row_server(*told, "0") as (_, first), row_server(*told, "1") as (_, second):
        servers = [address(first), address(second)]
        config = {"tier": "remote", "row_servers": servers, "row_timeout_s": 20}
        with live(folders, "first", orders=[2, 4], **config) as served:
            assert answers(served) == expected["first"]
