"""Many streams at once over real HTTP and the real engine: each gets the text it gets alone."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from fakes.http import frames, serve, wait_until
from real_backend import TinyLoader

COUNT = 16


@pytest.fixture(scope="module")
def served():
    with serve(TinyLoader(), max_num_batched_tokens=64, max_model_len=512) as served:
        yield served


def body(index):
    prompt = f"Story number {index}: " + "and then " * (index % 7)
    return {
        "inputs": prompt,
        "parameters": {"max_new_tokens": 5 + 3 * index, "ignore_eos": True},
    }


def stream(served, index):
    answer = httpx.post(f"{served.url}/generate_stream", json=body(index), timeout=120)
    assert answer.status_code == 200
    received = frames(answer.content)
    ids = [frame["token"]["id"] for frame in received]
    return ids, received[-1]["generated_text"]


def assert_baseline(served):
    def at_rest():
        status = served.engine.status()
        return (
            status.running + status.waiting + status.kv_blocks_used + status.open_tickets == 0
            and served.runtime.admission.in_use == 0
        )

    wait_until(at_rest, what="blocks, tickets and slots given back")
    served.engine.check_integrity()


def test_each_stream_gets_the_text_it_gets_alone(served):
    alone = [stream(served, index) for index in range(COUNT)]
    with ThreadPoolExecutor(COUNT) as pool:
        together = list(pool.map(lambda index: stream(served, index), range(COUNT)))
    assert together == alone
    assert [len(ids) for ids, _ in together] == [5 + 3 * index for index in range(COUNT)]
    assert_baseline(served)


@pytest.mark.parametrize("victims", [{0}, {7, 8, 15}, set(range(COUNT))])
def test_cancelled_streams_leave_nothing_behind(served, victims):
    expected = {index: stream(served, index) for index in range(0, COUNT, 5)}

    def run(index):
        if index not in victims:
            return stream(served, index)
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream(
                "POST", f"{served.url}/generate_stream", json=body(index), timeout=120
            ) as answer,
        ):
            next(answer.iter_bytes())  # the first token, then hang up
        return None

    with ThreadPoolExecutor(COUNT) as pool:
        results = list(pool.map(run, range(COUNT)))
    for index, answer in expected.items():
        assert results[index] in (answer, None)
        assert (results[index] is None) == (index in victims)
    assert_baseline(served)
