"""The first page: what is wrong first, and as many of the others as fit. It can be read without scripts; with them it
is live, and draws the rest as somebody scrolls to it or searches for it (`windows.py`)."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from litestar import Response, get

from headgate.clock import unix_s
from headgate.core.access import Caller, may
from headgate.core.figures import HEALTHS
from headgate.errors import Forbidden, StoreError
from headgate.runtime.node import Node
from headgate.web.api import views
from headgate.web.auth import Needs
from headgate.web.bodies.datasources import Summary
from headgate.web.console import session, words
from headgate.web.console.frame import framed
from headgate.web.console.pages import database_away, page
from headgate.web.console.session import Req
from headgate.web.origin import is_foreign
from headgate.web.overview import Overviews
from headgate.web.windows import MOST_SEARCH, Order, Row, Window

WITHIN_S = 0.2  # The first reading of ten thousand datasources takes longer; then the page comes without rows.


@get("/", include_in_schema=False, needs=Needs("list"))
async def overview_page(node: Node, request: Req, code: str | None = None) -> Response[Any]:
    """The page, or the way to it. A code is that of a link that signs in."""
    try:
        if code is not None:
            return await session.follow_link(node, request, code)
        holder = await session.holder(request)
        if holder is not None:
            await session.check(request, holder)
            return await _overview(node, request, holder)
    except StoreError:
        return database_away()
    except Forbidden as error:
        return session.sign_in_page(problem=f"Another token is needed here: {error.message}.", status=403)
    if is_foreign(request.headers):
        # The cookie stayed behind. When our own page asks, it is sent.
        return page("notice.html", again_s=0, again_at="/", title="One moment", text="Opening the console.")
    return session.sign_in_page()


async def _overview(node: Node, request: Req, holder: Caller) -> Response[str]:
    overviews: Overviews = request.app.state.overviews
    found = await node.nodes.all() if may(holder, "see_all") else []
    snapshot, window = await overviews.soon(WITHIN_S), _window(request)
    rows: list[Row] = [] if snapshot is None else snapshot.windows.rows(holder, window)
    counts = dict.fromkeys(HEALTHS, 0) if snapshot is None else dict(snapshot.windows.counts(holder))
    return framed(
        holder,
        "overview.html",
        at="overview",
        headline=words.headline(counts) if snapshot is not None else "Reading all datasources",
        is_read=snapshot is not None,
        is_empty=snapshot is not None and not any(counts.values()),
        counts=counts,
        rows=[row_of(msgspec.convert(row, Summary)) for row in rows],
        blank=BLANK,
        window=window,
        nodes=[one.name for one in found],
        notices=views.notices_of(found),
        operates=may(holder, "operate_listed"),
        health_words=words.HEALTH_WORDS,
    )


def _window(request: Req) -> Window:
    """What the address asks for. What it cannot mean is left out."""
    query = request.query_params
    health = query.get("health", "")
    orders: tuple[Order, ...] = get_args(Order)
    wanted = next((one for one in orders if one == query.get("order")), orders[0])
    return Window(
        " ".join(str(query.get("search", "")).lower().split())[:MOST_SEARCH],
        health if health in HEALTHS else "",
        wanted,
    )


def row_of(summary: Summary) -> dict[str, object]:
    """A datasource as its row shows it."""
    metrics = summary.metrics
    last_s = metrics.last_record_at_s
    return {
        "name": summary.name,
        "health": summary.health,
        "has_draft": summary.has_draft,
        "detail": words.detail(summary),
        "route": words.route(summary),
        "labels": summary.labels,
        "version": words.version(summary),
        "other_version": words.other_version(summary),
        "rate": words.rate(words.rate_of(summary)),
        "total": words.count(metrics.records_written),
        "read": words.read(metrics),
        "filtered": words.filtered(metrics),
        "dead": words.count(metrics.records_dead_lettered),
        "backlog": words.count(metrics.backlog_records),
        "backlog_bytes": words.backlog_bytes(metrics),
        "lag": words.lag(metrics.lag_s),
        "ago": words.ago(None if last_s is None else unix_s() - last_s),
        "node": summary.node or words.NOTHING,
        "why": words.why(summary),
        "step": words.next_step(summary),
    }


# The script fills in copies of this row for datasources that appear later.
BLANK: dict[str, object] = {
    **dict.fromkeys(("name", "detail", "route", "version", "other_version", "rate", "total", "read"), ""),
    **dict.fromkeys(("filtered", "dead", "backlog", "backlog_bytes", "lag", "ago", "node", "why"), ""),
    "health": "starting",
    "has_draft": False,
    "labels": [],
    "step": None,
}
