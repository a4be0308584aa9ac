"""The keys of one run's records, as its sink keeps them: for upserts into a sink that keeps letters. Elsewhere nothing
supersedes a letter, and no record has a key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from headgate.connectors.api import LetterSink, Sink
from headgate.core.letter_keys import KeyKind
from headgate.datasources.prepared import Prepared
from headgate.runtime.streams.letters import Desk


class Keys:
    """Hashes of keys."""

    def __init__(self, prepared: Prepared, sink: Sink, desk: Desk) -> None:
        kind = prepared.sink_kind
        self.are_used = kind.keeps_letters and kind.needs_key(prepared.sink_options)
        self._key = prepared.mapping.key
        self._sink = sink
        self._desk = desk
        self._kinds: Sequence[KeyKind] = ()

    async def look(self) -> None:
        """Ask the sink how it keeps keys. A table may have been made, or changed, since it was last asked."""
        if self.are_used:
            self._kinds = await cast("LetterSink", self._sink).key_kinds(self._key)

    def of(self, values: Sequence[Any] | None) -> bytes | None:
        """Of the values of a key."""
        return self._desk.key_hash(values, self._kinds) if self.are_used else None

    def of_record(self, record: dict[str, Any]) -> bytes | None:
        """Of a mapped record."""
        return self.of([record.get(field) for field in self._key])

    @property
    def supersedes(self) -> Callable[[dict[str, Any]], bytes | None] | None:
        """What tells the keys of records that supersede letters; None: they do not."""
        return self.of_record if self.are_used else None
