"""Streams: who has them, where they stand, what became of them, and an operator's word on it."""

from __future__ import annotations

from typing import Any

from litestar import get, post, put
from litestar.connection import Request

from headgate.errors import ConfigError, Problem, Refused
from headgate.runtime.node import Node
from headgate.web.api import views
from headgate.web.auth import needs

Req = Request[Any, Any, Any]
VIEW, OPERATE = [needs("viewer")], [needs("operator")]

MOST_LINES = 1000


@get("/api/streams", guards=VIEW, tags=["streams"], summary="All streams, who owns them, where they are")
async def list_streams(node: Node) -> dict[str, Any]:
    """The only place where ownership lives."""
    return {"items": await node.streams.all()}


@get("/api/streams/{id:str}", guards=VIEW, tags=["streams"], summary="One stream, by its id or name")
async def show_stream(node: Node, id: str) -> dict[str, Any]:
    """With its state, with the nodes that cannot run it, and with where it is wished to be, and by whom."""
    found = await node.streams.find(id)
    datasource = await node.registry.get(str(found["datasource_id"]))
    facts = await views.one_facts(node, datasource)
    states = [views.state(row) for row in facts.states if row["stream"] == found["id"]]
    unable = [
        {field: row[field] for field in ("node", "id", "reason", "at")}
        for row in await node.streams.unable(datasource.id)
        if row["stream"] == found["id"]
    ]
    wish = await node.worker_groups.wish(found["id"])
    return {**found, "state": states[0] if states else None, "unable": unable, "wish": _wish(wish)}


@get("/api/streams/{id:str}/history", guards=VIEW, tags=["streams"], summary="What became of a stream")
async def stream_history(node: Node, id: str, limit: int = 50) -> dict[str, Any]:
    """Where it stood each time it changed hands or was edited, the latest first."""
    found = await node.streams.find(id)
    return {"items": await node.streams.history(found["id"], max(1, min(limit, MOST_LINES)))}


@put("/api/streams/{id:str}/position", guards=OPERATE, tags=["streams"], summary="Edit a position, or undo that")
async def edit_position(node: Node, request: Req, id: str, data: dict[str, Any]) -> dict[str, Any]:
    """`position` is any JSON value, null for the beginning; or `undo` is true. Refused while a node has the stream."""
    if data.keys() == {"position"}:
        done = await node.streams.edit(id, data["position"], request.user.name)
    elif data.keys() == {"undo"} and data["undo"] is True:
        done = await node.streams.undo_edit(id, request.user.name)
    else:
        raise ConfigError([Problem("", "the body must have either `position` or `undo: true`", "and nothing else")])
    node.waker.wake("streams")
    node.waker.wake("events")
    return {field: done[field] for field in ("id", "name", "before", "position", "generation")}


@post("/api/streams/{id:str}/move", guards=OPERATE, status_code=200, tags=["streams"], summary="Move a stream")
async def move_stream(node: Node, request: Req, id: str, data: dict[str, Any]) -> dict[str, Any]:
    """To the `node` of this name or id, until that one leaves; null leaves the stream to the planner again."""
    if data.keys() != {"node"} or not isinstance(data["node"], str | None) or "\0" in (data["node"] or ""):
        raise ConfigError([Problem("", "the body must have `node`: a name, an id, or null", "and nothing else")])
    found = await node.streams.find(id)
    before = await node.worker_groups.wish(found["id"])
    if data["node"] is None:
        is_new = before is not None and before["pinned"]
        if is_new:
            await node.placement.unpin(found, request.user.name)
    else:
        target = await node.nodes.find(data["node"])
        if found["label"] is None and not await node.worker_groups.all(found["name"], 1):
            raise Refused(f"nodes do not run {found['name']}: programs push its datasource", code="pushed")
        if target["draining"]:
            hint = f"headgate nodes undrain {target['name']}"
            raise Refused(f"{target['name']} is draining and takes no streams", code="draining", hint=hint)
        is_new = before is None or (before["id"], before["pinned"]) != (target["id"], True)
        if is_new:
            await node.placement.move(found, target, request.user.name)
    if is_new:
        node.waker.wake("streams")
        node.waker.wake("events")
    answer = {field: found[field] for field in ("id", "name", "owner", "node")}
    return {**answer, "wish": _wish(await node.worker_groups.wish(found["id"])), "is_new": is_new}


def _wish(found: dict[str, Any] | None) -> dict[str, Any] | None:
    """Where a stream should be, and by whose word."""
    return found and {"id": found["id"], "node": found["node"], "by": "operator" if found["pinned"] else "planner"}


ROUTES = [list_streams, show_stream, stream_history, edit_position, move_stream]
