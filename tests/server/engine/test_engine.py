"""The engine as its caller sees it: streams, limits, deadlines, cancelling, shutting down."""

import threading
import time

import pytest
import torch
from engines import (
    Client,
    Recording,
    assert_baseline,
    generate_alone,
    make_engine,
    random_prompt,
    running,
)
from fakes.tokenizer import ByteTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from models import tiny_llama

from engram_core.errors import ConfigError
from server.engine.types import (
    EngineClosedError,
    FinishEvent,
    PromptTooLongError,
    QueueFullError,
    SubmitError,
)

PROMPTS = [random_prompt(4 + index % 9, seed=index) for index in range(16)]


def model_copy():
    return tiny_llama(vocab_size=258, pad_token_id=1, eos_token_id=0)


@pytest.fixture(scope="module")
def model():
    return model_copy()


@pytest.fixture(scope="module")
def client(model):
    with running(model) as client:
        yield client


def test_finish_event_sums_up_the_stream(client):
    stream = client.generate(PROMPTS[0], 9, ignore_eos=True)
    assert [event.index for event in stream.tokens] == list(range(1, 10))
    end = stream.end
    assert (end.finish_reason, end.seed) == ("length", None)
    assert (end.prompt_tokens, end.generated_tokens) == (len(PROMPTS[0]), 9)
    assert stream.text == end.text
    assert min(end.timings.queue_s, end.timings.prefill_s, end.timings.decode_s) >= 0
    assert end.engram == ()


def test_text_is_what_the_tokens_say(client):
    stream = client.generate(PROMPTS[1], 20, ignore_eos=True)
    assert stream.text == ByteTokenizer().decode(stream.token_ids)


@given(seed=st.integers(0, 2**63 - 1), mates=st.integers(0, 4))
@settings(max_examples=8)
def test_a_seed_gives_one_text_alone_and_in_a_batch(client, seed, mates):
    wanted = {"do_sample": True, "seed": seed, "temperature": 0.8, "top_k": 40, "ignore_eos": True}
    alone = client.generate(PROMPTS[2], 10, **wanted)
    others = [client.submit(PROMPTS[3 + index], 12) for index in range(mates)]
    again = client.generate(PROMPTS[2], 10, **wanted)
    assert alone.token_ids == again.token_ids
    assert alone.end.seed == seed
    for other in others:
        other.wait()


def test_stop_string_across_tokens_is_cut_out(client):
    whole = client.generate(PROMPTS[4], 30, ignore_eos=True)
    stop = whole.text[4:7]
    cut = whole.text.index(stop)
    stream = client.generate(PROMPTS[4], 30, ignore_eos=True, stop=(stop,))
    assert stream.end.finish_reason == "stop_sequence"
    assert stream.text == stream.end.text == whole.text[:cut]
    kept = client.generate(
        PROMPTS[4], 30, ignore_eos=True, stop=(stop,), include_stop_str_in_output=True
    )
    assert kept.text == whole.text[: cut + len(stop)]


def test_end_token_ends_without_text():
    tokenizer = ByteTokenizer(258)
    tokens = generate_alone(model_copy(), PROMPTS[5], 8)
    tokenizer.eos_token_id = tokens[3]
    with running(model_copy(), tokenizer=tokenizer) as client:
        stream = client.generate(PROMPTS[5], 8)
        first = tokens.index(tokens[3]) + 1
        assert stream.end.finish_reason == "eos_token"
        assert stream.token_ids == tokens[:first]
        assert stream.tokens[-1].token.special
        assert stream.tokens[-1].text_delta == ""
        ignored = client.generate(PROMPTS[5], 8, ignore_eos=True)
        assert (ignored.token_ids, ignored.end.finish_reason) == (tokens, "length")


def test_prompt_log_probabilities(client):
    prompt = random_prompt(40, seed=3)
    logits = model_copy().forward(torch.tensor([prompt])).logits[0]
    expected = torch.log_softmax(logits[:-1], -1).gather(1, torch.tensor(prompt[1:])[:, None])
    for new in (0, 2):
        stream = client.generate(prompt, new, prompt_logprobs=True)
        assert len(stream.tokens) == new
        assert [token.id for token in stream.end.prefill] == prompt
        assert stream.end.prefill[0].logprob is None
        found = [token.logprob for token in stream.end.prefill[1:]]
        assert found == pytest.approx(expected.flatten().tolist(), abs=1e-4)


def test_prompt_log_probabilities_are_given_once_even_after_preemption():
    recorder = Recording()
    with running(model_copy(), kv_cache_bytes=1 << 20) as client:
        expected = client.generate(PROMPTS[0], 1, prompt_logprobs=True).end.prefill
    tight = {"kv_cache_bytes": 13 * 8 * 4 * 2 * 64}
    with running(model_copy(), recorder=recorder, **tight) as client:
        streams = [
            client.submit(PROMPTS[0], 40, ignore_eos=True, prompt_logprobs=True) for _ in range(4)
        ]
        for stream in streams:
            found = stream.wait().end.prefill
            assert [token.id for token in found] == [token.id for token in expected]
            for one, other in zip(found[1:], expected[1:], strict=True):
                assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
    assert sum(step.preemptions for step in recorder.steps) > 0


def test_top_tokens_begin_with_the_greedy_choice(client):
    stream = client.generate(PROMPTS[6], 3, top_n_tokens=4)
    for event in stream.tokens:
        assert len(event.top_tokens) == 4
        assert event.top_tokens[0].id == event.token.id
        assert event.top_tokens[0].logprob == pytest.approx(event.token.logprob)


@pytest.mark.parametrize(
    ("prompt", "new", "error", "words"),
    [
        ([], 1, SubmitError, "the prompt is empty"),
        ([258], 1, SubmitError, "outside the tokenizer's 0 to 257"),
        ([-1], 1, SubmitError, "outside the tokenizer's"),
        ([5], -1, SubmitError, "max_new_tokens is -1"),
        ([5] * 100, 29, PromptTooLongError, "100 tokens and max_new_tokens is 29.*at most 128"),
    ],
)
def test_impossible_requests_are_refused_at_the_door(client, prompt, new, error, words):
    with pytest.raises(error, match=words):
        client.submit(prompt, new)


def test_an_id_in_flight_is_refused(client):
    first = client.submit(PROMPTS[0], 100, request_id="twice", ignore_eos=True)
    with pytest.raises(SubmitError, match="'twice' is in flight"):
        client.submit(PROMPTS[0], 1, request_id="twice")
    first.wait()
    client.generate(PROMPTS[0], 1, request_id="twice")


@given(data=st.data())
@settings(max_examples=6)
def test_cancel_any_of_sixteen(client, data):
    streams = [client.submit(prompt, 60, ignore_eos=True) for prompt in PROMPTS]
    victims = data.draw(st.sets(st.integers(0, 15), min_size=1))
    for _ in range(data.draw(st.integers(0, 10))):
        streams[0].next()
    for index in victims:
        client.engine.abort(streams[index].id)
    for index, stream in enumerate(streams):
        stream.wait()
        assert stream.failure in ({"cancelled", None} if index in victims else {None})
    assert client.engine._inbox.wait_until_empty(10)
    assert_baseline(client.engine)


def test_cancel_takes_effect_within_one_step(model):
    recorder = Recording()
    with running(model_copy(), recorder=recorder) as client:
        stream = client.submit(PROMPTS[0], 100, ignore_eos=True)
        stream.next()
        client.engine.abort(stream.id)
        done = len(recorder.steps)
        stream.wait()
        assert len(recorder.steps) - done <= 1
    assert stream.failure == "cancelled"
    assert recorder.requests[-1].outcome == "cancelled"


def test_full_queue_is_refused_and_everything_accepted_completes():
    with running(model_copy(), max_num_seqs=2, max_queue_len=4) as client:
        accepted, refused = [], 0
        for index in range(60):
            try:
                accepted.append(client.submit(PROMPTS[index % 16], 30, ignore_eos=True))
            except QueueFullError:
                refused += 1
            assert client.engine.status().waiting <= 4
        assert refused > 0
        assert all(isinstance(stream.wait().end, FinishEvent) for stream in accepted)


def test_queued_tokens_are_limited():
    engine = make_engine(model_copy(), max_queued_tokens=20)  # not started: all of it waits
    client = Client(engine)
    client.submit([5] * 15, 1)
    with pytest.raises(QueueFullError, match="15 tokens are waiting and this prompt has 6"):
        client.submit([5] * 6, 1)
    last = client.submit([5] * 5, 1)
    engine.stop(0)  # nobody is left without an answer
    assert last.wait().failure == "cancelled"
    assert_baseline(engine)


def test_deadlines():
    with running(model_copy(), max_num_seqs=1) as client:
        now = time.monotonic()
        first = client.submit(PROMPTS[0], 110, ignore_eos=True, deadline_s=now + 0.05)
        queued = client.submit(PROMPTS[1], 1, queue_deadline_s=now - 1)
        assert queued.wait().failure == "queue_timeout"
        assert first.wait().failure in ("deadline", None)  # a fast machine finishes in time
        late = client.generate(PROMPTS[1], 1, deadline_s=now - 1)
        assert (late.failure, late.tokens) == ("deadline", [])


def test_drain_lets_the_running_finish_and_refuses_the_new():
    engine = make_engine(model_copy())
    engine.start()
    client = Client(engine)
    stream = client.submit(PROMPTS[0], 40, ignore_eos=True)
    engine.drain()
    with pytest.raises(EngineClosedError, match="shutting down"):
        client.submit(PROMPTS[0], 1)
    engine.stop(60)
    assert isinstance(stream.wait().end, FinishEvent)
    assert not engine.status().alive
    assert_baseline(engine)


def test_stop_ends_what_takes_too_long():
    engine = make_engine(model_copy(), max_num_seqs=1)
    engine.start()
    client = Client(engine)
    streams = [client.submit(prompt, 100, ignore_eos=True) for prompt in PROMPTS]
    streams[0].next()
    engine.stop(0)
    assert {stream.wait().failure for stream in streams[1:]} == {"cancelled"}
    assert_baseline(engine)


def test_many_threads_submit_and_abort():
    with running(model_copy(), max_queue_len=200) as client:

        def work(seed):
            for index in range(5):
                stream = client.submit(
                    PROMPTS[(seed + index) % 16], 10, request_id=f"{seed}.{index}"
                )
                if index % 2:
                    client.engine.abort(stream.id)
                stream.wait()

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


def test_statistics():
    recorder = Recording()
    with running(model_copy(), recorder=recorder, max_num_batched_tokens=16) as client:
        client.generate([5] * 40, 4, ignore_eos=True)
    assert [step.prefill_tokens for step in recorder.steps] == [16, 16, 8, 0, 0, 0]
    assert [step.decode_tokens for step in recorder.steps] == [0, 0, 0, 1, 1, 1]
    (request,) = recorder.requests
    assert (request.outcome, request.failed) == ("length", False)
    assert (request.prompt_tokens, request.generated_tokens) == (40, 4)
    assert len(request.inter_token_s) == 3
    assert 0 <= request.queue_s <= request.time_to_first_token_s


def test_preemption_is_counted():
    recorder = Recording()
    # room for 12 blocks of 8 tokens: 4 layers, keys and values, 2 heads of 8 float32 numbers
    with running(model_copy(), recorder=recorder, kv_cache_bytes=13 * 8 * 4 * 2 * 64) as client:
        streams = [client.submit([5] * 6, 40, ignore_eos=True) for _ in range(4)]
        texts = {tuple(stream.wait().token_ids) for stream in streams}
    assert sum(step.preemptions for step in recorder.steps) > 0
    assert len(texts) == 1


def test_a_memory_needs_a_prefetcher(model):
    with pytest.raises(ConfigError, match="prefetcher is None"):
        make_engine(model, version=object())
