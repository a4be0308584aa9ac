"""What an answer holds: unpacked within a limit, and read as JSON, JSON Lines or CSV.

What an answer calls itself decides nothing: servers send JSON as text and error pages as JSON. It is read as the
document says. If that fails, a page for people (HTML) counts as a server that is not there at the moment, as a proxy or
a maintenance page is; anything else counts against the source, a few times, because it may stay as it is.

Nothing here holds the event loop for longer than some milliseconds: others have their turn after every few hundred
kilobytes. A line or a row that cannot be read is an `Unreadable`, and stops nothing.
"""

from __future__ import annotations

import asyncio
import codecs
import csv
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headgate.connectors.api import Unreadable
from headgate.connectors.http.options import HttpSourceOptions
from headgate.connectors.http.wire import Answer
from headgate.connectors.payloads import BYTES_AT_ONCE, KEPT_BYTES, decoded
from headgate.core.payloads import is_costly
from headgate.errors import Cause, ConnectorError, NotConnected
from headgate.text import counted

ROWS_AT_ONCE = 2000
MOST_VALUES = 2_000_000  # In an answer: to find where each record ends takes up to a quarter of a second then.
MOST_MEMBERS = 100  # Of a gzip file. Each costs something, even if it is empty.
_GZIP, _ZLIB, _BARE = 31, 15, -15
_NOT_JSON = (msgspec.MsgspecError, UnicodeError, RecursionError)
_BOM = b"\xef\xbb\xbf"
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]{1,40})", re.IGNORECASE)
_CHARSETS = frozenset({"iso8859-1", "iso8859-15", "cp1252", "utf-16", "utf-16-le", "utf-16-be"})  # Quick to decode.


@dataclass(frozen=True, slots=True)
class Page:
    """The records of an answer, and what stands around them."""

    records: list[Any]
    around: Any = None  # The whole answer, if it is JSON: paths are looked up in it.


async def page_of(answer: Answer, options: HttpSourceOptions, origin: str) -> Page:
    """The records of an answer."""
    body = await unpacked(answer, options.max_body_bytes, origin)
    body = _utf8(body, answer.headers.get("content-type", ""))
    if not body.strip():
        return Page([])
    if options.format == "json":
        return await _from_json(body, options.records, answer, origin)
    if not answer.is_delimited:
        said = (
            f"{origin} does not say where its answer ends, so one that was cut off could not be told from a whole one"
        )
        raise ConnectorError(said, cause=Cause.CONFIG, hint="have it send Content-Length or chunks")
    if _is_for_people(answer, body):
        raise _not_data(answer, origin, body)
    if options.format == "jsonl":
        return Page(await _each(await _lines(body)))
    return Page(await _from_csv(body, options.delimiter, origin))


# Unpacking.


async def unpacked(answer: Answer, most_bytes: int, origin: str) -> bytes:
    """The body without its compression. One that becomes too large is given up where it does."""
    named = answer.headers.get("content-encoding", "").strip().lower()
    if named in ("", "identity") or not answer.body:
        return answer.body
    kinds = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": _ZLIB}
    if named not in kinds:
        raise ConnectorError(f"{origin} packs its answer in a way that was not asked for", cause=Cause.CONFIG)
    kind = kinds[named]
    if kind == _ZLIB and (answer.body[0] & 0x0F != 8 or int.from_bytes(answer.body[:2]) % 31):
        kind = _BARE  # What some servers mean by deflate.
    try:
        return await _inflated(answer.body, kind, most_bytes, origin)
    except zlib.error:
        raise NotConnected(f"{origin} gives an answer that cannot be unpacked") from None


async def _inflated(packed: bytes, kind: int, most_bytes: int, origin: str) -> bytes:
    pieces, size_bytes, members, at = [], 0, 0, 0
    view = memoryview(packed)
    while at < len(view):
        members += 1
        unpacker = zlib.decompressobj(kind)
        while not unpacker.eof:
            taken: bytes | memoryview = unpacker.unconsumed_tail
            if not taken:
                taken = view[at : at + BYTES_AT_ONCE]
                at += len(taken)
            piece = unpacker.decompress(taken, BYTES_AT_ONCE)
            size_bytes += len(piece)
            if size_bytes > most_bytes or members > MOST_MEMBERS:
                said = f"{origin} gives an answer that is too large when it is unpacked: more than {most_bytes:,} bytes"
                hint = "ask for smaller pages, or raise `max_body_bytes`"
                raise ConnectorError(said, cause=Cause.CONFIG, hint=hint)
            if not taken and not piece:
                raise zlib.error("it was cut off")
            pieces.append(piece)
            await asyncio.sleep(0)
        at -= len(unpacker.unused_data)
        if kind != _GZIP or not bytes(view[at : at + 512]).strip(b"\0"):
            break  # What follows is padding.
    return b"".join(pieces)


def _utf8(body: bytes, content_type: str) -> bytes:
    """The text in UTF-8. A body that is not in the encoding that it names, or in a rare one, stays as it is."""
    named = _CHARSET.search(content_type)
    if named is not None:
        try:
            charset = codecs.lookup(named[1]).name
            if charset in _CHARSETS:
                body = body.decode(charset).encode()
        except (LookupError, UnicodeError):
            return body
    return body.removeprefix(_BOM)


# Reading.


async def _from_json(body: bytes, path: str, answer: Answer, origin: str) -> Page:
    if not is_costly(body):
        try:
            around = msgspec.json.decode(body)
        except _NOT_JSON:
            raise _not_data(answer, origin, body) from None
        return Page(_records(looked_up(around, path), path, origin), around)
    # What takes long to decode is taken apart first, and its records are read one by one.
    if body.count(b",") > MOST_VALUES:
        said = f"{origin} gives an answer with more than {MOST_VALUES:,} values"
        raise ConnectorError(said, cause=Cause.CONFIG, hint="ask for smaller pages")
    try:
        around, found = _taken_apart(body, path)
        first = b"" if found is None else found.lstrip()[:1]
        if found is not None and first == b"[":
            return Page(await _each(msgspec.json.decode(found, type=list[msgspec.Raw])), around)
        if found is not None and first == b"{":
            return Page(await _each([found]), around)
    except _NOT_JSON:
        raise _not_data(answer, origin, body) from None
    return Page(_records(None if found in (None, b"null") else 0, path, origin), around)


async def _each(texts: Sequence[bytes | msgspec.Raw]) -> list[Any]:
    """A record of each text."""
    records: list[Any] = []
    for first in range(0, len(texts), ROWS_AT_ONCE):
        some = [bytes(text) for text in texts[first : first + ROWS_AT_ONCE]]
        costly = {index: text for index, text in enumerate(some) if is_costly(text)}
        read = await decoded([b"" if index in costly else text for index, text in enumerate(some)], "json")
        for index, text in costly.items():
            read[index] = Unreadable(text[:KEPT_BYTES], "it has too many values to be read")
        records += read
        await asyncio.sleep(0)
    return records


async def _lines(body: bytes) -> list[bytes]:
    """Those that have something on them."""
    lines = []
    for number, line in enumerate(io.BytesIO(body)):
        if not line.isspace():
            lines.append(line.strip())
        if number % ROWS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return lines


def _taken_apart(body: bytes, path: str) -> tuple[Any, bytes | None]:
    """What stands around a path, and what stands there, as it is written. What is costly around it is left out."""
    if not path:
        return None, body
    name, _, rest = path.partition(".")
    if body.lstrip()[:1] == b"{":
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        inner, found = _taken_apart(bytes(members.pop(name)), rest) if name in members else (None, None)
        around = {key: msgspec.json.decode(value) for key, value in members.items() if not is_costly(bytes(value))}
        return {**around, name: inner}, found
    if body.lstrip()[:1] == b"[" and name.isascii() and name.isdigit():
        elements = msgspec.json.decode(body, type=list[msgspec.Raw])
        return None, _taken_apart(bytes(elements[int(name)]), rest)[1] if int(name) < len(elements) else None
    return None, None


def looked_up(around: Any, path: str) -> Any:
    """What stands at a path: names, and numbers of elements, with dots between them. None: nothing does."""
    found = around
    for name in path.split(".") if path else ():
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.isascii() and name.isdigit() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found


def _records(found: Any, path: str, origin: str) -> list[Any]:
    if isinstance(found, list):
        return found
    if isinstance(found, dict):
        return [found]
    if found is None and not path:
        return []
    where = f"at {path!r}" if path else "there"
    raise ConnectorError(
        f"{origin} gives an answer with no records {where}", cause=Cause.BAD_RECORD, hint="correct `records`"
    )


def _is_for_people(answer: Answer, body: bytes) -> bool:
    return "html" in answer.headers.get("content-type", "").lower() or body.lstrip()[:1] == b"<"


def _not_data(answer: Answer, origin: str, body: bytes) -> ConnectorError:
    if _is_for_people(answer, body):
        return NotConnected(f"{origin} answers with a page for people (HTML) in place of data")
    return ConnectorError(f"{origin} gives an answer that is not JSON", cause=Cause.BAD_RECORD, hint="correct `format`")


async def _from_csv(body: bytes, delimiter: str, origin: str) -> list[Any]:
    text = io.StringIO(body.decode("utf-8", "surrogateescape"), newline="")
    rows = csv.reader(text, delimiter=delimiter, strict=True)
    records: list[Any] = []
    try:
        names = next(rows, [])
        for number, row in enumerate(_not_empty(rows)):
            records.append(_row(names, row, delimiter))
            if number % ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)
    except csv.Error as error:
        said = f"{origin} gives an answer that is not CSV from line {rows.line_num} on: {error}"
        raise ConnectorError(said, cause=Cause.BAD_RECORD) from None
    return records


def _not_empty(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    return (row for row in rows if row)


def _row(names: list[str], row: list[str], delimiter: str) -> dict[str, str] | Unreadable:
    reason = ""
    if len(row) != len(names):
        reason = f"the row has {counted(len(row), 'field')}, and the header has {len(names)}"
    elif not all(map(_is_unicode, row)):
        reason = "the row is not UTF-8"
    if reason:
        return Unreadable(delimiter.join(row).encode("utf-8", "surrogateescape"), reason)
    return dict(zip(names, row, strict=True))


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in text)
