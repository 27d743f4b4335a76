"""huggingface_hub's own client against the real server, streaming and not."""

import pytest
from fakes.http import serve
from huggingface_hub import InferenceClient, constants
from real_backend import TinyLoader

PROMPT = "Only Alexander the Great could"


@pytest.fixture(scope="module")
def client():
    # the tests run without the hub; the client takes that as "no requests at all"
    with serve(TinyLoader()) as served, pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield InferenceClient(served.url)


def test_text(client):
    text = client.text_generation(PROMPT, max_new_tokens=8)
    assert isinstance(text, str)
    assert text


def test_details(client):
    answer = client.text_generation(PROMPT, max_new_tokens=8, details=True, seed=3)
    assert answer.details.generated_tokens == len(answer.details.tokens) == 8
    assert answer.details.finish_reason == "length"


def test_stream_adds_up_to_the_text(client):
    text = client.text_generation(PROMPT, max_new_tokens=8)
    pieces = list(client.text_generation(PROMPT, max_new_tokens=8, stream=True))
    assert len(pieces) == 8
    assert "".join(pieces) == text


def test_stream_with_details(client):
    events = list(client.text_generation(PROMPT, max_new_tokens=8, stream=True, details=True))
    assert [event.token.id for event in events]
    assert events[-1].generated_text == "".join(event.token.text for event in events)
    assert events[-1].details.finish_reason == "length"


def test_sampling_is_repeatable(client):
    asked = {"max_new_tokens": 12, "do_sample": True, "temperature": 0.9, "top_p": 0.9, "seed": 7}
    texts = {client.text_generation(PROMPT, **asked) for _ in range(3)}
    assert len(texts) == 1
