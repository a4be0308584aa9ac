"""What all datasources log: pages of the last lines, and what is logged now.

A caller sees the lines of those datasources that it sees. Of each stream the last few hundred lines are kept.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Literal

from litestar import Response, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Parameter

from headgate.ids import is_name
from headgate.runtime.node import Node
from headgate.store.logs import Named
from headgate.web import sse, subjects
from headgate.web.api import views
from headgate.web.auth import Needs, Req
from headgate.web.bodies import datasources
from headgate.web.feeds import Feeds

PAGE = 1000
LOOKED = 20_000  # Lines that are looked at for one page: what somebody searches for may be in none.
LEVELS = ("debug", "info", "warning", "error", "critical")

LINES = {200: ResponseSpec(datasources.LinePage, description="A page; live, one line each.", generate_examples=False)}

Name = Annotated[str | None, Parameter(max_length=100)]
Text = Annotated[str | None, Parameter(max_length=200)]
Level = Literal["debug", "info", "warning", "error", "critical"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines somebody wants to see, of those that the caller may see."""

    request: Req
    name: str | None
    level: Level
    text: str

    def fits(self, row: Named) -> bool:
        """Whether this is one. A level that nobody knows is as high as can be."""
        line = row.line
        if line.level in LEVELS and LEVELS.index(line.level) < LEVELS.index(self.level):
            return False
        if not subjects.sees(self.request.user, row.name):
            return False
        return not self.text or self.text in f"{line.text} {json.dumps(line.fields, ensure_ascii=False)}".lower()

    @property
    def can_be(self) -> bool:
        """Whether there may be such a line: nothing is called what no datasource can be called."""
        return self.name is None or is_name(self.name)


@get(
    "/api/logs",
    guards=[Needs("list")],
    tags=["registry"],
    summary="What all datasources log; live (SSE) unless follow=false",
    responses=LINES,
)
async def logs(
    node: Node,
    request: Req,
    follow: bool = True,
    datasource: Name = None,
    level: Level = "debug",
    search: Text = None,
    after: sse.AfterOrNow = None,
    before: sse.AfterOrNow = None,
    limit: Annotated[int, Parameter(ge=1, le=PAGE)] = 100,
) -> Response[datasources.LinePage] | sse.Live:
    """Of all datasources, or of one; of this `level` and above; with this text in them, in any case. Live: each line
    once, from now on or `after` an id. Else a page: the latest lines, oldest first, `before` an id. `before` of the
    answer leads to the page before it; a page may have fewer lines than `limit`, and another one before it."""
    wanted = Wanted(request, datasource, level, (search or "").lower())
    if not follow:
        return Response(await _page(node, wanted, before, limit))
    after = sse.resumed(request, after)
    after = await node.logs.last() if after is None else after
    feeds: Feeds = request.app.state.feeds
    name = datasource if wanted.can_be else ""  # No datasource has this name.
    lines = feeds.logs(name).follow(after, lambda id: node.logs.following(name, id), wanted.fits)
    return sse.live(request, lines)


async def _page(node: Node, wanted: Wanted, before: int | None, limit: int) -> datasources.LinePage:
    """What fits among the latest lines, as far as it pays to look."""
    next_ = sse.MOST_ID if before is None else before
    seen: list[datasources.NamedLine] = []
    for _ in range(LOOKED // PAGE):
        rows = await node.logs.page(wanted.name, next_, PAGE) if wanted.can_be else []
        for row in rows:
            next_ = row.id
            if wanted.fits(row):
                seen.append(views.named_line(row))
                if len(seen) == limit:
                    return datasources.LinePage(items=seen[::-1], before=next_)
        if len(rows) < PAGE:
            return datasources.LinePage(items=seen[::-1], before=None)
    return datasources.LinePage(items=seen[::-1], before=next_)


ROUTES = [logs]
