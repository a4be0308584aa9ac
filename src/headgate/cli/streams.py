"""`headgate streams`: who reads what, and how far they are."""

from __future__ import annotations

from typing import Any

from headgate.cli.call import Call, command, noun
from headgate.cli.output import DASH, table

app = noun("Streams: who owns them, and how far they are.")


@command(app, "list")
def list_(call: Call) -> None:
    """All streams."""
    call.show(call.node.get("/api/streams"), _table)


def _table(found: dict[str, Any]) -> str:
    rows = [
        (one["name"], str(one["owner"])[:8] if one["owner"] else DASH, one["epoch"], one["version"], one["position"])
        for one in found["items"]
    ]
    heads = ("STREAM", "OWNER", "EPOCH", "VERSION", "POSITION")
    return table(heads, rows, empty="no streams: nothing has been published", right=("EPOCH", "VERSION"))
