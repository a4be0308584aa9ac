"""What a message carries: bytes that are read as JSON, as text or as they are, and that records become again.

Brokers and webhooks carry bytes and know nothing of them. A document says what they are (`format`). A body that is not
what the document says, or that is too large, is no reason to stop: it becomes an `Unreadable`, and the worker puts it
aside as a dead letter.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import codecs
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from headgate.core.records import Unreadable
from headgate.errors import Bad, BadRecords

Format: TypeAlias = Literal["json", "text", "bytes"]

FORMATS = "json: the body is the record. text: {body: …}. bytes: {body: …} in base64."
"""The description of an option that chooses."""

BYTES_AT_ONCE = 256 * 1024  # Of bodies that are decoded in one go: a few milliseconds, whatever they hold.
KEPT_BYTES = 64 * 1024  # Of a body that is too large: enough to see what it was.

_Utf8 = codecs.getincrementaldecoder("utf-8")


def too_large(body: bytes, size_bytes: int, max_bytes: int) -> Unreadable:
    """In place of a message of this size, of which `body` is what was read of it. Only its beginning is kept."""
    reason = f"the message has {size_bytes:,} bytes, and at most {max_bytes:,} are taken"
    return Unreadable(body[:KEPT_BYTES], reason)


async def decoded(bodies: Iterable[bytes], format: Format, max_bytes: int | None = None) -> list[Any]:
    """A record for each body, or an `Unreadable`. Others have their turn after every few hundred kilobytes."""
    decode, size_bytes = msgspec.json.Decoder().decode, 0
    records: list[Any] = []
    for body in bodies:
        size_bytes += len(body)
        if max_bytes is not None and len(body) > max_bytes:
            records.append(too_large(body, len(body), max_bytes))
        elif format == "json":
            records.append(_from_json(decode, body))
        elif format == "text":
            records.append({"body": await _text(body)})
        else:
            records.append({"body": base64.b64encode(body).decode()})
        if size_bytes > BYTES_AT_ONCE:
            size_bytes = 0
            await asyncio.sleep(0)
    return records


def _from_json(decode: Callable[[bytes], Any], body: bytes) -> Any:
    try:
        return decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return Unreadable(body, "the body is not JSON")


async def _text(body: bytes) -> str:
    """Decoded in as many goes as it needs."""
    decoder, texts = _Utf8("replace"), []
    for start in range(0, len(body), BYTES_AT_ONCE):
        if start:
            await asyncio.sleep(0)
        texts.append(decoder.decode(body[start : start + BYTES_AT_ONCE]))
    return "".join([*texts, decoder.decode(b"", final=True)])


def encoded(records: Sequence[dict[str, Any]], format: Format) -> list[bytes]:
    """The body of each record. `BadRecords` names those that have none."""
    bodies, bad, encode = [], [], _ENCODE[format]
    for index, record in enumerate(records):
        try:
            bodies.append(encode(record))
        except UnicodeEncodeError:
            bad.append(Bad(index, None, "it has a text that is not valid Unicode"))
        except ValueError as error:
            bad.append(Bad(index, "body", str(error)))
    if bad:
        raise BadRecords(bad)
    return bodies


def _from_text(record: dict[str, Any]) -> bytes:
    return _body(record).encode()


def _from_base64(record: dict[str, Any]) -> bytes:
    try:
        return base64.b64decode(_body(record), validate=True)
    except binascii.Error:
        raise ValueError("the text is not base64") from None


def _body(record: dict[str, Any]) -> str:
    body = record.get("body")
    if not isinstance(body, str):
        raise ValueError("there is no text here")  # noqa: TRY004 (a record is wrong, not a program)
    return body


_ENCODE: dict[Format, Callable[[dict[str, Any]], bytes]] = {
    "json": msgspec.json.Encoder().encode,
    "text": _from_text,
    "bytes": _from_base64,
}
