"""The next page of a poll: where an answer says that it is, and when there is none.

A poll that goes round in a circle would never end, so a page that leads back to one that this poll has read is an
error, and so is a numbered page that has the same records as the one before it: the server does not know the parameter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from headgate.connectors.http.answers import Page, looked_up
from headgate.connectors.http.options import CursorPaging, LinkPaging, OffsetPaging, PagePaging, Paging
from headgate.connectors.http.targets import LONGEST, Target
from headgate.connectors.http.wire import Answer
from headgate.errors import Cause, ConnectorError

MOST_REMEMBERED = 100_000  # Pages of one poll. A longer circle is found in its second round.
MOST_EMPTY = 1_000  # Pages without records in a row.
_LINK = re.compile(r"<([^<>]*)>([^<]*)")
_PARAMETER = re.compile(r";\s*([^\s=;,\"]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s;,\"]+))")


@dataclass(slots=True)
class Round:
    """What is remembered of the pages of one poll."""

    seen: set[bytes] = field(default_factory=set)
    last: bytes = b""  # The fingerprint of the last page's records.
    empty: int = 0  # Pages without records, in a row.
    pages: int = 0


def next_of(paging: Paging | None, here: int | str | None, answer: Answer, page: Page) -> int | str | None:
    """Which page follows: a number, a cursor or a URL; None: this was the last one of the poll."""
    match paging:
        case LinkPaging():
            return _linked(answer.headers.get("link", ""))
        case CursorPaging():
            if paging.more is not None and not looked_up(page.around, paging.more):
                return None
            return _cursor(looked_up(page.around, paging.path), paging.path)
        case PagePaging():
            return None if _is_last(paging.more, page) else _number(here, paging.first) + 1
        case OffsetPaging():
            return None if _is_last(paging.more, page) else _number(here, 0) + len(page.records)
        case None:
            return None


def target_of_page(paging: Paging | None, here: int | str | None, first: Target) -> Target:
    """The URL of a page. Raises ValueError if the server has named one that is none."""
    match paging:
        case PagePaging() | OffsetPaging():
            start = paging.first if isinstance(paging, PagePaging) else 0
            return first.with_params({paging.param: str(_number(here, start))})
        case CursorPaging(param=str(param)) if here is not None:
            return first.with_params({param: str(here)})
        case _:
            return first if here is None else first.joined(str(here))


def note(paging: Paging | None, round_: Round, here: int | str | None, next_: int | str | None, page: Page) -> None:
    """Remember a page, or raise because the poll goes round in a circle."""
    round_.pages += 1
    round_.empty = 0 if page.records else round_.empty + 1
    if next_ is None:
        return
    if isinstance(paging, PagePaging | OffsetPaging):
        fingerprint = _fingerprint(page.records)
        if fingerprint == round_.last:
            said = (
                f"page {round_.pages} has the same records as the page before it: the server ignores {paging.param!r}"
            )
            raise ConnectorError(said, cause=Cause.CONFIG, hint="correct `paging.param`")
        round_.last = fingerprint
        return
    round_.seen.add(_mark(here))
    if (mark := _mark(next_)) in round_.seen:
        said = f"page {round_.pages} of a poll leads back to one that was read before, so the poll would never end"
        raise ConnectorError(said, cause=Cause.CONFIG, hint="correct `paging`")
    if round_.empty >= MOST_EMPTY:
        said = f"{MOST_EMPTY:,} pages in a row have no records, and each says that there is more"
        raise ConnectorError(said, cause=Cause.CONFIG, hint="correct `records` or `paging`")
    if len(round_.seen) >= MOST_REMEMBERED:
        round_.seen.clear()
    round_.seen.add(mark)


def _mark(page: int | str | None) -> bytes:
    return blake2b(repr(page).encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _is_last(more: str | None, page: Page) -> bool:
    return not page.records or (more is not None and not looked_up(page.around, more))


def _number(here: int | str | None, first: int) -> int:
    return here if isinstance(here, int) else first


def _cursor(found: Any, path: str) -> int | str | None:
    if found is None or found == "" or found is False:
        return None
    if isinstance(found, bool) or not isinstance(found, int | str):
        said = f"what stands at {path!r} is neither a text nor a whole number"
        raise ConnectorError(said, cause=Cause.BAD_RECORD, hint="correct `paging.path`")
    if len(str(found)) > LONGEST:
        raise ConnectorError(f"the cursor has more than {LONGEST:,} characters", cause=Cause.BAD_RECORD)
    return found


def _linked(header: str) -> str | None:
    """The URL that a Link header calls the next one."""
    for url, parameters in _LINK.findall(header):
        for name, quoted, bare in _PARAMETER.findall(parameters):
            if name.lower() == "rel" and "next" in (quoted or bare).lower().split():
                return str(url).strip()[: LONGEST + 1] or None
    return None


def _fingerprint(records: Sequence[Any]) -> bytes:
    """Of a page: how many records, the first and the last."""
    text = msgspec.json.encode([len(records), *records[:1], *records[-1:]], enc_hook=repr)
    return blake2b(text, digest_size=16).digest()
