"""`headgate nodes`: who is there, and who should take no more streams."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from headgate.cli.call import Call, command, noun
from headgate.cli.output import ago, complain, table, visible
from headgate.errors import NotFound, Refused
from headgate.text import counted, roughly

if TYPE_CHECKING:
    from headgate.web.bodies import streams as bodies
    from headgate.web.bodies.streams import Drained, Nodes

LOOK_S = 0.3
CLEAR_LINE = "\r\x1b[K"

app = noun("Nodes: who is there, with how many streams; drain them, and forget the dead.")

Node = Annotated[str, typer.Argument(metavar="NODE", help="Its name, its id, or the first letters of its id.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="End when it has no streams any more, or at once.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Even if it may be alive: you know that its process has ended.")]


@command(app, "list")
def list_(call: Call) -> None:
    """All nodes."""
    from headgate.web.bodies.streams import Nodes

    call.relay(call.node.get("/api/nodes", Nodes), _table)


@command(app, "drain")
def drain(call: Call, node: Node, wait: Wait = True) -> None:
    """Have a node give its streams to others and take no more, until undrain or its next start."""
    from headgate.web.bodies.streams import Drained

    reply = call.node.post(_path(node, "drain"), Drained)
    found = reply.value
    name, had = found.name, counted(found.streams, "stream")
    if not found.others:
        complain(f"headgate: no other node can take the streams of {name}; they wait for one")
    if not wait:
        call.say(reply.sent, f"{name} is draining: {had} to give back")
        return
    try:
        _await_drained(call, found)
    except KeyboardInterrupt:
        complain(f"headgate: {name} goes on draining without us (headgate nodes undrain {node} ends it)")
        raise
    call.say({**reply.sent, "streams": 0}, f"drained {name}: {had} given back")


@command(app, "undrain")
def undrain(call: Call, node: Node) -> None:
    """Have a node take streams again."""
    from headgate.web.bodies.streams import Drained

    found = call.node.post(_path(node, "undrain"), Drained)
    call.say(found.sent, f"{found.value.name} takes streams again")


@command(app, "forget")
def forget(call: Call, node: Node, yes: Yes = False) -> None:
    """Free the streams of a node that is dead, before its lease is over. Refused while it may be alive."""
    from headgate.web.bodies.streams import Forgotten

    found = call.node.remove(_path(node), Forgotten, yes="true" if yes else None)
    call.say(found.sent, f"forgot {found.value.name}: {counted(found.value.streams, 'stream')} freed")


def _path(name: str, *rest: str) -> str:
    """A node may have any name; those that would lead to another path have to be called by their id."""
    if name in ("", ".", ".."):
        raise NotFound(f"node {name!r} does not exist", hint="headgate nodes list")
    return "/".join(["/api/nodes", quote(name, safe="", errors="replace"), *rest])


def _await_drained(call: Call, found: Drained) -> None:
    """Look until it has no streams, or has left."""
    is_shown = sys.stderr.isatty() and not call.as_json
    try:
        while left := _streams_left(call, found):
            if is_shown:
                sys.stderr.write(CLEAR_LINE + visible(f"draining {found.name}: {counted(left, 'stream')} left"))
                sys.stderr.flush()
            time.sleep(LOOK_S)
    finally:
        if is_shown:
            sys.stderr.write(CLEAR_LINE)


def _streams_left(call: Call, found: Drained) -> int:
    from headgate.web.bodies.streams import Nodes

    row = next((one for one in call.node.get("/api/nodes", Nodes).value.items if one.id == found.id), None)
    if row is None:
        return 0
    if not row.draining:
        raise Refused(f"somebody has ended the draining of {found.name}", code="undrained")
    return row.streams


# How it looks.


def _table(found: Nodes) -> str:
    rows = [
        (
            one.name,
            str(one.id)[:8],
            _status(one),
            one.streams,
            one.version,
            ago(one.started_at),
            one.address,
        )
        for one in found.items
    ]
    heads = ("NODE", "ID", "STATUS", "STREAMS", "VERSION", "STARTED", "ADDRESS")
    return table(heads, rows, empty="no nodes", right=("STREAMS",))


def _status(one: bodies.Node) -> str:
    return f"silent {roughly(one.silent_s)}" if one.status == "silent" else one.status
