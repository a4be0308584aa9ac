"""The pages of dead letters: heaps of records that fail alike, the letters themselves, and one of them with its record.

A letter's record is data, so both pages are for operators. What is done to letters is done by the API.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

from litestar import Response, get

from headgate.core.access import Caller
from headgate.errors import ConfigError, NotFound, Refused
from headgate.runtime.node import Node
from headgate.store.letters import Filter, Heap, Kept
from headgate.text import counted
from headgate.web import subjects
from headgate.web.api import letters as api
from headgate.web.auth import Needs
from headgate.web.bodies.letters import MOST_TEXT, LetterDetails
from headgate.web.console import words
from headgate.web.console.acts import Act, command
from headgate.web.console.acts import json as body_of
from headgate.web.console.frame import framed, missing
from headgate.web.console.session import Req, signed_in

PAGE = 100
MOST_HEAPS = 50
STAGES = ("source", "mapping", "sink")
OUTCOMES = ("open", "replayed", "superseded", "discarded", "expired", "all")

# The mark that goes with an outcome.
MARKS = {"open": "error", "replayed": "ok", "superseded": "stopped", "discarded": "stopped", "expired": "stopped"}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the address asks for."""

    datasource: str = ""
    stage: str = ""
    field: str = ""
    reason: str = ""
    version: str = ""
    outcome: str = "open"
    after: str = ""

    def address(self, **other: str) -> str:
        """The same page with something else."""
        given = {name: getattr(self, name) for name in self.__slots__} | other
        given["outcome"] = "" if given["outcome"] == "open" else given["outcome"]
        query = urlencode({name: text for name, text in given.items() if text})
        return f"/letters?{query}" if query else "/letters"

    def narrow(self) -> dict[str, str | int]:
        """What the API takes to choose among the letters of a datasource."""
        texts: dict[str, str | int] = {name: getattr(self, name) for name in ("stage", "field", "reason")}
        if self.version:
            texts["version"] = int(self.version)
        return {name: text for name, text in texts.items() if text}

    def filter(self) -> Filter:
        """The same for the store. Raises ConfigError if there can be no such letters."""
        is_number = not self.version or (self.version.isascii() and self.version.isdecimal() and len(self.version) < 10)
        if self.outcome not in OUTCOMES or self.stage not in ("", *STAGES) or not is_number:
            raise ConfigError("the address names a stage, a version or an outcome that there is not")
        if max(len(self.field), len(self.reason)) > MOST_TEXT:
            raise ConfigError(f"a field and a reason have at most {MOST_TEXT} characters")
        version = int(self.version) if self.version else None
        return api.checked(Filter(None, self.stage or None, self.field or None, self.reason or None, version))


@get("/letters", include_in_schema=False, needs=Needs("operate_listed"))
async def letters_page(
    node: Node,
    request: Req,
    datasource: str = "",
    stage: str = "",
    field: str = "",
    reason: str = "",
    version: str = "",
    outcome: str = "open",
    after: str = "",
) -> Response[Any]:
    """Those that fit."""
    asked = Asked(datasource, stage, field, reason, version, outcome, after)
    return await signed_in(request, lambda holder: _all(node, request, holder, asked))


@get("/letters/{id:str}", include_in_schema=False, needs=Needs("operate", subjects.letter))
async def letter_page(node: Node, request: Req, id: str) -> Response[Any]:
    """One of them."""
    return await signed_in(request, lambda holder: _one(node, holder, id))


# All.


async def _all(node: Node, request: Req, holder: Caller, asked: Asked) -> Response[str]:
    request.scope["user"] = holder
    try:
        narrow, cursor = asked.filter(), api.cursor_of(asked.after or None)
        which = replace(
            narrow, datasources=await api.seen(node, request, [asked.datasource] if asked.datasource else [])
        )
    except (NotFound, ConfigError) as error:
        return _none(holder, "There are no such letters", f"{error.message}.")
    is_open = asked.outcome == "open"
    found = await node.letters.page(
        which,
        None if asked.outcome == "all" else asked.outcome,  # type: ignore[arg-type]
        PAGE + 1,
        cursor,
    )
    heaps = await node.letters.heaps(which, MOST_HEAPS + 1) if is_open and not asked.after else []
    shown = found[:PAGE]
    return framed(
        holder,
        "letters.html",
        at="letters",
        asked=asked,
        outcomes=OUTCOMES,
        stages=STAGES,
        heaps=[_heap(one, heaps[0].letters) for one in heaps[:MOST_HEAPS]],
        more_heaps=len(heaps) > MOST_HEAPS,
        rows=[_row(one) for one in shown],
        next_at=asked.address(after=api.cursor_text(shown[-1])) if len(found) > PAGE else "",
        first_at=asked.address(after="") if asked.after else "",
        **await _acts(node, asked, which, can_act=bool(asked.datasource and is_open and found)),
    )


async def _acts(node: Node, asked: Asked, which: Filter, *, can_act: bool) -> dict[str, Any]:
    """What can be done to all that fit. Letters are replayed and discarded by datasource."""
    if not can_act:
        return {"replay": None, "discard": None, "dry": None, "needs_overwrite": False, "number": 0}
    number, keyless = await node.letters.count(which)
    path = f"/api/datasources/{quote(asked.datasource, safe='')}/dead-letters"
    narrow = asked.narrow()
    options = [word for name, text in narrow.items() for word in (f"--{name}", str(text))]
    many, these = counted(number, "letter"), command("dlq", "replay", asked.datasource, *options)
    dropped = command("dlq", "discard", asked.datasource, *(options or ["--all"]))
    body = body_of(narrow)
    return {
        "number": number,
        "replay": Act(f"Replay {many}", f"POST {path}/replay", these, f"Replay {many}?", body=body),
        "dry": Act("Dry run", f"POST {path}/replay", f"{these} --dry-run", body=body_of({**narrow, "dry_run": True})),
        "discard": Act(
            f"Discard {many}",
            f"POST {path}/discard",
            dropped,
            f"Discard {many} for good? The records cannot be brought back.",
            body=body if narrow else body_of({"all": True}),
            grave=True,
        ),
        "needs_overwrite": keyless > 0 and await _is_upsert(node, asked.datasource),
    }


def _heap(one: Heap, most: int) -> dict[str, object]:
    asked = Asked(one.name, one.stage, one.field or "", one.reason[:MOST_TEXT], str(one.version))
    return {
        "address": asked.address(),
        "letters": words.count(one.letters),
        "share": one.letters / most,
        "name": one.name,
        "stage": one.stage,
        "field": one.field or words.NOTHING,
        "reason": one.reason,
        "version": f"v{one.version}",
        "last": words.since(one.last_at.isoformat()),
        "waiting": f"{words.count(one.waiting)} to be replayed" if one.waiting else "",
    }


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
        "version": f"v{one.version}",
        "attempts": one.attempts,
        "last": words.since(one.last_at.isoformat()),
    }


# One.


async def _one(node: Node, holder: Caller, id: str) -> Response[str]:
    try:
        kept, contents = await node.letters.read(id)
    except (NotFound, Refused) as error:
        return _none(holder, "There is no such letter", f"{error.message}.")
    shown = api.details(kept, contents)
    can_act = kept.outcome == "open" and not kept.is_asked
    return framed(
        holder,
        "letter.html",
        at="letters",
        letter=_row(kept),
        name=kept.name,
        back=Asked(kept.name).address(),
        facts=_facts(kept),
        payload=_text(shown),
        is_unreadable=shown.base64 is not None,
        meta="" if shown.meta is None else _pretty(shown.meta),
        mapped="" if shown.mapped is None else _pretty(shown.mapped),
        is_kept=shown.is_kept,
        needs_overwrite=not kept.has_key and await _is_upsert(node, str(kept.datasource)),
        **(_acts_of(kept) if can_act else dict.fromkeys(("replay", "discard", "dry", "edit"))),
    )


def _acts_of(kept: Kept) -> dict[str, Act]:
    path, id = f"/api/datasources/{quote(kept.name, safe='')}/dead-letters", str(kept.id)
    this, short = {"ids": [id]}, id[:8]
    replay = command("dlq", "replay", kept.name, "--id", short)
    return {
        "replay": Act("Replay", f"POST {path}/replay", replay, body=body_of(this)),
        "dry": Act("Dry run", f"POST {path}/replay", f"{replay} --dry-run", body=body_of({**this, "dry_run": True})),
        "discard": Act(
            "Discard",
            f"POST {path}/discard",
            command("dlq", "discard", kept.name, "--id", short),
            "Discard this letter for good? Its record cannot be brought back.",
            "1 letter discarded.",
            body_of(this),
            grave=True,
        ),
        "edit": Act(
            "Save", f"PUT /api/dead-letters/{id}", command("dlq", "edit", short), done="The record was changed."
        ),
    }


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


def _none(holder: Caller, title: str, text: str) -> Response[str]:
    return missing(holder, at="letters", title=title, text=text)
