"""`headgate nodes`: who is there."""

from __future__ import annotations

from typing import Any

from headgate.cli.call import Call, command, noun
from headgate.cli.output import ago, table

app = noun("Nodes: who is there, and with how many streams.")


@command(app, "list")
def list_(call: Call) -> None:
    """All nodes."""
    call.show(call.node.get("/api/nodes"), _table)


def _table(found: dict[str, Any]) -> str:
    rows = [
        (one["name"], str(one["id"])[:8], one["streams"], one["version"], ago(one["started_at"]), one["address"])
        for one in found["items"]
    ]
    heads = ("NODE", "ID", "STREAMS", "VERSION", "STARTED", "ADDRESS")
    return table(heads, rows, empty="no nodes", right=("STREAMS",))
