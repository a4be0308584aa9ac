"""JSON lines of programs, as values: exact where a schema asks for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from typing import Any, TypeVar

import msgspec

from headgate.connectors.api import SourceStream
from headgate.connectors.bridges.typed import Convert, converter, field_types, has_decimals, typed_names
from headgate.core.payloads import is_costly

TURN_BYTES = 200_000  # Of JSON: some milliseconds of the event loop.

_EXACT = msgspec.json.Decoder(float_hook=Decimal)
_PLAIN = msgspec.json.Decoder()
_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


_Name = TypeVar("_Name")


class Shape:
    """How the records of one stream are read, by the schema that was announced for them."""

    def __init__(self, schema: object, meta: dict[str, Any]) -> None:
        self.schema = schema
        self.meta = meta
        name, namespace = meta["stream"], meta.get("namespace", "")
        self.stream = SourceStream(name, namespace, tuple(meta["key"]), field_types(schema))  # What is known of it.
        self._convert: Convert | None = converter(schema)
        self._is_exact = has_decimals(schema)
        self._decoder = _EXACT if self._is_exact else _PLAIN
        self._typed = typed_names(schema)

    def record(self, raw: msgspec.Raw | bytes) -> Any:
        """The record. Raises ValueError if it is none."""
        try:
            found = self._decoder.decode(raw)
        except msgspec.DecodeError:
            found = json.loads(bytes(raw))  # NaN and the like, which Python's own encoder writes.
        if self._convert is not None:
            found = self._convert(found)
        if self._is_exact and isinstance(found, dict):
            for name in found.keys() - self._typed:
                found[name] = _with_floats(found[name])
        return found


class Shapes(dict[_Name, Shape]):
    """Those of all streams. There may be very many, so what is known of them is listed again only if one changes."""

    _streams: list[SourceStream] | None = None

    def __setitem__(self, name: _Name, shape: Shape) -> None:
        super().__setitem__(name, shape)
        self._streams = None

    @property
    def streams(self) -> list[SourceStream]:
        """The same list as before, unless a shape is another one."""
        if self._streams is None:
            self._streams = [shape.stream for shape in self.values()]
        return self._streams


def _with_floats(value: Any) -> Any:
    """What no schema calls a decimal is the number that JSON has for everybody."""
    match value:
        case Decimal():
            return float(value)
        case dict():
            return {name: _with_floats(one) for name, one in value.items()}
        case list():
            return [_with_floats(one) for one in value]
        case _:
            return value


def decoded(raw: msgspec.Raw | bytes) -> Any:
    """Any JSON. Raises ValueError."""
    try:
        return _PLAIN.decode(raw)
    except msgspec.DecodeError:
        return json.loads(bytes(raw))


async def catalog_in(text: msgspec.Raw | bytes) -> dict[str, Any]:
    """An object with a list of `streams`. It may have many megabytes, so it is decoded stream by stream, with turns for
    others in between: a thread would not do, because the decoder lets nobody else run. Raises ValueError."""
    try:
        parts = _PARTS.decode(text)
        await asyncio.sleep(0)
        streams = _LIST.decode(parts.pop("streams"))
    except (msgspec.DecodeError, KeyError):
        if len(memoryview(text)) > TURN_BYTES:
            raise ValueError("no catalog") from None
        return _catalog(decoded(text))
    found = [_decoded_alone(one) async for one in _with_turns(streams)]
    return {**{name: _decoded_alone(one) for name, one in parts.items()}, "streams": found}


async def encoded_catalog(catalog: dict[str, Any]) -> bytes:
    """The same the other way round."""
    streams = []
    for one in catalog["streams"]:
        streams.append(msgspec.Raw(msgspec.json.encode(one)))
        await asyncio.sleep(0)
    return msgspec.json.encode({**catalog, "streams": streams})


async def _with_turns(several: Sequence[msgspec.Raw]) -> AsyncIterator[msgspec.Raw]:
    size_bytes = 0
    for one in several:
        yield one
        size_bytes += len(memoryview(one))
        if size_bytes > TURN_BYTES:
            size_bytes = 0
            await asyncio.sleep(0)


def _decoded_alone(raw: msgspec.Raw) -> Any:
    """One stream. A single one that would hold others up is none."""
    if is_costly(bytes(raw)):
        raise ValueError("a stream of the catalog takes too long to decode")
    return decoded(raw)


def _catalog(found: Any) -> dict[str, Any]:
    match found:
        case {"streams": [*_]}:
            return found  # type: ignore[no-any-return]
    raise ValueError("no catalog")
