"""`headgate top`: all datasources, what is wrong first, again and again."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from headgate.cli.call import Call
from headgate.cli.output import say, table
from headgate.text import duration

WORST_FIRST = ("error", "degraded", "starting", "stopped", "ok")
CLEAR = "\x1b[H\x1b[2J"


def top(
    call: Call,
    every_s: Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.2, help="How often to look.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, show the rates, and end.")] = False,
) -> None:
    """Rates and health of all datasources, until Ctrl-C."""
    before, before_at = _written(call), time.monotonic()
    while True:
        time.sleep(every_s)
        found, now = call.node.get("/api/datasources"), time.monotonic()
        rows = [_row(one, before, now - before_at) for one in found["items"]]
        rows.sort(key=lambda row: (WORST_FIRST.index(row["health"]), -row["per_second"], row["name"]))
        if not call.as_json and not once and sys.stdout.isatty():
            say(CLEAR)
        call.show({"items": rows}, _table)
        if once or call.as_json:
            return
        before, before_at = {one["name"]: one["written"] for one in rows}, now


def _written(call: Call) -> dict[str, int]:
    items = call.node.get("/api/datasources")["items"]
    return {one["name"]: int(one["metrics"].get("records_out", 0)) for one in items}


def _row(one: dict[str, Any], before: dict[str, int], passed_s: float) -> dict[str, Any]:
    written = int(one["metrics"].get("records_out", 0))
    # A stream that has moved to another node counts from nothing again.
    more = max(0, written - before.get(one["name"], written))
    return {
        "name": one["name"],
        "health": one["health"],
        "per_second": round(more / passed_s, 1),
        "written": written,
        "lag_s": one["metrics"].get("lag_s"),
        "node": one["node"],
    }


def _table(found: dict[str, Any]) -> str:
    rows = [
        (
            one["name"],
            one["health"],
            f"{one['per_second']:,.1f}",
            f"{one['written']:,}",
            "" if one["lag_s"] is None else duration(one["lag_s"]),
            one["node"] or "",
        )
        for one in found["items"]
    ]
    heads = ("NAME", "HEALTH", "PER SECOND", "WRITTEN", "LAG", "NODE")
    return table(heads, rows, empty="no datasources", right=("PER SECOND", "WRITTEN", "LAG"))
