"""CircuitBreaker: opens after failures in a row, one probe after the cool-down, back by itself."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram_core.errors import ConfigError
from engram_core.store.circuit_breaker import CircuitBreaker


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def breaker(clock):
    return CircuitBreaker(3, 5.0, clock=clock)


def fail(breaker, times=1):
    for _ in range(times):
        assert breaker.admit()
        breaker.failed()


def test_it_opens_after_failures_in_a_row(breaker):
    fail(breaker, 2)
    breaker.admit()
    breaker.succeeded()
    fail(breaker, 2)
    assert breaker.state == "closed"
    fail(breaker)
    assert breaker.state == "open"
    assert not breaker.admit()


def test_one_probe_at_a_time_and_its_success_closes(breaker, clock):
    fail(breaker, 3)
    clock.now_s += 4.9
    assert not breaker.admit()
    clock.now_s += 0.1
    assert breaker.state == "half-open"
    assert [breaker.admit() for _ in range(3)] == [True, False, False]
    breaker.succeeded()
    assert breaker.state == "closed"
    fail(breaker, 2)
    assert breaker.state == "closed"


def test_a_failed_probe_opens_it_for_another_cool_down(breaker, clock):
    fail(breaker, 3)
    for _ in range(3):
        clock.now_s += 5
        fail(breaker)
        assert not breaker.admit()
    clock.now_s += 5
    assert breaker.admit()


def test_calls_that_were_under_way_neither_block_nor_hide_the_probe(breaker, clock):
    for _ in range(5):
        assert breaker.admit()
    for _ in range(4):
        breaker.failed()
    clock.now_s += 5
    assert breaker.admit()
    breaker.failed()  # the fifth, late: open again
    assert not breaker.admit()
    breaker.succeeded()  # the probe
    assert breaker.state == "closed"


def test_only_one_of_many_threads_probes(clock):
    breaker = CircuitBreaker(1, 0.0, clock=clock)
    fail(breaker)
    start, admitted = threading.Barrier(8), []

    def ask():
        start.wait()
        admitted.append(breaker.admit())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted) == 1


@given(st.lists(st.sampled_from(["ok", "bad", "wait"]), max_size=60))
def test_it_never_stays_shut(events):
    clock = Clock()
    breaker = CircuitBreaker(2, 5.0, clock=clock)
    for event in events:
        if event == "wait":
            clock.now_s += 5
        elif breaker.admit():
            breaker.succeeded() if event == "ok" else breaker.failed()
    clock.now_s += 5
    assert breaker.admit()


@pytest.mark.parametrize("numbers", [(0, 1.0), (1, -1.0), (1, float("nan"))])
def test_numbers_out_of_range(numbers):
    with pytest.raises(ConfigError, match="accepted: a number >="):
        CircuitBreaker(*numbers)
