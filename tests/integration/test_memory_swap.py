"""POST /admin/tables under load: every stream reads one memory from its first token to its last."""

import gc
import json
import shutil
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from artefacts import tiny_content
from fakes.http import metric_value, serve
from model_folder import TOKENIZER, write_memory, write_model
from real_backend import LoadReal
from transformers import AutoModelForCausalLM, AutoTokenizer

from engram_core.compression import TokenCompressor
from engram_core.tables import open_table, write_artefact
from engram_core.tables.backbone_record import describe_backbone
from engram_core.tables.convert import pack_artefact

KEY = "an-admin-key-of-a-test"
ADMIN = {"authorization": f"Bearer {KEY}"}
STREAMS, LENGTH = 100, 10


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model and a shelf with the memories ``first`` and ``second``, which differ in rows."""
    shelf = tmp_path_factory.mktemp("shelf")
    path = write_model(shelf / "model")
    write_memory(shelf / "memories" / "first", path)
    model = AutoModelForCausalLM.from_pretrained(path)
    content = tiny_content(
        compressor=TokenCompressor.from_tokenizer(AutoTokenizer.from_pretrained(TOKENIZER)),
        backbone=describe_backbone(model, "tiny"),
        seed=7,
    )
    write_artefact(shelf / "memories" / "second", content)
    return path, shelf / "memories"


def live(folders, **settings):
    model, shelf = folders
    told = {"model": str(model), "engram": str(shelf / "first"), "engram_dir": str(shelf)}
    told |= {"dtype": "float32", "admin_key": KEY, "max_num_seqs": 16, "max_queue_len": 200}
    return serve(LoadReal(), max_model_len=128, **{**told, **settings})


def prompt(index):
    return f"Stream {index} began before or after: " + "word " * (index % 7)


def answer(served, index):
    body = served.generate(prompt(index), max_new_tokens=LENGTH, details=True, ignore_eos=True)
    assert body.status_code == 200, body.text
    return body.json()["details"]["tokens"]


def same(found, expected):
    """Equal tokens; sums in batches of other sizes are rounded otherwise."""
    if [each["id"] for each in found] != [each["id"] for each in expected]:
        return False
    logprobs = [each["logprob"] for each in expected]
    return [each["logprob"] for each in found] == pytest.approx(logprobs, abs=2e-4)


def answer_later(served, index):
    time.sleep(index * 0.01)  # some begin before a swap, some after
    return answer(served, index)


def swap(served, name, **headers):
    return served.client.post("/admin/tables", json={"name": name}, headers=headers or ADMIN)


@pytest.fixture(scope="module")
def solo(folders):
    """Each stream's answer with either memory, one after another."""
    found = []
    for name in ("first", "second"):
        with live(folders, engram=str(folders[1] / name)) as served:
            found.append([answer(served, index) for index in range(STREAMS)])
    return found


def test_every_stream_reads_one_memory(folders, solo):
    with live(folders) as served:
        memory = served.client.get("/info").json()["engram"]["version"]
        with ThreadPoolExecutor(STREAMS) as pool:
            running = [pool.submit(answer_later, served, index) for index in range(STREAMS)]
            swaps = []
            for name in ("second", "first", "second"):
                time.sleep(0.3)
                swaps.append(swap(served, name).json())
            found = [each.result() for each in running]
        assert [each["artefact"] for each in swaps] == ["second", "first", "second"]
        assert swaps[0]["previous"] == memory
        read = [[same(found[i], solo[k][i]) for k in (0, 1)] for i in range(STREAMS)]
        assert all(any(each) for each in read)
        assert [True, False] in read, "no stream began before the swap"
        assert [False, True] in read, "no stream began after it"
        assert all(same(answer(served, index), solo[1][index]) for index in range(5))
        served.app.state.runtime.backend.engine.check_integrity()
        served_now = served.client.get("/info").json()["engram"]
        assert (served_now["artefact"], served_now["version"]) == ("second", swaps[2]["memory"])
        metrics = served.client.get("/metrics").text
        names = [line for line in metrics.splitlines() if "memory_version_info{" in line]
        assert names == [f'engram_memory_version_info{{version="{swaps[2]["memory"]}"}} 1.0']


def test_caches_on_the_device_go_with_their_memory(folders, solo):
    told = json.dumps({"device_cache": "on"})
    with live(folders, device="simulated", engram_config=told) as served:
        backend = served.app.state.runtime.backend
        info = served.client.get("/info").json()["engram"]
        assert "device cache on: as told" in info["why_tiers"]
        assert {each["tier"] for each in info["tiers"].values()} == {"device"}
        before = backend.swap._version
        caches = list(before.tiers.values())
        for name, k in (("second", 1), ("first", 0)):
            assert swap(served, name).status_code == 200
            assert same(answer(served, 3), solo[k][3])
        assert before.references == 0
        assert [cache.nbytes for cache in caches] == [0, 0]
        now = backend.swap._version
        caches = list(now.tiers.values())
        assert all(cache.nbytes > 0 for cache in caches)
    assert (now.references, sum(cache.nbytes for cache in caches)) == (0, 0)


def test_the_tables_of_a_replaced_memory_are_let_go_of(folders):
    with live(folders) as served:
        backend = served.app.state.runtime.backend
        tables = [weakref.ref(tier) for tier in backend.swap._version.tiers.values()]
        answer(served, 0)
        assert swap(served, "second").status_code == 200
        answer(served, 0)  # the step of the old memory's last sequence is over
        gc.collect()
        assert [table() for table in tables] == [None, None]


@pytest.fixture(scope="module")
def packed(folders):
    """The same two memories as packed tables, for tiers that only those have."""
    shelf = folders[1].parent / "packed"
    for name in ("first", "second"):
        pack_artefact(open_table(folders[1] / name), shelf / name, "bfloat16")
    return folders[0], shelf


def counted(served):
    text = served.client.get("/metrics").text
    return text, [
        sum(
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith(f"engram_hot_cache_{name}_total{{")
        )
        for name in ("hits", "misses", "admissions")
    ]


def test_what_the_tiers_count_stays_in_the_sums_and_every_row_is_right(packed, solo):
    told = {"engram_config": json.dumps({"tier": "ssd", "hot_cache": "on"})}
    with live(packed, engram=str(packed[1] / "first"), prefetch_audit=1.0, **told) as served:
        info = served.client.get("/info").json()["engram"]
        assert info["prefetch"]["audit"] == 1.0
        assert list(info["tiers"]["1"]["bytes_by_tier"]) == ["hot", "ssd"]
        before = [0, 0, 0]
        for name in ("second", "first", "second"):
            for index in range(3):
                answer(served, index)
            assert swap(served, name).status_code == 200
            text, now = counted(served)
            assert all(ours >= theirs for ours, theirs in zip(now, before, strict=True))
            assert sum(now) > sum(before)
            before = now
        for layer in ("1", "2"):
            hot, ssd = (
                metric_value(text, "engram_table_resident_bytes", layer=layer, tier=tier)
                for tier in ("hot", "ssd")
            )
            assert metric_value(text, "engram_hot_cache_bytes", layer=layer, tier="hot") == hot
            assert metric_value(text, "engram_table_bytes", layer=layer) == ssd
            info = metric_value(text, "engram_memory_tier_info", layer=layer, tier="ssd")
            assert info == 1
        rows = {
            result: metric_value(text, "engram_prefetch_audit_rows_total", result=result)
            for result in ("match", "mismatch", "unread")
        }
        assert rows["match"] > 0
        assert rows["mismatch"] == rows["unread"] == 0


def test_a_prefix_is_not_shared_by_two_memories(folders, solo):
    with live(folders) as served:
        for name, k in (("first", 0), ("second", 1), ("first", 0)):
            assert swap(served, name).status_code == 200
            assert same(answer(served, 3), solo[k][3])
            assert not same(answer(served, 3), solo[1 - k][3])


@pytest.mark.parametrize(
    ("name", "text"),
    [("third", "no Engram artefact 'third'; accepted: first, second"), ("../first", "accepted:"),
     ("damaged", "sha256"), ("other-layers", "layers"), ("other-model", "backbone")],
)  # fmt: skip
def test_what_cannot_be_served_leaves_the_old_memory(folders, solo, tmp_path, name, text):
    model, memories = folders
    shelf = shutil.copytree(memories, tmp_path / "memories")
    _add_broken(shelf, name, model)
    with live((model, shelf)) as served:
        refused = swap(served, name)
        assert refused.status_code == 422
        assert text in refused.json()["error"]
        assert str(tmp_path) not in refused.text
        assert same(answer(served, 0), solo[0][0])
        assert swap(served, "second").status_code == 200


def _add_broken(shelf, name, model):
    if name == "damaged":
        folder = shutil.copytree(shelf / "second", shelf / name)
        path = folder / "table-layer1.safetensors"
        data = bytearray(path.read_bytes())
        data[-9] ^= 255
        path.write_bytes(data)
    if name.startswith("other"):
        loaded = AutoModelForCausalLM.from_pretrained(model)
        record = describe_backbone(loaded, "tiny")
        change = {"layer_ids": (0, 2)} if name == "other-layers" else {}
        if name == "other-model":
            record = type(record)("another", "0" * 64, record.hidden_size, record.num_layers)
        compressor = TokenCompressor.from_tokenizer(AutoTokenizer.from_pretrained(TOKENIZER))
        write_artefact(shelf / name, tiny_content(compressor=compressor, backbone=record, **change))


def test_only_the_admin_key_opens_it(folders):
    with live(folders, api_key="a-callers-key") as served:
        for headers in ({}, {"authorization": "Bearer a-callers-key"}):
            refused = served.client.post("/admin/tables", json={"name": "second"}, headers=headers)
            assert refused.status_code == 401
        assert served.client.get("/info", headers=ADMIN).status_code == 401
        assert swap(served, "second").status_code == 200
        bad = served.client.post("/admin/tables", json={"name": 3}, headers=ADMIN)
        assert (bad.status_code, '{"name": "..."}' in bad.json()["error"]) == (422, True)
    with live(folders, admin_key=None) as served:
        assert swap(served, "second").status_code == 404


def test_without_a_memory_there_is_nothing_to_swap(folders):
    with live(folders, engram="none") as served:
        refused = swap(served, "second")
        assert (refused.status_code, "no memory" in refused.json()["error"]) == (409, True)


def test_one_swap_at_a_time(folders):
    with live(folders) as served:
        backend = served.app.state.runtime.backend
        codes = []
        held = backend.swap._lock
        with held:
            thread = threading.Thread(target=lambda: codes.append(swap(served, "second")))
            thread.start()
            thread.join()
        assert codes[0].status_code == 409
        assert json.loads(codes[0].text)["error"].endswith("accepted: one at a time")
