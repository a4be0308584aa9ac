"""Columns of records that nobody has described, from their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headgate.connectors.api.bulk import Column, Row
from headgate.connectors.values.kinds import Kind, Type, type_of_value, widest

_NUMBERS = {Kind.INT64, Kind.FLOAT64, Kind.NUMERIC}


def inferred(records: Iterable[Row], type_of: Callable[[object], Type | None] = type_of_value) -> tuple[Column, ...]:
    """The columns of these records. One without any value is JSON, which holds whatever comes."""
    types: dict[str, Type | None] = {}
    for record in records:
        for name, value in record.items():
            one, other = types.get(name), type_of(value)
            types[name] = _common_type(one, other) if one is not None and other is not None else one or other
    return tuple(Column(name, type or Type(Kind.JSON)) for name, type in types.items())


def _common_type(one: Type, other: Type) -> Type:
    """JSON has one sort of numbers: whole ones among others are floats, as long as they are not too large for one."""
    if one != other and {one.kind, other.kind} <= _NUMBERS:
        return Type(Kind.NUMERIC if Kind.NUMERIC in (one.kind, other.kind) else Kind.FLOAT64)
    return widest(one, other) or Type(Kind.JSON)
