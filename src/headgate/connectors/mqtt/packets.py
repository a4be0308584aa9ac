"""Packets of MQTT 5 and 3.1.1. The two differ by the properties that many packets of version 5 have."""

from __future__ import annotations

import base64
import struct
from typing import Any, NamedTuple

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 1, 2, 3, 4, 5, 6, 7
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT = 8, 9, 10, 11, 12, 13, 14

SESSION_EXPIRY, RECEIVE_MAXIMUM, MAXIMUM_QOS, RETAIN_AVAILABLE, MAXIMUM_BYTES = 0x11, 0x21, 0x24, 0x25, 0x27
USER_PROPERTY = 0x26
_NAMES = {0x01: "payload_format", 0x02: "expiry_s", 0x03: "content_type", 0x08: "response_topic", 0x09: "correlation"}
_FORMS = {
    **dict.fromkeys((0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A), ">B"),
    **dict.fromkeys((0x13, 0x21, 0x22, 0x23), ">H"),
    **dict.fromkeys((0x02, 0x11, 0x18, 0x27), ">I"),
}
_TEXTS = {0x03, 0x08, 0x12, 0x15, 0x1A, 0x1C, 0x1F}
_BYTES = {0x09, 0x16}
_NUMBER = 0x0B


class Published(NamedTuple):
    """A message, as it came."""

    topic: str
    id: int  # 0: of quality 0, which nobody acknowledges.
    qos: int
    is_retained: bool
    is_again: bool
    said: dict[str, Any]
    body: bytes  # Whole, or its beginning if it is too large.
    size_bytes: int


def packet(kind: int, flags: int, payload: bytes) -> bytes:
    """With its length before it."""
    return bytes([kind << 4 | flags]) + number(len(payload)) + payload


def number(value: int) -> bytes:
    """Seven bits in each byte, the lowest first."""
    found = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        found.append(low | 0x80 if value else low)
        if not value:
            return bytes(found)


def length_at(data: bytes, at: int) -> tuple[int, int] | None:
    """The number that begins here, and where it ends; None: it is not whole. `ValueError`: it is none."""
    value = 0
    for index in range(4):
        if at + index >= len(data):
            return None
        byte = data[at + index]
        value |= (byte & 0x7F) << 7 * index
        if not byte & 0x80:
            return value, at + index + 1
    raise ValueError("a length of more than four bytes")


def text(value: str) -> bytes:
    """With its length before it."""
    return binary(value.encode())


def binary(data: bytes) -> bytes:
    """With its length before it. `ValueError` if it is too long."""
    if len(data) > 65_535:
        raise ValueError("is longer than 65,535 bytes")
    return struct.pack(">H", len(data)) + data


def text_at(data: bytes, at: int) -> tuple[str, int]:
    """The text that begins here, and where it ends."""
    end = at + 2 + int.from_bytes(data[at : at + 2], "big")
    if end > len(data) or at + 2 > len(data):
        raise ValueError("a text is cut off")
    return data[at + 2 : end].decode("utf-8", "replace"), end


def properties_at(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """The properties that begin here, by their codes, and where they end."""
    size = length_at(data, at)
    if size is None or size[1] + size[0] > len(data):
        raise ValueError("properties are cut off")
    at, end = size[1], size[1] + size[0]
    found: dict[int, Any] = {}
    while at < end:
        code = data[at]
        at += 1
        if (form := _FORMS.get(code)) is not None:
            (found[code],) = struct.unpack_from(form, data, at)
            at += struct.calcsize(form)
        elif code in _TEXTS:
            found[code], at = text_at(data, at)
        elif code in _BYTES:
            size_bytes = int.from_bytes(data[at : at + 2], "big")
            found[code] = data[at + 2 : at + 2 + size_bytes]
            at += 2 + size_bytes
        elif code == USER_PROPERTY:
            name, at = text_at(data, at)
            value, at = text_at(data, at)
            found.setdefault(code, {})[name] = value
        elif code == _NUMBER:
            whole = length_at(data, at)
            at = end if whole is None else whole[1]
        else:
            raise ValueError("an unknown property")
    return found, end


def published(flags: int, payload: bytes, size: int, *, is_5: bool) -> Published:
    """A message. `size` is that of the whole packet after its length; `payload` may be only its beginning."""
    topic, at = text_at(payload, 0)
    qos, id, said = flags >> 1 & 3, 0, {}
    if qos:
        id = int.from_bytes(payload[at : at + 2], "big")
        at += 2
    if is_5:
        properties, at = properties_at(payload, at)
        said = {name: properties[code] for code, name in _NAMES.items() if code in properties}
        if USER_PROPERTY in properties:
            said["properties"] = properties[USER_PROPERTY]
        if "correlation" in said:
            said["correlation"] = base64.b64encode(said["correlation"]).decode()
    return Published(topic, id, qos, bool(flags & 1), bool(flags & 8), said, payload[at:], size - at)


def message(topic: str, id: int, qos: int, body: bytes, *, retain: bool, is_5: bool) -> bytes:
    """A message to publish."""
    head = text(topic) + struct.pack(">H", id) + (b"\0" if is_5 else b"")
    return packet(PUBLISH, qos << 1 | retain, head + body)


def login(
    client_id: str,
    user: str | None,
    password: str | None,
    *,
    is_5: bool,
    is_clean: bool,
    keep_s: int,
    properties: bytes,
) -> bytes:
    """The first packet."""
    flags = is_clean << 1 | (user is not None) << 7 | (password is not None) << 6
    head = text("MQTT") + struct.pack(">BBH", 5 if is_5 else 4, flags, keep_s)
    if is_5:
        head += number(len(properties)) + properties
    rest = [text(client_id), *(text(one) for one in (user, password) if one is not None)]
    return packet(CONNECT, 0, head + b"".join(rest))
