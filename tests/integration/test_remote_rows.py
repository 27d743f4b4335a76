"""A live server whose rows lie with two row servers, one of which dies and comes back."""

import json
import shutil
import time

import pytest
from fakes.http import serve
from model_folder import write_memory, write_model
from real_backend import LoadReal
from row_processes import address, row_server

PROMPTS = [f"Rows of prompt {index} come from elsewhere, " + "again " * index for index in range(4)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    shelf = tmp_path_factory.mktemp("shelf")
    model = write_model(shelf / "model")
    return model, write_memory(shelf / "memory", model)


def live(folders, **settings):
    model, memory = folders
    told = {"model": str(model), "engram": str(memory), "dtype": "float32"}
    return serve(LoadReal(), max_model_len=256, **told, **settings)


def remote(addresses, **told):
    config = {"tier": "remote", "row_servers": addresses, "row_timeout_s": 2, "row_retries": 0}
    return {"engram_config": json.dumps({**config, **told})}


def ask(served, prompt):
    return served.generate(prompt, max_new_tokens=8, details=True, ignore_eos=True)


def tokens(answer):
    assert answer.status_code == 200, answer.text
    return [(each["id"], each["logprob"]) for each in answer.json()["details"]["tokens"]]


@pytest.fixture(scope="module")
def expected(folders):
    with live(folders) as served:
        return [tokens(ask(served, prompt)) for prompt in PROMPTS]


def heads(folders, number, port="0"):
    return row_server("--engram", str(folders[1]), "--heads", str(number), "--port", port)


def recovers(served, expected):
    """The breaker lets a probe through after its pause."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        answer = ask(served, "A prompt that no cache knows, number " + str(time.monotonic_ns()))
        if answer.status_code == 200:
            return [tokens(ask(served, prompt)) for prompt in PROMPTS] == expected
        time.sleep(0.2)
    return False


def assert_counted(served, server, *, is_down):
    """A server that is down has failed and is left alone; the others are not blamed for it."""
    assert served.metric("engram_row_server_breaker_open", server=server) == is_down
    attempts, failures = (
        served.metric(f"engram_row_server_{name}_total", server=server)
        for name in ("attempts", "failures")
    )
    assert attempts > failures
    assert failures >= 5 * is_down


def test_a_request_without_its_rows_fails_and_the_next_ones_recover(folders, expected):
    with heads(folders, 0) as (_, first), heads(folders, 1) as (second, line):
        port = address(line).rpartition(":")[2]
        told = remote([address(first), address(line)], hot_cache="off")
        with live(folders, prefix_cache="off", **told) as served:
            assert [tokens(ask(served, prompt)) for prompt in PROMPTS] == expected
            assert 'rows_read_total{tier="remote"}' in served.client.get("/metrics").text
            second.kill()
            second.wait()
            answers = [ask(served, prompt) for prompt in PROMPTS]
            assert all(answer.status_code >= 400 for answer in answers)
            assert all("rows could not be read" in answer.json()["error"] for answer in answers)
            assert_counted(served, address(first), is_down=False)
            ask(served, "One more in vain, and the fifth in a row opens the breaker")
            assert_counted(served, address(line), is_down=True)
            with heads(folders, 1, port):
                assert recovers(served, expected)
                assert_counted(served, address(line), is_down=False)


def test_or_is_answered_without_the_memory_and_counted(folders, expected):
    with heads(folders, 0) as (_, first), heads(folders, 1) as (second, line):
        told = remote([address(first), address(line)], on_row_failure="off", hot_cache="off")
        with live(folders, prefix_cache="off", **told) as served:
            assert [tokens(ask(served, prompt)) for prompt in PROMPTS] == expected
            second.kill()
            second.wait()
            without = [tokens(ask(served, prompt)) for prompt in PROMPTS]
            assert without != expected
            assert 'rows_read_total{tier="zero"}' in served.client.get("/metrics").text
            off = {"engram": {"enabled": False}}
            body = {"inputs": PROMPTS[0], "parameters": {"max_new_tokens": 8, "details": True}}
            assert served.client.post("/generate", json={**body, **off}).status_code == 200


def test_the_local_tables_are_not_needed(folders, expected, tmp_path):
    model, memory = folders
    slim = shutil.copytree(memory, tmp_path / "slim", ignore=shutil.ignore_patterns("table-*"))
    with heads(folders, 0) as (_, first), heads(folders, 1) as (_, second):
        told = remote([address(first), address(second)])
        with live((model, slim), **told) as served:
            assert [tokens(ask(served, prompt)) for prompt in PROMPTS] == expected
