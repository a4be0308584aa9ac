"""The minutes of datasources: one line for each that moved, written by the nodes that moved it, kept for seven days."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from headgate.core.minutes import KEPT_DAYS, Point, Span, last_minute
from headgate.ids import lock_key
from headgate.slices import sliced
from headgate.store.database import Database, Row, sql

AT_ONCE = 5000  # Lines in one statement: some tenths of a second where the machine is slow.
AT_A_TIME = 1000  # Points that are made of lines before others have the loop.
ANY_NODE = UUID(int=0)  # Its lines say that some node has written.

_LOCK = lock_key("minutes")


@dataclass(frozen=True, slots=True)
class Line:
    """What a node adds to the totals of a datasource for one minute."""

    datasource: UUID
    bytes: int  # Read by this node since its last line.
    backlog: int | None  # None: what nodes have said of the streams holds.
    lag_s: float


@dataclass(frozen=True, slots=True)
class Window:
    """The points that were asked for."""

    from_s: int  # In Unix time: the beginning of the first.
    points: Mapping[UUID, Sequence[Point]]  # Of datasources that moved.
    reported: frozenset[int]  # At which some node had written.


class Minutes:
    """Write and read lines."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(self, lines: Sequence[Line]) -> float:
        """Write the lines of the minute that is just over. Returns the server's time."""
        now = await self._database.fetchrow(sql("minutes/now"))
        assert now is not None
        if not now["has_day"]:  # The clock has jumped, or nobody has kept house for a day.
            await self._make_days(now["minute"])
        for begin in range(0, max(1, len(lines)), AT_ONCE):
            some = sorted(lines[begin : begin + AT_ONCE], key=lambda line: line.datasource)
            await self._database.execute(
                sql("minutes/write"),
                now["minute"],
                [line.datasource for line in some],
                [line.bytes for line in some],
                [line.backlog for line in some],
                [line.lag_s for line in some],
            )
        return float(now["now_s"])

    async def keep(self) -> None:
        """Make the days that come, and drop one that is old."""
        if not await self._database.fetchval(sql("minutes/has_days")):
            await self._make_days(None)
        async with self._database.transaction() as connection:
            await connection.execute(sql("minutes/lock"), _LOCK)
            await connection.fetchval(sql("minutes/drop_day"), KEPT_DAYS)

    async def _make_days(self, minute: datetime | None) -> None:
        async with self._database.transaction() as connection:
            await connection.execute(sql("minutes/lock"), _LOCK)
            await connection.execute(sql("minutes/make_days"), minute)

    async def read(self, datasources: Sequence[UUID], wanted: Span) -> Window:
        """What these have moved, up to the last minute that was reported."""
        now = await self._database.fetchrow(sql("minutes/last"), ANY_NODE)
        assert now is not None
        last = datetime.fromtimestamp(last_minute(now["now_s"], now["reported_s"]), UTC)
        first = last - timedelta(minutes=wanted.minutes - 1)
        rows = await self._database.fetch(
            sql("minutes/list"), [*datasources, ANY_NODE], first, last, wanted.minutes_each
        )
        found: dict[UUID, list[Point]] = {}
        async for some in sliced(rows, AT_A_TIME):
            for row in some:
                found.setdefault(row["datasource"], []).append(_point(row))
        reported = frozenset(point.at for point in found.pop(ANY_NODE, ()))
        return Window(int(first.timestamp()), found, reported)


def _point(row: Row) -> Point:
    return Point(
        row["point"],
        row["read"],
        row["written"],
        row["dead_lettered"],
        row["bytes"],
        row["backlog"],
        row["lag_s"],
    )
