"""Nodes: who is there, who should take no more streams, and who is known to be dead."""

from __future__ import annotations

import math

from litestar import delete, get, post

from headgate.core.lease import SILENT_S
from headgate.errors import NotFound, Refused
from headgate.runtime.node import Node
from headgate.store.events import Event
from headgate.store.nodes import Node as NodeRow
from headgate.web.auth import Needs, Req
from headgate.web.bodies import streams as bodies

OPERATE = [Needs("operate_all")]


@get("/api/nodes", guards=[Needs("see_all")], tags=["nodes"], summary="All nodes that beat")
async def list_nodes(node: Node) -> bodies.Nodes:
    """One row per incarnation; `silent_s` is for how long the answering node has seen no beat of it."""
    return bodies.Nodes(items=[view(node, row) for row in await node.nodes.all()])


@post("/api/nodes/{id:str}/drain", guards=OPERATE, status_code=200, tags=["nodes"], summary="Drain a node")
async def drain_node(node: Node, request: Req, id: str) -> bodies.Drained:
    """It gives its streams back and gets no more; `others` is how many nodes are left to take them."""
    return await _set_draining(node, id, True, request.user.name)


@post("/api/nodes/{id:str}/undrain", guards=OPERATE, status_code=200, tags=["nodes"], summary="End a node's draining")
async def undrain_node(node: Node, request: Req, id: str) -> bodies.Drained:
    """It may be granted streams again."""
    return await _set_draining(node, id, False, request.user.name)


@delete("/api/nodes/{id:str}", guards=OPERATE, status_code=200, tags=["nodes"], summary="Forget a node that is dead")
async def forget_node(node: Node, request: Req, id: str, yes: bool = False) -> bodies.Forgotten:
    """Its streams are free at once. Refused while it may be alive, unless `yes` says that somebody knows better."""
    found = await node.nodes.find(id)
    _check_dead(node, found, yes=yes)
    freed = await node.nodes.end(found.id)
    if freed is None:
        raise _gone(found)
    await _record(node, "node_forgotten", found, request.user.name, streams=len(freed))
    return bodies.Forgotten(id=found.id, name=found.name, streams=len(freed))


def view(node: Node, row: NodeRow) -> bodies.Node:
    """One incarnation, as this node sees it."""
    silent_s = node.watcher.silent_s(row.id)
    return bodies.Node(
        id=row.id,
        name=row.name,
        beat=row.beat,
        lease_s=row.lease_s,
        address=row.address,
        version=row.version,
        started_at=row.started_at,
        streams=row.streams,
        draining=row.draining,
        registry_problem=row.registry_problem,
        status=_status(row, silent_s),
        silent_s=round(silent_s, 1),
        is_this=row.id == node.incarnation,
    )


def _status(row: NodeRow, silent_s: float) -> str:
    if row.ended:
        return "ended"
    return "silent" if silent_s > SILENT_S else "draining" if row.draining else "up"


async def _set_draining(node: Node, id: str, draining: bool, actor: str) -> bodies.Drained:
    """Asking for what is so already changes nothing."""
    found = await node.nodes.find(id)
    if not await node.nodes.set_draining(found.id, draining):
        raise _gone(found)
    if found.draining != draining:
        await _record(node, "node_drained" if draining else "node_undrained", found, actor)
    others = [row for row in await node.nodes.all() if row.id != found.id and not row.draining and not row.ended]
    return bodies.Drained(id=found.id, name=found.name, streams=found.streams, draining=draining, others=len(others))


def _check_dead(node: Node, found: NodeRow, *, yes: bool) -> None:
    """A node that acts while others have its streams repeats records into sinks that cannot fence it."""
    if found.id == node.incarnation:
        hint = f"headgate nodes drain {found.name}"
        raise Refused(f"{found.name} is alive: it answers this call", code="alive", hint=hint)
    left_s = found.lease_s - node.watcher.silent_s(found.id)
    if left_s > 0 and not yes:
        raise Refused(
            f"{found.name} beat {node.watcher.silent_s(found.id):.0f} s ago and may act for {math.ceil(left_s)} s more",
            code="alive",
            hint="wait that long, or say yes if you know that its process has ended",
        )


def _gone(found: NodeRow) -> NotFound:
    return NotFound(f"node {found.name!r} has left meanwhile", hint="headgate nodes list")


async def _record(node: Node, type: str, found: NodeRow, actor: str, **payload: object) -> None:
    """Record what was done to a node, and have all nodes look at once."""
    whole = {"node": found.name, "id": str(found.id), **payload}
    await node.registry.events.record([Event(None, None, type, whole, actor)])
    node.waker.wake("streams")
    node.waker.wake("events")


ROUTES = [list_nodes, drain_node, undrain_node, forget_node]
