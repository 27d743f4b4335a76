"""Settings that every test shares."""

import os

from hypothesis import settings

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# a busy machine must not fail a test: no deadline per example
settings.register_profile("engram", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("engram")
