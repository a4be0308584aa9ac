"""Whether the node lives, whether it is ready, and its metrics."""

from __future__ import annotations

from litestar import HttpMethod, Response, get, route

from headgate.core.access import Caller, may
from headgate.datasources.health import health
from headgate.errors import StoreError
from headgate.runtime.node import Node
from headgate.telemetry.metrics import render
from headgate.web.api import views
from headgate.web.auth import Needs, Req, address_of
from headgate.web.bodies import access
from headgate.web.subjects import sees

READ = (HttpMethod.GET, HttpMethod.HEAD)  # What checks whether a node lives often asks for no body.


@route("/healthz", http_method=READ, tags=["health"], summary="The process answers", sync_to_thread=False)
def healthz() -> access.Alive:
    """Open to anyone."""
    return access.Alive(status="ok")


@route("/readyz", http_method=READ, tags=["health"], summary="The node can do its work")
async def readyz(node: Node, request: Req) -> Response[access.Ready]:
    """Open to anyone: the status alone. With a token: what is degraded, and why."""
    reasons = []
    if node.trust_left_s() <= 0.0:
        reasons.append("this node may not act: its beats are not answered")
    if node.manager is None or not node.manager.synced.is_set():
        reasons.append("the registry has not been read yet")
    degraded = None
    is_ready = not reasons
    try:
        caller = await request.app.state.gate.identify(request.headers, address_of(request.scope), cookie_allowed=True)
        if caller is not None and may(caller, "list"):
            degraded = reasons + await _unhealthy(node, caller)
    except StoreError:
        is_ready = False
    body = access.Ready(status="ok" if is_ready else "unavailable", degraded=degraded)
    return Response(body, status_code=200 if is_ready else 503)


async def _unhealthy(node: Node, caller: Caller) -> list[str]:
    return [
        f"datasource {facts.datasource.name}: {word}"
        for facts, _ in await views.all_facts(node)
        if sees(caller, facts.datasource.name) and (word := health(facts)) in ("error", "degraded")
    ]


@get("/api/installation", tags=["health"], summary="Which installation this node is of", sync_to_thread=False)
def installation(node: Node) -> access.Installation:
    """Open to anyone: programs ask before they send a token, so that it goes to no other installation."""
    return access.Installation(installation=node.installation)


@get("/metrics", guards=[Needs("see_all")], tags=["health"], summary="Metrics for Prometheus")
async def metrics(request: Req) -> Response[bytes]:
    """In the text format."""
    await request.app.state.collector.refresh()
    return Response(render(request.app.state.collector), media_type="text/plain; version=0.0.4; charset=utf-8")


ROUTES = [healthz, readyz, installation, metrics]
