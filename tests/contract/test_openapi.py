"""Requests made from the published schema, and from what it forbids, never break the server."""

import json

import pytest
import schemathesis
from fakes.http import serve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

BODIES = ("/", "/generate", "/generate_stream")
OTHERS = ("/health", "/info", "/metrics", "/ready", "/version")


@pytest.fixture(scope="module")
def served():
    with serve() as served:
        yield served


@pytest.fixture(scope="module")
def operations(served):
    schema = schemathesis.openapi.from_dict(served.client.get("/openapi.json").json())
    return {each.ok().path: each.ok() for each in schema.get_all_operations()}


def test_every_route_is_published(operations):
    assert set(operations) == {*BODIES, *OTHERS}


@pytest.mark.parametrize("path", OTHERS)
def test_what_needs_no_body(operations, served, path):
    assert served.client.request(operations[path].method, path).status_code == 200


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("path", BODIES)
def test_generated_bodies(operations, served, path, mode):
    bodies = operations[path].as_strategy(generation_mode=mode)

    @settings(max_examples=25, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def run(data):
        body = data.draw(bodies).body
        content = body if isinstance(body, bytes) else json.dumps(body, default=str).encode()
        answer = served.client.post(path, content=content)
        assert answer.status_code in (200, 422), answer.text
        if answer.status_code != 200:
            assert set(answer.json()) == {"error", "error_type"}

    run()
