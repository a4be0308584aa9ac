"""The pages of dumps: all of them, with how far each is; and one, with its tables and a map of their chunks.

A browser's cookie serves for reading only. What the buttons send goes the same way only with a header that a page of
another site cannot add, and only if the cookie's token may operate.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from litestar import Response, get, post

from headgate.errors import ConfigError, Forbidden, HeadgateError, NotFound, Problem, Refused, Unauthorized
from headgate.runtime.dumps import control
from headgate.runtime.node import Node
from headgate.store.tokens import ROLES, Token
from headgate.text import counted
from headgate.web.console import session, words
from headgate.web.console.pages import page
from headgate.web.console.session import Req, name_of, signed_in

MOST = 200
SQUARES = 480  # Of a table. More chunks share a square.
HEADER = "x-headgate-console"  # A page of another site would have to ask first, and nobody answers.

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


@get("/dumps", include_in_schema=False)
async def dumps_page(node: Node, request: Req) -> Response[Any]:
    """All dumps."""
    return await signed_in(request, lambda holder: _all(node, holder))


@get("/dumps/{id:str}", include_in_schema=False)
async def dump_page(node: Node, request: Req, id: str) -> Response[Any]:
    """One dump."""
    return await signed_in(request, lambda holder: _one(node, request, holder, id))


@post("/dumps/{id:str}", include_in_schema=False, status_code=200)
async def act(node: Node, request: Req, id: str, data: dict[str, Any]) -> dict[str, Any]:
    """What a button, or the field of the rate, sends."""
    holder = await session.holder(request)
    if holder is None or HEADER not in request.headers:
        raise Unauthorized("the token is missing or not valid")
    if not _may_operate(holder):
        raise Forbidden(f"the token {holder.name!r} has the role {holder.role}; this needs operator")
    match data:
        case {"do": "pause"}:
            await control.pause(node.dumps, id)
        case {"do": "resume"}:
            await control.resume(node.dumps, id)
        case {"do": "cancel"}:
            await control.cancel(node.dumps, id)
        case {"do": "delete"}:
            await control.delete(node.dumps, id, node.settings.home)
        case {"do": "rate", "rate": str(rate)}:
            await control.set_rate(node.dumps, id, rate.strip() or None)
        case {"do": "verify"}:
            await request.app.state.verifications.begin(node, id, repair=False)
        case _:
            raise ConfigError([Problem("do", "must be pause, resume, cancel, delete, rate or verify")])
    return {}


def _may_operate(holder: Token) -> bool:
    return ROLES.index(holder.role) >= ROLES.index("operator")


async def _all(node: Node, holder: Token) -> Response[str]:
    found = await control.listed(node.dumps, MOST + 1)
    rows = sorted(found[:MOST], key=lambda one: _needs_nobody(one["status"]))
    most = MOST if len(found) > MOST else None
    return page("dumps.html", holder=name_of(holder), rows=[_row(one) for one in rows], most=most)


def _needs_nobody(status: str) -> bool:
    """Those that somebody may have to look at come first; each kind is in the order of time."""
    return status in control.OVER


def _row(one: dict[str, Any]) -> dict[str, Any]:
    return {
        **{key: one[key] for key in ("id", "short", "source", "target", "status", "share", "error")},
        "mark": MARKS[one["status"]],
        "percent": _percent(one["share"]),
        "rows": words.count(one["rows"]),
        "size": words.size(one["bytes"]),
        "tables": f"{one['tables_done']} of {one['tables']}",
        "began": words.since(one["created_at"]),
    }


async def _one(node: Node, request: Req, holder: Token, id: str) -> Response[str]:
    try:
        found = await control.describe(node.dumps, id)
    except (NotFound, Refused) as error:
        return _none(error)
    chunks = await control.chunks(node.dumps, found["id"])
    by_target: dict[str, list[dict[str, Any]]] = {}
    for one in chunks:
        by_target.setdefault(one["target"], []).append(one)
    tables = [_table(one, by_target.get(one["target"], [])) for one in found["tables"]]
    return page(
        "dump.html",
        holder=name_of(holder),
        dump={**_row({**found, "tables": len(tables)}), "resume": found["resume"], "fuzzy": found["fuzzy"]},
        facts=_facts(found),
        tables=sorted(tables, key=lambda one: _STATES.index(one["state"])),
        actions=_actions(found) if _may_operate(holder) else [],
        takes_rate=_may_operate(holder) and found["status"] in ("running", "waiting", "paused"),
        rate=found["rate"] or "",
        verified=_verified(request.app.state.verifications.of(UUID(found["id"]))),
    )


def _none(error: HeadgateError) -> Response[str]:
    title = "There is no such dump"
    return page("notice.html", status=404, again_s=5, again_at="/dumps", title=title, text=f"{error.message}.")


def _actions(found: dict[str, Any]) -> list[str]:
    """What makes sense now."""
    status = found["status"]
    goes_on = status == "paused" or (status in control.RESUMABLE and found["place"] == "nodes")
    is_over = status in (*control.OVER, "cancelling")
    names = [
        ("pause", status in ("running", "waiting")),
        ("resume", goes_on),
        ("cancel", not is_over),
        ("verify", status == "completed" and found["datasource"] is None),
        ("delete", status in control.OVER),
    ]
    return [name for name, makes_sense in names if makes_sense]


def _facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    speed = f"{words.count(found['rows_per_s'])} rows/s, {words.size(found['bytes_per_s'])}/s"
    facts = [
        ("Rows", f"{words.count(found['rows'])} of about {words.count(found['expected_rows'])}"),
        ("Size", words.size(found["bytes"])),
        ("Speed", speed if found["rows_per_s"] else ""),
        ("Left", words.span(found["eta_s"]) if found["eta_s"] is not None else ""),
        ("Rate", f"{found['rate']} a second at most" if found["rate"] else ""),
        ("Mode", found["mode"]),
        ("Workers", f"{found['workers']} on each node" if found["spread"] else str(found["workers"])),
        ("Began", f"{words.since(found['created_at'])}, by {found['actor']}"),
        ("Took", words.span(found["seconds"]) if found["ended_at"] else ""),
        ("Run by", found["process"] or ""),
    ]
    if found["status"] == "completed" or found["rows"] >= (found["expected_rows"] or 0):
        facts[0] = ("Rows", words.count(found["rows"]))
    return [fact for fact in facts if fact[1]]


def _table(one: dict[str, Any], chunks: list[dict[str, Any]]) -> dict[str, Any]:
    name = one["name"] if one["name"] == one["target"] else f"{one['name']} → {one['target']}"
    counts = f"{one['chunks_done']:,} of {counted(one['chunks'], 'chunk')}"
    if one["chunks_failed"]:
        counts += f", {one['chunks_failed']} failed"
    errors = {chunk["error"]: chunk["chunk"] for chunk in chunks if chunk["error"]}
    said = [f"chunk {number}: {text}" for text, number in errors.items() if text not in one["error"]]
    return {
        "name": name,
        "state": one["state"],
        "share": one["share"],
        "percent": _percent(one["share"]),
        "rows": words.count(one["rows"]),
        "size": words.size(one["bytes"]),
        "counts": counts if one["is_planned"] else f"{counts} so far",
        "errors": [text for text in (one["error"], *said[:5]) if text],
        "squares": control.squares(chunks, SQUARES),
    }


def _verified(found: dict[str, Any] | None) -> dict[str, Any] | None:
    """What this node has compared, in words."""
    if found is None:
        return None
    if found["state"] == "running":
        at = (
            f": {found['table']}, {found['chunks_done']:,} of {counted(found['chunks'], 'chunk')}"
            if found["table"]
            else ""
        )
        return {"mark": "starting", "text": f"Comparing{at}", "lines": []}
    if found["state"] == "failed":
        hint = f" ({found['hint']})" if found["hint"] else ""
        return {"mark": "error", "text": f"Could not compare: {found['error']}{hint}", "lines": []}
    lines = [
        f"{one['table']}{'' if one['chunk'] is None else ', chunk ' + str(one['chunk'])}: {one['why']}"
        for one in found["different"][:20]
    ]
    word = "Equal" if found["equal"] else "Different"
    text = f"{word}: {counted(found['rows'], 'row')} in {counted(found['chunks'], 'chunk')} compared"
    return {"mark": "ok" if found["equal"] else "error", "text": text, "lines": lines}


def _percent(share: float | None) -> str:
    return words.NOTHING if share is None else f"{100 * share:.0f} %"
