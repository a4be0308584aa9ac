"""Minutes in the database: whatever restarts, moves, jumps or comes twice, what was moved is counted once."""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

import pytest

from headgate.core.minutes import RANGES, Span, history
from headgate.store import migrate as migrating
from headgate.store.database import Database
from headgate.store.migrate import migrate, migrations
from headgate.store.minutes import Line, Minutes
from tests.store.conftest import ME, Rows, session

HOUR, WEEK = RANGES["1h"], RANGES["7d"]
TOTALS = """
UPDATE headgate.stream SET records_read = $2::bigint, records_written = $2 - 1, records_dead_lettered = 1 WHERE id = $1
"""
DAYS = "SELECT headgate.make_day_of_minutes((now() AT TIME ZONE 'UTC')::date - n) FROM generate_series(-3, 12) AS n"


MARGIN_S = 15.0


@pytest.fixture(autouse=True)
async def within_one_minute() -> None:
    """The server's clock cannot be set, and a minute is over thirty seconds after it has ended: begin well before."""
    left_s = (30.0 - time.time()) % 60.0
    if left_s < MARGIN_S:
        await asyncio.sleep(left_s + 0.1)


class Past:
    """Minutes, and a time that passes as told: lines become older."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.minutes = Minutes(rows.database)

    async def passes(self, interval: str) -> None:
        """All lines are that much older."""
        database = self.rows.database
        await database.execute(DAYS)
        async with database.transaction() as connection:
            await connection.execute("CREATE TEMP TABLE older ON COMMIT DROP AS SELECT * FROM headgate.minute")
            await connection.execute("DELETE FROM headgate.minute")
            await connection.execute(f"UPDATE older SET minute = minute - interval '{interval}'")
            await connection.execute("INSERT INTO headgate.minute SELECT * FROM older")

    async def read(self, datasource: UUID, wanted: Span = HOUR) -> list[int | None]:
        """What was read at each point, as charts show it."""
        window = await self.minutes.read([datasource], wanted)
        return list(history(window.points.get(datasource, ()), window.reported, wanted.points).read)

    async def moved(self, stream: UUID, total: int) -> None:
        """A stream stands here."""
        await self.rows.database.execute(TOTALS, stream, total)

    async def days(self) -> list[str]:
        """The partitions there are."""
        query = "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = 'headgate.minute'::regclass"
        return sorted(row["name"] for row in await self.rows.database.fetch(query))


def line(datasource: UUID, size: int = 0, lag_s: float = 0.0) -> Line:
    return Line(datasource, size, None, lag_s)


async def test_minutes_are_differences_of_totals_whoever_writes_them(rows: Rows, others: Rows) -> None:
    """Two nodes tell of one minute because the stream has moved between them; one of them is late and says it twice."""
    here, there, stream = Past(rows), Past(others), await rows.stream()
    datasource = await rows.datasource()
    await here.moved(stream, 10)
    await here.minutes.write([line(datasource, 100, 2.0)])
    await here.passes("1 minute")
    await here.moved(stream, 25)
    await asyncio.gather(
        here.minutes.write([line(datasource, 50, 1.0)]), there.minutes.write([line(datasource, 7, 4.0)])
    )
    await here.minutes.write([line(datasource)])
    window = await here.minutes.read([datasource], HOUR)
    points = [
        (one.read, one.written, one.dead_lettered, one.filtered, one.bytes, one.lag_s)
        for one in window.points[datasource]
    ]
    assert points == [(10, 9, 1, 0, 100, 2.0), (15, 15, 0, 0, 57, 4.0)]


async def test_a_quiet_hour_is_zero_an_hour_without_nodes_is_a_gap_and_what_moved_in_it_is_not_lost(rows: Rows) -> None:
    past, stream = Past(rows), await rows.stream()
    datasource = await rows.datasource()
    await past.moved(stream, 10)
    await past.minutes.write([line(datasource)])
    await past.passes("1 minute")
    await past.minutes.write([])  # Nothing moved.
    await past.passes("10 minutes")  # Nobody was there; the database was away, or all nodes were.
    await past.moved(stream, 30)
    await past.minutes.write([line(datasource)])
    found = await past.read(datasource)
    assert found[-12:] == [10, 0, *[None] * 9, 20]
    assert sum(one or 0 for one in await past.read(datasource, WEEK)) == 30


async def test_a_clock_that_is_put_back_or_forward_counts_nothing_twice(rows: Rows) -> None:
    past, stream = Past(rows), await rows.stream()
    datasource = await rows.datasource()
    for total in (10, 20):
        await past.moved(stream, total)
        await past.minutes.write([line(datasource)])
        await past.passes("1 minute")
    await past.passes("-2 hours")  # The clock goes back: what was written lies ahead of it.
    for total in (25, 31):
        await past.moved(stream, total)
        await past.minutes.write([line(datasource)])
    assert (await past.read(datasource))[-2:] == [10, 21]  # Time stands still until the clock is where it was.
    await past.passes("50 hours")
    await past.moved(stream, 40)
    await past.minutes.write([line(datasource)])
    assert (await past.read(datasource))[-1] == 9
    assert sum(one or 0 for one in await past.read(datasource, WEEK)) == 40


async def test_a_missing_day_is_made_by_whoever_needs_it_and_holds_no_writer_up(rows: Rows, url: str) -> None:
    past, stream = Past(rows), await rows.stream()
    datasource = await rows.datasource()
    for day in await past.days():
        await rows.database.execute(f"DROP TABLE {day}")
    await asyncio.gather(*(past.minutes.write([line(datasource)]) for _ in range(3)))
    assert len(await past.days()) in (2, 3)  # Today and tomorrow; and yesterday, in the first minute of a day.
    await past.minutes.keep()
    last = (await past.days())[-1]
    await rows.database.execute(f"DROP TABLE {last}")
    async with session(url) as writer:
        await writer.execute("BEGIN; SET idle_in_transaction_session_timeout = 0")
        await writer.execute("UPDATE headgate.minute SET lag_s = 1")
        await past.minutes.keep()  # Though somebody writes.
        assert (await past.days())[-1] == last
        await writer.execute("COMMIT")
    await past.moved(stream, 3)
    await past.minutes.write([line(datasource)])
    assert (await past.read(datasource))[-1] == 3


async def test_old_days_go_with_what_was_deleted_and_a_datasource_that_slept_is_not_counted_again(
    rows: Rows, url: str
) -> None:
    past, stream, other = Past(rows), await rows.stream(), await rows.stream("gone")
    datasource, gone = await rows.datasource(), await rows.datasource("gone")
    await past.moved(stream, 1000)
    await past.moved(other, 5)
    await past.minutes.write([line(datasource), line(gone)])
    async with rows.datasources.change(ME) as change:
        await change.delete(gone)
    await past.passes("10 days")
    before = len(await past.days())
    async with session(url) as reader:  # Who reads is not held up, and is not waited for either.
        await reader.execute("BEGIN; SET idle_in_transaction_session_timeout = 0")
        await reader.fetch("SELECT * FROM headgate.minute")
        await past.minutes.keep()
        assert len(await past.days()) == before
        await reader.execute("COMMIT")
    for _ in range(before):
        await past.minutes.keep()
    assert len(await past.days()) == 1 + 8 + 3  # Today, a week and a day, and three that the test made ahead.
    assert [row["datasource"] for row in await rows.database.fetch("SELECT datasource FROM headgate.minute")] == [
        datasource
    ]
    await past.moved(stream, 1007)
    await past.minutes.write([line(datasource)])
    assert sum(one or 0 for one in await past.read(datasource)) == 7


BEFORE_MINUTES = 28


async def test_what_was_moved_before_minutes_were_kept_is_no_spike(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = await Database.open(empty_url)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(migrating, "migrations", lambda: [one for one in migrations() if one[0] <= BEFORE_MINUTES])
            await migrate(database)
        rows = Rows(database)
        past, stream = Past(rows), await rows.stream()
        await past.moved(stream, 1_000_000)
        await migrate(database)
        datasource = await rows.datasource()
        await past.moved(stream, 1_000_002)
        await past.minutes.write([line(datasource)])
        assert (await past.read(datasource))[-1] == 2
    finally:
        await database.close()
