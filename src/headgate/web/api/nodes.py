"""Nodes: who is there, who should take no more streams, and who is known to be dead."""

from __future__ import annotations

import math
from typing import Any

from litestar import delete, get, post
from litestar.connection import Request

from headgate.core.lease import SILENT_S
from headgate.errors import NotFound, Refused
from headgate.runtime.node import Node
from headgate.store.events import Event
from headgate.web.auth import needs

Req = Request[Any, Any, Any]
OPERATE = [needs("operator")]

FIELDS = ("id", "name", "beat", "lease_s", "address", "version", "started_at", "streams", "draining")


@get("/api/nodes", guards=[needs("viewer")], tags=["nodes"], summary="All nodes that beat")
async def list_nodes(node: Node) -> dict[str, Any]:
    """One row per incarnation; `silent_s` is for how long the answering node has seen no beat of it."""
    return {"items": [_view(node, row) for row in await node.nodes.all()]}


@post("/api/nodes/{id:str}/drain", guards=OPERATE, status_code=200, tags=["nodes"], summary="Drain a node")
async def drain_node(node: Node, request: Req, id: str) -> dict[str, Any]:
    """It gives its streams back and gets no more; `others` is how many nodes are left to take them."""
    return await _set_draining(node, id, True, request.user.name)


@post("/api/nodes/{id:str}/undrain", guards=OPERATE, status_code=200, tags=["nodes"], summary="End a node's draining")
async def undrain_node(node: Node, request: Req, id: str) -> dict[str, Any]:
    """It may be granted streams again."""
    return await _set_draining(node, id, False, request.user.name)


@delete("/api/nodes/{id:str}", guards=OPERATE, status_code=200, tags=["nodes"], summary="Forget a node that is dead")
async def forget_node(node: Node, request: Req, id: str, yes: bool = False) -> dict[str, Any]:
    """Its streams are free at once. Refused while it may be alive, unless `yes` says that somebody knows better."""
    found = await node.nodes.find(id)
    _check_dead(node, found, yes=yes)
    freed = await node.nodes.end(found["id"])
    if freed is None:
        raise _gone(found)
    await _tell(node, "node_forgotten", found, request.user.name, streams=len(freed))
    return {"id": found["id"], "name": found["name"], "streams": len(freed)}


def _view(node: Node, row: Any) -> dict[str, Any]:
    silent_s = node.watcher.silent_s(row["id"])
    status = "silent" if silent_s > SILENT_S else "draining" if row["draining"] else "up"
    return {
        **{field: row[field] for field in FIELDS},
        "status": status,
        "silent_s": round(silent_s, 1),
        "is_this": row["id"] == node.incarnation,
    }


async def _set_draining(node: Node, id: str, draining: bool, actor: str) -> dict[str, Any]:
    """Asking for what is so already changes nothing."""
    found = await node.nodes.find(id)
    if not await node.nodes.set_draining(found["id"], draining):
        raise _gone(found)
    if found["draining"] != draining:
        await _tell(node, "node_drained" if draining else "node_undrained", found, actor)
    others = [row for row in await node.nodes.all() if row["id"] != found["id"] and not row["draining"]]
    answer = {field: found[field] for field in ("id", "name", "streams")}
    return {**answer, "draining": draining, "others": len(others)}


def _check_dead(node: Node, found: Any, *, yes: bool) -> None:
    """A node that acts while others have its streams repeats records into sinks that cannot fence it."""
    if found["id"] == node.incarnation:
        hint = f"headgate nodes drain {found['name']}"
        raise Refused(f"{found['name']} is alive: it answers this call", code="alive", hint=hint)
    silent_s = node.watcher.silent_s(found["id"])
    left_s = found["lease_s"] - silent_s
    if left_s > 0 and not yes:
        raise Refused(
            f"{found['name']} beat {silent_s:.0f} s ago and may act for {math.ceil(left_s)} s more",
            code="alive",
            hint="wait that long, or say yes if you know that its process has ended",
        )


def _gone(found: Any) -> NotFound:
    return NotFound(f"node {found['name']!r} has left meanwhile", hint="headgate nodes list")


async def _tell(node: Node, type: str, found: Any, actor: str, **payload: Any) -> None:
    """Record what was done to a node, and have all nodes look at once."""
    payload = {"node": found["name"], "id": str(found["id"]), **payload}
    await node.registry.events.record([Event(None, None, type, payload, actor)])
    node.waker.wake("streams")
    node.waker.wake("events")


ROUTES = [list_nodes, drain_node, undrain_node, forget_node]
