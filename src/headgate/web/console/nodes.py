"""The page of nodes: who beats, with which release, how much each has to do, and who should take no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from litestar import Response, get

from headgate.core.access import Caller, may
from headgate.runtime.node import Node
from headgate.store.nodes import Load
from headgate.text import counted
from headgate.web.api.nodes import view
from headgate.web.auth import Needs
from headgate.web.bodies import streams as bodies
from headgate.web.console import words
from headgate.web.console.acts import Act, command
from headgate.web.console.frame import framed
from headgate.web.console.session import Req, signed_in

# The mark that goes with a status.
MARKS = {"up": "ok", "draining": "paused", "silent": "degraded", "ended": "ended"}
_ORDER = ("silent", "draining", "up", "ended")
NO_LOAD = Load(0, 0)


@get("/nodes", include_in_schema=False, needs=Needs("see_all"))
async def nodes_page(node: Node, request: Req) -> Response[Any]:
    """All nodes."""
    return await signed_in(request, lambda holder: _all(node, holder))


async def _all(node: Node, holder: Caller) -> Response[str]:
    found = [view(node, row) for row in await node.nodes.all()]
    found.sort(key=lambda one: (_ORDER.index(one.status), one.name, one.started_at))
    loads, streams = await node.nodes.loads(), sum(one.streams for one in found)
    return framed(
        holder,
        "nodes.html",
        at="nodes",
        rows=[_row(one, loads, streams) for one in found],
        headline=_headline(found),
        notices=_notices(found),
        operates=may(holder, "operate_all"),
    )


def _row(one: bodies.Node, loads: Mapping[UUID, Load], streams: int) -> dict[str, object]:
    load = loads.get(one.id, NO_LOAD)
    left_s = max(0.0, one.lease_s - one.silent_s)
    return {
        "id": str(one.id),
        "short": str(one.id)[:8],
        "name": one.name,
        "status": one.status,
        "mark": MARKS[one.status],
        "is_this": one.is_this,
        "left": left_s / one.lease_s if one.lease_s else 0.0,
        "lease": f"{words.span(left_s)} of {one.lease_s:g} s left" if one.status != "ended" else "over",
        "beat": words.count(one.beat),
        "silent": f"silent for {words.span(one.silent_s)}" if one.status == "silent" else "",
        "streams": words.count(one.streams),
        "share": one.streams / streams if streams else 0.0,
        "failed": f"{counted(load.failed, 'stream')} failing" if load.failed else "",
        "last_hour": words.count(load.last_hour),
        "version": one.version,
        "started": words.since(one.started_at.isoformat()),
        "address": one.address or words.NOTHING,
        "problem": one.registry_problem or "",
        "acts": _acts(one),
    }


def _acts(one: bodies.Node) -> list[Act]:
    """What makes sense now. A node is called by its id: names may repeat."""
    path, id = f"/api/nodes/{one.id}", str(one.id)[:8]
    has = counted(one.streams, "stream")
    if one.status not in ("up", "draining") and not one.is_this:
        ask = f"Forget {one.name}? What it had, {has}, is free at once."
        done, as_command = f"{one.name} is forgotten.", command("nodes", "forget", id)
        return [Act("Forget", f"DELETE {path}", as_command, ask, done, grave=True, yes="alive")]
    if one.draining:
        done = f"{one.name} takes streams again."
        return [Act("Undrain", f"POST {path}/undrain", command("nodes", "undrain", id), done=done)]
    ask = f"Drain {one.name}? What it has, {has}, goes to other nodes, and it takes no more."
    done = f"{one.name} gives its streams back."
    return [Act("Drain", f"POST {path}/drain", command("nodes", "drain", id), ask, done)]


def _headline(found: Sequence[bodies.Node]) -> str:
    up = sum(one.status in ("up", "draining") for one in found)
    silent = sum(one.status == "silent" for one in found)
    return f"{counted(up, 'node')} up" + (f", {silent} silent" if silent else "")


def _notices(found: Sequence[bodies.Node]) -> list[str]:
    """What is wrong with all of them together."""
    notices = []
    releases = sorted({one.version for one in found if one.status != "ended"})
    if len(releases) > 1:
        notices.append(f"Different releases run: {', '.join(releases)}. Bring all nodes to the same one.")
    alive = [one for one in found if one.status != "ended"]
    if alive and all(one.draining for one in alive):
        notices.append("Every node is draining: no stream runs until one is undrained, or another one starts.")
    return notices
