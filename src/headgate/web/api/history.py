"""What datasources did in the last hour, day or week, from what the nodes kept of each minute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal
from uuid import UUID

from litestar import get
from litestar.params import Parameter

from headgate.core.minutes import MINUTE_S, RANGES, History, RangeName, history
from headgate.datasources.listing import Listed
from headgate.runtime.node import Node
from headgate.slices import sliced
from headgate.store.minutes import Window
from headgate.web import subjects
from headgate.web.auth import Needs, Req
from headgate.web.bodies import Object
from headgate.web.bodies import history as bodies

PAGE = 200  # Datasources in one answer: at most 12,000 lines are read for it, or 290,000 for a day.
MOST_NAMES = 200 * 101
AT_A_TIME = 10  # Datasources, before others have the loop.

Names = Annotated[str | None, Parameter(max_length=MOST_NAMES)]
After = Annotated[str | None, Parameter(max_length=100)]
Limit = Annotated[int, Parameter(ge=1, le=PAGE)]


@get(
    "/api/datasources/{name:str}/history",
    guards=[Needs("see", subjects.datasource)],
    tags=["datasources"],
    summary="What a datasource did in the last hour, day or week",
)
async def datasource_history(node: Node, name: str, range: RangeName = "1h") -> bodies.DatasourceHistory:
    """Points of a minute for `1h`, of ten minutes for `24h` and of an hour for `7d`. The last one ends with the last
    minute that a node has reported."""
    found = await node.registry.get(name)
    window = await node.minutes.read([found.id], RANGES[range])
    whole = _history(window, found.id, range)
    return bodies.DatasourceHistory(name=found.name, **_grid(window, range), **_lists(whole))


@get(
    "/api/history",
    guards=[Needs("list")],
    tags=["datasources"],
    summary="What all datasources did in the last hour or day",
)
async def all_history(
    node: Node,
    request: Req,
    range: Literal["1h", "24h"] = "1h",
    names: Names = None,
    after: After = None,
    limit: Limit = PAGE,
) -> bodies.Histories:
    """For small charts: of the `names` that are given, with commas between them, or else of all datasources, page by
    page in the order of their names; `after` is that of the answer before."""
    page, next_ = _page(await node.registry.listing.all(), request, names, after or "", limit)
    window = await node.minutes.read([one.datasource.id for one in page], RANGES[range])
    items = [
        _short(one.datasource.name, _history(window, one.datasource.id, range))
        async for some in sliced(page, AT_A_TIME)
        for one in some
        if one.datasource.id in window.points
    ]
    return bodies.Histories(**_grid(window, range), items=[one for one in items if _says(one)], after=next_)


def _page(
    all_of_them: Sequence[Listed], request: Req, names: str | None, after: str, limit: int
) -> tuple[list[Listed], str | None]:
    """Those of a page that the caller sees, and where the next one begins."""
    wanted = None if names is None else set(names.split(","))
    found = sorted(
        (
            one
            for one in all_of_them
            if one.datasource.name > after
            and (wanted is None or one.datasource.name in wanted)
            and subjects.sees(request.user, one.datasource.name)
        ),
        key=lambda one: one.datasource.name,
    )
    return found[:limit], found[limit - 1].datasource.name if len(found) > limit else None


def _grid(window: Window, range: RangeName) -> Object:
    wanted = RANGES[range]
    step_s = wanted.minutes_each * MINUTE_S
    return {"range": range, "from_s": window.from_s, "step_s": step_s, "points": wanted.points}


def _history(window: Window, datasource: UUID, range: RangeName) -> History:
    return history(window.points.get(datasource, ()), window.reported, RANGES[range].points)


def _lists(whole: History) -> Object:
    return {name: list(getattr(whole, name)) for name in whole.__slots__}


def _short(name: str, whole: History) -> bodies.ShortHistory:
    lists = _lists(whole)
    return bodies.ShortHistory(name=name, **{field: lists[field] for field in _SHORT})


_SHORT = ("read", "written", "dead_lettered", "backlog", "lag_s")


def _says(one: bodies.ShortHistory) -> bool:
    """Whether there is anything to draw."""
    return any(any(getattr(one, field)) for field in _SHORT)


ROUTES = [datasource_history, all_history]
