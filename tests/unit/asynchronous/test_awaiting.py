"""Transfers in asyncio, and callbacks at their end."""

import asyncio
import sys
import threading

import pytest
from transfer_pair import wait_for

import cachecore as cc


def test_a_transfer_can_be_awaited(pair):
    async def main():
        await pair.pull()
        go = threading.Event()
        both = asyncio.gather(*(pair.pull([block], after=go) for block in range(2)))
        asyncio.get_running_loop().call_later(0.01, go.set)
        await both
        with pytest.raises(cc.TransferTimeoutError):
            await pair.pull(after=threading.Event(), timeout=0.05)

    asyncio.run(main())
    assert pair.arrived()


def test_a_cancelled_task_cancels_its_transfer_and_ends_when_nothing_moves_any_more(pair):
    async def main():
        transfer = pair.pull(after=threading.Event())

        async def use():
            await transfer

        task = asyncio.create_task(use())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert transfer.done and isinstance(transfer.exception(0), cc.TransferCancelledError)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(pair.pull(after=threading.Event()), 0.05)

    asyncio.run(main())
    wait_for(lambda: pair.reader.stats().transfers_running == 0)
    assert pair.untouched()


def test_a_task_that_is_cancelled_twice_still_waits_until_nothing_moves(pair):
    go = threading.Event()

    class Deaf:
        def synchronize(self):
            assert go.wait(20)

    async def main():
        transfer = pair.pull(after=Deaf())
        task = asyncio.ensure_future(transfer)
        for _ in range(2):
            await asyncio.sleep(0.05)
            task.cancel()
        await asyncio.sleep(0.05)
        assert not task.done() and not transfer.done
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert transfer.done

    asyncio.run(main())


def test_a_callback_may_close_the_manager(pair):
    """Also one that runs inside `close`, because the transfer never started."""
    go, ended = threading.Event(), []
    running = [pair.pull([block], after=go) for block in range(2)]  # as many as there are threads
    queued = pair.pull([5])
    queued.add_done_callback(lambda transfer: go.set())
    queued.add_done_callback(lambda transfer: pair.reader.close(timeout=10))
    closer = threading.Thread(target=lambda: ended.append(pair.reader.close(timeout=10)), daemon=True)
    closer.start()
    closer.join(20)
    assert ended == [None] and all(transfer.done for transfer in running)


def test_a_callback_that_closes_the_manager_does_not_wait_for_its_own_transfer(pair):
    go, ended = threading.Event(), []
    transfer = pair.pull(after=go)

    def close(transfer):
        ended.append(pair.reader.close(timeout=3))

    transfer.add_done_callback(close)
    go.set()
    wait_for(lambda: ended)
    assert ended == [None] and pair.arrived()


def test_a_callback_that_exits_does_not_keep_the_others_from_being_called(pair, caplog):
    go, called = threading.Event(), threading.Event()
    transfer = pair.pull(after=go)
    transfer.add_done_callback(lambda transfer: sys.exit(3))
    transfer.add_done_callback(lambda transfer: called.set())
    go.set()
    assert called.wait(10)
    transfer.wait(0)
