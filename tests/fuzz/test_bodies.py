"""Raw JSON that a library would never write: the server answers 200 or 4xx in its own shape."""

import json

import pytest
from fakes.http import serve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.wire.schemas import GenerateParameters, GenerateRequest

ROUTES = ("/generate", "/generate_stream", "/")


@pytest.fixture(scope="module")
def served():
    with serve() as served:
        yield served


NUMBERS = st.one_of(
    st.integers().map(str),
    st.floats().map(repr),
    st.sampled_from(
        ["NaN", "Infinity", "-Infinity", "1e999", "-0", "1.0", "00", "0x1", "9" * 5000]
    ),
)
SURROGATES = st.sampled_from(['"\\ud800"', '"\\udc00x"', '"\\ud83d\\ude00"', '"\\u0000"'])
TEXTS = st.one_of(st.text(max_size=20).map(json.dumps), SURROGATES)
LEAVES = st.one_of(NUMBERS, TEXTS, st.sampled_from(["true", "false", "null", "", "{}", "[]"]))
KEYS = st.one_of(
    st.sampled_from([*GenerateParameters.model_fields, *GenerateRequest.model_fields]).map(
        json.dumps
    ),
    TEXTS,
)


def objects(values):
    pairs = st.lists(st.tuples(KEYS, values), max_size=6)
    return pairs.map(lambda items: "{" + ",".join(f"{k}:{v}" for k, v in items) + "}")


VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        objects(inner), st.lists(inner, max_size=4).map(lambda items: "[" + ",".join(items) + "]")
    ),
    max_leaves=12,
)
BODIES = st.one_of(
    VALUES,
    objects(VALUES),
    objects(LEAVES).map(lambda parameters: '{"inputs":"a","parameters":%s}' % parameters),  # noqa: UP031
    st.tuples(TEXTS, objects(VALUES)).map(lambda p: f'{{"inputs":{p[0]},"parameters":{p[1]}}}'),
)


def check(served, route, content):
    answer = served.client.post(route, content=content)
    assert answer.status_code in (200, 422), (answer.status_code, answer.text)
    if answer.status_code != 200:
        assert set(answer.json()) == {"error", "error_type"}
    assert served.runtime.phase == "ready"


RELAXED = settings(
    max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # fmt: skip


@RELAXED
@given(body=BODIES, route=st.sampled_from(ROUTES))
def test_any_json_like_text(served, body, route):
    check(served, route, body.encode("utf-8", "surrogatepass"))


@RELAXED
@given(body=st.binary(max_size=200), route=st.sampled_from(ROUTES))
def test_any_bytes(served, body, route):
    check(served, route, body)


VALID = (
    b'{"inputs": "hello", "parameters": {"max_new_tokens": 2, "temperature": 0.5}, "stream": null}'
)


@RELAXED
@given(data=st.data())
def test_one_damaged_byte(served, data):
    at = data.draw(st.integers(0, len(VALID) - 1))
    byte = data.draw(st.integers(0, 255))
    check(served, "/generate", VALID[:at] + bytes([byte]) + VALID[at + 1 :])


PARAMETERS = st.fixed_dictionaries(
    {},
    optional={
        "max_new_tokens": st.integers(1, 4),
        "temperature": st.floats(0, 100, exclude_min=True),
        "top_k": st.integers(1, 2**31 - 1),
        "top_p": st.floats(0, 1, exclude_min=True),
        "typical_p": st.floats(0, 1, exclude_min=True),
        "min_p": st.floats(0, 1),
        "repetition_penalty": st.floats(0, 100, exclude_min=True),
        "frequency_penalty": st.floats(-2, 2),
        "seed": st.integers(0, 2**64 - 1),
        "stop": st.lists(st.text(min_size=1, max_size=64), max_size=4),
        "truncate": st.integers(1, 2**31 - 1),
        "top_n_tokens": st.integers(0, 5),
        **dict.fromkeys(
            ("do_sample", "details", "decoder_input_details", "return_full_text", "ignore_eos",
             "include_stop_str_in_output", "engram_details"),
            st.booleans(),
        ),
        "engram": st.fixed_dictionaries(
            {}, optional={"enabled": st.booleans(), "gate_scale": st.floats(0, 10)}
        ),
    },
)  # fmt: skip


@RELAXED
@given(prompt=st.text(min_size=1, max_size=30), parameters=PARAMETERS)
def test_whatever_is_within_bounds_is_served(served, prompt, parameters):
    answer = served.client.post("/generate", json={"inputs": prompt, "parameters": parameters})
    assert answer.status_code == 200, answer.text
    text = answer.json()["generated_text"]
    assert text.startswith(prompt if parameters.get("return_full_text") else "")
