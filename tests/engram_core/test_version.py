"""MemoryVersion: counted holders, a name that follows its content."""

import threading

import pytest
from memories import small_memory

from engram_core.errors import ConfigError, StateError
from engram_core.version import MemoryVersion


def rebuilt(memory, **change):
    parts = {"content": "x", "tiers": memory.tiers, "modules": memory.modules, **change}
    return MemoryVersion(memory.hasher, "map", **parts)


def test_the_last_release_closes_once():
    closed = []
    memory = rebuilt(small_memory(), on_last_release=lambda: closed.append(1))
    assert memory.references == 1
    assert memory.acquire() is memory
    memory.release()
    assert not closed
    memory.release()
    assert closed == [1]
    with pytest.raises(StateError, match="more often"):
        memory.release()
    with pytest.raises(StateError, match="closed"):
        memory.acquire()
    assert closed == [1]
    assert memory.references == 0


def test_holders_on_many_threads_are_counted():
    memory, start = small_memory(), threading.Barrier(4)

    def hold():
        start.wait()
        for _ in range(500):
            memory.acquire()
            memory.release()

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.references == 1


def test_the_id_follows_the_content():
    memory = small_memory()
    assert rebuilt(memory).id == rebuilt(memory).id
    assert rebuilt(memory).id != rebuilt(memory, content="y").id
    assert (
        rebuilt(memory).id
        != MemoryVersion(memory.hasher, "other map", memory.tiers, memory.modules, content="x").id
    )
    assert rebuilt(small_memory(orders=(2,))).id != rebuilt(memory).id


def test_parts_that_do_not_belong_together_are_refused():
    memory, other = small_memory(), small_memory(orders=(2,))
    with pytest.raises(ConfigError, match="modules covers layers"):
        rebuilt(memory, modules={1: memory.modules[1]})
    with pytest.raises(ConfigError, match="the table of layer 1"):
        rebuilt(memory, tiers=other.tiers)


def test_nobody_can_change_it():
    memory = small_memory()
    with pytest.raises(TypeError):
        memory.tiers[1] = memory.tiers[3]
