"""The pages of dumps: all of them, with how far each is; one, with its tables and a map of their chunks; and the form
that begins one. What an operator may have a dump reach is judged by the API, and again by the nodes that run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from litestar import Response, get

from headgate.connectors.api.bulk import Mode
from headgate.core.access import Caller, OfDatasource, may
from headgate.core.chunks.left import Left
from headgate.core.chunks.outcome import ALLOWED, OVER, RESUMABLE, Status
from headgate.errors import HeadgateError, NotFound, Refused
from headgate.runtime.dumps import views
from headgate.runtime.dumps.verdicts import VerifyDone, VerifyFailed, VerifyRunning
from headgate.runtime.dumps.views import (
    ChunkView,
    DumpSummary,
    DumpView,
    Square,
    TableView,
)
from headgate.runtime.node import Node
from headgate.text import counted
from headgate.web import subjects
from headgate.web.api.dumps import seen_dumps
from headgate.web.auth import Needs
from headgate.web.console import words
from headgate.web.console.acts import Act, command, json
from headgate.web.console.frame import framed, missing
from headgate.web.console.session import Req, signed_in

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
# What happens with rows that the target has. The fourth mode is that of backfills.
MODES = {
    Mode.APPEND: "append: they stay",
    Mode.REPLACE: "replace: a new table takes the place of the old one",
    Mode.UPSERT: "upsert: a row with the same key is overwritten",
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


@get("/dumps/new", include_in_schema=False, needs=Needs("operate_all"))
async def new_dump_page(node: Node, request: Req) -> Response[Any]:
    """The form that begins one."""
    return await signed_in(request, lambda holder: _new(node, holder))


async def _all(node: Node, holder: Caller) -> Response[str]:
    found = await seen_dumps(node, holder, MOST + 1)
    # Those that an operator may have to look at come first; each kind is in the order of time.
    rows = sorted(found[:MOST], key=lambda one: one.status in OVER)
    most = MOST if len(found) > MOST else None
    shown = [_row(one, one.tables) for one in rows]
    return framed(holder, "dumps.html", at="dumps", rows=shown, most=most, begins=may(holder, "operate_all"))


async def _new(node: Node, holder: Caller) -> Response[str]:
    return framed(
        holder,
        "dump_new.html",
        at="dumps",
        secrets=[one.name for one in await node.registry.secrets.all()],
        modes=[(mode.value, MODES[mode]) for mode in MODES],
        has_key=node.registry.secrets.keyring is not None,
        is_bounded=not may(holder, "administer"),
        nodes=sum(not one.ended for one in await node.nodes.all()),
    )


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
    )


def _left(one: DumpView) -> list[tuple[str, str]]:
    """What the target does not have, and why."""
    excuses = {"asked": "as asked", "kind": "another kind of database"}
    return [
        (str(Left(each.kind, each.name, each.of, each.why)), excuses.get(str(each.excuse), ""))
        for each in one.left_behind
    ]


async def _one(node: Node, request: Req, holder: Caller, id: str) -> Response[str]:
    try:
        found = await views.describe(node.dumps, id)
    except (NotFound, Refused) as error:
        return _none(holder, error)
    by_target: dict[str, list[ChunkView]] = {}
    for one in await views.chunks(node.dumps, found.id):
        by_target.setdefault(one.target, []).append(one)
    may_operate = may(holder, "operate", None if found.datasource is None else OfDatasource(found.datasource))
    tables = [_table(one, by_target.get(one.target, []), found, may_operate) for one in found.tables]
    actions = _actions(found) if may_operate else []
    rate = _rate(found) if may_operate else None
    retries = [one.retry for one in tables if one.retry is not None]
    return framed(
        holder,
        "dump.html",
        at="dumps",
        dump=_row(found, len(tables)),
        facts=_facts(found),
        tables=sorted(tables, key=lambda one: _STATES.index(one.state)),
        actions=actions,
        rate=rate,
        rate_now=found.rate or "max",
        behind=_left(found),
        can_resume=any(one.label == "Resume" for one in actions),
        commands=[*actions, *([rate] if rate else []), *retries],
        verified=_verified(request.app.state.verifications.of(UUID(found.id))),
    )


def _none(holder: Caller, error: HeadgateError) -> Response[str]:
    title = "There is no such dump"
    return missing(holder, at="dumps", title=title, text=f"{error.message}.")


def _actions(found: DumpView) -> list[Act]:
    """What makes sense now."""
    status, place = found.status, f"/api/dumps/{found.id}"
    goes_on = status is Status.PAUSED or (status in RESUMABLE and found.place == "nodes")
    is_compared = status is Status.COMPLETED and found.datasource is None
    cancel = "Give this dump up? Rows that were appended stay; tables under construction are removed."
    repair = "Copy again every chunk that differs? The target's rows of those chunks are replaced."
    clean = "Remove what this dump left for itself at the target? What it copied stays."

    def act(label: str, path: str, *words: str, ask: str = "", body: str = "", grave: bool = False) -> Act:
        return Act(label, f"POST {place}/{path}", command("dumps", *words), ask, body=body, grave=grave)

    short = found.short
    known = [
        (act("Pause", "pause", "pause", short), status in (Status.RUNNING, Status.WAITING)),
        (act("Resume", "resume", "resume", short), goes_on),
        (act("Verify", "verify", "verify", short), is_compared),
        (
            act("Verify and repair", "verify", "verify", short, "--repair", ask=repair, body=json({"repair": True})),
            is_compared,
        ),
        (act("Clean up", "clean", "clean", short, ask=clean), status in OVER),
        (
            act("Cancel", "cancel", "cancel", short, ask=cancel, grave=True),
            status not in OVER and status is not Status.CANCELLING,
        ),
        (_delete(found), status in OVER),
    ]
    return [one for one, makes_sense in known if makes_sense]


def _delete(found: DumpView) -> Act:
    ask = "Forget this dump and its history? What it copied stays."
    as_command = command("dumps", "delete", found.short)
    return Act("Delete", f"DELETE /api/dumps/{found.id}", as_command, ask, then="/dumps", grave=True)


def _rate(found: DumpView) -> Act | None:
    if found.status not in (Status.RUNNING, Status.WAITING, Status.PAUSED):
        return None
    return Act("Set", f"PUT /api/dumps/{found.id}/rate", command("dumps", "rate", found.short, found.rate or "max"))


def _retry(found: DumpView, table: TableView, chunks: list[ChunkView]) -> Act | None:
    """Only the chunks of a table that failed."""
    failed = [one.chunk for one in chunks if one.state == "failed"]
    if not failed or found.place != "nodes" or found.status not in ALLOWED["retried"]:
        return None
    numbers = ranges(failed)
    as_command = command("dumps", "retry", found.short, "--chunks", numbers, "--table", table.target)
    body = json({"chunks": numbers, "table": table.target})
    return Act(f"Retry {counted(len(failed), 'chunk')}", f"POST /api/dumps/{found.id}/retry", as_command, body=body)


def ranges(numbers: list[int]) -> str:
    """`3,7-9`, as the API takes them."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


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
    retry: Act | None


def _table(one: TableView, chunks: list[ChunkView], dump: DumpView, may_operate: bool) -> _Table:
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
        _retry(dump, one, chunks) if may_operate else None,
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
            lines = [one.text for one in found.different[:20]]
            text = f"{found.text[:1].upper()}{found.text[1:]}"
            return _Verified("ok" if found.equal else "error", text, lines)


def _percent(share: float | None) -> str:
    return words.NOTHING if share is None else f"{100 * share:.0f} %"
