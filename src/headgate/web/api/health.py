"""Whether the node lives, whether it is ready, and its metrics."""

from __future__ import annotations

from litestar import HttpMethod, Response, get, route
from litestar.openapi.datastructures import ResponseSpec
from litestar.response import Stream

from headgate.core.access import Caller, may
from headgate.datasources.health import ALARMING, health
from headgate.errors import StoreError
from headgate.hidden import hide
from headgate.runtime.node import Node
from headgate.store import lineage
from headgate.telemetry import exposition
from headgate.telemetry.metrics import NodeCollector
from headgate.web.api import views
from headgate.web.auth import Needs, Req, address_of
from headgate.web.bodies import access
from headgate.web.headers import takes_gzip
from headgate.web.subjects import sees

METRICS = {200: ResponseSpec(str, description="The text.", media_type="text/plain", generate_examples=False)}
READ = (HttpMethod.GET, HttpMethod.HEAD)  # What checks whether a node lives often asks for no body.


@route("/healthz", http_method=READ, tags=["health"], summary="The process answers", sync_to_thread=False)
def healthz() -> access.Alive:
    """Open to anyone."""
    return access.Alive(status="ok")


@route("/readyz", http_method=READ, tags=["health"], summary="The node can do its work")
async def readyz(node: Node, request: Req) -> Response[access.Ready]:
    """503 while nothing can be made durable through this node. Open to anyone: the status alone. With a token: what is
    degraded, and why."""
    reasons = node.why_not_ready()
    degraded = None
    is_ready = not reasons
    try:
        caller = await request.app.state.gate.identify(request.headers, address_of(request.scope), cookie_allowed=True)
        if caller is not None and may(caller, "list"):
            degraded = list(map(hide, reasons))
            degraded += await views.notices(node, caller) + await _unhealthy(node, caller)
    except StoreError:
        is_ready = False
    body = access.Ready(status="ok" if is_ready else "unavailable", degraded=degraded)
    return Response(body, status_code=200 if is_ready else 503)


async def _unhealthy(node: Node, caller: Caller) -> list[str]:
    return [
        f"datasource {facts.datasource.name}: {word}"
        async for facts, _ in views.all_facts(node)
        if sees(caller, facts.datasource.name) and (word := health(facts)) in ALARMING
    ]


@get("/api/installation", tags=["health"], summary="Which installation this node is of", sync_to_thread=False)
def installation(node: Node) -> access.Installation:
    """Open to anyone: programs ask before they send a token, so that it goes to no other installation."""
    return access.Installation(installation=node.installation)


@get(
    "/api/installation/lineage",
    guards=[Needs("see_all")],
    tags=["health"],
    summary="Which history the registry is a part of",
)
async def installation_lineage(node: Node) -> access.Lineage:
    """The era of the installation, and the server that has its registry."""
    return await lineage_of(node)


async def lineage_of(node: Node) -> access.Lineage:
    """What the registry and its server say."""
    seen, standbys = await lineage.present(node.database), await lineage.standbys(node.database)
    server = seen.server.lineage
    return access.Lineage(
        installation=seen.kept.installation,
        era=seen.kept.era,
        system=server.system,
        timeline=server.timeline,
        standbys=standbys.standbys,
        synchronous=standbys.synchronous,
    )


@get("/metrics", guards=[Needs("see_all")], tags=["health"], summary="Metrics for Prometheus", responses=METRICS)
async def metrics(request: Req) -> Stream:
    """In the text format; zipped for callers that take gzip."""
    collector: NodeCollector = request.app.state.collector
    await collector.refresh()
    slices = exposition.written(await collector.families())
    headers = {"Vary": "Accept-Encoding"}
    if takes_gzip(request.headers.get("accept-encoding", "")):
        slices, headers = exposition.zipped(slices), {**headers, "Content-Encoding": "gzip"}
    return Stream(slices, media_type=exposition.MEDIA_TYPE, headers=headers)


ROUTES = [healthz, readyz, installation, installation_lineage, metrics]
