"""Threads for work that nobody can vouch for: few, not in the way of the process's end, and replaced when stuck."""

from __future__ import annotations

import asyncio
import threading

import pytest

from headgate.runtime.streams.threads import Threads


async def test_work_is_done_by_a_few_daemons() -> None:
    threads, seen, most = Threads(2, "tried"), set[threading.Thread](), 0
    running, lock = 0, threading.Lock()

    def work(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        seen.add(threading.current_thread())
        threading.Event().wait(0.001)
        with lock:
            running -= 1
        return number

    found = await asyncio.gather(*(threads.run(lambda number=number: work(number)) for number in range(50)))  # type: ignore[misc]
    assert found == list(range(50))
    assert 1 <= most <= 2
    assert len(seen) <= 2
    assert all(thread.daemon and thread.name == "tried" for thread in seen)


async def test_an_error_is_the_callers() -> None:
    threads = Threads(1, "tried")

    with pytest.raises(RuntimeError, match="no such luck"):
        await threads.run(lambda: _raise(RuntimeError("no such luck")))
    with pytest.raises(BaseException) as caught:
        await threads.run(lambda: _raise(KeyError("x")))
    assert caught.type is KeyError
    assert await threads.run(lambda: 5) == 5


def _raise(error: BaseException) -> None:
    raise error


async def test_work_that_never_ends_holds_up_itself_alone() -> None:
    threads, end = Threads(2, "tried", stuck_s=0.05), threading.Event()
    stuck = [asyncio.ensure_future(threads.run(end.wait)) for _ in range(2)]
    assert await asyncio.wait_for(threads.run(lambda: 5), 60) == 5
    assert not any(task.done() for task in stuck)
    end.set()
    assert await asyncio.gather(*stuck) == [True, True]
    assert await threads.run(lambda: 6) == 6


async def test_work_that_nobody_waits_for_any_more_is_not_begun() -> None:
    threads, end, begun = Threads(1, "tried"), threading.Event(), threading.Event()
    first = asyncio.ensure_future(threads.run(end.wait))
    second = asyncio.ensure_future(threads.run(begun.set))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    end.set()
    assert await first
    assert await threads.run(lambda: 7) == 7
    assert not begun.is_set()
