"""`headgate events|logs`, `headgate ds events|logs`: what happened, and what is happening now.

Items have rising ids. Following means: show the latest, then ask for what comes after the last id seen. A connection
that breaks is made again from that id, so nothing is shown twice and nothing is left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headgate.cli.call import Call, Name, checked, command, datasource
from headgate.cli.client import Client, Interrupted, Reply, Unreachable
from headgate.cli.ds import app
from headgate.cli.letters import moment
from headgate.cli.output import ago, complain, one_line, short
from headgate.errors import StoreError

if TYPE_CHECKING:
    from headgate.web.bodies.datasources import Event, EventPage, Line, LinePage, NamedLine

RETRY_S = 1.0
PAGE = 1000
FEW = 50  # Events that are shown if nobody says how many.

Item = TypeVar("Item", "Event", "Line", "NamedLine")

Follow = Annotated[bool, typer.Option("--follow", help="Go on until Ctrl-C. With --json: one value per line.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, metavar="N", help="How many of the latest.")]
Most = Annotated[
    int | None,
    typer.Option("--limit", min=1, metavar="N", help="How many of the latest. Default: 50; with --since, all."),
]
Of = Annotated[str | None, typer.Option("--datasource", metavar="NAME", help="Of this one, which may be deleted.")]
Type = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Of this type, such as worker_failed.")]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="After this: 2h, or ISO.")]
Level = Annotated[
    str, typer.Option("--level", metavar="LEVEL", help="Of this level and above: debug, info, warning, error.")
]
Search = Annotated[str | None, typer.Option("--search", metavar="TEXT", help="With this text in them, in any case.")]


def all_events(
    call: Call,
    name: Of = None,
    type: Type = None,
    since: Since = None,
    follow: Follow = False,
    limit: Most = None,
) -> None:
    """What happened to all datasources, nodes, tokens and secrets, and who did it."""
    from headgate.web.bodies.datasources import Event

    named = None if name is None else checked(name, "datasource", "headgate ds list")
    which = {key: value for key, value in (("datasource", named), ("type", type)) if value is not None}
    asked_at = moment("--since", since)
    most = limit if limit is not None else FEW if since is None else None
    newest = _latest(call.node, {}, None, 1) if follow else []  # Of any kind: what follows it is new.
    seen = _latest(call.node, which, asked_at, most)
    if not follow:
        found = Reply({"items": [one.sent for one in seen]}, seen)
        call.relay(found, lambda found: _listed((_named_event(one.value) for one in found), "nothing has happened"))
        return
    begin = max((one.value.id for one in newest), default=0)
    for one in _followed(call.node, "/api/events", Event, seen, begin, follow="true", **which):
        call.line(one.sent, _named_event(one.value))


def all_logs(
    call: Call,
    name: Annotated[str | None, typer.Argument(metavar="[DATASOURCE]", help="Of this one. Default: of all.")] = None,
    follow: Follow = False,
    level: Level = "debug",
    search: Search = None,
    limit: Limit = 50,
) -> None:
    """The last log lines of all datasources, from whichever nodes run them."""
    from headgate.web.bodies.datasources import NamedLine

    named = None if name is None else checked(name, "datasource", "headgate ds list")
    given = (("datasource", named), ("level", level), ("search", search))
    which = {key: value for key, value in given if value is not None}
    newest = _last_lines(call.node, {}, 1) if follow else []  # Of any kind: what follows it is new.
    seen = _last_lines(call.node, which, limit)
    if not follow:
        found = Reply({"items": [one.sent for one in seen]}, seen)
        call.relay(found, lambda found: _listed((_named_line(one.value) for one in found), "no such line was logged"))
        return
    begin = max((one.value.id for one in newest), default=0)
    for one in _followed(call.node, "/api/logs", NamedLine, seen, begin, follow="true", **which):
        call.line(one.sent, _named_line(one.value))


def _last_lines(node: Client, which: dict[str, str], most: int) -> list[Reply[NamedLine]]:
    """The latest lines, oldest first. A page may have few of those that somebody searches for."""
    from headgate.web.bodies.datasources import LinePage

    found: list[Reply[NamedLine]] = []
    before: int | None = None
    while True:
        page: Reply[LinePage] = node.get(
            "/api/logs", LinePage, follow="false", before=before, limit=most - len(found), **which
        )
        both = zip(page.sent["items"], page.value.items, strict=True)
        found = [*(Reply(sent, value) for sent, value in both), *found]
        before = page.value.before
        if before is None or len(found) >= most:
            return found


def _latest(node: Client, which: dict[str, str], since: str | None, most: int | None) -> list[Reply[Event]]:
    """The latest events, oldest first, a page at a time."""
    from headgate.web.bodies.datasources import EventPage

    found: list[Reply[Event]] = []
    before: int | None = None
    while most is None or len(found) < most:
        left = PAGE if most is None else min(PAGE, most - len(found))
        page: Reply[EventPage] = node.get(
            "/api/events", EventPage, follow="false", since=since, before=before, limit=left, **which
        )
        both = zip(page.sent["items"], page.value.items, strict=True)
        found = [*(Reply(sent, value) for sent, value in both), *found]
        before = page.value.before
        if before is None:
            break
    return found


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
    node: Client, path: str, kind: type[Item], seen: list[Reply[Item]], begin: int = 0, **params: Any
) -> Iterator[Reply[Item]]:
    """Those that are there already, and what comes after them, forever. `begin`: nothing up to this id is new."""
    yield from seen
    last = max([begin, *(one.value.id for one in seen)])
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


def _named_event(one: Event) -> str:
    """The clock's time: what happened to several things is read one against another."""
    payload = " ".join(f"{key}={short(value)}" for key, value in one.payload.items())
    return one_line(f"{one.at.isoformat()[:19]} {one.name or '-':<20} {one.type:<18} {payload} by {one.actor}")


def _line(one: Line) -> str:
    fields = " ".join(f"{key}={short(value)}" for key, value in one.fields.items())
    # The clock's time, not "3 min ago": lines are read one against another.
    return one_line(f"{one.at.isoformat()[:19]} {one.level:<7} {one.text} {fields}")


def _named_line(one: NamedLine) -> str:
    fields = " ".join(f"{key}={short(value)}" for key, value in one.fields.items())
    return one_line(f"{one.at.isoformat()[:19]} {one.level:<7} {one.name:<20} {one.text} {fields}")
