"""CircuitBreaker: stops asking what keeps failing, and finds out by itself when it is back.

Closed, every call goes through. After some failures in a row it opens and calls are turned away.
When the cool-down is over it is half-open: one call goes through as a probe, and its outcome closes
the breaker or opens it again. Knows nothing about what is called.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

from engram_core.errors import ConfigError

BreakerState = Literal["closed", "open", "half-open"]


class CircuitBreaker:
    """Thread-safe; may be shared by everything that depends on the same peer.

    Every `admit` that returned True is followed by one `succeeded` or `failed`.

    Args:
        max_failures: failures in a row that open it.
        cooldown_s: seconds that it turns calls away before it lets a probe through.
        clock: seconds that never run backwards.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(
        self,
        max_failures: int = 5,
        cooldown_s: float = 5.0,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_failures < 1:
            raise ConfigError(f"max_failures is {max_failures}; accepted: a number >= 1")
        if not cooldown_s >= 0:
            raise ConfigError(f"cooldown_s is {cooldown_s}; accepted: a number >= 0")
        self.max_failures, self.cooldown_s = max_failures, cooldown_s
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0  # in a row
        self._opened_s: float | None = None
        self._probing = False

    @property
    def state(self) -> BreakerState:
        """What it would do with a call now."""
        with self._lock:
            return self._state()

    def admit(self) -> bool:
        """Whether a call may go through; in half-open only one at a time may."""
        with self._lock:
            state = self._state()
            if state == "open" or (state == "half-open" and self._probing):
                return False
            self._probing = state == "half-open"
            return True

    def succeeded(self) -> None:
        """An admitted call got its answer: closed, whatever it was before."""
        with self._lock:
            self._failures, self._opened_s, self._probing = 0, None, False

    def failed(self) -> None:
        """An admitted call failed."""
        with self._lock:
            self._failures += 1
            if self._failures >= self.max_failures:
                self._opened_s, self._probing = self._clock(), False

    def _state(self) -> BreakerState:
        if self._opened_s is None:
            return "closed"
        is_over = self._clock() - self._opened_s >= self.cooldown_s
        return "half-open" if is_over else "open"
