"""The pages of dead letters: where records failed and why; and one of them, with its record and what can be done.

A letter's record is data, so both pages are for operators. What the buttons send is taken only from our own pages.
"""

from __future__ import annotations

import json
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec
from litestar import Response, get, post

from headgate.core.access import Caller
from headgate.datasources.letters import Replay
from headgate.errors import ConfigError, NotFound, Problem, Refused
from headgate.runtime.node import Node
from headgate.store.letters import Filter, Kept
from headgate.text import counted, one_line
from headgate.web import subjects
from headgate.web.api import letters as api
from headgate.web.auth import Needs
from headgate.web.bodies.letters import LetterDetails
from headgate.web.console import words
from headgate.web.console.pages import page
from headgate.web.console.session import FromPage, Req, name_of, signed_in

MOST = 200
MOST_BYTES = 1024 * 1024  # Of an edited record; larger ones are edited with the command.
STAGES = ("source", "mapping", "sink")
OUTCOMES = ("open", "replayed", "superseded", "discarded", "expired", "all")

# The mark that goes with an outcome.
MARKS = {"open": "error", "replayed": "ok", "superseded": "stopped", "discarded": "stopped", "expired": "stopped"}


class Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a button sends."""

    do: Literal["replay", "discard", "edit", "edit_and_replay"]
    payload: str = ""  # JSON, as somebody has written it.
    overwrite: bool = False
    datasource: str = ""  # Of many: which are meant.
    stage: str = ""
    field: str = ""
    reason: str = ""


@get("/letters", include_in_schema=False, needs=Needs("operate_listed"))
async def letters_page(
    node: Node,
    request: Req,
    datasource: str = "",
    stage: str = "",
    field: str = "",
    reason: str = "",
    outcome: str = "open",
) -> Response[Any]:
    """Those that fit."""
    wish = Wish("replay", datasource=datasource, stage=stage, field=field, reason=reason)
    return await signed_in(request, lambda holder: _all(node, request, holder, wish, outcome))


@get("/letters/{id:str}", include_in_schema=False, needs=Needs("operate", subjects.letter))
async def letter_page(node: Node, request: Req, id: str) -> Response[Any]:
    """One of them."""
    return await signed_in(request, lambda holder: _one(node, holder, id))


@post(
    "/letters",
    include_in_schema=False,
    status_code=200,
    guards=[FromPage("operate_listed")],
    request_max_body_size=MOST_BYTES,
)
async def act_on_all(node: Node, request: Req) -> dict[str, str]:
    """Replay, or discard, all open ones of a datasource that fit."""
    wish = await _wish(request)
    subjects.check_each(request, "operate", [wish.datasource])
    found = await node.registry.get(wish.datasource)
    which = _filter(wish)
    if wish.do == "replay":
        done = await node.letter_box.replay(found, Replay(which, None, wish.overwrite), request.user.name)
        return {"text": _told(api.replaying(found.name, done))}
    if wish.do == "discard":
        number = await node.letter_box.discard(found, which, request.user.name, everything=True)
        return {"text": f"{counted(number, 'letter')} discarded."}
    raise ConfigError([Problem("do", "must be replay or discard")])


@post(
    "/letters/{id:str}",
    include_in_schema=False,
    status_code=200,
    guards=[FromPage("operate", subjects.letter)],
    request_max_body_size=MOST_BYTES,
)
async def act_on_one(node: Node, request: Req, id: str) -> dict[str, str]:
    """Replay, discard or edit one."""
    wish, actor = await _wish(request), request.user.name
    kept = await node.letters.find(id)
    found, which = await node.registry.get(str(kept.datasource)), Filter(ids=[kept.id])
    if wish.do == "discard":
        number = await node.letter_box.discard(found, which, actor)
        return {"text": f"{counted(number, 'letter')} discarded."}
    if wish.do in ("edit", "edit_and_replay"):
        await node.letter_box.edit(str(kept.id), _payload(wish.payload), actor)
    if wish.do == "edit":
        return {"text": "The record was changed."}
    done = await node.letter_box.replay(found, Replay(which, None, wish.overwrite), actor)
    return {"text": _told(api.replaying(found.name, done))}


async def _wish(request: Req) -> Wish:
    try:
        return msgspec.json.decode(await request.body(), type=Wish)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError([Problem("", f"the body is not what a page sends: {one_line(error)}")]) from None


def _payload(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError([Problem("payload", f"is not JSON: {one_line(error)}")]) from None


def _filter(wish: Wish) -> Filter:
    return api.checked(Filter(None, wish.stage or None, wish.field or None, wish.reason or None))


def _told(done: Any) -> str:
    if not done.letters:
        text = "Nothing to replay."
    elif done.waits:
        text = f"{counted(done.letters, 'letter')} to replay, but not now: {done.waits}."
    else:
        text = f"{counted(done.letters, 'letter')} will be replayed."
    return " ".join([text, *(f"{one.letters:,} left alone: {one.reason}." for one in done.left_alone)])


# What is shown.


async def _all(node: Node, request: Req, holder: Caller, wish: Wish, outcome: str) -> Response[str]:
    if outcome not in OUTCOMES or wish.stage not in ("", *STAGES):
        return _none("There are no such letters", "The address names a stage or an outcome that there is not.")
    request.scope["user"] = holder
    try:
        seen = await api.seen(node, request, [wish.datasource] if wish.datasource else [])
        narrow = _filter(wish)
    except (NotFound, ConfigError) as error:
        return _none("There is no such datasource", f"{error.message}.")
    filter = Filter(seen, narrow.stage, narrow.field, narrow.reason)
    found = await node.letters.page(filter, None if outcome == "all" else outcome, MOST + 1)  # type: ignore[arg-type]
    return page(
        "letters.html",
        holder=name_of(holder),
        wish=wish,
        outcome=outcome,
        outcomes=OUTCOMES,
        stages=STAGES,
        rows=[_row(one) for one in found[:MOST]],
        most=MOST if len(found) > MOST else None,
        can_act=bool(wish.datasource and outcome == "open" and found),
        needs_overwrite=bool(wish.datasource) and await _is_upsert(node, wish.datasource),
    )


def _row(one: Kept) -> dict[str, object]:
    return {
        "id": str(one.id),
        "short": str(one.id)[:8],
        "outcome": "to be replayed" if one.is_asked else one.outcome,
        "mark": "starting" if one.is_asked else MARKS[one.outcome],
        "stream": one.stream_name,
        "stage": one.stage,
        "place": one.place,
        "field": one.field or words.NOTHING,
        "reason": one.reason,
        "attempts": one.attempts,
        "last": words.since(one.last_at.isoformat()),
    }


async def _one(node: Node, holder: Caller, id: str) -> Response[str]:
    try:
        kept, contents = await node.letters.read(id)
    except (NotFound, Refused) as error:
        return _none("There is no such letter", f"{error.message}.")
    shown = api.details(kept, contents)
    return page(
        "letter.html",
        holder=name_of(holder),
        letter=_row(kept),
        name=kept.name,
        back=f"/letters?{urlencode({'datasource': kept.name})}",
        facts=_facts(kept),
        payload=_text(shown),
        is_unreadable=shown.base64 is not None,
        meta="" if shown.meta is None else _pretty(shown.meta),
        mapped="" if shown.mapped is None else _pretty(shown.mapped),
        is_kept=shown.is_kept,
        can_act=kept.outcome == "open" and not kept.is_asked,
        needs_overwrite=not kept.has_key and await _is_upsert(node, str(kept.datasource)),
    )


async def _is_upsert(node: Node, name: str) -> bool:
    """Whether a letter could overwrite a newer row. A version that cannot be used now writes nothing."""
    try:
        return await node.letter_box.is_upsert(await node.registry.get(name))
    except Refused:
        return False


def _facts(kept: Kept) -> list[tuple[str, str]]:
    facts = [
        ("Stream", kept.stream_name),
        ("Place", kept.place),
        ("Stage", kept.stage),
        ("Field", kept.field or ""),
        ("Version", f"v{kept.version}"),
        ("Attempts", words.count(kept.attempts)),
        ("First try", words.since(kept.first_at.isoformat())),
        ("Last try", words.since(kept.last_at.isoformat())),
        ("Size", words.size(kept.size_bytes)),
        ("By", kept.actor or ""),
    ]
    return [fact for fact in facts if fact[1]]


def _text(shown: LetterDetails) -> str:
    if not shown.is_kept:
        return ""
    if shown.base64 is not None:
        return shown.text if shown.text is not None else shown.base64
    return _pretty(shown.payload)


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _none(title: str, text: str) -> Response[str]:
    return page("notice.html", status=404, again_s=5, again_at="/letters", title=title, text=text)
