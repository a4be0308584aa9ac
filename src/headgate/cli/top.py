"""`headgate top`: all datasources, what is wrong first, again and again."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from headgate.cli.call import Call
from headgate.cli.client import Reply
from headgate.cli.output import say, table
from headgate.text import duration

if TYPE_CHECKING:
    from headgate.web.bodies.datasources import Summary

WORST_FIRST = ("error", "degraded", "starting", "stopped", "ok")
PATH = "/api/overview"  # What all who look share.
AGAIN, AGAIN_S = 10, 0.2  # How often to ask for a snapshot that has not been seen, and after what time.
CLEAR = "\x1b[H\x1b[2J"


@dataclass(frozen=True, slots=True)
class Row:
    """A datasource, and how much it has written since the last look."""

    name: str
    health: str
    per_second: float
    written: int
    lag_s: float | None
    node: str | None


def top(
    call: Call,
    every_s: Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.2, help="How often to look.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, show the rates, and end.")] = False,
) -> None:
    """Rates and health of all datasources, until Ctrl-C."""
    from headgate.web.bodies.datasources import Overview

    before = call.node.get(PATH, Overview, follow=False).value
    while True:
        time.sleep(every_s)
        found = call.node.get(PATH, Overview, follow=False).value
        for _ in range(AGAIN):  # Rates are of the time between two snapshots, and there is one a second.
            if found.at_s > before.at_s:
                break
            time.sleep(AGAIN_S)
            found = call.node.get(PATH, Overview, follow=False).value
        written = {one.name: one.metrics.records_out for one in before.datasources}
        passed_s = found.at_s - before.at_s or every_s
        rows = [_row(one, written, passed_s) for one in found.datasources]
        rows.sort(key=lambda row: (WORST_FIRST.index(row.health), -row.per_second, row.name))
        if not call.as_json and not once and sys.stdout.isatty():
            say(CLEAR)
        call.relay(Reply({"items": [asdict(row) for row in rows]}, rows), _table)
        if once or call.as_json:
            return
        before = found


def _row(one: Summary, before: dict[str, int], passed_s: float) -> Row:
    written = one.metrics.records_out
    # A stream that has moved to another node counts from nothing again.
    more = max(0, written - before.get(one.name, written))
    return Row(one.name, one.health, round(more / passed_s, 1), written, one.metrics.lag_s, one.node)


def _table(found: list[Row]) -> str:
    rows = [
        (
            one.name,
            one.health,
            f"{one.per_second:,.1f}",
            f"{one.written:,}",
            "" if one.lag_s is None else duration(one.lag_s),
            one.node or "",
        )
        for one in found
    ]
    heads = ("NAME", "HEALTH", "PER SECOND", "WRITTEN", "LAG", "NODE")
    return table(heads, rows, empty="no datasources", right=("PER SECOND", "WRITTEN", "LAG"))
