"""Who had a stream when, drawn from its history: a lane for each node, a bar for each time that it held the stream.

A page draws the bars as they are here: all numbers are thousandths of the time that is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from headgate.store.listed import HistoryLine

WIDTH = 1000
LEAST = 2  # Of a bar: the shortest hold is still to be seen.
MOST_LANES = 8
BEGINS = ("granted", "acquired")
ENDS = ("released", "revoked")


@dataclass(frozen=True, slots=True)
class Bar:
    """A time for which one node held the stream."""

    x: int
    width: int
    epoch: int
    begin: datetime
    end: datetime | None  # None: it still does.


@dataclass(frozen=True, slots=True)
class Lane:
    """What one node held."""

    node: str
    bars: list[Bar]


@dataclass(frozen=True, slots=True)
class Lanes:
    """All nodes that held it, and the time that is shown."""

    begin: datetime
    lanes: list[Lane]
    more: int  # Nodes that are not shown.


@dataclass(frozen=True, slots=True)
class _Held:
    node: str
    epoch: int
    begin: datetime
    end: datetime | None


def lanes(history: Sequence[HistoryLine], now: datetime) -> Lanes | None:
    """From its lines, the latest first. None: nobody ever had it."""
    held = _held(list(reversed(history)))
    if not held:
        return None
    begin = held[0].begin
    span_s = max((now - begin).total_seconds(), 1.0)
    nodes = list(dict.fromkeys(one.node for one in reversed(held)))
    shown = [Lane(node, [_bar(one, begin, now, span_s) for one in held if one.node == node]) for node in nodes]
    return Lanes(begin, shown[:MOST_LANES], max(0, len(shown) - MOST_LANES))


def _held(lines: Sequence[HistoryLine]) -> list[_Held]:
    """The times, one after another. A node that takes it again for another run still has it; a grant to another node
    ends what was before."""
    found: list[_Held] = []
    for line in lines:
        last = found[-1] if found and found[-1].end is None else None
        if line.kind in BEGINS:
            if last is not None and last.node == line.actor:
                continue
            _end(found, line.at)
            found.append(_Held(line.actor or "", line.epoch, line.at, None))
        elif line.kind in ENDS:
            _end(found, line.at)
    return found


def _end(found: list[_Held], at: datetime) -> None:
    if found and found[-1].end is None:
        last = found[-1]
        found[-1] = _Held(last.node, last.epoch, last.begin, at)


def _bar(one: _Held, begin: datetime, now: datetime, span_s: float) -> Bar:
    x = _at(one.begin - begin, span_s)
    width = max(LEAST, _at((one.end or now) - begin, span_s) - x)
    return Bar(min(x, WIDTH - LEAST), min(width, WIDTH - min(x, WIDTH - LEAST)), one.epoch, one.begin, one.end)


def _at(span: timedelta, span_s: float) -> int:
    return round(WIDTH * min(max(span.total_seconds() / span_s, 0.0), 1.0))
