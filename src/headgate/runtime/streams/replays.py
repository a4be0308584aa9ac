"""Replays: dead letters that somebody wants to have tried again, by the stream's own run, between two batches.

A replay goes under the run's epoch, with one more commit and the same position, so that it is fenced like any batch. In
a sink that keeps letters, a row and the outcome of its letter commit together: no letter is replayed twice, and one
that was superseded or discarded meanwhile is left out. Elsewhere the outcome follows the write, and after a crash
between the two the letter is replayed again.

A run of an older version leaves letters to the published one: people publish a repair, ask for a replay at once, and
mean the repair. A letter that fails again stays open, with the new reason. One that the mapping filters now is done.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast
from uuid import UUID

from headgate.connectors.api import Context, LetterSink, Outgoing, Progress, Sink
from headgate.core.mapping.document import Mapping
from headgate.datasources.prepared import Prepared
from headgate.errors import Bad, BadRecords, BatchRefused, Cause, ConfigError, NotFound, StoreError
from headgate.runtime.streams.batches import Write, search, superseding
from headgate.runtime.streams.letters import Desk, persist
from headgate.runtime.streams.slices import map_all
from headgate.store.letters import Again, ToReplay


@dataclass(slots=True)
class _Mapped:
    """What the mapping made of the letters."""

    records: list[dict[str, Any]] = field(default_factory=list)
    deletes: list[int] = field(default_factory=list)
    replays: list[UUID] = field(default_factory=list)  # The letter of each record.
    filtered: list[UUID] = field(default_factory=list)
    failed: list[Again] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Replayed:
    """Some letters were replayed."""

    progress: Progress
    is_noted: bool = True  # The registry knows what became of them.


class Replays:
    """Replays letters of one run."""

    def __init__(
        self, prepared: Prepared, version: int, context: Context, sink: Sink, write: Write, desk: Desk
    ) -> None:
        self._prepared = prepared
        self._version = version
        self._context = context
        self._sink = sink
        self._write = write
        self._desk = desk
        self._keeps_letters = prepared.sink_kind.keeps_letters

    async def some(self, before: Progress) -> Replayed | None:
        """Replay the next letters. None: none are left."""
        letters = await self._desk.to_replay(self._version)
        if not letters:
            return None
        mapped = await self._map(letters)
        progress = replace(before, commits=before.commits + 1)
        key, supersedes = self._prepared.mapping.key, superseding(self._prepared, self._desk)
        outgoing = Outgoing(mapped.records, progress, key, mapped.deletes, (), mapped.replays, supersedes)
        is_written = not outgoing.records
        while not is_written:
            bad, is_written = await self._try(outgoing)
            failed = {outgoing.replays[one.index]: one for one in bad}
            mapped.failed += [self._again(id, "sink", one.field, one.reason) for id, one in failed.items()]
            outgoing = _without(outgoing, failed)
            is_written = is_written or not outgoing.records
        self._context.log.info("letters replayed", count=len(letters) - len(mapped.failed), failed=len(mapped.failed))
        progress = progress if outgoing.records or not self._keeps_letters else before
        try:
            await self._resolve(mapped, list(dict.fromkeys(outgoing.replays)), progress)
        except StoreError:
            return Replayed(progress, is_noted=False)
        return Replayed(progress)

    async def _map(self, letters: Sequence[ToReplay]) -> _Mapped:
        mappings: dict[int | None, Mapping | str] = {None: self._prepared.mapping}
        found = _Mapped()
        for letter in letters:
            if letter.version not in mappings:
                assert letter.version is not None
                mappings[letter.version] = await self._mapping(letter.version)
            mapping = mappings[letter.version]
            if isinstance(mapping, str):
                found.failed.append(self._again(letter.id, "mapping", None, mapping, Cause.CONFIG))
            else:
                await self._map_one(letter, mapping, found)
        return found

    async def _mapping(self, version: int) -> Mapping | str:
        """That of another version, or why it cannot be had."""
        try:
            return await self._desk.mapping(version)
        except (NotFound, ConfigError) as error:
            return f"version {version} cannot be used: {error.message}"

    async def _map_one(self, letter: ToReplay, mapping: Mapping, into: _Mapped) -> None:
        contents = letter.contents
        mapped = await map_all(mapping, [contents.payload], [contents.meta])
        if mapped.failed:
            first = mapped.failed[0]
            into.failed.append(self._again(letter.id, first.stage, first.field, first.reason))
            return
        wanted = range(len(mapped.records))
        if contents.only is not None and len(mapped.records) > 1:
            wanted = wanted[contents.only : contents.only + 1]
        if not wanted:
            into.filtered.append(letter.id)
        for number in wanted:
            if number in mapped.deletes:
                into.deletes.append(len(into.records))
            into.records.append(mapped.records[number])
            into.replays.append(letter.id)

    async def _try(self, outgoing: Outgoing) -> tuple[Sequence[Bad], bool]:
        """Write them. Returns those that cannot be written, and whether the others have been."""
        try:
            await self._write(outgoing)
            return (), True
        except BadRecords as error:
            return error.bad, False
        except BatchRefused as error:
            if self._prepared.sink_kind.transactional and not self._keeps_letters:
                raise
            return await search(self._sink, outgoing, error, self._write, rehearses=self._keeps_letters)

    async def _resolve(self, mapped: _Mapped, done: Sequence[UUID], progress: Progress) -> None:
        """Note what became of the letters. What the sink knows may be noted later, too."""
        if mapped.failed:
            await self._desk.failed_again(mapped.failed)
        if not self._keeps_letters:
            if done or mapped.filtered:
                await persist(partial(self._desk.replayed, [*done, *mapped.filtered], progress))
            return
        sink = cast("LetterSink", self._sink)
        if mapped.filtered:
            await sink.resolve(mapped.filtered, "replayed")
        await self._desk.copy(sink)  # Now, so that no letter is found among those to be replayed again.

    def _again(self, id: UUID, stage: str, field: str | None, reason: str, cause: Cause = Cause.BAD_RECORD) -> Again:
        return Again(id, stage, field, reason, cause, self._version)


def _without(outgoing: Outgoing, letters: Collection[UUID]) -> Outgoing:
    """All records but those of these letters."""
    kept = [number for number, id in enumerate(outgoing.replays) if id not in letters]
    places = {number: place for place, number in enumerate(kept)}
    return replace(
        outgoing,
        records=[outgoing.records[number] for number in kept],
        deletes=[places[number] for number in outgoing.deletes if number in places],
        replays=[outgoing.replays[number] for number in kept],
    )
