"""What an answer holds: unpacked within a limit, and read as JSON, JSON Lines or CSV.

What an answer calls itself decides nothing: servers send JSON as text and error pages as JSON. It is read as the
document says. If that fails, a page for people (HTML) counts as a server that is not there at the moment, as a proxy or
a maintenance page is; anything else counts against the source, a few times, because it may stay as it is.

Nothing here holds the event loop for longer than some milliseconds: others have their turn after every few hundred
kilobytes. A line or a row that cannot be read is an `Unreadable`, and stops nothing.
"""

from __future__ import annotations

import asyncio
import csv
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from typing import Any

import msgspec

from headgate.connectors.api import Unreadable
from headgate.connectors.http.options import HttpSourceOptions
from headgate.connectors.http.wire import Answer
from headgate.connectors.payloads import BYTES_AT_ONCE, decoded
from headgate.errors import Cause, ConnectorError, NotConnected

WHOLE_BYTES = 1 << 20  # JSON up to this size is decoded in one go: some ten milliseconds.
ROWS_AT_ONCE = 2000
MOST_MEMBERS = 100  # Of a gzip file. Each costs something, even if it is empty.
_GZIP, _ZLIB, _BARE = 31, 15, -15
_NOT_JSON = (msgspec.MsgspecError, UnicodeError, RecursionError)
_BOM = b"\xef\xbb\xbf"


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
        return Page(await decoded((line for line in body.split(b"\n") if line.strip()), "json"))
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
    pieces, size_bytes, members = [], 0, 0
    while packed:
        members += 1
        unpacker = zlib.decompressobj(kind)
        while not unpacker.eof:
            piece = unpacker.decompress(packed, BYTES_AT_ONCE)
            packed = unpacker.unconsumed_tail
            size_bytes += len(piece)
            if size_bytes > most_bytes or members > MOST_MEMBERS:
                said = f"{origin} gives an answer that is too large when it is unpacked: more than {most_bytes:,} bytes"
                hint = "ask for smaller pages, or raise `max_body_bytes`"
                raise ConnectorError(said, cause=Cause.CONFIG, hint=hint)
            if not piece and not packed and not unpacker.eof:
                raise zlib.error("it was cut off")
            pieces.append(piece)
            await asyncio.sleep(0)
        packed = unpacker.unused_data if kind == _GZIP else b""
        if packed and not packed.strip(b"\0"):
            break  # Padding.
    return b"".join(pieces)


def _utf8(body: bytes, content_type: str) -> bytes:
    """The text in UTF-8. A body that is not in the encoding that it names stays as it is."""
    message = Message()
    message["content-type"] = content_type
    charset = (message.get_content_charset() or "utf-8").lower()
    if charset not in ("utf-8", "utf8", "us-ascii"):
        try:
            body = body.decode(charset).encode()
        except (LookupError, UnicodeError):
            return body
    return body.removeprefix(_BOM)


# Reading.


async def _from_json(body: bytes, path: str, answer: Answer, origin: str) -> Page:
    if len(body) <= WHOLE_BYTES:
        try:
            around = msgspec.json.decode(body)
        except _NOT_JSON:
            raise _not_data(answer, origin, body) from None
        return Page(_records(looked_up(around, path), path, origin), around)
    # A large answer is taken apart first, and its records are read one by one.
    try:
        around, found = _taken_apart(body, path)
    except _NOT_JSON:
        raise _not_data(answer, origin, body) from None
    raw = _records(found, path, origin)
    return Page(await decoded((bytes(one) for one in raw), "json") if isinstance(found, list) else raw, around)


def _taken_apart(body: bytes, path: str) -> tuple[Any, Any]:
    """What stands around the records, and the records as they are written."""
    if not path:
        is_list = body.lstrip()[:1] == b"["
        return (
            (None, msgspec.json.decode(body, type=list[msgspec.Raw])) if is_list else (None, msgspec.json.decode(body))
        )
    name, _, rest = path.partition(".")
    if body.lstrip()[:1] != b"{":
        around = msgspec.json.decode(body)
        return around, looked_up(around, path)
    members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    inner, found = _taken_apart(bytes(members.pop(name)), rest) if name in members else (None, None)
    around = {key: msgspec.json.decode(value) for key, value in members.items()}
    return (around if inner is None else {**around, name: inner}), found


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
        reason = f"the row has {len(row)} fields, and the header has {len(names)}"
    elif not all(map(_is_unicode, row)):
        reason = "the row is not UTF-8"
    if reason:
        return Unreadable(delimiter.join(row).encode("utf-8", "surrogateescape"), reason)
    return dict(zip(names, row, strict=True))


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in text)
