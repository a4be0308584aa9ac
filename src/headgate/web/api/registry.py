"""The registry as a whole: plan, apply, export, reload, overview."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from litestar import MediaType, Response, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Parameter

from headgate.core.access import Action, may
from headgate.datasources.documents import Document, apart, gather_all, gather_yaml, write_yaml
from headgate.datasources.planned import PlannedChange
from headgate.errors import Forbidden
from headgate.runtime.harness.gate import Applying
from headgate.runtime.node import Node
from headgate.web import sse, subjects
from headgate.web.api import harness, views
from headgate.web.api.documents import Documents
from headgate.web.auth import Needs, Req
from headgate.web.bodies import Object, datasources
from headgate.web.headers import takes_gzip
from headgate.web.overview import Overviews
from headgate.web.windows import MOST_ROWS, MOST_SEARCH, PAGE, Order, Window

OVERVIEW = {
    200: ResponseSpec(datasources.Overview, description="All; live, then what changes.", generate_examples=False)
}
ROWS = {
    200: ResponseSpec(datasources.OverviewRows, description="All; live, then what changes.", generate_examples=False)
}

OPERATE = [Needs("operate", subjects.datasource)]


async def _documents(data: Object) -> dict[str, Document]:
    if isinstance(data.get("yaml"), str):
        return await apart(gather_yaml, data["yaml"], str(data.get("file", "")))
    return await apart(gather_all, data)


@post("/api/plan", guards=[Needs("list")], status_code=200, tags=["registry"], summary="What applying would change")
async def plan(node: Node, request: Req, data: Documents, prune: bool = False) -> datasources.Changes:
    """Nothing is changed. What a viewer is told does not depend on the values of secrets."""
    documents = await _documents(data)
    _check(request, "see", documents, prune=prune)
    changes = await node.registry.plan(documents, prune=prune, **views.sees_as(request.user))
    return _changes(changes)


@post(
    "/api/apply",
    guards=[Needs("operate_listed")],
    status_code=200,
    tags=["registry"],
    summary="Apply a document",
    opt=harness.RUNS_TESTS,
)
async def apply(
    node: Node,
    request: Req,
    data: Documents,
    prune: bool = False,
    connect: bool = False,
    accept: bool = False,
    yes: bool = False,
) -> datasources.Changes:
    """All of it or nothing. With `connect`, only if the sources and sinks that are new can be reached. Fixtures are run
    first: what changes an expected result is refused unless `accept` is true. What `prune` deletes and would lose is a
    409 unless `yes` is true."""
    documents = await _documents(data)
    _check(request, "operate", documents, prune=prune)
    how = Applying(prune, connect, accept, may(request.user, "administer"), yes)
    return _changes(await node.gate.apply(node.registry, documents, request.user.name, how))


@get(
    "/api/export",
    guards=[Needs("list")],
    tags=["registry"],
    summary="All published datasources as YAML",
    media_type="text/yaml",
)
async def export(node: Node, request: Req, fixtures: bool = False) -> Response[str]:
    """Lossless; secrets by name only. `fixtures`: with those of what the caller may operate, as plain text."""
    documents = await node.registry.export()
    seen = [one for one in documents if subjects.sees(request.user, one.name)]
    if fixtures:
        seen = await harness.with_fixtures(node, request, seen)
    text = await apart(write_yaml, seen)
    return Response(text, media_type="text/yaml")


@post("/registry/reload/{id:str}", guards=OPERATE, status_code=200, tags=["registry"], summary="Reload")
async def reload(node: Node, request: Req, id: str) -> datasources.Done:
    """By id or name: every node reads this datasource's configuration now."""
    found = await node.registry.reload(id, request.user.name)
    return datasources.Done(name=found.name, action="reload")


@get(
    "/api/overview",
    guards=[Needs("list")],
    tags=["registry"],
    summary="All datasources; live (SSE) unless follow=false",
    responses=OVERVIEW,
)
async def overview(request: Req, follow: bool = True) -> Response[bytes] | sse.Live:
    """Every datasource, with the figures that lists show. Then, once a second while there is something new, what has
    changed (`is_whole` is false): the `name` of a datasource with the fields and figures that did, and the names of
    those that are `gone`. Zipped for callers that take gzip."""
    overviews: Overviews = request.app.state.overviews
    if not follow:
        return Response((await overviews.latest()).whole(request.user), media_type=MediaType.JSON)
    await overviews.latest()  # Or a 503, while there is nothing to send yet.
    zipped = takes_gzip(request.headers.get("accept-encoding", ""))
    return sse.live(request, overviews.events(request.user, zipped=zipped), zipped=zipped)


@get(
    "/api/overview/rows",
    guards=[Needs("list")],
    tags=["registry"],
    summary="The first datasources that fit, the worst first; live (SSE) unless follow=false",
    responses=ROWS,
)
async def overview_rows(
    request: Req,
    search: Annotated[str, Parameter(max_length=MOST_SEARCH)] = "",
    health: Annotated[str, Parameter(max_length=20)] = "",
    order: Order = "health",
    limit: Annotated[int, Parameter(ge=1, le=MOST_ROWS)] = PAGE,
    follow: bool = True,
) -> Response[bytes] | sse.Live:
    """Those with all words of `search` and with this `health`; by `order`. Then what changes: a row that is new here is
    whole, of others there are the fields and figures that changed. Costs what it shows, however many there are."""
    overviews: Overviews = request.app.state.overviews
    window = Window(" ".join(search.lower().split()), health, order, limit)
    snapshot = await overviews.latest()
    if not follow:
        return Response(snapshot.windows.text(request.user, window), media_type=MediaType.JSON)
    zipped = takes_gzip(request.headers.get("accept-encoding", ""))
    return sse.live(request, overviews.window(request.user, window, zipped=zipped), zipped=zipped)


def _check(request: Req, action: Action, documents: Mapping[str, Document], *, prune: bool) -> None:
    """Each datasource of a document is judged. To prune is to delete what the document does not name."""
    subjects.check_each(request, action, documents)
    if prune and not may(request.user, "see_all"):
        raise Forbidden(f"the token {request.user.name!r} is bound to what it names; prune needs one without bounds")


def _changes(changes: Sequence[PlannedChange]) -> datasources.Changes:
    return datasources.Changes(
        changes=[
            datasources.Change(name=one.name, action=one.action, changes=[views.difference(d) for d in one.changes])
            for one in changes
        ]
    )


ROUTES = [plan, apply, export, reload, overview, overview_rows]
