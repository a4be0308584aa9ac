"""Groups: who takes turns with whom, whose turn it is, and why it is nobody else's.

The names of streams and groups may have any character. Their path arrives quoted (`headgate.web.app`), so that a slash
in a name is none of the path's, and is unquoted here.
"""

from __future__ import annotations

from urllib.parse import unquote

from litestar import get, post

from headgate.core.groups.roster import name_of
from headgate.errors import NotFound, Refused
from headgate.runtime.node import Node
from headgate.store.events import Event
from headgate.web import subjects
from headgate.web.api import group_views
from headgate.web.auth import Needs, Req
from headgate.web.bodies import groups as bodies

SEE, OPERATE = [Needs("see", subjects.group)], [Needs("operate", subjects.group)]

PATH = "/api/groups/{stream:str}/{name:str}"
LIMIT, MOST = 1000, 10_000


@get("/api/groups", guards=[Needs("list")], tags=["groups"], summary="All groups, and who is active")
async def list_groups(node: Node, request: Req, stream: str | None = None, limit: int = LIMIT) -> bodies.Groups:
    """Groups of programs outside, and as `workers` the streams that nodes run; `?stream=` those of one stream."""
    items, more = await group_views.all_groups(node, request.user, stream, max(1, min(limit, MOST)))
    return bodies.Groups(items=items, more=more)


@get(PATH, guards=SEE, tags=["groups"], summary="One group with its consumers")
async def show_group(node: Node, stream: str, name: str) -> bodies.GroupDetails:
    """For how long the answering node still waits for those out of touch is in `waits_s`."""
    return (await group_views.one_group(node, unquote(stream), unquote(name))).group


@get(f"{PATH}/explain", guards=SEE, tags=["groups"], summary="Why a group is as it is")
async def explain_group(node: Node, stream: str, name: str) -> bodies.GroupExplanation:
    """In sentences, with its last transitions."""
    found = await group_views.one_group(node, unquote(stream), unquote(name))
    group = found.group
    return bodies.GroupExplanation(
        kind=group.kind,
        stream=group.stream,
        name=group.name,
        status=group.status,
        lines=found.lines,
        lately=group.lately,
    )


@post(f"{PATH}/evaluate", guards=OPERATE, status_code=200, tags=["groups"], summary="Drop who is out of touch")
async def evaluate_group(
    node: Node, request: Req, stream: str, name: str, data: bodies.Evaluate | None = None
) -> bodies.Evaluated:
    """Then settle. Refused while one of them may still believe that it is active, unless `yes` is true."""
    stream, name, yes = unquote(stream), unquote(name), data is not None and data.yes
    if await group_views.is_of_workers(node, stream, name):
        raise Refused(
            f"the nodes settle who runs {stream} by themselves",
            code="workers",
            hint=f"headgate groups explain {stream} says what it waits for",
        )
    before = (await node.groups.find(stream, name)).members
    await node.groups.evaluate(stream, name, yes=yes)
    try:
        left = {one.id for one in (await node.groups.find(stream, name)).members}
    except NotFound:  # They were all out of touch.
        left = set()
    dropped = [name_of(one.label, one.id) for one in before if one.id not in left]
    payload = {"stream": stream, "group": name, "dropped": dropped}
    await node.registry.events.record([Event(None, None, "group_evaluated", payload, request.user.name)])
    node.waker.wake("events")
    return bodies.Evaluated(stream=stream, name=name, dropped=dropped, consumers=len(left))


ROUTES = [list_groups, show_group, explain_group, evaluate_group]
