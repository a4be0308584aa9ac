"""The page of one stream: who had it when, where it stands and stood, and what an operator can do about that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec
from litestar import Response, get

from headgate.clock import unix_s
from headgate.core.access import Caller, OfDatasource, may
from headgate.errors import NotFound, Refused
from headgate.runtime.node import Node
from headgate.store.datasources import Datasource
from headgate.store.listed import HistoryLine
from headgate.web import subjects
from headgate.web.api.streams import details_of
from headgate.web.auth import Needs
from headgate.web.bodies.streams import StreamDetails
from headgate.web.console import words
from headgate.web.console.acts import Act, command, json
from headgate.web.console.frame import framed, missing
from headgate.web.console.lanes import Lanes, lanes
from headgate.web.console.session import Req, signed_in
from headgate.web.console.streams import Doing, exact, short, status, wish_of

LINES = 100  # Of a stream's history.


@get("/streams/{id:str}", include_in_schema=False, needs=Needs("see", subjects.stream))
async def stream_page(node: Node, request: Req, id: str) -> Response[Any]:
    """One of them, by its name or id."""
    return await signed_in(request, lambda holder: _one(node, holder, id))


async def _one(node: Node, holder: Caller, id: str) -> Response[str]:
    try:
        found = await details_of(node, id)
    except (NotFound, Refused) as error:
        return missing(holder, at="streams", title="There is no such stream", text=f"{error.message}.")
    history = await node.streams.history(found.id, LINES)
    owner = await node.registry.get(str(found.datasource_id))
    mark, word, why = _status(node, found, owner)
    operates = may(holder, "operate", OfDatasource(found.datasource))
    doings = await _doings(node, holder, found, owner, history) if operates else NO_ACTS
    return framed(
        holder,
        "stream.html",
        at="streams",
        stream=found,
        mark=mark,
        word=word,
        why=why,
        facts=_facts(found),
        wish=_wish(found),
        position=msgspec.json.format(msgspec.json.encode(found.position), indent=2).decode(),
        lanes=_drawn(lanes(history, datetime.now(UTC))),
        history=[_line(found, one, doings) for one in history],
        is_at_rest=found.owner is None,
        **doings,
    )


NO_ACTS: dict[str, Any] = {
    **dict.fromkeys(("edit", "undo", "pause", "move", "anywhere")),
    "nodes": [],
    "commands": [],
}


async def _doings(
    node: Node, holder: Caller, found: StreamDetails, owner: Datasource, history: Sequence[HistoryLine]
) -> dict[str, Any]:
    """What an operator can do about it now, as buttons and as commands."""
    path, name = f"/api/streams/{found.id}", _called(found)
    is_at_rest = found.owner is None
    edit = Act(
        "Edit position",
        f"PUT {path}/position",
        command("streams", "set-position", name, exact(found.position)),
        done=f"{found.name} goes on elsewhere.",
        **ASKS,
    )
    undo = replace(
        edit,
        label="Undo the last edit",
        body=json({"undo": True}),
        command=command("streams", "set-position", name, "--undo"),
    )
    move = Act("Move", f"POST {path}/move", command("streams", "move", name, "NODE"), done=f"{found.name} moves.")
    is_pinned = found.wish is not None and found.wish.by == "operator"
    anywhere = replace(
        move,
        label="Leave it to the planner",
        body=json({"node": None}),
        command=command("streams", "move", name, "--anywhere"),
        done=f"{found.name} is left to the planner.",
    )
    nodes = [one for one in await node.nodes.all() if not one.ended] if may(holder, "see_all") else []
    given = {
        "edit": edit,
        "undo": undo if is_at_rest and any(one.kind == "edited" for one in history) else None,
        "pause": _pause(owner, is_at_rest=is_at_rest),
        "move": move if nodes and found.label is None else None,
        "anywhere": anywhere if is_pinned else None,
    }
    commands = [one.command for one in given.values() if one is not None]
    return {**given, "nodes": [(one.name, str(one.id), one.draining) for one in nodes], "commands": commands}


ASKS: dict[str, Any] = {"yes": "unconfirmed", "yes_in_body": True}


def _called(found: StreamDetails) -> str:
    """What a command calls it: two may share a name, unless its part is a number."""
    return found.name if found.label is None else str(found.id)


def _pause(owner: Datasource, *, is_at_rest: bool) -> Act | None:
    """The way to a stream that can be edited, and back."""
    path, name = f"/api/datasources/{quote(owner.name)}", owner.name
    if owner.enabled and not owner.paused and not is_at_rest:
        ask = f"Pause {name}? Nobody reads it until it is started again; what arrives waits."
        return Act(f"Pause {name}", f"POST {path}/pause", command("ds", "pause", name), ask, f"{name} is paused.")
    if owner.paused:
        return Act(f"Start {name}", f"POST {path}/start", command("ds", "start", name), done=f"{name} goes on.")
    return None


def _wish(found: StreamDetails) -> str:
    wish = found.wish
    return wish_of(wish.node, is_here=wish.id == found.owner, is_pinned=wish.by == "operator") if wish else ""


def _status(node: Node, found: StreamDetails, owner: Datasource) -> tuple[str, str, str]:
    state = found.state
    return status(
        Doing(
            None if found.owner is None else found.node or "its node",
            found.owner is not None and node.watcher.is_heard(found.owner),
            owner.enabled,
            owner.paused,
            found.rests,
            found.label is not None,
            state.worker_status if state else None,
            state.detail if state else "",
            state.error.message if state and state.error else "",
            state is not None and state.epoch == found.epoch,
        )
    )


def _facts(found: StreamDetails) -> list[tuple[str, str]]:
    state = found.state
    metrics = state.metrics if state else None
    last_s = metrics.last_record_at_s if metrics else None
    facts = [
        ("Node", found.node or words.NOTHING),
        ("Written", words.count(metrics.records_written) if metrics else ""),
        ("Rate", f"{words.rate(metrics.written_per_s)}/s" if metrics and found.owner else ""),
        ("Lag", words.lag(metrics.lag_s) if metrics and metrics.lag_s else ""),
        ("Last record", words.ago(unix_s() - last_s) if last_s else ""),
        ("Version", f"v{found.version}" if found.version else ""),
        ("Epoch", words.count(found.epoch)),
        ("Generation", words.count(found.generation)),
        ("Commits", words.count(found.commits)),
    ]
    return [fact for fact in facts if fact[1]]


def _line(found: StreamDetails, one: HistoryLine, doings: Mapping[str, Any]) -> dict[str, object]:
    edit: Act | None = doings["edit"] if found.owner is None else None
    as_command = command("streams", "set-position", _called(found), "--from-history", one.id)
    is_other = one.position != found.position
    return {
        "restore": replace(edit, label="Restore", body=json({"history": one.id}), command=as_command)
        if edit is not None and is_other
        else None,
        "id": one.id,
        "at": one.at.isoformat(timespec="seconds"),
        "ago": words.since(one.at.isoformat()),
        "kind": one.kind,
        "actor": one.actor or words.NOTHING,
        "epoch": words.count(one.epoch),
        "position": short(one.position),
        "before": short(one.before) if one.kind == "edited" else "",
    }


def _drawn(found: Lanes | None) -> dict[str, object] | None:
    """The lanes with their words."""
    if found is None:
        return None
    return {
        "begin": words.since(found.begin.isoformat()),
        "more": found.more,
        "lanes": [
            (lane.node, [(bar.x, bar.width, _held(bar.begin, bar.end, bar.epoch)) for bar in lane.bars])
            for lane in found.lanes
        ],
    }


def _held(begin: datetime, end: datetime | None, epoch: int) -> str:
    """For how long somebody held it."""
    last = end or datetime.now(UTC)
    span = words.span((last - begin).total_seconds())
    return f"{begin.isoformat(timespec='seconds')}, for {span}{'' if end else ' so far'}, epoch {epoch:,}"
