"""The registry as a whole: plan, apply, export, reload, and everything that happens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from litestar import Response, get, post
from litestar.response import ServerSentEvent

from headgate.datasources.documents import Document, read_all, read_yaml, write_yaml
from headgate.datasources.planned import PlannedChange
from headgate.runtime.node import Node
from headgate.web import sse
from headgate.web.api import views
from headgate.web.api.documents import Documents
from headgate.web.auth import Req, needs
from headgate.web.bodies import Object, datasources


async def _documents(data: Object) -> dict[str, Document]:
    """In a thread where it is YAML: a large file takes seconds, and the node must not stand still meanwhile."""
    if isinstance(data.get("yaml"), str):
        return await asyncio.to_thread(read_yaml, data["yaml"], str(data.get("file", "")))
    return read_all(data)


@post("/api/plan", guards=[needs("viewer")], status_code=200, tags=["registry"], summary="What applying would change")
async def plan(node: Node, request: Req, data: Documents, prune: bool = False) -> datasources.Changes:
    """Nothing is changed. What a viewer is told does not depend on the values of secrets."""
    reads_secrets = views.reads_secrets(request.user)
    changes = await node.registry.plan(await _documents(data), prune=prune, reads_secrets=reads_secrets)
    return _changes(changes)


@post("/api/apply", guards=[needs("operator")], status_code=200, tags=["registry"], summary="Apply a document")
async def apply(node: Node, request: Req, data: Documents, prune: bool = False) -> datasources.Changes:
    """All of it or nothing."""
    changes = await node.registry.apply(await _documents(data), request.user.name, prune=prune)
    return _changes(changes)


@get("/api/export", guards=[needs("viewer")], tags=["registry"], summary="All published datasources as YAML")
async def export(node: Node) -> Response[str]:
    """Lossless; secrets by name only."""
    text = await asyncio.to_thread(write_yaml, await node.registry.export())
    return Response(text, media_type="application/yaml")


@post("/registry/reload/{id:str}", guards=[needs("operator")], status_code=200, tags=["registry"], summary="Reload")
async def reload(node: Node, request: Req, id: str) -> datasources.Done:
    """By id or name: every node reads this datasource's configuration now."""
    found = await node.registry.reload(id, request.user.name)
    return datasources.Done(name=found.name, action="reload")


@get(
    "/api/events",
    guards=[needs("viewer")],
    tags=["registry"],
    summary="Everything that happens, live (SSE)",
    responses=sse.spec(datasources.Event),
)
async def events(node: Node, request: Req, after: sse.AfterOrNow = None) -> ServerSentEvent:
    """Each event once, in order; from now on, or after an id."""
    after = sse.resumed(request, after)
    if after is None:
        last = await node.registry.events.last(None, 1)
        after = last[-1].id if last else 0

    async def read(id: int) -> list[datasources.Event]:
        return [views.event(row) for row in await node.registry.events.after(None, id)]

    return sse.items(node.listener, "events", read, after)


@get(
    "/api/overview",
    guards=[needs("viewer")],
    tags=["registry"],
    summary="All datasources, live (SSE)",
    responses=sse.spec(datasources.Overview),
)
async def overview(node: Node) -> ServerSentEvent:
    """What the console's first page shows, once a second while it changes."""

    async def read() -> datasources.Overview:
        nodes = [datasources.Share(name=one.name, streams=one.streams) for one in await node.nodes.all()]
        return datasources.Overview(datasources=await views.summaries(node), nodes=nodes)

    return sse.snapshots(read, 1.0)


def _changes(changes: Sequence[PlannedChange]) -> datasources.Changes:
    return datasources.Changes(
        changes=[
            datasources.Change(name=one.name, action=one.action, changes=[views.difference(d) for d in one.changes])
            for one in changes
        ]
    )


ROUTES = [plan, apply, export, reload, events, overview]
