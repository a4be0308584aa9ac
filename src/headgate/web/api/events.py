"""Everything that happens: pages of what has happened, and what happens now.

Who sees a datasource sees what happened to it, also after it was deleted: an event keeps the name. What belongs to no
datasource, such as the making of a token, is for those who see everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from litestar import Response, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Parameter

from headgate.core.access import Caller, may
from headgate.ids import is_name
from headgate.runtime.node import Node
from headgate.store.events import Recorded, Span, Which
from headgate.web import sse, subjects
from headgate.web.api import views
from headgate.web.auth import Needs, Req
from headgate.web.bodies import datasources
from headgate.web.feeds import Feeds
from headgate.web.queries import in_query, moment

PAGE = 1000
LOOKED = 5000  # Events that are looked at for one page: a caller may see very few of them.

EVENTS = {
    200: ResponseSpec(datasources.EventPage, description="A page; live, one event each.", generate_examples=False)
}

Name = Annotated[str | None, Parameter(max_length=100)]
Type = Annotated[str | None, Parameter(pattern="^[a-z0-9_]{1,100}$")]


@get(
    "/api/events",
    guards=[Needs("list")],
    tags=["registry"],
    summary="Everything that happens; live (SSE) unless follow=false",
    responses=EVENTS,
)
async def events(
    node: Node,
    request: Req,
    follow: bool = True,
    datasource: Name = None,
    type: Type = None,
    after: sse.AfterOrNow = None,
    before: sse.AfterOrNow = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: Annotated[int, Parameter(ge=1, le=PAGE)] = 100,
) -> Response[datasources.EventPage] | sse.Live:
    """Of all datasources, or of one, which may be deleted; of all types, or of one. Live: each event once, in order;
    from now on, or `after` an id. Else a page: the latest events, oldest first, `since` and `until` a time, and
    `before` an id. `before` of the answer leads to the page before it; a page may have fewer events than `limit`, and
    another one before it."""
    which = Which(datasource, type)
    if not follow:
        with in_query():
            span = Span(moment("since", since), moment("until", until))
        return Response(await page_of(node, request.user, which, span, before, limit))
    feeds: Feeds = request.app.state.feeds
    after = sse.resumed(request, after)
    after = await feeds.last_event() if after is None else after

    def fits(row: Recorded) -> bool:
        is_wanted = which.name in (None, row.name) and which.type in (None, row.type)
        return is_wanted and _sees(request.user, row.name)

    return sse.live(request, feeds.events.follow(after, lambda id: _following(node, which, id), fits))


async def page_of(
    node: Node, caller: Caller, which: Which, span: Span, before: int | None, limit: int
) -> datasources.EventPage:
    """What the caller may see of the latest events, as far as it pays to look."""
    next_ = sse.MOST_ID if before is None else before
    seen: list[Recorded] = []
    size = limit if caller.bounds is None else PAGE
    for _ in range(LOOKED // PAGE):
        rows = await node.registry.events.page(which, span, next_, size) if _can_be(which) else []
        for row in rows:
            next_ = row.id
            if _sees(caller, row.name):
                seen.append(row)
                if len(seen) == limit:
                    return _answer(seen, next_)
        if len(rows) < size:
            return _answer(seen, None)
    return _answer(seen, next_)


def _answer(seen: Sequence[Recorded], before: int | None) -> datasources.EventPage:
    return datasources.EventPage(items=[views.event(row) for row in reversed(seen)], before=before)


async def _following(node: Node, which: Which, id: int) -> list[Recorded]:
    return await node.registry.events.following(which, id) if _can_be(which) else []


def _can_be(which: Which) -> bool:
    """Whether there may be such an event: nothing is called what no datasource can be called."""
    return which.name is None or is_name(which.name)


def _sees(caller: Caller, datasource: str | None) -> bool:
    """What belongs to no datasource is for those who see everything."""
    return may(caller, "see_all") if datasource is None else subjects.sees(caller, datasource)


ROUTES = [events]
