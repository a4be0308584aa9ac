"""Nodes and streams."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import get

from headgate.ids import stream_name
from headgate.runtime.node import Node
from headgate.web.auth import needs


@get("/api/nodes", guards=[needs("viewer")], tags=["cluster"], summary="All nodes that beat")
async def nodes(node: Node) -> dict[str, Any]:
    """One row per incarnation."""
    fields = ("id", "name", "beat", "lease_s", "address", "version", "started_at", "streams")
    return {"items": [{field: row[field] for field in fields} for row in await node.nodes.all()]}


@get("/api/streams", guards=[needs("viewer")], tags=["cluster"], summary="All streams, who owns them, where they are")
async def streams(node: Node) -> dict[str, Any]:
    """The only place where ownership lives."""
    names = {row["id"]: row["name"] for row in await node.nodes.all()}
    items = []
    for row in await node.streams.all():
        item = {field: row[field] for field in ("id", "index", "owner", "run", "epoch", "edits", "n", "version")}
        position = None if row["position"] is None else msgspec.json.decode(row["position"])
        name = stream_name(row["name"], row["index"])
        items.append(
            {**item, "name": name, "datasource": row["name"], "position": position, "node": names.get(row["owner"])}
        )
    return {"items": items}


ROUTES = [nodes, streams]
