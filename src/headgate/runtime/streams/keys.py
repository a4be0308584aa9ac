"""The keys of one run's records, as its sink keeps them: for upserts into a sink that keeps letters. Elsewhere nothing
supersedes a letter, and no record has a key.

Where the sink splits by streams, each stream has its own key, and its name is a part of the hash: the records 1 of two
streams are not the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, cast

from headgate.connectors.api import LetterSink, Sink, SourceStream
from headgate.core.letter_keys import KeyKind
from headgate.datasources.prepared import Prepared
from headgate.errors import Cause, ConnectorError
from headgate.runtime.streams.letters import Desk


class Keys:
    """Hashes of keys."""

    def __init__(self, prepared: Prepared, sink: Sink, desk: Desk) -> None:
        kind = prepared.sink_kind
        self.are_used = kind.keeps_letters and kind.needs_key(prepared.sink_options)
        self._key = prepared.mapping.key
        self._sink = sink
        self._desk = desk
        self._kinds: dict[SourceStream | None, Sequence[KeyKind]] = {}

    async def look(self, streams: Collection[SourceStream] = ()) -> None:
        """Ask the sink how it keeps keys. A table may have been made, or changed, since it was last asked."""
        if not self.are_used:
            return
        sink = cast("LetterSink", self._sink)
        if not streams:
            self._kinds = {None: await sink.key_kinds(self._key)}
            return
        self._kinds = {one: await sink.key_kinds(one.key, one) for one in dict.fromkeys(streams) if one.name}

    async def look_at(self, streams: Iterable[SourceStream]) -> dict[SourceStream, str]:
        """The same, for streams that may be gone from the sink. Returns those that it cannot have, and why."""
        await self.look()
        refused: dict[SourceStream, str] = {}
        for one in dict.fromkeys(one for one in streams if self.are_used and one.name):
            try:
                self._kinds[one] = await cast("LetterSink", self._sink).key_kinds(one.key, one)
            except ConnectorError as error:
                if error.cause is not Cause.CONFIG:
                    raise
                refused[one] = error.message
        return refused

    def of(self, values: Sequence[Any] | None, stream: SourceStream | None = None) -> bytes | None:
        """Of the values of a key."""
        if not self.are_used:
            return None
        kinds = self._kinds.get(stream, ())
        if stream is None or not values:
            return self._desk.key_hash(values, kinds)
        return self._desk.key_hash([repr(stream.whole_name), *values], ["text", *kinds] if kinds else ())

    def of_record(self, record: dict[str, Any], stream: SourceStream | None = None) -> bytes | None:
        """Of a mapped record."""
        return self.of([record.get(field) for field in (self._key if stream is None else stream.key)], stream)

    @property
    def supersedes(self) -> Callable[..., bytes | None] | None:
        """What tells the keys of records that supersede letters; None: they do not."""
        return self.of_record if self.are_used else None
