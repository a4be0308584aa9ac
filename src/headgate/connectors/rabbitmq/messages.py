"""Messages of streams: AMQP 1.0, which is what RabbitMQ and its clients put there. A message is a row of sections; one
holds the body, the others say something of it.

The sections around the body are read once for all messages that have the same ones.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any
from uuid import UUID

from headgate.connectors.rabbitmq.fields import Cursor, moment, shown

_ANNOTATIONS, _PROPERTIES, _HEADERS, _DATA, _SEQUENCE, _VALUE = 0x72, 0x73, 0x74, 0x75, 0x76, 0x77
_SECTIONS = {_ANNOTATIONS: "annotations", _PROPERTIES: "properties", _HEADERS: "headers"}
_NAMES = (
    *("message_id", "user_id", "to", "subject", "reply_to", "correlation_id", "content_type", "content_encoding"),
    *("expires_at", "created_at", "group_id", "group_sequence", "reply_to_group_id"),
)
_PLAIN_8, _PLAIN_32 = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"
DEEPEST = 20
_BROKEN = (ValueError, KeyError, IndexError, struct.error)


class NotAmqp(ValueError):
    """The bytes are no message of AMQP 1.0."""


def parse(data: bytes) -> tuple[bytes, Mapping[str, Any]]:
    """The body, and what else the message says: annotations, properties, headers. Do not change it: it is shared."""
    if data.startswith(_PLAIN_32) and len(data) - 8 == int.from_bytes(data[4:8], "big"):
        return data[8:], _NOTHING
    if data.startswith(_PLAIN_8) and len(data) - 5 == data[4]:
        return data[5:], _NOTHING
    try:
        return _parse(data)
    except _BROKEN:
        raise NotAmqp("the message is not AMQP 1.0") from None


_NOTHING: Mapping[str, Any] = {}


def _parse(data: bytes) -> tuple[bytes, Mapping[str, Any]]:
    bodies, others, at, has_body = [], [], 0, False
    while at < len(data):
        kind, start, end = _section(data, at)
        if kind in (_DATA, _VALUE):
            bodies.append(_body(Cursor(data, start)))
            has_body = True
        elif kind == _SEQUENCE:
            raise NotAmqp("a body that is a sequence")
        elif kind in _SECTIONS:
            others.append(data[at:end])
        at = end
    if not has_body:
        raise NotAmqp("there is no body")
    return bodies[0] if len(bodies) == 1 else b"".join(bodies), _said(b"".join(others))


def _section(data: bytes, at: int) -> tuple[int, int, int]:
    """The kind of the section that begins here, where its value begins, and where it ends."""
    if data[at] != 0:
        raise NotAmqp("no section begins here")
    if data[at + 1] == 0x53:
        kind, start = data[at + 2], at + 3
    elif data[at + 1] == 0x80:
        kind, start = int.from_bytes(data[at + 2 : at + 10], "big"), at + 10
    else:
        raise NotAmqp("no section begins here")
    end = start + 1 + _length(data, start)
    if not 0x70 <= kind <= 0x78 or end > len(data):
        raise NotAmqp("a section is cut off")
    return kind, start, end


def _length(data: bytes, at: int) -> int:
    """How many bytes follow the code at this place."""
    group = data[at] >> 4
    if group in (0xA, 0xC, 0xE):
        return 1 + data[at + 1]
    if group in (0xB, 0xD, 0xF):
        return 4 + int.from_bytes(data[at + 1 : at + 5], "big")
    return {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16}[group]


def _body(cursor: Cursor) -> bytes:
    """Bytes and texts as they are. Other values are no body of ours."""
    match cursor.number(">B"):
        case 0xA0 | 0xA1:
            return cursor.take(cursor.number(">B"))
        case 0xB0 | 0xB1:
            return cursor.take(cursor.number(">I"))
        case _:
            raise NotAmqp("a body that is no bytes and no text")


@lru_cache(maxsize=4096)
def _said(data: bytes) -> Mapping[str, Any]:
    """What the sections around a body say. If one of them cannot be read, nothing: the body is what counts."""
    try:
        return _sections(data)
    except _BROKEN:
        return _NOTHING


def _sections(data: bytes) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    at = 0
    while at < len(data):
        kind, start, at = _section(data, at)
        value = _value(Cursor(data, start), 0)
        if kind == _PROPERTIES:
            found |= {name: one for name, one in zip(_NAMES, value, strict=False) if one is not None}
        else:
            found[_SECTIONS[kind]] = value
    return found


_NUMBERS = {
    0x50: ">B",
    0x51: ">b",
    0x52: ">B",
    0x53: ">B",
    0x54: ">b",
    0x55: ">b",
    0x60: ">H",
    0x61: ">h",
    0x70: ">I",
    0x71: ">i",
    0x72: ">f",
    0x80: ">Q",
    0x81: ">q",
    0x82: ">d",
}
_CONSTANTS = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}


def _value(cursor: Cursor, depth: int) -> Any:
    """As JSON can hold it."""
    if depth > DEEPEST:
        raise NotAmqp("values are nested too deep")
    code = cursor.number(">B")
    if code in _CONSTANTS:
        return _CONSTANTS[code]
    if (form := _NUMBERS.get(code)) is not None:
        return cursor.number(form)
    return _READ[code](cursor, depth)


def _described(cursor: Cursor, depth: int) -> Any:
    _value(cursor, depth + 1)
    return _value(cursor, depth + 1)


def _list(cursor: Cursor, depth: int, form: str) -> list[Any]:
    cursor.number(form)
    count = cursor.number(form)
    if count > len(cursor.data):
        raise NotAmqp("a list is cut off")
    return [_value(cursor, depth + 1) for _ in range(count)]


def _map(cursor: Cursor, depth: int, form: str) -> dict[str, Any]:
    flat = _list(cursor, depth, form)
    return {str(name): value for name, value in zip(flat[::2], flat[1::2], strict=False)}


_READ: dict[int, Callable[[Cursor, int], Any]] = {
    0x00: _described,
    0x45: lambda cursor, depth: [],
    0x56: lambda cursor, depth: cursor.take(1) != b"\0",
    0x73: lambda cursor, depth: cursor.take(4).decode("utf-32-be", "replace"),
    0x83: lambda cursor, depth: moment(cursor.number(">q") / 1000),
    0x98: lambda cursor, depth: str(UUID(bytes=cursor.take(16))),
    **{code: lambda cursor, depth: shown(cursor.take(cursor.number(">B"))) for code in (0xA0, 0xA1, 0xA3)},
    **{code: lambda cursor, depth: shown(cursor.take(cursor.number(">I"))) for code in (0xB0, 0xB1, 0xB3)},
    0xC0: lambda cursor, depth: _list(cursor, depth, ">B"),
    0xD0: lambda cursor, depth: _list(cursor, depth, ">I"),
    0xC1: lambda cursor, depth: _map(cursor, depth, ">B"),
    0xD1: lambda cursor, depth: _map(cursor, depth, ">I"),
}


def make(body: bytes, id: bytes) -> bytes:
    """A message with a body and a `message_id` of at most 200 bytes."""
    head = b"\x00\x53\x73\xc0%c\x01\xa1%c" % (len(id) + 3, len(id))
    return b"".join((head, id, _PLAIN_32, struct.pack(">I", len(body)), body))


def id_of(data: bytes) -> bytes | None:
    """The id of a message that `make` has made; None: of another, or none that can be told quickly."""
    if data.startswith(b"\x00\x53\x73\xc0") and data[5:7] == b"\x01\xa1" and len(data) > 8 + data[7]:
        return data[8 : 8 + data[7]]
    return None
