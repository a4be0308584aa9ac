"""The page of events: everything that happened, the latest first, and what happens now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from litestar import Response, get

from headgate.core.access import Caller, may
from headgate.errors import ConfigError
from headgate.runtime.node import Node
from headgate.store.events import Span, Which
from headgate.text import one_line
from headgate.web.api.events import page_of
from headgate.web.auth import Needs
from headgate.web.bodies.datasources import Event
from headgate.web.console import words
from headgate.web.console.acts import command
from headgate.web.console.frame import framed, missing
from headgate.web.console.session import Req, signed_in
from headgate.web.queries import moment

PAGE = 100
MOST_TEXT = 300  # Characters of what an event says.
SPANS = {"": "any time", "15m": "last 15 minutes", "1h": "last hour", "24h": "last day", "7d": "last week"}
_SPANS_S = {"15m": 900, "1h": 3600, "24h": 86_400, "7d": 604_800}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the address asks for."""

    datasource: str
    type: str
    span: str
    since: str
    until: str
    before: int | None

    def address(self, before: int | None) -> str:
        """The same on another page."""
        given = {name: getattr(self, name) for name in self.__slots__}
        query = urlencode({name: text for name, text in {**given, "before": before or ""}.items() if text})
        return f"/events?{query}" if query else "/events"


@get("/events", include_in_schema=False, needs=Needs("list"))
async def events_page(
    node: Node,
    request: Req,
    datasource: str = "",
    type: str = "",
    span: str = "",
    since: str = "",
    until: str = "",
    before: int | None = None,
) -> Response[Any]:
    """A page of them."""
    asked = Asked(datasource, type, span, since, until, before)
    return await signed_in(request, lambda holder: _page(node, holder, asked))


async def _page(node: Node, holder: Caller, asked: Asked) -> Response[str]:
    try:
        when = _when(asked)
    except ConfigError as error:
        return missing(holder, at="events", title="There are no such events", text=f"{error.message}.")
    which = Which(asked.datasource or None, asked.type or None)
    newest = await node.registry.events.last(None, 1)  # Where nothing fits, what comes is looked at from here on.
    found = await page_of(node, holder, which, when, asked.before, PAGE)
    rows = [row(one) for one in reversed(found.items)]
    return framed(
        holder,
        "events.html",
        at="events",
        asked=asked,
        types=await node.registry.events.types() if may(holder, "see_all") else [],
        spans=SPANS,
        rows=rows,
        last=rows[0]["id"] if rows else newest[0].id if newest else 0,
        is_live=asked.before is None and not asked.until,
        older_at=asked.address(found.before) if found.before is not None else "",
        newest_at=asked.address(None) if asked.before is not None else "",
        command=_command(asked),
        blank=BLANK,
    )


def _when(asked: Asked) -> Span:
    if "\0" in asked.datasource + asked.type or not 0 <= (asked.before or 0) < 2**63:
        raise ConfigError("the address is of no page")
    if asked.span:
        if asked.span not in _SPANS_S:
            raise ConfigError(f"{asked.span[:20]!r} is no time that is offered")
        return Span(datetime.now(UTC) - timedelta(seconds=_SPANS_S[asked.span]))
    return Span(_moment("since", asked.since), _moment("until", asked.until))


def _moment(path: str, text: str) -> datetime | None:
    """As a field of a form has it: without a zone it is UTC."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{path} must be a time, as in 2026-07-01T12:00") from None
    return moment(path, found if found.tzinfo is not None else found.replace(tzinfo=UTC))


def row(one: Event) -> dict[str, Any]:
    """An event in one line."""
    return {
        "id": one.id,
        "at": one.at.isoformat(timespec="seconds"),
        "ago": words.since(one.at.isoformat()),
        "name": one.name or "",
        "address": f"/datasources/{quote(one.name)}" if one.name else "",
        "type": one.type,
        "text": said(one.payload),
        "actor": one.actor,
    }


# The script fills in copies of this row for what happens later.
BLANK = {**dict.fromkeys(("at", "ago", "name", "address", "type", "text", "actor"), ""), "id": 0}


def said(payload: Mapping[str, Any]) -> str:
    """What an event has to say, as `name=value`. `events.js` says the same."""
    parts = [f"{name}={value if isinstance(value, str) else _json(value)}" for name, value in payload.items()]
    return one_line(" ".join(parts), MOST_TEXT)


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def _command(asked: Asked) -> str:
    options = [("--datasource", asked.datasource), ("--type", asked.type), ("--since", asked.span or asked.since)]
    return command("events", *(word for option in options if option[1] for word in option))
