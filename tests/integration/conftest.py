"""The default model, which `make install` puts into the cache before any test runs."""

import pytest

from server.default_model import FOLDER_NAME, default_cache_dir, is_complete


@pytest.fixture(scope="session")
def default_model():
    folder = default_cache_dir() / FOLDER_NAME
    if not is_complete(folder):
        pytest.fail("the default model is not in the cache; get it with: engram-server pull")
    return folder
