"""Streams: who has them, where they stand, what became of them, and an operator's word on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from litestar import get, post, put
from litestar.params import Parameter
from msgspec import UNSET, json

from headgate.core.access import Caller
from headgate.datasources import moves
from headgate.errors import ConfigError, Problem, Refused
from headgate.ids import is_label, is_name
from headgate.runtime.apart.remote import tell_move
from headgate.runtime.node import Node
from headgate.store import listed, worker_groups
from headgate.store.datasources import Datasource
from headgate.store.listed import LAST_INDEX, WhichStreams
from headgate.text import has_zero_byte
from headgate.web import subjects
from headgate.web.api import views
from headgate.web.auth import Needs, Req
from headgate.web.bodies import Object
from headgate.web.bodies import streams as bodies
from headgate.web.queries import in_query

SEE, OPERATE = [Needs("see", subjects.stream)], [Needs("operate", subjects.stream)]

MOST_LINES = 1000
MOST_STREAMS = 100_000

Text = Annotated[str | None, Parameter(max_length=400)]


@get("/api/streams", guards=[Needs("list")], tags=["streams"], summary="All streams, who owns them, where they are")
async def list_streams(
    node: Node,
    request: Req,
    datasource: Text = None,
    search: Text = None,
    owner: Text = None,
    kind: listed.Kind | None = None,
    limit: Annotated[int | None, Parameter(ge=1, le=MOST_STREAMS)] = None,
    after: Text = None,
) -> bodies.Streams:
    """The only place where ownership lives. All in the order of their names; or those of one `datasource`, those with
    `search` in their names, of one `owner` (a node's name or id), of one `kind`; `limit` is how many at most, `after`
    is that of the answer before."""
    with in_query():
        place = place_of(after)
        which = await which_of(node, request.user, datasource, search, owner, kind)
    if which is None:
        return bodies.Streams(items=[])
    if which == WhichStreams() and limit is None and place is None:
        return bodies.Streams(items=[bodies.Stream(**_fields(one)) for one in await node.streams.all()])
    found = await node.streams.page(which, place, limit + 1 if limit is not None else MOST_STREAMS)
    more = limit is not None and len(found) > limit
    shown = found[:limit]
    last = place_text(shown[-1]) if more else None
    return bodies.Streams(items=[bodies.Stream(**_fields(one.stream)) for one in shown], after=last)


async def which_of(
    node: Node, caller: Caller, datasource: str | None, search: str | None, owner: str | None, kind: listed.Kind | None
) -> WhichStreams | None:
    """The streams that somebody asks for, of those that this caller sees. None: there can be none."""
    texts = {"datasource": datasource, "search": search, "owner": owner}
    problems = [Problem(path, "must have no zero byte") for path, text in texts.items() if "\0" in (text or "")]
    if problems:
        raise ConfigError(problems)
    if datasource is None and caller.bounds is None:
        return WhichStreams(None, search or None, owner or None, kind)
    seen = [one.id for one in await _among(node, datasource) if subjects.sees(caller, one.name)]
    return WhichStreams(seen, search or None, owner or None, kind) if seen else None


async def _among(node: Node, name: str | None) -> Sequence[Datasource]:
    """The datasource of this name, if there is one; or all."""
    if name is None:
        return [one.datasource for one in await node.registry.listing.all()]
    found = await node.registry.datasources.find(name) if is_name(name) else None
    return [found] if found is not None and found.name == name else []


def place_text(line: listed.StreamLine) -> str:
    """Where a page ends, for the one that follows."""
    datasource, index, label = line.place()
    return f"{datasource}:{label}" if line.stream.index is None else f"{datasource}#{index}"


def place_of(text: str | None) -> tuple[str, int, str] | None:
    """The place that such a text means."""
    if text is None:
        return None
    name, _, label = text.partition(":")
    if is_name(name) and is_label(label):
        return name, LAST_INDEX, label
    name, _, index = text.partition("#")
    if is_name(name) and index.isascii() and index.isdecimal() and int(index) < LAST_INDEX:
        return name, int(index), ""
    raise ConfigError([Problem("after", "must be the `after` of an answer")])


@get("/api/streams/{id:str}", guards=SEE, tags=["streams"], summary="One stream, by its id or name")
async def show_stream(node: Node, id: str) -> bodies.StreamDetails:
    """With its state, with the nodes that cannot run it, and with where it is wished to be, and by whom."""
    return await details_of(node, id)


async def details_of(node: Node, id: str) -> bodies.StreamDetails:
    """All about one stream."""
    found = await node.streams.find(id)
    datasource = await node.registry.get(str(found.datasource_id))
    facts = await views.one_facts(node, datasource)
    states = [views.state(row, facts) for row in facts.states if row.stream == found.id]
    unable = [
        bodies.Unable(node=row.node, id=row.id, reason=row.reason, at=row.at)
        for row in facts.unable
        if row.stream == found.id
    ]
    wish = _wish(await node.worker_groups.wish(found.id))
    return bodies.StreamDetails(**_fields(found), state=states[0] if states else None, unable=unable, wish=wish)


@get("/api/streams/{id:str}/history", guards=SEE, tags=["streams"], summary="What became of a stream")
async def stream_history(node: Node, id: str, limit: int = 50) -> bodies.History:
    """Where it stood each time it changed hands or was edited, the latest first."""
    found = await node.streams.find(id)
    lines = await node.streams.history(found.id, max(1, min(limit, MOST_LINES)))
    return bodies.History(items=[_line(line) for line in lines])


@put("/api/streams/{id:str}/position", guards=OPERATE, tags=["streams"], summary="Edit a position, or undo that")
async def edit_position(node: Node, request: Req, id: str, data: bodies.Edit) -> bodies.Edited:
    """`position` is any JSON value, null for the beginning; or `history` is the id of a line of its history; or `undo`
    is true. Refused while a node has the stream. Without `yes` it is a 409 that says what would be skipped or read
    again, as far as that is known."""
    done = await _edit(node, request, id, data)
    if not data.yes:
        raise moves.unconfirmed(done, await moves.told(node.registry, node.inbox, done, tell_move))
    node.waker.wake("streams")
    node.waker.wake("events")
    now = done.stream
    return bodies.Edited(id=now.id, name=now.name, before=done.before, position=now.position, generation=now.generation)


@post("/api/streams/{id:str}/move", guards=OPERATE, status_code=200, tags=["streams"], summary="Move a stream")
async def move_stream(node: Node, request: Req, id: str, data: bodies.Move) -> bodies.Moved:
    """To the `node` of this name or id, until that one leaves; null leaves the stream to the planner again."""
    if "\0" in (data.node or ""):
        raise ConfigError([Problem("node", "must be a name or an id without a zero byte")])
    found = await node.streams.find(id)
    before = await node.worker_groups.wish(found.id)
    if data.node is None:
        is_new = before is not None and before.pinned
        if is_new:
            await node.placement.unpin(found, request.user.name)
    else:
        is_new = await _move(node, found, before, data.node, request.user.name)
    if is_new:
        node.waker.wake("streams")
        node.waker.wake("events")
    wish = _wish(await node.worker_groups.wish(found.id))
    return bodies.Moved(id=found.id, name=found.name, owner=found.owner, node=found.node, wish=wish, is_new=is_new)


async def _edit(node: Node, request: Req, id: str, data: bodies.Edit) -> listed.Edited:
    """Edit the position; without a yes, only say how that would be."""
    actor, is_dry = request.user.name, not data.yes
    match data.position, data.history, data.undo:
        case position, msgspec.UNSET, msgspec.UNSET if position is not UNSET:
            if has_zero_byte(json.encode(position)):
                raise ConfigError([Problem("position", "must have no zero byte")])
            return await node.streams.edit(id, position, actor, is_dry=is_dry)
        case msgspec.UNSET, int(line), msgspec.UNSET:
            return await node.streams.restore(id, line, actor, is_dry=is_dry)
        case msgspec.UNSET, msgspec.UNSET, True:
            return await node.streams.undo_edit(id, actor, is_dry=is_dry)
    text = "the body must have either `position`, `history` or `undo: true`"
    raise ConfigError([Problem("", text, "and one of them only")])


async def _move(
    node: Node, found: listed.Listed, before: worker_groups.Wish | None, target_name: str, actor: str
) -> bool:
    """Wish a stream on a node. False: an operator had wished it there before."""
    target = await node.nodes.find(target_name)
    if found.label is None and not await node.worker_groups.all(found.name, 1):
        raise Refused(f"nodes do not run {found.name}: programs push its datasource", code="pushed")
    if target.draining:
        hint = f"headgate nodes undrain {target.name}"
        raise Refused(f"{target.name} is draining and takes no streams", code="draining", hint=hint)
    if before is not None and before.id == target.id and before.pinned:
        return False
    await node.placement.move(found, target, actor)
    return True


def _fields(found: listed.Listed) -> Object:
    return {name: getattr(found, name) for name in found.__slots__}


def _line(found: listed.HistoryLine) -> bodies.HistoryLine:
    return bodies.HistoryLine(
        id=found.id,
        at=found.at,
        kind=found.kind,
        actor=found.actor,
        epoch=found.epoch,
        generation=found.generation,
        commits=found.commits,
        position=found.position,
        before=found.before if found.kind == "edited" else UNSET,
    )


def _wish(found: worker_groups.Wish | None) -> bodies.Wish | None:
    """Where a stream should be, and by whose word."""
    if found is None:
        return None
    return bodies.Wish(id=found.id, node=found.node, by="operator" if found.pinned else "planner")


ROUTES = [list_streams, show_stream, stream_history, edit_position, move_stream]
