"""The native routes: shapes, parameters, and the real client on top of them."""

import json

import pytest
from fakes.engine import Script
from fakes.http import frames, serve
from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError as ClientValidationError

from server.wire.schemas import DEFAULT_MAX_NEW_TOKENS


def error_of(answer, status=422, kind="validation"):
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"error", "error_type"}
    assert body["error_type"] == kind
    return body["error"]


def sampling(served):
    return served.engine.submitted[-1].sampling


def test_answer_without_details(served):
    answer = served.generate(max_new_tokens=3)
    assert answer.status_code == 200
    assert answer.json() == {"generated_text": " w1 w2 w3"}


def test_answer_with_all_details(served):
    answer = served.generate(
        "hello", max_new_tokens=2, details=True, decoder_input_details=True, top_n_tokens=2, seed=7
    )
    details = answer.json()["details"]
    token = {"id": 1001, "text": " w1", "logprob": -0.5, "special": False}
    assert details["tokens"][0] == token
    assert details["finish_reason"] == "length"
    assert details["generated_tokens"] == 2
    assert details["prefill"][0]["logprob"] is None
    assert all(set(t) == {"id", "text", "logprob"} for t in details["prefill"])
    assert [len(top) for top in details["top_tokens"]] == [2, 2]
    assert details["engram"] == {
        "enabled": True,
        "gate_scale": 1.0,
        "layers": [
            {
                "layer": 1,
                "lookup_ms": 2.0,
                "wait_ms": 1.0,
                "rows": 20,
                "unique_rows": 10,
                "rows_by_tier": {"host": 10},
                "mean_gate": 0.25,
            }
        ],
    }


def test_the_priority_reaches_the_engine(served):
    assert served.generate(max_new_tokens=1, priority=-3).status_code == 200
    assert served.engine.submitted[-1].priority == -3
    served.generate(max_new_tokens=1)
    assert served.engine.submitted[-1].priority == 0
    answer = served.generate(max_new_tokens=1, priority=101)
    assert answer.status_code == 422
    assert "priority" in answer.json()["error"]


def test_what_is_not_asked_for_is_not_there(served):
    details = served.generate(max_new_tokens=1, details=True).json()["details"]
    assert "top_tokens" not in details
    assert details["prefill"] == []
    assert "tokens" not in details["engram"]


def test_headers_say_where_the_time_went(served):
    headers = served.generate("hello", max_new_tokens=2).headers
    assert headers["x-compute-type"] == "cpu"
    assert headers["x-compute-characters"] == "5"
    assert headers["x-generated-tokens"] == "2"
    assert headers["x-cached-tokens"] == "0"
    for name in ("prompt-tokens", "queue-time", "inference-time", "time-per-token", "total-time"):
        assert headers[f"x-{name}"].isdigit()
    timing = dict(part.split(";dur=") for part in headers["server-timing"].split(", "))
    assert set(timing) == {
        "tokenize", "queue", "prefill", "decode", "engram-lookup", "engram-wait", "total",
    }  # fmt: skip
    assert (float(timing["engram-lookup"]), float(timing["engram-wait"])) == (2.0, 1.0)


def test_frames_are_exact(served):
    answer = served.client.post(
        "/generate_stream", json={"inputs": "hi", "parameters": {"max_new_tokens": 2}}
    )
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.content == (
        b'data: {"index":1,"token":{"id":1001,"text":" w1","logprob":-0.5,"special":false},'
        b'"generated_text":null,"details":null}\n\n'
        b'data: {"index":2,"token":{"id":1002,"text":" w2","logprob":-0.5,"special":false},'
        b'"generated_text":" w1 w2","details":null}\n\n'
    )


def test_the_last_frame_has_the_details(served):
    *rest, last = served.stream(max_new_tokens=3, details=True, top_n_tokens=1, engram_details=True)
    assert [frame["details"] for frame in rest] == [None, None]
    details = last["details"]
    assert (details["finish_reason"], details["generated_tokens"]) == ("length", 3)
    assert details["input_length"] == len(served.engine.submitted[-1].prompt_token_ids)
    assert details["engram"]["layers"][0]["wait_ms"] == 1.0
    assert last["generated_text"] == " w1 w2 w3"
    for frame in (*rest, last):
        assert len(frame["top_tokens"]) == 1
        assert frame["engram"] == [
            {"layer": 1, "gate": 0.25, "ngram": " a b", "row_ids": [3, 4], "tiers": ["host"] * 2}
        ]


def test_the_end_token_is_shown_but_adds_no_text(served):
    served.engine.script = Script(eos_after=1)
    *_, last = served.stream(details=True)
    assert last["token"]["special"]
    assert last["token"]["text"] == ""
    assert last["details"]["finish_reason"] == "eos_token"
    assert (
        served.generate(ignore_eos=True, max_new_tokens=3).json()["generated_text"] == " w1 w2 w3"
    )


@pytest.mark.parametrize(("keep", "text"), [(False, " w1"), (True, " w1 w2")])
def test_stop_strings_across_frames(served, keep, text):
    parts = served.stream(stop=[" w2"], include_stop_str_in_output=keep, details=True)
    assert "".join(frame["token"]["text"] for frame in parts) == text
    assert parts[-1]["generated_text"] == text
    assert parts[-1]["details"]["finish_reason"] == "stop_sequence"


def test_a_finish_that_was_not_announced_still_ends_the_stream(served, monkeypatch):
    from dataclasses import replace

    token = served.engine._token
    monkeypatch.setattr(
        served.engine, "_token", lambda *args, last=False: replace(token(*args), last=False)
    )
    parts = served.stream(max_new_tokens=2)
    assert "".join(frame["token"]["text"] for frame in parts) == parts[-1]["generated_text"]


def test_characters_that_need_escaping_survive(served):
    odd = 'quote " back \\ line\nfeed\r\n\ttab \u2028 中文 🙂 \x00'
    served.engine.script = Script(text=lambda request, index: odd)
    parts = served.stream(max_new_tokens=2)
    assert "".join(frame["token"]["text"] for frame in parts) == odd * 2
    assert served.generate(max_new_tokens=2).json()["generated_text"] == odd * 2


def test_root_picks_by_stream(served):
    body = {"inputs": "hi", "parameters": {"max_new_tokens": 1}}
    assert served.client.post("/", json=body).json() == [{"generated_text": " w1"}]
    assert served.client.post("/", json={**body, "stream": False}).json()[0]
    assert frames(served.client.post("/", json={**body, "stream": True}).content)


def test_stream_is_refused_where_the_route_says_otherwise(served):
    body = {"inputs": "hi"}
    told = error_of(served.client.post("/generate", json={**body, "stream": True}))
    assert "/generate_stream" in told
    error_of(served.client.post("/generate_stream", json={**body, "stream": False}))
    ok = {"parameters": {"max_new_tokens": 1}, **body}
    assert served.client.post("/generate", json={**ok, "stream": False}).status_code == 200


def test_parameters_arrive(served):
    served.generate(
        max_new_tokens=5, temperature=0.5, top_k=3, top_p=0.9, typical_p=0.8, min_p=0.1,
        repetition_penalty=1.5, frequency_penalty=-0.5, do_sample=True, seed=2**64 - 1,
        stop=["a", "b"], include_stop_str_in_output=True, ignore_eos=True, top_n_tokens=4,
        details=True, decoder_input_details=True, engram={"enabled": False, "gate_scale": 0.5},
    )  # fmt: skip
    params = sampling(served)
    assert (params.max_new_tokens, params.temperature, params.top_k) == (5, 0.5, 3)
    assert (params.top_p, params.typical_p, params.min_p) == (0.9, 0.8, 0.1)
    assert (params.repetition_penalty, params.frequency_penalty) == (1.5, -0.5)
    assert params.do_sample
    assert params.seed == 2**64 - 1
    assert params.stop == ("a", "b")
    assert params.include_stop_str_in_output
    assert params.ignore_eos
    assert params.top_n_tokens == 4
    assert params.prompt_logprobs
    engram = served.engine.submitted[-1].engram
    assert (engram.enabled, engram.gate_scale, engram.per_token) == (False, 0.5, False)


def test_defaults_and_nulls_mean_the_same(served):
    served.generate()
    plain = served.engine.submitted[-1]
    fields = ["temperature", "top_k", "top_p", "stop", "engram", "details", "grammar", "best_of"]
    served.generate(**dict.fromkeys(fields))
    from dataclasses import replace

    nulls = served.engine.submitted[-1]
    assert replace(plain.sampling, seed=0) == replace(nulls.sampling, seed=0)
    assert plain.sampling.max_new_tokens == DEFAULT_MAX_NEW_TOKENS
    assert not plain.sampling.do_sample
    assert plain.engram == nulls.engram
    assert served.client.post("/generate", json={"inputs": "a", "parameters": None}).is_success


@pytest.mark.parametrize(
    ("given", "samples"),
    [
        ({}, False),
        ({"do_sample": True}, True),
        ({"temperature": 0.7}, True),
        ({"temperature": 1.0, "top_p": 1.0, "typical_p": 1.0, "min_p": 0.0}, False),
        ({"temperature": 1}, False),
        ({"top_k": 5}, True),
        ({"top_p": 0.9}, True),
        ({"typical_p": 0.9, "do_sample": False}, True),
        ({"min_p": 0.1}, True),
        ({"repetition_penalty": 1.3, "seed": 4}, False),
    ],
)
def test_what_reshapes_the_distribution_turns_sampling_on(served, given, samples):
    answer = served.generate(max_new_tokens=1, details=True, **given)
    assert sampling(served).do_sample is samples
    assert (answer.json()["details"]["seed"] is not None) is samples


def test_seeds_are_drawn_when_not_given(served):
    for _ in range(2):
        served.generate(max_new_tokens=1, do_sample=True)
    seeds = [request.sampling.seed for request in served.engine.submitted]
    assert seeds[0] != seeds[1]
    assert all(0 <= seed < 2**53 for seed in seeds)


def test_truncate_keeps_the_end(served):
    served.generate("one two three four", max_new_tokens=1)
    served.generate("one two three four", max_new_tokens=1, truncate=2)
    whole, cut = (request.prompt_token_ids for request in served.engine.submitted)
    assert cut == whole[-2:]


def test_full_text_starts_with_the_prompt(served):
    answer = served.generate("hello", max_new_tokens=1, return_full_text=True)
    assert answer.json()["generated_text"] == "hello w1"
    assert served.stream("hello", max_new_tokens=1, return_full_text=True)[-1][
        "generated_text"
    ] == "hello w1"  # fmt: skip


def test_too_long_names_both_numbers_and_the_engine_lives_on(served):
    answer = served.generate("hello", max_new_tokens=10**9)
    told = error_of(answer)
    assert "1000000000" in told
    assert "2048" in told
    assert answer.headers["x-should-retry"] == "false"
    long = "hello " * 3000
    assert "2048" in error_of(served.generate(long, max_new_tokens=1))
    assert not served.engine.submitted
    assert served.generate(max_new_tokens=1).status_code == 200


def test_the_default_length_shrinks_to_what_is_left(served):
    prompt = "a b" * 800
    answer = served.generate(prompt)
    assert answer.status_code == 200
    request = served.engine.submitted[-1]
    total = len(request.prompt_token_ids) + request.sampling.max_new_tokens
    assert total <= 2048


def test_long_texts_are_refused_before_they_are_tokenised():
    with serve(max_prompt_chars=10) as served:
        told = error_of(served.generate("x" * 11))
        assert "11" in told
        assert "10" in told
        assert served.metric("engram_tokenize_duration_seconds_count") == 0


@pytest.mark.parametrize(
    "given",
    [{"best_of": 2}, {"best_of": True}, {"watermark": True}, {"grammar": {"type": "json"}},
     {"adapter_id": "a"}, {"best_of": "1"}],
)  # fmt: skip
def test_known_fields_that_are_not_supported_are_named(served, given):
    (name,) = given
    assert f"`parameters.{name}`" in error_of(served.generate(**given))


def test_known_fields_with_their_default_are_fine(served):
    given = {"best_of": 1, "watermark": False, "grammar": None, "adapter_id": None}
    assert served.generate(max_new_tokens=1, **given).status_code == 200


def test_prompt_details_are_refused_for_streams(served):
    body = {"inputs": "a", "parameters": {"decoder_input_details": True}}
    error_of(served.client.post("/generate_stream", json=body))


def test_memory_per_token(served):
    answer = served.generate(max_new_tokens=2, details=True, engram_details=True)
    tokens = answer.json()["details"]["engram"]["tokens"]
    assert [token["index"] for token in tokens] == [1, 2]
    assert tokens[0]["layers"][0]["row_ids"] == [3, 4]


def test_memory_is_refused_where_there_is_none(loader):
    loader.has_memory = False
    with serve(loader) as served:
        for given in ({"engram": {"enabled": True}}, {"engram": {"gate_scale": 1.0}},
                      {"engram_details": True}):  # fmt: skip
            assert "memory" in error_of(served.generate(**given))
        answer = served.generate(max_new_tokens=1, details=True, engram={"enabled": False})
        assert answer.json()["details"]["engram"] == {
            "enabled": False, "gate_scale": 1.0, "layers": [],
        }  # fmt: skip


def test_log_probabilities_are_always_numbers(served):
    for value in (float("-inf"), float("nan")):
        served.engine.script = Script(logprob=value)
        details = served.generate(max_new_tokens=1, details=True).json()["details"]
        assert details["tokens"][0]["logprob"] == -9999.0


def test_a_failed_generation(served):
    served.engine.script = Script(fail_at=2)
    assert "finite" in error_of(served.generate(max_new_tokens=3), 424, "generation")
    first, failure = served.stream(max_new_tokens=3)
    assert first["index"] == 1
    assert failure["error_type"] == "generation"


def test_request_ids(served):
    sane = {"x-request-id": "abc-1.2:3_4"}
    assert served.client.get("/health", headers=sane).headers["x-request-id"] == "abc-1.2:3_4"
    for odd in ("", "a b", "x" * 200, "é", 'a"b'):
        answer = served.client.get("/nope", headers={"x-request-id": odd.encode()})
        assert len(answer.headers["x-request-id"]) == 32
    twice = [
        served.client.post("/generate", json={"inputs": "a"}, headers=sane).status_code
        for _ in range(2)
    ]
    assert twice == [200, 200]
    assert len({request.id for request in served.engine.submitted}) == 2


# the client of huggingface_hub


@pytest.fixture
def client(served, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with InferenceClient(served.url) as client:
        yield client


def test_client_text(client):
    assert client.text_generation("hello", max_new_tokens=3) == " w1 w2 w3"
    stream = client.text_generation("hello", max_new_tokens=3, stream=True)
    assert "".join(stream) == " w1 w2 w3"


def test_client_details(client, served):
    answer = client.text_generation(
        "hello", max_new_tokens=2, details=True, decoder_input_details=True, top_n_tokens=1,
        do_sample=True, seed=3, stop=["nothing"], return_full_text=False, watermark=False,
    )  # fmt: skip
    assert answer.generated_text == " w1 w2"
    assert answer.details.finish_reason == "length"
    assert answer.details.seed == 3
    assert answer.details.tokens[1].text == " w2"
    assert len(answer.details.top_tokens[0]) == 1
    *_, last = client.text_generation("hello", max_new_tokens=2, details=True, stream=True)
    assert last.generated_text == " w1 w2"
    assert last.details.input_length == len(served.engine.submitted[-1].prompt_token_ids)


def test_client_sees_our_errors(client):
    with pytest.raises(ClientValidationError, match="best_of"):
        client.text_generation("hello", best_of=3)


def test_schema_is_published(served):
    schema = served.client.get("/openapi.json").json()
    assert {"/generate", "/generate_stream", "/", "/health", "/ready", "/info"} <= set(
        schema["paths"]
    )
    text = json.dumps(schema["paths"]["/generate"]["post"]["requestBody"])
    assert "#/components/schemas/GenerateRequest" in text
    schemas = schema["components"]["schemas"]
    assert "max_new_tokens" in schemas["GenerateParameters"]["properties"]
    assert "gate_scale" in schemas["EngramOptions"]["properties"]


def test_engram_may_stand_beside_the_parameters(served):
    body = {"inputs": "a", "engram": {"enabled": False}, "parameters": {"max_new_tokens": 1}}
    assert served.client.post("/generate", json=body).status_code == 200
    assert not served.engine.submitted[-1].engram.enabled
    body["parameters"]["engram"] = {"enabled": True}
    for route in ("/generate", "/generate_stream", "/"):
        assert "both given" in error_of(served.client.post(route, json=body))
