"""The pages of groups: all of them, what is wrong first; and one, with its members and its explanation."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from litestar import Response, get
from msgspec import UNSET

from headgate.core.access import Caller, may
from headgate.core.groups.explain import STATUSES, Status
from headgate.errors import NotFound
from headgate.runtime.node import Node
from headgate.web.api import group_views
from headgate.web.auth import Needs
from headgate.web.bodies import groups as bodies
from headgate.web.console import words
from headgate.web.console.acts import Act, command
from headgate.web.console.frame import framed, missing
from headgate.web.console.session import Req, signed_in
from headgate.web.subjects import group_of_page, of_group

MOST = 1000

# The mark that goes with a status.
MARKS: dict[Status, str] = {
    "vacant": "error",
    "blocked": "degraded",
    "handing over": "starting",
    "starting": "starting",
    "stopped": "stopped",
    "active": "ok",
}


@get("/groups", include_in_schema=False, needs=Needs("list"))
async def groups_page(node: Node, request: Req) -> Response[Any]:
    """All groups."""
    return await signed_in(request, lambda holder: _all(node, holder))


@get("/groups/one", include_in_schema=False, needs=Needs("see", group_of_page))
async def group_page(node: Node, request: Req, stream: str = "", name: str = "") -> Response[Any]:
    """One group. Its names are in the query: they may have any character."""
    return await signed_in(request, lambda holder: _one(node, holder, stream, name))


async def _all(node: Node, holder: Caller) -> Response[str]:
    found, more = await group_views.all_groups(node, holder, None, MOST)
    found.sort(key=lambda one: (STATUSES.index(one.status), one.stream, one.name))
    return framed(holder, "groups.html", at="groups", rows=[_row(one) for one in found], most=MOST if more else None)


def _row(one: bodies.Group) -> dict[str, object]:
    return {
        "stream": one.stream,
        "name": one.name,
        "status": one.status,
        "epoch": one.epoch,
        "consumers": one.consumers,
        "mark": MARKS[one.status],
        "address": f"/groups/one?{urlencode({'stream': one.stream, 'name': one.name})}",
        "active": one.active or words.NOTHING,
        "since": words.since(one.since) if one.active else words.NOTHING,
    }


async def _one(node: Node, holder: Caller, stream: str, name: str) -> Response[str]:
    try:
        found = await group_views.one_group(node, stream, name)
    except NotFound as error:
        title = "There is no such group"
        return missing(holder, at="groups", title=title, text=f"{error.message}.")
    operates = may(holder, "operate", of_group(stream, name))
    return framed(
        holder,
        "group.html",
        at="groups",
        group=_row(found.group),
        evaluate=_evaluate(found.group) if operates and found.group.kind == "outside" else None,
        explain=command("groups", "explain", stream, name),
        stream_at=f"/streams/{quote(stream, safe=':')}" if found.group.kind == "workers" else "",
        lines=found.lines,
        members=[_member(one) for one in found.group.members],
        lately=[_transition(one) for one in reversed(found.group.lately)],
    )


def _evaluate(one: bodies.GroupDetails) -> Act:
    """Those out of touch are dropped. One that may still believe in its turn is a reason to ask."""
    path = f"/api/groups/{quote(one.stream, safe='')}/{quote(one.name, safe='')}/evaluate"
    ask = "Drop the consumers that are out of touch? The next one gets its turn."
    as_command = command("groups", "evaluate", one.stream, one.name)
    done = "The group was evaluated."
    return Act("Evaluate", f"POST {path}", as_command, ask, done, grave=True, yes="may_believe", yes_in_body=True)


def _member(one: bodies.Consumer) -> dict[str, object]:
    waits = "" if one.waits_s is None or one.waits_s is UNSET else f"waited for {words.span(one.waits_s)} more"
    return {
        "label": one.label,
        "connectivity": one.connectivity,
        "activity": one.activity,
        "node": one.node,
        "remark": one.why_not or waits,
    }


def _transition(one: bodies.Transition) -> dict[str, object]:
    orders = "; ".join(f"{who or words.NOTHING}: {what}, epoch {epoch}" for what, who, epoch in one.told)
    return {"what": one.what, "who": one.who, "ago": words.since(one.at), "told": orders}
