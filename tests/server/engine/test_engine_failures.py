"""What breaks one request breaks that one only; what breaks the engine is said to everybody."""

import pytest
import torch
from engines import Client, assert_baseline, make_engine, random_prompt, running
from models import tiny_llama

from server.engine.types import EngineClosedError

NAN_TOKEN, RAISING_TOKEN = 77, 88
PROMPTS = [
    [token for token in random_prompt(6 + index, seed=index) if token not in (77, 88)]
    for index in range(6)
]


@pytest.fixture
def model():
    return tiny_llama(pad_token_id=1, eos_token_id=0)


def break_model(model):
    """From now on one token gives NaN in every layer, another one makes the forward raise."""
    embedding = model.get_input_embeddings()
    with torch.no_grad():
        embedding.weight[NAN_TOKEN] = float("nan")

    def raise_on_token(module, args):
        if bool((args[0] == RAISING_TOKEN).any()):
            raise RuntimeError("a broken token")

    embedding.register_forward_pre_hook(raise_on_token)


@pytest.fixture
def expected(model):
    with running(tiny_llama(pad_token_id=1, eos_token_id=0)) as client:
        return [client.generate(prompt, 10, ignore_eos=True).token_ids for prompt in PROMPTS]


@pytest.mark.parametrize("bad_token", [NAN_TOKEN, RAISING_TOKEN])
@pytest.mark.parametrize("budget", [512, 16])
def test_one_bad_request_fails_alone(model, expected, bad_token, budget, caplog):
    with running(model, max_num_batched_tokens=budget) as client:
        break_model(model)
        streams = [client.submit(prompt, 10, ignore_eos=True) for prompt in PROMPTS[:3]]
        bad = [client.submit([*PROMPTS[3], bad_token, 5], 10) for _ in range(2)]
        streams += [client.submit(prompt, 10, ignore_eos=True) for prompt in PROMPTS[3:]]
        assert [stream.wait().token_ids for stream in streams] == expected
        assert [stream.wait().failure for stream in bad] == ["generation"] * 2
        assert "token" not in bad[0].end.message
        assert client.engine.status().alive


def test_what_a_nan_left_in_the_cache_reaches_nobody(model, expected):
    # one sequence at a time in a small cache: the next one gets the same blocks
    with running(model, max_num_seqs=1, kv_cache_bytes=9 * 8 * 4 * 2 * 64) as client:
        break_model(model)
        for prompt, tokens in zip(PROMPTS, expected, strict=True):
            assert client.generate([NAN_TOKEN] * 40, 4).failure == "generation"
            assert client.generate(prompt, 10, ignore_eos=True).token_ids == tokens


def test_a_nan_that_comes_later_fails_its_request_then(model):
    with running(model) as client:
        whole = client.generate(PROMPTS[0], 10, ignore_eos=True).token_ids
        with torch.no_grad():
            model.get_input_embeddings().weight[whole[4]] = float("nan")
        stream = client.generate(PROMPTS[0], 10, ignore_eos=True)
        cut = whole.index(whole[4]) + 1
        assert stream.token_ids == whole[:cut]
        assert stream.failure == "generation"


def test_a_sink_that_raises_ends_its_own_request(model, expected, caplog):
    with running(model) as client:
        stream = client.submit(PROMPTS[0], 10, ignore_eos=True)
        request = client.submit(PROMPTS[1], 10, ignore_eos=True)
        from server.engine.types import Request, SamplingParams

        def sink(event):
            raise OSError("nobody listens")

        client.engine.submit(Request("deaf", (5, 6), SamplingParams()), sink)
        assert stream.wait().token_ids == expected[0]
        assert request.wait().token_ids == expected[1]


def test_sampling_that_raises_ends_its_own_request(model, expected, caplog):
    with running(model) as client:
        good = client.submit(PROMPTS[0], 10, ignore_eos=True)
        # a seed that the generator refuses; the door of the server would not let it through
        bad = client.submit(PROMPTS[1], 10, do_sample=True, seed=-1)
        assert good.wait().token_ids == expected[0]
        assert bad.wait().failure == "generation"


def test_a_passing_failure_costs_nobody_anything(model, expected, caplog):
    with running(model) as client:
        calls = []

        def raise_once(module, args):
            calls.append(1)
            if len(calls) == 4:
                raise RuntimeError("a hiccup")

        model.get_input_embeddings().register_forward_pre_hook(raise_once)
        streams = [client.submit(prompt, 10, ignore_eos=True) for prompt in PROMPTS]
        assert [stream.wait().token_ids for stream in streams] == expected


def test_the_second_failed_step_is_the_end(model, caplog):
    engine = make_engine(model, max_num_seqs=2)
    engine.start()
    client = Client(engine)
    model.get_input_embeddings().register_forward_pre_hook(_raise)
    streams = [client.submit(prompt, 10) for prompt in PROMPTS]
    failures = [stream.wait().failure for stream in streams]
    assert set(failures) == {"generation", "engine_dead"}
    assert_dead(engine, client)


def test_the_death_of_the_thread_is_told_to_everybody(model, caplog):
    engine = make_engine(model, max_num_seqs=2)
    engine.start()
    client = Client(engine)
    streams = [client.submit(prompt, 100, ignore_eos=True) for prompt in PROMPTS]
    streams[0].next()

    def broken():
        raise SystemExit

    engine._scheduler.schedule = broken
    assert {stream.wait().failure for stream in streams} == {"engine_dead"}
    assert_dead(engine, client)


def _raise(module, args):
    raise RuntimeError("the device is gone")


def assert_dead(engine, client):
    engine._thread.join(10)
    status = engine.status()
    assert not status.alive
    assert "stopped working" in status.failure
    with pytest.raises(EngineClosedError, match="stopped working"):
        client.submit(PROMPTS[0], 1)
    assert_baseline(engine)
    engine.stop(0)
