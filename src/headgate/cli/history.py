"""`headgate ds events|logs`: what happened, and what is happening now.

Items have rising ids. Following means: show the latest, then ask for what comes after the last id seen. A connection
that breaks is made again from that id, so nothing is shown twice and nothing is left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headgate.cli.call import Call, Name, command, datasource
from headgate.cli.client import Client, Interrupted, Reply, Unreachable
from headgate.cli.ds import app
from headgate.cli.output import ago, complain, one_line, short
from headgate.errors import StoreError

if TYPE_CHECKING:
    from headgate.web.bodies.datasources import Event, Line

RETRY_S = 1.0

Item = TypeVar("Item", "Event", "Line")

Follow = Annotated[bool, typer.Option("--follow", help="Go on until Ctrl-C. With --json: one value per line.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, metavar="N", help="How many of the latest.")]


@command(app, "events")
def events(call: Call, name: Name, follow: Follow = False, limit: Limit = 50) -> None:
    """What happened to a datasource, and who did it."""
    from headgate.web.bodies.datasources import Event, Events

    found = call.node.get(datasource(name, "events"), Events, limit=limit)
    if not follow:
        call.relay(found, lambda found: _listed(map(_event, found.items), f"nothing has happened to {name} yet"))
        return
    seen = [Reply(*both) for both in zip(found.sent["items"], found.value.items, strict=True)]
    for one in _followed(call.node, datasource(name, "events", "stream"), Event, seen):
        call.line(one.sent, _event(one.value))


@command(app, "logs")
def logs(call: Call, name: Name, follow: Follow = False) -> None:
    """The last log lines of a datasource, from whichever node runs it."""
    from headgate.web.bodies.datasources import Line, Lines

    path = datasource(name, "logs")
    found = call.node.get(path, Lines, follow="false")
    if not follow:
        call.relay(found, lambda found: _listed(map(_line, found.items), f"{name} has logged nothing yet"))
        return
    seen = [Reply(*both) for both in zip(found.sent["items"], found.value.items, strict=True)]
    for one in _followed(call.node, path, Line, seen, follow="true"):
        call.line(one.sent, _line(one.value))


def _listed(lines: Iterable[str], empty: str) -> str:
    return "\n".join(lines) or empty


def _followed(
    node: Client, path: str, kind: type[Item], seen: list[Reply[Item]], **params: Any
) -> Iterator[Reply[Item]]:
    """Those that are there already, and what comes after them, forever."""
    yield from seen
    last = max((one.value.id for one in seen), default=0)
    is_away = False
    while True:
        try:
            for one in node.stream(path, kind, after=last, **params):
                is_away = False
                if one.value.id > last:
                    last = one.value.id
                    yield one
        except (Interrupted, Unreachable, StoreError) as error:
            if not is_away and not isinstance(error, Interrupted):
                complain(f"headgate: {error.message}; waiting for it")
                is_away = True
            time.sleep(RETRY_S)


def _event(one: Event) -> str:
    payload = " ".join(f"{key}={short(value)}" for key, value in one.payload.items())
    return one_line(f"{ago(one.at):<11} {one.type:<14} {payload} by {one.actor}")


def _line(one: Line) -> str:
    fields = " ".join(f"{key}={short(value)}" for key, value in one.fields.items())
    # The clock's time, not "3 min ago": lines are read one against another.
    return one_line(f"{one.at.isoformat()[:19]} {one.level:<7} {one.text} {fields}")
