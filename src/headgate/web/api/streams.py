"""Streams: who has them, where they stand, what became of them, and an operator's word on it."""

from __future__ import annotations

from typing import Any

from litestar import get, put
from litestar.connection import Request

from headgate.errors import ConfigError, Problem
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
    """With its state, and with the nodes that cannot run it."""
    found = await node.streams.find(id)
    datasource = await node.registry.get(str(found["datasource_id"]))
    facts = await views.one_facts(node, datasource)
    states = [views.state(row) for row in facts.states if row["stream"] == found["id"]]
    unable = [
        {field: row[field] for field in ("node", "id", "reason", "at")}
        for row in await node.streams.unable(datasource.id)
        if row["stream"] == found["id"]
    ]
    return {**found, "state": states[0] if states else None, "unable": unable}


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
    return {field: done[field] for field in ("id", "name", "before", "position", "edits")}


ROUTES = [list_streams, show_stream, stream_history, edit_position]
