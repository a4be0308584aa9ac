"""Values of AMQP 0.9.1: short strings, tables, and the properties of a message."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

DEEPEST = 20  # Tables within tables. Deeper ones are not read.

_PROPERTIES = (  # In the order of their bits, from the highest on.
    *("content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to"),
    *("expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id"),
)
_NUMBERS = {
    b"b": ">b",
    b"B": ">B",
    b"s": ">h",
    b"u": ">H",
    b"I": ">i",
    b"i": ">I",
    b"l": ">q",
    b"L": ">q",
    b"f": ">f",
    b"d": ">d",
}


def short(text: str) -> bytes:
    """A short string. `ValueError` if it is longer than 255 bytes."""
    data = text.encode()
    if len(data) > 255:
        raise ValueError("is longer than 255 bytes")
    return bytes([len(data)]) + data


def long(data: bytes) -> bytes:
    """A long string."""
    return struct.pack(">I", len(data)) + data


def table(values: Mapping[str, Any]) -> bytes:
    """A table of texts, booleans, whole numbers and tables."""
    return long(b"".join(short(name) + _field(value) for name, value in values.items()))


def _field(value: Any) -> bytes:
    match value:
        case bool():
            return b"t" + bytes([value])
        case int():
            return b"l" + struct.pack(">q", value)
        case str():
            return b"S" + long(value.encode())
        case _:
            return b"F" + table(value)


class Cursor:
    """Reads values, one after another. What is cut off raises `ValueError`."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def take(self, size: int) -> bytes:
        """The next bytes."""
        end = self.at + size
        if end > len(self.data):
            raise ValueError("a value is cut off")
        data, self.at = self.data[self.at : end], end
        return data

    def number(self, form: str) -> Any:
        """By a form of `struct`."""
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def short(self) -> str:
        """A short string."""
        return self.take(self.number(">B")).decode("utf-8", "replace")

    def long(self) -> bytes:
        """A long string."""
        return self.take(self.number(">I"))

    def table(self, depth: int = 0) -> dict[str, Any]:
        """A table, as JSON can hold it: bytes that are no text become base64, times ISO 8601."""
        inner, found = Cursor(self.long()), {}
        while inner.at < len(inner.data):
            name = inner.short()
            found[name] = inner.field(depth + 1)
        return found

    def field(self, depth: int) -> Any:
        """A value with its kind before it."""
        if depth > DEEPEST:
            raise ValueError("tables are nested too deep")
        kind = self.take(1)
        if (form := _NUMBERS.get(kind)) is not None:
            return self.number(form)
        return self._READ[kind](self, depth)

    def _array(self, depth: int) -> list[Any]:
        inner, found = Cursor(self.long()), []
        while inner.at < len(inner.data):
            found.append(inner.field(depth + 1))
        return found

    def _decimal(self) -> float:
        scale = self.number(">B")
        return float(self.number(">i") / 10**scale)

    _READ: Mapping[bytes, Callable[[Cursor, int], Any]] = {
        b"t": lambda self, depth: self.take(1) != b"\0",
        b"S": lambda self, depth: shown(self.long()),
        b"x": lambda self, depth: shown(self.long()),
        b"T": lambda self, depth: moment(self.number(">Q")),
        b"V": lambda self, depth: None,
        b"D": lambda self, depth: self._decimal(),
        b"F": lambda self, depth: self.table(depth),
        b"A": lambda self, depth: self._array(depth),
    }


def shown(data: bytes) -> str:
    """As text if it is UTF-8, else in base64."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode()


def moment(unix_s: float) -> str | float:
    """ISO 8601, or the number if no calendar has it."""
    try:
        return datetime.fromtimestamp(unix_s, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return unix_s


def properties_of(payload: bytes) -> dict[str, Any]:
    """The properties of a message, from its flags on. What cannot be read of them is left out."""
    cursor = Cursor(payload)
    found: dict[str, Any] = {}
    try:
        flags = cursor.number(">H")
        for bit, name in enumerate(_PROPERTIES):
            if not flags & (0x8000 >> bit):
                continue
            if name == "headers":
                found[name] = cursor.table()
            elif name in ("delivery_mode", "priority"):
                found[name] = cursor.number(">B")
            elif name == "timestamp":
                found[name] = cursor.number(">Q")
            else:
                found[name] = cursor.short()
    except (ValueError, KeyError, RecursionError):
        pass
    return found


def header(size: int, properties: Mapping[str, Any]) -> bytes:
    """The payload of a header frame: of a body of this size, with these properties."""
    flags, values = 0, []
    for bit, name in enumerate(_PROPERTIES):
        if name not in properties:
            continue
        flags |= 0x8000 >> bit
        value = properties[name]
        if name == "headers":
            values.append(table(value))
        else:
            values.append(bytes([value]) if isinstance(value, int) else short(value))
    return struct.pack(">HHQH", 60, 0, size, flags) + b"".join(values)
