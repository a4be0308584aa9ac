"""Replays: dead letters that somebody wants to have tried again, by the stream's own run, between two batches.

A replay goes under the run's epoch, with one more commit and the same position, so that it is fenced like any batch. In
a sink that keeps letters, a row and the outcome of its letter commit together: no letter is replayed twice, and one
that was superseded or discarded meanwhile is left out. Elsewhere the outcome follows the write, and after a crash
between the two the letter is replayed again.

A letter that the sink does not have was kept in another one, before the datasource got this sink: it is put there with
its replay, so that it is replayed once, too. Where a row of its key may be newer and nobody has compared the two,
because that letter was elsewhere, or because its key is another one by now, it is replayed only over newer rows.

A stream that the source names may have another key by now, or no table. Its letters are written by its present key, if
this run has heard of it; what the sink cannot take of them even so is those letters' trouble, not the run's.

A run of an older version leaves letters to the published one: people publish a repair, ask for a replay at once, and
mean the repair. A letter that fails again stays open, with the new reason. One that the mapping filters now is done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from collections.abc import Mapping as TypeMapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast
from uuid import UUID

from headgate.connectors.api import Context, Letter, LetterSink, Outgoing, Progress, Sink, SourceStream
from headgate.core.mapping.document import Mapping
from headgate.core.source_streams import Name, SourceStreams
from headgate.datasources.prepared import Prepared
from headgate.errors import Bad, BadRecords, BatchRefused, Cause, ConfigError, ConnectorError, NotFound, StoreError
from headgate.runtime.streams.batches import Write, part_of, search
from headgate.runtime.streams.keys import Keys
from headgate.runtime.streams.letters import Desk, persist
from headgate.runtime.streams.slices import map_all
from headgate.store.letters import Again, ToReplay

ELSEWHERE = "it was kept in another database, and rows of its key may be newer here: only `overwrite` replays it"
UNKNOWN_KEY = "its key is not known, so nobody can tell whether a newer row is there: only `overwrite` replays it"
OTHER_KEY = "its key is another one than when it failed, and rows of it may be newer: only `overwrite` replays it"


@dataclass(slots=True)
class _Mapped:
    """What the mapping made of the letters."""

    records: list[dict[str, Any]] = field(default_factory=list)
    deletes: list[int] = field(default_factory=list)
    replays: list[UUID] = field(default_factory=list)  # The letter of each record.
    streams: list[SourceStream] = field(default_factory=list)  # And its stream, if the sink splits by them.
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
        self,
        prepared: Prepared,
        version: int,
        context: Context,
        sink: Sink,
        write: Write,
        desk: Desk,
        keys: Callable[[], TypeMapping[Name, tuple[str, ...]]] = dict,
    ) -> None:
        self._prepared = prepared
        self._version = version
        self._context = context
        self._sink = sink
        self._write = write
        self._desk = desk
        self._keys_now = keys  # Of the source's streams, as far as they are known.
        self._keeps_letters = prepared.sink_kind.keeps_letters
        self._is_upsert = prepared.sink_kind.needs_key(prepared.sink_options)
        self._keys = Keys(prepared, sink, desk)

    async def some(self, before: Progress) -> Replayed | None:
        """Replay the next letters. None: none are left."""
        letters = await self._desk.to_replay(self._version)
        if not letters:
            return None
        streams = self._streams(letters)
        absent = await self._keys.look_at(streams.values())
        gone = {id: absent[one] for id, one in streams.items() if one in absent}
        strange = await self._strange(letters)
        mapped = await self._map([one for one in letters if one.id not in gone], strange, streams)
        mapped.failed += [self._again(id, "sink", None, reason, Cause.CONFIG) for id, reason in gone.items()]
        adopted = [Letter(one.id, b"", one.key) for one in letters if one.id in strange & {*mapped.replays}]
        progress = replace(before, commits=before.commits + 1)
        key, supersedes = self._prepared.mapping.key, self._keys.supersedes
        outgoing = Outgoing(
            mapped.records,
            progress,
            key,
            mapped.deletes,
            adopted,
            mapped.replays,
            supersedes,
            streams=mapped.streams,
        )
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
            await self._resolve(mapped, outgoing, progress)
        except StoreError:
            return Replayed(progress, is_noted=False)
        return Replayed(progress)

    async def _strange(self, letters: Sequence[ToReplay]) -> set[UUID]:
        """Those that a sink which keeps letters does not have."""
        ids = [letter.id for letter in letters]
        if not self._keeps_letters:
            return set()
        return set(ids) - {letter.id for letter in await cast("LetterSink", self._sink).letters(ids)}

    def _streams(self, letters: Sequence[ToReplay]) -> dict[UUID, SourceStream]:
        """The stream that each letter's record is of, if the sink splits by them."""
        if not self._prepared.splits:
            return {}
        streams = SourceStreams(self._prepared.mapping.key, keys=self._keys_now())
        return {letter.id: streams.of(letter.contents.meta) for letter in letters}

    async def _map(
        self, letters: Sequence[ToReplay], strange: Collection[UUID], streams: TypeMapping[UUID, SourceStream]
    ) -> _Mapped:
        mappings: dict[int | None, Mapping | str] = {None: self._prepared.mapping}
        found = _Mapped()
        for letter in letters:
            if letter.version not in mappings:
                assert letter.version is not None
                mappings[letter.version] = await self._mapping(letter.version)
            mapping = mappings[letter.version]
            if isinstance(mapping, str):
                found.failed.append(self._again(letter.id, "mapping", None, mapping, Cause.CONFIG))
            elif letter.id in strange and self._is_upsert and not letter.overwrites:
                found.failed.append(self._again(letter.id, "sink", None, ELSEWHERE))
            else:
                await self._map_one(letter, mapping, streams.get(letter.id), found)
        return found

    async def _mapping(self, version: int) -> Mapping | str:
        """That of another version, or why it cannot be had."""
        try:
            return await self._desk.mapping(version)
        except (NotFound, ConfigError) as error:
            return f"version {version} cannot be used: {error.message}"

    async def _map_one(self, letter: ToReplay, mapping: Mapping, stream: SourceStream | None, into: _Mapped) -> None:
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
        chosen = (mapped.records[number] for number in wanted)
        keys = (self._keys.of_record(one, stream) for one in chosen)
        if self._is_upsert and not letter.overwrites and any(key != letter.key for key in keys):
            why = UNKNOWN_KEY if letter.key is None else OTHER_KEY
            into.failed.append(self._again(letter.id, "sink", None, why))
            return
        for number in wanted:
            if number in mapped.deletes:
                into.deletes.append(len(into.records))
            into.records.append(mapped.records[number])
            into.replays.append(letter.id)
            if stream is not None:
                into.streams.append(stream)

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
        except ConnectorError as error:
            if error.cause is not Cause.CONFIG or not (bad := await self._of_refused_streams(outgoing)):
                raise
            return bad, False

    async def _of_refused_streams(self, outgoing: Outgoing) -> Sequence[Bad]:
        """The records of streams that the sink does not take as they are: their tables have other keys by now, say."""
        numbers: dict[SourceStream, list[int]] = {}
        for number, stream in enumerate(outgoing.streams if self._keeps_letters else ()):
            numbers.setdefault(stream, []).append(number)
        found: list[Bad] = []
        for some in numbers.values():
            try:
                await cast("LetterSink", self._sink).rehearse(part_of(outgoing, some))
            except (BadRecords, BatchRefused):
                pass  # That is for the search.
            except ConnectorError as error:
                if error.cause is not Cause.CONFIG:
                    raise
                found += [Bad(number, None, error.message) for number in some]
        return found

    async def _resolve(self, mapped: _Mapped, outgoing: Outgoing, progress: Progress) -> None:
        """Note what became of the letters. What the sink knows may be noted later, too."""
        if mapped.failed:
            await self._desk.failed_again(mapped.failed)
        done = list(dict.fromkeys(outgoing.replays))
        if not self._keeps_letters:
            if done or mapped.filtered:
                await persist(partial(self._desk.replayed, [*done, *mapped.filtered], progress))
            return
        sink = cast("LetterSink", self._sink)
        if mapped.filtered:
            await sink.resolve(mapped.filtered, "replayed")
        # Now, so that no letter is found among those to be replayed again.
        await self._desk.note(sink, done)
        if mapped.filtered:
            await self._desk.are_done(mapped.filtered)

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
        letters=[letter for letter in outgoing.letters if letter.id not in letters],
        streams=[outgoing.streams[number] for number in kept] if outgoing.streams else (),
    )
