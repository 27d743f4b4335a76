import asyncio
import threading

from server.mailbox import Mailbox


def counting_loop(loop) -> list:
    """Notes every call from another thread that wakes the loop."""
    calls: list = []
    wake = loop.call_soon_threadsafe
    loop.call_soon_threadsafe = lambda *arguments: (calls.append(arguments), wake(*arguments))
    return calls


def test_events_of_a_step_travel_together_and_in_order() -> None:
    async def run() -> None:
        calls = counting_loop(asyncio.get_running_loop())
        mailbox, got = Mailbox(asyncio.get_running_loop()), []
        for number in range(16):
            mailbox.put(got.append, number)
        assert (len(calls), got) == (1, [])
        await asyncio.sleep(0)
        assert got == list(range(16))
        mailbox.put(got.append, 16)
        await asyncio.sleep(0)
        assert (len(calls), got[-1]) == (2, 16)

    asyncio.run(run())


def test_nothing_is_lost_between_threads() -> None:
    async def run() -> None:
        mailbox, got, done = Mailbox(asyncio.get_running_loop()), [], asyncio.Event()

        def receive(number: int) -> None:
            got.append(number)
            if number == 19_999:
                done.set()

        def send() -> None:
            for number in range(20_000):
                mailbox.put(receive, number)

        thread = threading.Thread(target=send)
        thread.start()
        await asyncio.wait_for(done.wait(), 60)
        thread.join()
        assert got == list(range(20_000))

    asyncio.run(run())


def test_a_closed_loop_takes_no_more_and_says_nothing() -> None:
    loop = asyncio.new_event_loop()
    mailbox, got = Mailbox(loop), []
    loop.close()
    mailbox.put(got.append, 1)
    mailbox.put(got.append, 2)
    assert got == []
