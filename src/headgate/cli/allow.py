"""`headgate allow`: what documents may reach."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

import typer

from headgate.cli.call import Call, command, noun
from headgate.cli.output import ago, table

if TYPE_CHECKING:
    from headgate.web.bodies.access import Allowed

app = noun("What documents may reach: folders, addresses and Python modules.")


class Kind(StrEnum):
    """What is allowed."""

    folder = "folder"
    address = "address"
    module = "module"


Of = Annotated[Kind, typer.Argument(help="What it is.")]
Value = Annotated[
    str, typer.Argument(metavar="VALUE", help="/data/orders, db.example.com:5432, 10.0.0.0/8:*, mypackage.")
]


@command(app, "list")
def list_(call: Call) -> None:
    """The folders, addresses and modules that are allowed, and who allowed them."""
    from headgate.web.bodies.access import Allowed

    call.relay(call.node.get("/api/allowed", Allowed), _table)


@command(app, "add")
def add(call: Call, kind: Of, value: Value) -> None:
    """Allow one more. A relative folder counts from where each node was started."""
    from headgate.web.bodies.access import Allow

    found = call.node.post("/api/allowed", Allow, {"kind": kind.value, "value": value})
    call.say(found.sent, f"allowed {kind.value} {found.value.value}")


@command(app, "remove")
def remove(call: Call, kind: Of, value: Value) -> None:
    """Take one off the list. What runs goes on until it starts next."""
    call.node.delete(f"/api/allowed?{urlencode({'kind': kind.value, 'value': value})}")
    call.say({"kind": kind.value, "value": value, "action": "remove"}, f"removed {kind.value} {value}")


def _table(found: Allowed) -> str:
    rows = [(one.kind, one.value, ago(one.created_at), one.author) for one in found.items]
    return table(("KIND", "VALUE", "ADDED", "BY"), rows, empty="nothing is allowed (headgate allow add folder DATA)")
