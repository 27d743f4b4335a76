"""One running server for the tests of a module that leave it as they found it."""

import pytest
from fakes.backend import FakeLoader
from fakes.engine import Script
from fakes.http import serve, wait_until


@pytest.fixture(scope="module")
def shared():
    with serve() as served:
        yield served


@pytest.fixture
def served(shared):
    """The module's server with a fresh script and nothing remembered."""
    shared.engine.script = shared.loader.script = Script()
    shared.engine.submitted.clear()
    shared.engine.aborted.clear()
    yield shared
    wait_until(lambda: shared.runtime.num_open == 0, what="no open generation")
    wait_until(lambda: shared.runtime.admission.in_use == 0, what="every place given back")


@pytest.fixture
def loader():
    return FakeLoader()
