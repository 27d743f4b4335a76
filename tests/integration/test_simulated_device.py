"""The accelerator's code path end to end, on the simulated device and over real HTTP."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fakes.http import frames, serve
from model_folder import write_memory, write_model
from real_backend import TinyLoader

from benchmarks.server_process import serve as serve_process

PROMPTS = [f"Number {index} in a row of prompts: " + "more " * index for index in range(6)]
LENGTHS = [4, 17, 9, 26, 5, 12]  # they join together and leave one by one


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the model is tiny
    yield
    torch.set_num_threads(before)


def loader():
    return TinyLoader(layer_ids=(1, 2), num_hidden_layers=4, hidden_size=32, intermediate_size=64)


def simulated(**settings):
    return serve(loader(), device="simulated", max_model_len=256, **settings)


def answers(served):
    """Tokens and log-probabilities of every prompt, one after another."""
    found = []
    for prompt, length in zip(PROMPTS, LENGTHS, strict=True):
        answer = served.generate(prompt, max_new_tokens=length, details=True, ignore_eos=True)
        assert answer.status_code == 200, answer.text
        found.append([(t["id"], t["logprob"]) for t in answer.json()["details"]["tokens"]])
    return found


def token_ids(found):
    return [[token_id for token_id, _ in each] for each in found]


@pytest.fixture(scope="module")
def expected():
    with serve(loader(), device="cpu", max_model_len=256) as served:
        return token_ids(answers(served))


@pytest.mark.parametrize("graphs", ["auto", "off"])
def test_prefetch_changes_no_bit_and_the_device_no_token(expected, graphs):
    found = {}
    for mode in ("on", "off"):
        with simulated(prefetch=mode, graphs=graphs) as served:
            found[mode] = answers(served)
            info = served.client.get("/info").json()
        assert info["model_device_type"] == "simulated"
        path = "graphs: " if graphs == "auto" else "eager: "
        assert info["model"]["decode_path"].startswith(path)
        assert info["model"]["fused_layers"] == {"num_fused": 4, "total": 4, "reason": None}
    assert found["on"] == found["off"]
    assert token_ids(found["on"]) == expected


@pytest.mark.parametrize("graphs", ["auto", "off"])
def test_a_cache_on_the_device_changes_no_bit(expected, graphs):
    found = {}
    for choice in ("on", "off"):
        # no memory for all rows, so that slots change hands; every second lookup by the worker
        told = {"device_cache": choice, "device_cache_bytes": 4000, "inline_max_rows": 8}
        with simulated(engram_config=json.dumps(told), graphs=graphs) as served:
            found[choice] = answers(served)
            metrics = served.client.get("/metrics").text
            read = [line for line in metrics.splitlines() if "rows_read_total{" in line]
            assert any('tier="device"' in line for line in read) == (choice == "on")
            served.engine.check_integrity()
    assert found["on"] == found["off"]
    assert token_ids(found["on"]) == expected


def test_streams_side_by_side_get_the_tokens_they_get_alone(expected):
    with simulated(max_num_batched_tokens=32) as served:

        def stream(index):
            parameters = {"max_new_tokens": LENGTHS[index], "ignore_eos": True}
            body = {"inputs": PROMPTS[index], "parameters": parameters}
            answer = served.client.post("/generate_stream", json=body)
            return [frame["token"]["id"] for frame in frames(answer.content)]

        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            assert list(pool.map(stream, range(len(PROMPTS)))) == expected
        served.engine.check_integrity()


def test_rows_used_before_they_are_there_fail_the_request_and_are_never_answered(monkeypatch):
    """The detection that makes the equality above mean something is active."""
    with simulated() as served:
        assert served.generate("hello", max_new_tokens=2).status_code == 200
        monkeypatch.setattr(
            "engram_core.staging.RowLanding.take", lambda self, landed: landed.rows.to(self.dtype)
        )
        answer = served.generate("hello again", max_new_tokens=2)
        assert (answer.status_code, answer.json()["error_type"]) == (424, "generation")
        monkeypatch.undo()
        assert served.generate("hello", max_new_tokens=2).status_code == 200


def test_the_command_serves_on_it(tmp_path):
    model = write_model(tmp_path / "model")
    memory = write_memory(tmp_path / "memory", model)
    arguments = [str(model), "--engram", str(memory), "--max-model-len", "128"]
    with serve_process([*arguments, "--device", "simulated"]) as served:
        info = served.info()
        answers = [served.answer("hello", max_new_tokens=8, memory=m) for m in (True, False)]
    assert info["model_device_type"] == "simulated"
    assert info["model"]["decode_path"].startswith("graphs: ")
    assert answers[0] != answers[1]
