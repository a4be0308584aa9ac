"""The sessions that streams share: who gets one, what comes back, and what is left open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from asyncpg import Connection

from headgate.connectors.postgres import pool as module
from headgate.connectors.postgres.pool import SIZE, Pool
from headgate.connectors.postgres.session import make_pool
from tests.waiting import until


@pytest.fixture
async def pool(empty_url: str) -> AsyncIterator[Pool]:
    pool = await make_pool(empty_url)
    yield pool
    await pool.close()


async def number(connection: Connection) -> int:
    """What tells a session from others."""
    return int(await connection.fetchval("SELECT pg_backend_pid()"))


async def test_the_session_that_came_back_last_is_lent_next(pool: Pool) -> None:
    first, second = await pool.acquire(), await pool.acquire()
    pool.release(second)
    pool.release(first)
    assert await pool.acquire() is first
    pool.release(first)
    assert await pool.acquire() is first
    pool.release(first)


async def test_a_loan_makes_no_task_and_asks_the_server_nothing(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write of every stream has one."""
    connection = await pool.acquire()
    pool.release(connection)
    asked: list[str] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(connection, "execute", lambda *args: asked.append("execute"))
    monkeypatch.setattr(loop, "create_task", lambda *args, **kwargs: asked.append("task"))
    for _ in range(10):
        assert await pool.acquire() is connection
        pool.release(connection)
    monkeypatch.undo()
    assert asked == []


async def test_who_comes_when_all_are_lent_waits_for_the_first_that_comes_back(pool: Pool) -> None:
    lent = [await pool.acquire() for _ in range(SIZE)]
    waiting = [asyncio.ensure_future(pool.acquire()) for _ in range(2)]
    await asyncio.sleep(0)
    pool.release(lent[3])
    assert await waiting[0] is lent[3]
    assert not waiting[1].done()
    pool.release(lent[3])
    assert await waiting[1] is lent[3]
    for connection in lent:
        pool.release(connection)


async def test_nobody_waits_for_ever_and_who_gave_up_keeps_nothing(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.01)
    lent = [await pool.acquire() for _ in range(SIZE)]
    with pytest.raises(TimeoutError):
        await pool.acquire()
    monkeypatch.undo()
    given_up = asyncio.ensure_future(pool.acquire())
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    for connection in lent:
        pool.release(connection)
    again = [await pool.acquire() for _ in range(SIZE)]
    assert set(again) == set(lent)
    for connection in again:
        pool.release(connection)


async def test_what_cannot_connect_takes_no_place(empty_url: str) -> None:
    fails = True

    async def connect() -> Connection:
        if fails:
            raise ConnectionRefusedError
        return await asyncpg.connect(empty_url)

    pool = Pool(connect)
    for _ in range(SIZE + 1):
        with pytest.raises(ConnectionRefusedError):
            await pool.acquire()
    fails = False
    pool.release(await pool.acquire())
    await pool.close()


async def test_a_session_that_has_ended_or_is_in_a_transaction_is_lent_no_more(pool: Pool) -> None:
    ended, left_open, ended_later = [await pool.acquire() for _ in range(3)]
    ended.terminate()
    pool.release(ended)
    await left_open.execute("BEGIN")
    pool.release(left_open)
    pool.release(ended_later)
    ended_later.terminate()
    fresh = await pool.acquire()
    assert fresh not in (ended, left_open, ended_later)
    assert left_open.is_closed()
    pool.release(fresh)
    assert list(pool._loans) == [fresh]


async def test_a_session_is_not_used_for_ever(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LOANS", 3)
    numbers = []
    for _ in range(6):
        connection = await pool.acquire()
        numbers.append(await number(connection))
        pool.release(connection)
    first, second = numbers[0], numbers[3]
    assert numbers == [first] * 3 + [second] * 3
    assert first != second


async def test_sessions_that_nobody_needs_end_and_those_in_use_stay(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.05)
    pool = await make_pool(empty_url)
    used, idle = await pool.acquire(), await pool.acquire()
    pool.release(idle)
    await until(idle.is_closed)
    assert not used.is_closed()
    pool.release(used)
    await until(used.is_closed)
    assert pool._loans == {}
    await pool.close()


@pytest.mark.parametrize("at_once", [False, True])
async def test_an_end_leaves_no_session_behind(empty_url: str, at_once: bool) -> None:
    pool = await make_pool(empty_url)
    lent, idle = await pool.acquire(), await pool.acquire()
    pool.release(idle)
    if at_once:
        pool.terminate()
        assert lent.is_closed()
    else:
        await pool.close()
        assert not lent.is_closed()  # It may be in the middle of a write.
    assert idle.is_closed()
    pool.release(lent)
    assert lent.is_closed()

    async def are_gone() -> bool:
        connection = await asyncpg.connect(empty_url)
        try:
            query = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return await connection.fetchval(query) == 0
        finally:
            await connection.close()

    await until(are_gone)
