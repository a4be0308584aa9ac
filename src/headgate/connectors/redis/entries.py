"""Entries of a stream: fields that become a record, one field that is its body, and the way back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from headgate.connectors.api import Unreadable
from headgate.connectors.payloads import BYTES_AT_ONCE, decoded, too_large
from headgate.errors import Bad, BadRecords

Shape: TypeAlias = Literal["fields", "json", "text", "bytes"]

MOST_FIELDS = 3_000  # Of a record: a script can hand over no more to a command.
FIELD_BYTES = 200  # What a field costs besides its bytes, in bytes that cost as much.

_encode = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Cut:
    """The beginning of an entry that is too large."""

    fields: list[bytes]
    size_bytes: int


async def records_of(entries: Sequence[list[bytes] | Cut], shape: Shape, field: str, most_bytes: int) -> list[Any]:
    """A record for each entry, or an `Unreadable`."""
    records: list[Any] = [None] * len(entries)
    bodies: list[tuple[int, bytes]] = []
    name, cost = field.encode(), 0
    for number, entry in enumerate(entries):
        if isinstance(entry, Cut):
            records[number] = too_large(_as_json(entry.fields), entry.size_bytes, most_bytes)
            continue
        if shape != "fields":
            body = entry[1] if entry[0] == name else dict(zip(entry[::2], entry[1::2], strict=True)).get(name)
            if body is None:
                records[number] = Unreadable(_as_json(entry), f"there is no field {field!r}")
            else:
                bodies.append((number, body))
            continue
        size_bytes = sum(map(len, entry))
        records[number] = (
            _record(entry) if size_bytes <= most_bytes else too_large(_as_json(entry), size_bytes, most_bytes)
        )
        cost += size_bytes + FIELD_BYTES * len(entry)
        if cost > BYTES_AT_ONCE:
            cost = 0
            await asyncio.sleep(0)
    if shape != "fields":
        made = await decoded([body for _, body in bodies], shape, most_bytes)
        if len(made) == len(records):
            return made
        for (number, _), record in zip(bodies, made, strict=True):
            records[number] = record
    return records


def _record(fields: list[bytes]) -> Any:
    try:
        texts = [field.decode() for field in fields]
    except UnicodeDecodeError:
        return Unreadable(_as_json(fields), "a field is not UTF-8")
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _as_json(fields: list[bytes]) -> bytes:
    """For a dead letter: as much as can be shown."""
    texts = [field.decode("utf-8", "replace") for field in fields]
    return msgspec.json.encode(dict(zip(texts[::2], [*texts[1::2], ""], strict=False)))


def packed_fields(records: Sequence[dict[str, Any]]) -> list[bytes]:
    """The fields of each record, names and values in turn, packed for a script. `BadRecords` names those that have
    none."""
    found: list[bytes] = []
    bad: list[Bad] = []
    for index, record in enumerate(records):
        fields = [word for name, value in record.items() if value is not None for word in (name, _text(value))]
        if not fields:
            bad.append(Bad(index, None, "no field has a value"))
        elif len(fields) > 2 * MOST_FIELDS:
            bad.append(Bad(index, None, f"it has more than {MOST_FIELDS:,} fields"))
        else:
            try:
                found.append(_pack(fields))
            except UnicodeEncodeError:
                bad.append(Bad(index, None, "it has a text that is not valid Unicode"))
    if bad:
        raise BadRecords(bad)
    return found


def packed_body(body: bytes, *before: str) -> bytes:
    """Texts and a body, packed. The server's library knows no bytes, only texts, which may have any."""
    head = b"".join([bytes([0x91 + len(before)]), *map(_pack, before)])
    return head + b"\xdb" + len(body).to_bytes(4) + body


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _encode(value).decode()
