"""The first page: every datasource, what is wrong first. It is whole without scripts; with them it is live."""

from __future__ import annotations

from typing import Any

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
from headgate.web.console.pages import database_away, page
from headgate.web.console.session import Req
from headgate.web.origin import is_foreign


@get("/", include_in_schema=False, needs=Needs("list"))
async def overview_page(node: Node, request: Req, code: str | None = None) -> Response[Any]:
    """The page, or the way to it. A code is that of a link that signs in."""
    try:
        if code is not None:
            return await session.follow_link(node, request, code)
        holder = await session.holder(request)
        if holder is not None:
            await session.check(request, holder)
            return await _overview(node, holder)
    except StoreError:
        return database_away()
    except Forbidden as error:
        return session.sign_in_page(problem=f"Another token is needed here: {error.message}.", status=403)
    if is_foreign(request.headers):
        # The cookie stayed behind. When our own page asks, it is sent.
        return page("notice.html", again_s=0, again_at="/", title="One moment", text="Opening the console.")
    return session.sign_in_page()


async def _overview(node: Node, holder: Caller) -> Response[str]:
    summaries = await views.summaries(node, holder)
    summaries.sort(key=lambda summary: (HEALTHS.index(summary.health), summary.name))
    counts = dict.fromkeys(HEALTHS, 0)
    for summary in summaries:
        counts[summary.health] += 1
    return page(
        "overview.html",
        holder=session.name_of(holder),
        headline=words.headline(counts),
        counts=counts,
        rows=[_row(summary) for summary in summaries],
        blank=BLANK,
        nodes=[one.name for one in await node.nodes.all()] if may(holder, "see_all") else [],
        notices=await views.notices(node, holder),
        operates=may(holder, "operate_listed"),
    )


def _row(summary: Summary) -> dict[str, object]:
    """A datasource as its row shows it."""
    metrics = summary.metrics
    last_s = metrics.last_record_at_s
    return {
        "name": summary.name,
        "health": summary.health,
        "has_draft": summary.has_draft,
        "detail": words.detail(summary),
        "route": words.route(summary),
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
    }


# The script fills in copies of this row for datasources that appear later.
BLANK = {
    **dict.fromkeys(("name", "detail", "route", "version", "other_version", "rate", "total", "read"), ""),
    **dict.fromkeys(("filtered", "dead", "backlog", "backlog_bytes", "lag", "ago", "node", "why"), ""),
    "health": "starting",
    "has_draft": False,
}
