"""JSON lines of programs, as values: exact where a schema asks for it."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec

from headgate.connectors.bridges.typed import Convert, converter, has_decimals, typed_names

_EXACT = msgspec.json.Decoder(float_hook=Decimal)
_PLAIN = msgspec.json.Decoder()


class Shape:
    """How the records of one stream are read, by the schema that was announced for them."""

    def __init__(self, schema: object, meta: dict[str, Any]) -> None:
        self.meta = meta
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
