"""The page of streams: which node has which, and where each stands.

There may be thousands, so the list comes on pages. What is wrong with a stream stands in its row; what to do about it,
on its own page (`console/stream.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args
from urllib.parse import quote, urlencode
from uuid import UUID

import msgspec
from litestar import Response, get

from headgate.clock import unix_s
from headgate.core.access import Caller, may
from headgate.errors import ConfigError
from headgate.runtime.node import Node
from headgate.store.listed import Kind, StreamLine
from headgate.store.nodes import Node as NodeRow
from headgate.web.api.streams import place_of, place_text, which_of
from headgate.web.auth import Needs
from headgate.web.console import words
from headgate.web.console.frame import framed, missing
from headgate.web.console.session import Req, signed_in

PAGE = 100
LINES = 100  # Of a stream's history.
MOST_DOTS = 8  # Nodes that have a dot each in a row. More are told by name alone.
SHOWN = 60  # Characters of a position in a row.

KINDS: dict[str, str] = {
    "": "all",
    "owned": "on a node",
    "free": "on no node",
    "moving": "moving",
    "pinned": "pinned",
    "failed": "failing",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the address asks for."""

    q: str
    datasource: str
    on: str  # A node.
    kind: str
    after: str

    def address(self, **other: str) -> str:
        """The same page with something else."""
        given = {**{name: getattr(self, name) for name in self.__slots__}, **other}
        query = urlencode({name: text for name, text in given.items() if text})
        return f"/streams?{query}" if query else "/streams"


@get("/streams", include_in_schema=False, needs=Needs("list"))
async def streams_page(
    node: Node, request: Req, q: str = "", datasource: str = "", on: str = "", kind: str = "", after: str = ""
) -> Response[Any]:
    """Those that fit."""
    asked = Asked(q, datasource, on, kind, after)
    return await signed_in(request, lambda holder: _all(node, holder, asked))


async def _all(node: Node, holder: Caller, asked: Asked) -> Response[str]:
    try:
        kind: Kind | None = _kind(asked.kind)
        place = place_of(asked.after or None)
        which = await which_of(node, holder, asked.datasource or None, asked.q or None, asked.on or None, kind)
    except ConfigError as error:
        return missing(holder, at="streams", title="There are no such streams", text=f"{error.message}.")
    found = [] if which is None else await node.streams.page(which, place, PAGE + 1)
    nodes = [one for one in await node.nodes.all() if not one.ended] if may(holder, "see_all") else []
    shown = found[:PAGE]
    return framed(
        holder,
        "streams.html",
        at="streams",
        asked=asked,
        kinds=KINDS,
        nodes=nodes,
        rows=[_row(node, one, nodes) for one in shown],
        next_at=asked.address(after=place_text(shown[-1])) if len(found) > PAGE else "",
        first_at=asked.address(after="") if asked.after else "",
    )


def _kind(text: str) -> Kind | None:
    if text not in KINDS:
        raise ConfigError(f"{text[:50]!r} is no kind of streams")
    return next((kind for kind in get_args(Kind) if kind == text), None)


@dataclass(frozen=True, slots=True)
class Dot:
    """One node in a stream's row."""

    name: str
    state: str  # has, wished or not.


def _row(node: Node, one: StreamLine, nodes: Sequence[NodeRow]) -> dict[str, object]:
    found = one.stream
    mark, word, why = status(_doing(node, one))
    last_s = one.last_record_at_s
    return {
        "id": str(found.id),
        "name": found.name,
        "address": address_of(found.name, found.id),
        "mark": mark,
        "word": word,
        "why": why,
        "node": found.node or words.NOTHING,
        "dots": [Dot(each.name, _dot(one, each)) for each in nodes] if 1 < len(nodes) <= MOST_DOTS else [],
        "wish": wish_of(one.wished_name, is_here=one.wished == found.owner, is_pinned=one.is_pinned),
        "epoch": words.count(found.epoch),
        "version": f"v{found.version}" if found.version else words.NOTHING,
        "position": short(found.position),
        "last": words.ago(None if last_s is None else unix_s() - last_s),
    }


def _doing(node: Node, one: StreamLine) -> Doing:
    found = one.stream
    return Doing(
        None if found.owner is None else found.node or "its node",
        found.owner is not None and not one.is_ended and node.watcher.is_heard(found.owner),
        one.enabled,
        one.paused,
        found.rests,
        found.label is not None,
        one.worker_status,
        one.detail,
        one.error or "",
        one.is_told,
    )


def _dot(one: StreamLine, node: NodeRow) -> str:
    if one.stream.owner == node.id:
        return "has"
    return "wished" if one.wished == node.id else "not"


@dataclass(frozen=True, slots=True)
class Doing:
    """What a stream's status is judged by."""

    owner: str | None  # The name of the node that has it.
    is_heard: bool  # That node beats.
    enabled: bool  # As its datasource is.
    paused: bool
    rests: bool
    is_pushed: bool
    worker_status: str | None
    detail: str
    error: str
    is_told: bool  # The status is of the present grant.


def status(one: Doing) -> tuple[str, str, str]:
    """How a stream does: a mark, a word, and why."""
    if one.owner is not None:
        return _running(one, one.owner)
    if one.rests:
        return "ended", "ended", ""
    if one.worker_status == "ERROR":
        return "error", "failed", one.error or one.detail
    if one.is_pushed:
        return "stopped", "no program", ""
    if one.paused or not one.enabled:
        return ("paused", "paused", "") if one.paused else ("stopped", "stopped", "")
    return "no_node", "no node", "it waits for a node that takes it"


def _running(one: Doing, owner: str) -> tuple[str, str, str]:
    if not one.is_heard:
        return "degraded", "node silent", f"{owner} does not beat; another takes it over"
    if not one.is_told or one.worker_status == "INIT":
        return "starting", "starting", ""
    if one.worker_status == "ERROR":
        return "error", "failing", one.error or one.detail
    if one.worker_status == "STOPPED":
        return "starting", "stopping", ""
    word = "running" if one.detail in ("running", "") else one.detail
    return "ok" if one.worker_status == "RUNNING" else "starting", word, ""


def wish_of(name: str | None, *, is_here: bool, is_pinned: bool) -> str:
    """Where it should be, if that says more than where it is."""
    if name is None:
        return ""
    if is_here:
        return "pinned here" if is_pinned else ""
    return f"→ {name}, {'by an operator' if is_pinned else 'by the planner'}"


def address_of(name: str, id: UUID) -> str:
    """The page of a stream. Two may share a name; those that can are called by their ids."""
    _, _, part = name.partition(":")
    return f"/streams/{id if part.isdecimal() is False else quote(name, safe=':')}"


def short(position: Any) -> str:
    """A position in a few characters."""
    text = exact(position)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def exact(position: Any) -> str:
    """A position as JSON, so that 5 and "5" differ."""
    return msgspec.json.encode(position).decode()
