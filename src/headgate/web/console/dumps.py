"""The pages of dumps: all of them, with how far each is; and one, with its tables and a map of their chunks.

A browser's session serves for reading only. What the buttons send is taken only from our own pages, only with a header
that a page of another site cannot add, and only if the session's token may operate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
from litestar import Response, get, post

from headgate.core.access import Caller, OfDatasource, may
from headgate.core.chunks.left import Left
from headgate.core.chunks.outcome import OVER, RESUMABLE, Status
from headgate.errors import ConfigError, HeadgateError, NotFound, Problem, Refused, Unauthorized
from headgate.runtime.dumps import control, views
from headgate.runtime.dumps.views import (
    ChunkView,
    DumpSummary,
    DumpView,
    Square,
    TableView,
    VerifyDone,
    VerifyFailed,
    VerifyRunning,
)
from headgate.runtime.node import Node
from headgate.text import counted
from headgate.web import subjects
from headgate.web.api.dumps import seen_dumps
from headgate.web.auth import Needs
from headgate.web.console import session, words
from headgate.web.console.pages import page
from headgate.web.console.session import HEADER, MOST_FORM_BYTES, Req, name_of, signed_in

MOST = 200
SQUARES = 480  # Of a table. More chunks share a square.

# The mark that goes with a status.
MARKS = {
    "failed": "error",
    "incomplete": "error",
    "interrupted": "degraded",
    "cancelling": "stopped",
    "paused": "stopped",
    "waiting": "starting",
    "running": "starting",
    "completed": "ok",
    "cancelled": "stopped",
}
_STATES = ("failed", "copying", "finishing", "waiting", "done")  # Of tables: errors first.


@get("/dumps", include_in_schema=False, needs=Needs("list"))
async def dumps_page(node: Node, request: Req) -> Response[Any]:
    """All dumps."""
    return await signed_in(request, lambda holder: _all(node, holder))


@get("/dumps/{id:str}", include_in_schema=False, needs=Needs("see", subjects.dump))
async def dump_page(node: Node, request: Req, id: str) -> Response[Any]:
    """One dump."""
    return await signed_in(request, lambda holder: _one(node, request, holder, id))


@post(
    "/dumps/{id:str}",
    include_in_schema=False,
    status_code=200,
    request_max_body_size=MOST_FORM_BYTES,
    needs=Needs("operate", subjects.dump),
)
async def act(node: Node, request: Req, id: str) -> dict[str, Any]:
    """What a button, or the field of the rate, sends. It is read once it is known who sends it."""
    holder = await session.holder(request)
    if holder is None or HEADER not in request.headers:
        raise Unauthorized("the token is missing or not valid")
    await session.check(request, holder)
    try:
        data = msgspec.json.decode(await request.body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        data = None
    match data:
        case {"do": "pause"}:
            await control.pause(node.dumps, id)
        case {"do": "resume"}:
            await control.resume(node.dumps, id)
        case {"do": "cancel"}:
            await control.cancel(node.dumps, id, await node.registry.reaching())
        case {"do": "delete"}:
            await control.delete(node.dumps, id, node.settings.home)
        case {"do": "rate", "rate": str(rate)}:
            await control.set_rate(node.dumps, id, rate.strip() or None)
        case {"do": "verify"}:
            await request.app.state.verifications.begin(node, id, repair=False)
        case _:
            raise ConfigError([Problem("do", "must be pause, resume, cancel, delete, rate or verify")])
    return {}


async def _all(node: Node, holder: Caller) -> Response[str]:
    found = await seen_dumps(node, holder, MOST + 1)
    # Those that an operator may have to look at come first; each kind is in the order of time.
    rows = sorted(found[:MOST], key=lambda one: one.status in OVER)
    most = MOST if len(found) > MOST else None
    return page("dumps.html", holder=name_of(holder), rows=[_row(one, one.tables) for one in rows], most=most)


@dataclass(frozen=True, slots=True)
class _Row:
    """A dump, in words."""

    id: str
    short: str
    source: str
    target: str
    status: str
    share: float | None
    error: str
    mark: str
    percent: str
    rows: str
    size: str
    tables: str
    began: str
    resume: str | None
    fuzzy: bool
    left: list[str]


def _row(one: DumpSummary | DumpView, tables: int) -> _Row:
    return _Row(
        one.id,
        one.short,
        one.source,
        one.target,
        one.status,
        one.share,
        one.error,
        MARKS[one.status],
        _percent(one.share),
        words.count(one.rows),
        words.size(one.bytes),
        f"{one.tables_done} of {tables}",
        words.since(one.created_at),
        one.resume,
        one.fuzzy,
        _left(one) if isinstance(one, DumpView) else [],
    )


def _left(one: DumpView) -> list[str]:
    """What the target does not have."""
    return [str(Left(each.kind, each.name, each.of, each.why)) for each in one.left_behind]


async def _one(node: Node, request: Req, holder: Caller, id: str) -> Response[str]:
    try:
        found = await views.describe(node.dumps, id)
    except (NotFound, Refused) as error:
        return _none(error)
    by_target: dict[str, list[ChunkView]] = {}
    for one in await views.chunks(node.dumps, found.id):
        by_target.setdefault(one.target, []).append(one)
    tables = [_table(one, by_target.get(one.target, [])) for one in found.tables]
    may_operate = may(holder, "operate", None if found.datasource is None else OfDatasource(found.datasource))
    can_slow = found.status in (Status.RUNNING, Status.WAITING, Status.PAUSED)
    return page(
        "dump.html",
        holder=name_of(holder),
        dump=_row(found, len(tables)),
        facts=_facts(found),
        tables=sorted(tables, key=lambda one: _STATES.index(one.state)),
        actions=_actions(found) if may_operate else [],
        takes_rate=may_operate and can_slow,
        rate=found.rate or "",
        verified=_verified(request.app.state.verifications.of(UUID(found.id))),
    )


def _none(error: HeadgateError) -> Response[str]:
    title = "There is no such dump"
    return page("notice.html", status=404, again_s=5, again_at="/dumps", title=title, text=f"{error.message}.")


def _actions(found: DumpView) -> list[str]:
    """What makes sense now."""
    status = found.status
    goes_on = status is Status.PAUSED or (status in RESUMABLE and found.place == "nodes")
    names = [
        ("pause", status in (Status.RUNNING, Status.WAITING)),
        ("resume", goes_on),
        ("cancel", status not in OVER and status is not Status.CANCELLING),
        ("verify", status is Status.COMPLETED and found.datasource is None),
        ("delete", status in OVER),
    ]
    return [name for name, makes_sense in names if makes_sense]


def _facts(found: DumpView) -> list[tuple[str, str]]:
    rows = words.count(found.rows)
    if found.status is not Status.COMPLETED and found.rows < (found.expected_rows or 0):
        rows += f" of about {words.count(found.expected_rows)}"
    speed = f"{counted(found.rows_per_s, 'row')}/s, {words.size(found.bytes_per_s)}/s" if found.rows_per_s else ""
    facts = [
        ("Rows", rows),
        ("Size", words.size(found.bytes)),
        ("Speed", speed),
        ("Left", words.span(found.eta_s) if found.eta_s is not None else ""),
        ("Rate", f"{found.rate} a second at most" if found.rate else ""),
        ("Mode", found.mode),
        ("Workers", f"{found.workers} on each node" if found.spread else str(found.workers)),
        ("Began", f"{words.since(found.created_at)}, by {found.actor}"),
        ("Took", words.span(found.seconds) if found.ended_at else ""),
        ("Run by", found.process or ""),
    ]
    return [fact for fact in facts if fact[1]]


@dataclass(frozen=True, slots=True)
class _Table:
    """A table, in words."""

    name: str
    state: str
    share: float | None
    percent: str
    rows: str
    size: str
    counts: str
    errors: list[str]
    squares: list[Square]


def _table(one: TableView, chunks: list[ChunkView]) -> _Table:
    counts = f"{one.chunks_done:,} of {counted(one.chunks, 'chunk')}"
    if one.chunks_failed:
        counts += f", {one.chunks_failed} failed"
    errors = {chunk.error: chunk.chunk for chunk in chunks if chunk.error}
    said = [f"chunk {number}: {text}" for text, number in errors.items() if text not in one.error]
    return _Table(
        one.label,
        one.state,
        one.share,
        _percent(one.share),
        counted(one.rows, "row"),
        words.size(one.bytes),
        counts if one.is_planned else f"{counts} so far",
        [text for text in (one.error, *said[:5]) if text],
        views.squares(chunks, SQUARES),
    )


@dataclass(frozen=True, slots=True)
class _Verified:
    """A comparison, in words."""

    mark: str
    text: str
    lines: list[str]


def _verified(found: VerifyRunning | VerifyDone | VerifyFailed | None) -> _Verified | None:
    """What this node has compared."""
    match found:
        case None:
            return None
        case VerifyRunning():
            done = f"{found.chunks_done:,} of {counted(found.chunks, 'chunk')}"
            return _Verified("starting", f"Comparing: {found.table}, {done}" if found.table else "Comparing", [])
        case VerifyFailed():
            hint = f" ({found.hint})" if found.hint else ""
            return _Verified("error", f"Could not compare: {found.error}{hint}", [])
        case VerifyDone():
            lines = [
                f"{one.table}{'' if one.chunk is None else ', chunk ' + str(one.chunk)}: {one.why}"
                for one in found.different[:20]
            ]
            word = "Equal" if found.equal else "Different"
            text = f"{word}: {counted(found.rows, 'row')} in {counted(found.chunks, 'chunk')} compared"
            return _Verified("ok" if found.equal else "error", text, lines)


def _percent(share: float | None) -> str:
    return words.NOTHING if share is None else f"{100 * share:.0f} %"
