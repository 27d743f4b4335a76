"""Runs something in a thread that ends: the pool of threads that torch keeps for it ends with it.

OpenMP keeps a pool for every thread that ever computed, and its barriers sleep instead of spinning
once all pools together have more threads than there are processors. A server loads its model in a
thread that ends; a contender must not be worse off than that.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def in_passing_thread(task: Callable[[], Result]) -> Result:
    """The task's result, or its exception."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(task).result()
