"""The streams that a source names: a tap reads several tables, say, and each record tells which one it is of.

They are no streams of ours: one stream of ours moves the records of all of them, in one order, under one position. A
sink that splits by them writes each into another table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

Name: TypeAlias = tuple[str, str]
"""Namespace and name. Two namespaces may have streams of one name."""


@dataclass(frozen=True, slots=True)
class SourceStream:
    """A stream that a source names, and what it says of it."""

    name: str  # Empty for a record of which the source says no stream.
    namespace: str = ""
    key: tuple[str, ...] = ()  # The fields that identify a record.
    types: Mapping[str, str] = field(default_factory=dict, compare=False)  # Of fields: `int`, `date`; what it knows.

    @property
    def whole_name(self) -> Name:
        """What tells it from others."""
        return self.namespace, self.name

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}" if self.namespace else self.name


class SourceStreams:
    """Finds the stream of each record by its `meta`: `stream`, `key`, and perhaps `namespace`."""

    def __init__(
        self,
        key: tuple[str, ...] = (),
        known: Iterable[SourceStream] = (),
        keys: Mapping[Name, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:
        self._key = key  # What the mapping says, which goes before what the source says.
        self._keys = keys  # What the source says by now, which goes before what it said with the record.
        self._types = {one.whole_name: one.types for one in known}
        self._found: dict[tuple[Name, tuple[str, ...]], SourceStream] = {}

    def of(self, meta: Any) -> SourceStream:
        """That of the record with this `meta`."""
        said: Mapping[str, Any] = meta if isinstance(meta, dict) else {}
        name = _text(said.get("namespace")), _text(said.get("stream"))
        key = self._key or self._keys.get(name) or _fields(said.get("key"))
        found = self._found.get((name, key))
        if found is None:
            found = SourceStream(name[1], name[0], key, self._types.get(name, {}))
            self._found[name, key] = found
        return found

    @property
    def keys(self) -> dict[Name, tuple[str, ...]]:
        """Those of the streams that were found."""
        return {name: key for name, key in self._found if key}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _fields(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()
