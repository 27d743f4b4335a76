import asyncio
import time

import pytest

from server.stall_watch import StallWatch

LIMIT_S = 0.3


def test_a_write_that_never_ends_is_given_up() -> None:
    async def run() -> None:
        async with StallWatch(LIMIT_S) as watch:
            watch.begin()
            await asyncio.Event().wait()

    began_s = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(run())
    assert time.monotonic() - began_s >= LIMIT_S


def test_many_short_writes_and_long_pauses_between_them_are_fine() -> None:
    async def run() -> int:
        writes = 0
        async with StallWatch(LIMIT_S) as watch:
            for pause_s in (0.0, 2 * LIMIT_S, 0.0, 1.2 * LIMIT_S):
                watch.begin()
                await asyncio.sleep(0)
                watch.end()
                writes += 1
                await asyncio.sleep(pause_s)
        return writes

    assert asyncio.run(run()) == 4


def test_a_stall_that_follows_other_writes_is_found() -> None:
    async def run() -> None:
        async with StallWatch(LIMIT_S) as watch:
            watch.begin()
            watch.end()
            await asyncio.sleep(1.5 * LIMIT_S)
            watch.begin()
            began_s = asyncio.get_running_loop().time()
            try:
                await asyncio.Event().wait()
            finally:
                assert asyncio.get_running_loop().time() - began_s >= LIMIT_S

    with pytest.raises(TimeoutError):
        asyncio.run(run())


def test_a_cancellation_from_outside_stays_one() -> None:
    async def body() -> None:
        async with StallWatch(60) as watch:
            watch.begin()
            await asyncio.Event().wait()

    async def run() -> None:
        task = asyncio.create_task(body())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
