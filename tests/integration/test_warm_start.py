"""Servers as processes, one after another: the next one starts with the rows that were hot."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from fakes.http import metric_value, serve, wait_until
from model_folder import write_memory, write_model
from real_backend import LoadReal

from engram_core.tables import open_table
from engram_core.tables.convert import pack_artefact

ROOT = Path(__file__).parents[2]
PROMPTS = [
    f"The rows of prompt {index} are asked for again, " + "again " * index for index in (1, 2)
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model, and packed memories of it."""
    shelf = tmp_path_factory.mktemp("shelf")
    model = write_model(shelf / "model")
    source = open_table(write_memory(shelf / "source", model))
    for name, dtype in (("first", "int8"), ("second", "bfloat16")):
        pack_artefact(source, shelf / "memories" / name, dtype)
    return model, shelf / "memories"


def told(lists, **config):
    config = {"tier": "ssd", "hot_cache": "on", "hot_cache_bytes": 60_000, **config}
    return json.dumps({**config, "hot_list_dir": str(lists)})


@contextmanager
def server(folders, lists):
    """A ready server, its client and its log."""
    model, memories = folders
    command = [
        sys.executable, "-W", "error", "-m", "server.cli", "serve", "--port", "0",
        str(model), "--engram", str(memories / "first"), "--dtype", "float32",
        "--max-model-len", "128", "--engram-config", told(lists),
    ]  # fmt: skip
    env = {k: v for k, v in os.environ.items() if not k.startswith("ENGRAM_SERVER_ENGRAM")}
    child = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(child.stderr), daemon=True)
    reader.start()
    try:
        wait_until(lambda: child.poll() is not None or " ready" in "".join(lines), 120, "ready")
        port = re.search(r"http://127\.0\.0\.1:(\d+)", "".join(lines))[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield child, client, lines
    finally:
        child.kill()
        child.wait()
        reader.join()
        child.stderr.close()


def ask(client, prompt):
    parameters = {"max_new_tokens": 4, "details": True, "ignore_eos": True}
    answer = client.post("/generate", json={"inputs": prompt, "parameters": parameters})
    assert answer.status_code == 200, answer.text
    return [each["id"] for each in answer.json()["details"]["tokens"]]


def hit_rate(client):
    text, rows = client.get("/metrics").text, {}
    for tier in ("hot", "ssd"):
        is_there = f'rows_read_total{{tier="{tier}"}}' in text
        rows[tier] = metric_value(text, "engram_rows_read_total", tier=tier) if is_there else 0
    return rows["hot"] / (rows["hot"] + rows["ssd"])


def terminate(child):
    child.send_signal(signal.SIGTERM)
    assert child.wait(30) == 0


def test_the_same_prompts_hit_from_the_first_request_on(folders, tmp_path):
    lists = tmp_path / "new" / "lists"
    with server(folders, lists) as (child, client, lines):
        answers = [ask(client, PROMPTS[0])]
        without = hit_rate(client)
        answers.append(ask(client, PROMPTS[1]))
        terminate(child)
        wait_until(lambda: "hot rows saved" in "".join(lines), 10, "saved")
    assert "no hot list yet" in "".join(lines)
    assert len(list(lists.iterdir())) == 2
    with server(folders, lists) as (_, client, lines):
        assert "hot rows warmed rows=" in "".join(lines)
        assert "loading: hot rows" in "".join(lines)
        ask(client, PROMPTS[0])
        warm = hit_rate(client)
        assert [ask(client, prompt) for prompt in PROMPTS] == answers
    assert warm > without
    assert warm == 1.0


@pytest.mark.slow
def test_a_killed_server_leaves_the_list_and_a_damaged_one_is_replaced(folders, tmp_path):
    with server(folders, tmp_path) as (child, client, _):
        ask(client, PROMPTS[0])
        terminate(child)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with server(folders, tmp_path) as (child, client, _):
        ask(client, PROMPTS[1])
        child.kill()
        child.wait()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    damaged = min(before)
    (tmp_path / damaged).write_bytes(before[damaged][:50])
    with server(folders, tmp_path) as (child, client, lines):
        assert f"hot list ignored: {damaged} is no readable list of hot rows" in "".join(lines)
        ask(client, PROMPTS[0])
        terminate(child)
    after = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert after == {name: len(blob) for name, blob in before.items()}


def test_a_swap_saves_what_it_replaces_and_warms_what_it_serves(folders, tmp_path):
    model, memories = folders
    settings = {"model": str(model), "engram": str(memories / "first"), "dtype": "float32"}
    settings |= {"engram_dir": str(memories), "admin_key": "an-admin-key-of-tests"}
    headers = {"authorization": "Bearer an-admin-key-of-tests"}
    with serve(LoadReal(), engram_config=told(tmp_path), **settings) as served:
        engram = served.client.get("/info").json()["engram"]
        assert re.search(
            r"random rows took .* rows/s.*; hot cache on: as told", engram["why_tiers"]
        )
        if engram["prefetch"]["path"] == "async":
            assert "every decode step is handed over" in engram["prefetch"]["why"]
        ask(served.client, PROMPTS[0])
        for name in ("second", "first"):
            before = served.client.get("/info").json()["engram"]["version"]
            answer = served.client.post("/admin/tables", json={"name": name}, headers=headers)
            assert answer.status_code == 200, answer.text
            kept = {path.name for path in tmp_path.iterdir()}
            read = served.metric("engram_rows_read_total", tier="ssd")
            ask(served.client, PROMPTS[0])
            missed = served.metric("engram_rows_read_total", tier="ssd") - read
            assert {f"{before}-layer{layer}.safetensors" for layer in (1, 2)} <= kept
            assert (missed == 0) == (name == "first")
    assert len(list(tmp_path.iterdir())) == 4
