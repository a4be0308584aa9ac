"""`headgate ds events|logs`: what happened, and what is happening now.

Items have rising ids. Following means: show the latest, then ask for what comes after the last id seen. A connection
that breaks is made again from that id, so nothing is shown twice and nothing is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from headgate.cli.call import Call, Name, command, datasource
from headgate.cli.client import Client, Interrupted, Unreachable
from headgate.cli.ds import app
from headgate.cli.output import ago, complain, one_line, short
from headgate.errors import StoreError

RETRY_S = 1.0

Follow = Annotated[bool, typer.Option("--follow", help="Go on until Ctrl-C. With --json: one value per line.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, metavar="N", help="How many of the latest.")]


@command(app, "events")
def events(call: Call, name: Name, follow: Follow = False, limit: Limit = 50) -> None:
    """What happened to a datasource, and who did it."""
    found = call.node.get(datasource(name, "events"), limit=limit)
    _tell(call, found, _event, f"nothing has happened to {name} yet", follow)
    if follow:
        for one in _news(call.node, datasource(name, "events", "stream"), found["items"]):
            call.line(one, _event(one))


@command(app, "logs")
def logs(call: Call, name: Name, follow: Follow = False) -> None:
    """The last log lines of a datasource, from whichever node runs it."""
    path = datasource(name, "logs")
    found = call.node.get(path, follow="false")
    _tell(call, found, _line, f"{name} has logged nothing yet", follow)
    if follow:
        for one in _news(call.node, path, found["items"], follow="true"):
            call.line(one, _line(one))


def _tell(call: Call, found: dict[str, Any], render: Callable[[Any], str], empty: str, follow: bool) -> None:
    """Those that are there already."""
    if not follow:
        call.show(found, lambda found: "\n".join(map(render, found["items"])) or empty)
        return
    for one in found["items"]:
        call.line(one, render(one))


def _news(node: Client, path: str, seen: list[dict[str, Any]], **params: Any) -> Iterator[dict[str, Any]]:
    """What comes after those seen, forever."""
    last = max((one["id"] for one in seen), default=0)
    is_away = False
    while True:
        try:
            for one in node.stream(path, after=last, **params):
                is_away = False
                if one.get("id", 0) > last:
                    last = one["id"]
                    yield one
        except (Interrupted, Unreachable, StoreError) as error:
            if not is_away and not isinstance(error, Interrupted):
                complain(f"headgate: {error.message}; waiting for it")
                is_away = True
            time.sleep(RETRY_S)


def _event(one: dict[str, Any]) -> str:
    payload = " ".join(f"{key}={short(value)}" for key, value in (one.get("payload") or {}).items())
    return one_line(f"{ago(one['at']):<11} {one['type']:<14} {payload} by {one['actor']}")


def _line(one: dict[str, Any]) -> str:
    fields = " ".join(f"{key}={short(value)}" for key, value in (one.get("fields") or {}).items())
    # The clock's time, not "3 min ago": lines are read one against another.
    return one_line(f"{one['at'][:19]} {one['level']:<7} {one['text']} {fields}")
