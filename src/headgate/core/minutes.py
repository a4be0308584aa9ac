"""The history of datasources: what each moved in every minute of the last seven days, as points of a chart.

The lines that nodes write hold *totals*, as the streams have them (`store.minutes`), so whatever restarts, moves, comes
late or comes twice, the difference of two lines is what was moved between them. Only what moved has a line; a mark that
every node writes tells minutes in which nothing moved from those in which nobody was there to say so. `history` puts
the two together: a point at which nobody reported is None, so that a chart has a gap there and not a zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

KEPT_DAYS = 8  # Before today. Seven are shown; the first line that is shown has to have one before it.
MINUTE_S = 60

RangeName: TypeAlias = Literal["1h", "24h", "7d"]


@dataclass(frozen=True, slots=True)
class Span:
    """How far back, and how fine."""

    points: int
    minutes_each: int

    @property
    def minutes(self) -> int:
        """In all."""
        return self.points * self.minutes_each


RANGES: Mapping[RangeName, Span] = {"1h": Span(60, 1), "24h": Span(144, 10), "7d": Span(168, 60)}


@dataclass(frozen=True, slots=True)
class Point:
    """What a datasource moved between two times, as far as it did."""

    at: int  # Which point; -1: the last line before the first one.
    read: int = 0
    written: int = 0
    dead_lettered: int = 0
    bytes: int = 0
    backlog: int | None = None  # The most that waited; None: the source cannot know it.
    lag_s: float = 0.0  # The longest.

    @property
    def filtered(self) -> int:
        """The rest: every record that is read is written, filtered or dead-lettered."""
        return max(0, self.read - self.written - self.dead_lettered)


@dataclass(frozen=True, slots=True)
class History:
    """One datasource: a number for each point, or None where nobody reported."""

    read: Sequence[int | None]
    written: Sequence[int | None]
    filtered: Sequence[int | None]
    dead_lettered: Sequence[int | None]
    bytes: Sequence[int | None]
    backlog: Sequence[int | None]  # None, too, where the source cannot know it.
    lag_s: Sequence[float | None]


def last_minute(now_s: float, reported_s: float | None) -> int:
    """The beginning of the last minute to show, in Unix time: the latest that was reported, if that is the news."""
    over = int(now_s) // MINUTE_S * MINUTE_S - MINUTE_S
    if reported_s is not None and reported_s >= over - MINUTE_S:
        return int(reported_s)
    return over


def history(points: Iterable[Point], reported: frozenset[int], number: int) -> History:
    """Put the points in their places. What waits at a source stays until another line says otherwise."""
    by_place = {point.at: point for point in points}
    waiting = by_place[-1].backlog if -1 in by_place else None
    whole: list[Point | None] = []
    for at in range(number):
        found = by_place.get(at)
        waiting = waiting if found is None else found.backlog
        if found is None and at in reported:
            found = Point(at, backlog=waiting)
        whole.append(found)
    return History(
        [None if one is None else one.read for one in whole],
        [None if one is None else one.written for one in whole],
        [None if one is None else one.filtered for one in whole],
        [None if one is None else one.dead_lettered for one in whole],
        [None if one is None else one.bytes for one in whole],
        [None if one is None else one.backlog for one in whole],
        [None if one is None else round(one.lag_s, 3) for one in whole],
    )
