"""`headgate top`: all datasources, what is wrong first, again and again.

Rates come with the figures: each node compares the totals of its streams over the same time. So one look is enough, and
the first one is right.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from headgate.cli.call import Call
from headgate.cli.client import Reply
from headgate.cli.output import CLEAR, DASH, say, table
from headgate.core.figures import HEALTHS
from headgate.text import duration

if TYPE_CHECKING:
    from headgate.web.bodies.datasources import Summary

PATH = "/api/overview"  # What all who look share.


@dataclass(frozen=True, slots=True)
class Row:
    """A datasource, what became of its records, and what waits."""

    name: str
    health: str
    why: str
    read_per_s: float | None
    written_per_s: float | None
    read: int
    written: int
    filtered: int
    dead_lettered: int
    backlog_records: int | None
    backlog_bytes: int | None
    lag_s: float
    node: str | None


def top(
    call: Call,
    every_s: Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.2, help="How often to look.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
) -> None:
    """Rates and health of all datasources, until Ctrl-C."""
    from headgate.web.bodies.datasources import Overview

    while True:
        found = call.node.get(PATH, Overview, follow=False).value
        rows = [_row(one) for one in found.datasources]
        rows.sort(key=lambda row: (HEALTHS.index(row.health), -(row.written_per_s or 0.0), row.name))
        if not call.as_json and not once and sys.stdout.isatty():
            say(CLEAR)
        call.relay(Reply({"items": [asdict(row) for row in rows]}, rows), _table)
        if once or call.as_json:
            return
        time.sleep(every_s)


def _row(one: Summary) -> Row:
    figures = one.metrics
    return Row(
        one.name,
        one.health,
        one.why,
        figures.read_per_s,
        figures.written_per_s,
        figures.records_read,
        figures.records_written,
        figures.records_filtered,
        figures.records_dead_lettered,
        figures.backlog_records,
        figures.backlog_bytes,
        figures.lag_s,
        one.node,
    )


def _table(found: list[Row]) -> str:
    rows = [
        (
            one.name,
            one.health,
            _rate(one.read_per_s),
            _rate(one.written_per_s),
            f"{one.written:,}",
            f"{one.dead_lettered:,}",
            "" if one.backlog_records is None else f"{one.backlog_records:,}",
            duration(one.lag_s) if one.lag_s else "",
            one.node or "",
        )
        for one in found
    ]
    heads = ("NAME", "HEALTH", "READ/S", "WRITTEN/S", "WRITTEN", "DEAD", "BACKLOG", "LAG", "NODE")
    return table(heads, rows, empty="no datasources", right=heads[2:-1])


def _rate(per_s: float | None) -> str:
    return DASH if per_s is None else f"{per_s:,.1f}"
