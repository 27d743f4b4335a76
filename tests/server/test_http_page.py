"""docs/http.md names every route, parameter, header and error."""

from pathlib import Path

import pytest
from fakes.backend import FakeLoader

from server.app import create_app
from server.config import Settings
from server.engine.types import FinishEvent, Timings
from server.metrics import FAILURE_REASONS
from server.wire.schemas import EngramOptions, GenerateParameters, GenerateRequest
from server.wire.timing import TimingContext, answer_headers

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf-8")


def test_routes():
    for route in create_app(Settings(), FakeLoader()).routes:
        for method in route.methods - {"HEAD"}:
            assert f"`{method} {route.path}`" in PAGE


@pytest.mark.parametrize("name", GenerateParameters.model_fields)
def test_parameters(name):
    assert f"`{name}`" in PAGE


def test_other_fields():
    for name in (*GenerateRequest.model_fields, *EngramOptions.model_fields):
        assert f'"{name}"' in PAGE


@pytest.mark.parametrize("reason", FAILURE_REASONS)
def test_errors(reason):
    assert f"`{reason}`" in PAGE


def test_headers():
    finish = FinishEvent("length", "", "", 1, 1, None, Timings(0, 0, 0))
    for name in answer_headers(finish, TimingContext("cpu", 1, 0, 0)):
        assert f"`{name}`" in PAGE
