"""Bodies about the history of datasources: figures of each minute, or of longer points where more of them are shown.

A list has one value for each point, the oldest first. Null: no node reported at that time, or the figure is not known.
"""

from __future__ import annotations

from headgate.core.minutes import RangeName
from headgate.web.bodies import Answer


class Grid(Answer):
    """Which times the points stand for."""

    range: RangeName
    from_s: int  # When the first point begins, in Unix time.
    step_s: int  # From the beginning of one point to that of the next.
    points: int


class DatasourceHistory(Grid):
    """What one datasource did. Divided by `step_s`, what was counted is a rate."""

    name: str
    read: list[int | None]
    written: list[int | None]
    filtered: list[int | None]
    dead_lettered: list[int | None]
    bytes: list[int | None]  # Read.
    backlog: list[int | None]  # Records; the most that waited.
    lag_s: list[float | None]  # The longest.


class ShortHistory(Answer):
    """What a datasource did, for a small chart."""

    name: str
    read: list[int | None]
    written: list[int | None]
    dead_lettered: list[int | None]
    backlog: list[int | None]
    lag_s: list[float | None]


class Histories(Grid):
    """Datasources that moved, or at which something waited, by name. One that is missing did neither."""

    items: list[ShortHistory]
    after: str | None  # For the next page; null: there are no more.
