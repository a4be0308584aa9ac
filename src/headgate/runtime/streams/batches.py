"""One batch on its way into the sink: what cannot be handled is taken out and kept as dead letters, the rest written.

The mapping has said which records failed; the sink may name more (`BadRecords`), or say only that there is one
(`BatchRefused`), and then halves of the batch are tried (`core.isolation`): in a sink that keeps letters they are
rehearsed, so that everything is committed at once in the end; in one without transactions they are written.

What `on_error` says decides: letters are committed with the position that passes them, or the records are discarded and
counted, or the first of them stops the stream. Never is a good record held back for a bad neighbour, except by `fail`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, cast

from headgate.connectors.api import Batch, Context, Letter, LetterSink, Outgoing, Progress, Sink, SourceStream
from headgate.core import isolation
from headgate.core.letters import LONGEST, Contents, Facts
from headgate.core.mapping.mapped import Mapped
from headgate.core.records import Stage, Totals, add
from headgate.core.source_streams import Name, SourceStreams
from headgate.datasources.prepared import Prepared
from headgate.errors import Bad, BadRecords, BatchRefused, Cause, ConnectorError
from headgate.runtime.streams.keys import Keys
from headgate.runtime.streams.letters import Desk, persist
from headgate.store.letter_rows import dated
from headgate.text import counted, one_line

MOST_BYTES = 256 * 2**20  # Of the letters of a batch. One payload may stand for many records, and each repeats it.
SEALED_AT_ONCE = 2_000_000  # Bytes: a few milliseconds,
LETTER_BYTES = 20_000  # that of a small one included.
APART_S = 1e-5  # Between letters of a batch, so that their times tell their order in a database, too.
TOO_LARGE = "publish a mapping that can handle them, or on_error: skip"

Write: TypeAlias = Callable[[Outgoing], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Culprit:
    """A record of a batch that cannot be handled."""

    stage: Stage
    index: int  # Of the payload in the batch.
    element: int | None  # Of its list, if it was unnested.
    number: int | None  # Among the mapped records; None: it was not mapped.
    place: str  # What the source calls it.
    field: str | None
    reason: str

    def __str__(self) -> str:
        what = {"source": "cannot be read", "mapping": "cannot be mapped", "sink": "cannot be written"}[self.stage]
        why = f"{self.field}: {self.reason}" if self.field else self.reason
        return one_line(f"the record at {self.place} {what}: {why}", LONGEST)


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a batch."""

    progress: Progress
    records: int
    culprits: Sequence[Culprit]
    letters: Sequence[Letter]


class Batches:
    """Writes the batches of one run."""

    def __init__(
        self, prepared: Prepared, version: int, context: Context, sink: Sink, write: Write, desk: Desk
    ) -> None:
        self._prepared = prepared
        self._version = version
        self._context = context
        self._sink = sink
        self._write = write  # As `sink.write`, while this node may act.
        self._desk = desk
        self._keeps_letters = prepared.sink_kind.keeps_letters
        self._is_upsert = prepared.sink_kind.needs_key(prepared.sink_options)
        self._keys = Keys(prepared, sink, desk)
        self._named: Sequence[SourceStream] = ()  # The streams that the source has named with the last batch,
        self._found = SourceStreams(prepared.mapping.key)  # and those of the records since then.
        self._said: dict[Name, tuple[str, ...]] = {}  # The keys that records have said before.

    async def write(self, batch: Batch, mapped: Mapped, before: Progress) -> Written:
        """Make a batch durable, with its letters and its position."""
        streams = self._streams(batch, mapped)
        culprits = [
            Culprit(
                one.stage,
                one.index,
                one.element,
                None,
                self._place(batch, one.index, one.element),
                one.field,
                one.reason,
            )
            for one in mapped.failed
        ]
        self._fail(culprits)
        if self._keys.are_used:
            await self._keys.look(
                [*streams, *(self._stream_of(batch, one.index) for one in culprits if self._prepared.splits)]
            )
        kept: Sequence[int] = range(len(mapped.records))
        made: dict[Culprit, Letter] = {}
        while True:
            progress = self._progress(batch, mapped, before, len(kept), len(culprits))
            letters = await self._letters(batch, mapped, streams, kept, culprits, made) if culprits else ()
            outgoing = self._outgoing(batch, mapped, streams, kept, progress, letters)
            bad, is_written = await self._try(outgoing, letters)
            culprits += [self._culprit(batch, mapped, kept[one.index], one) for one in bad]
            if not bad:
                break
            self._fail(culprits)
            out = {one.index for one in bad}
            kept = [number for index, number in enumerate(kept) if index not in out]
            if is_written:
                progress = self._progress(batch, mapped, before, len(kept), len(culprits))
                letters = await self._letters(batch, mapped, streams, kept, culprits, made)
                break
        if letters and not self._keeps_letters and not self._prepared.sink_kind.transactional:
            await persist(partial(self._desk.keep, letters, progress))
        if culprits:
            self._log(culprits)
        return Written(progress, len(kept), culprits, letters)

    async def _try(self, outgoing: Outgoing, letters: Sequence[Letter]) -> tuple[Sequence[Bad], bool]:
        """Write it. Returns the records that must be taken out, and whether the others have been written."""
        try:
            if letters and not self._keeps_letters and self._prepared.sink_kind.transactional:
                # The sink's own commit passes them, so they are kept before it, and with no position.
                await persist(partial(self._desk.keep, letters, replace(outgoing.progress, commits=0)))
            await self._write(outgoing)
            return (), True
        except BadRecords as error:
            return error.bad, False
        except BatchRefused as error:
            if self._prepared.sink_kind.transactional and not self._keeps_letters:
                raise  # Its position would pass records that were not tried.
            return await search(self._sink, outgoing, error, self._write, rehearses=self._keeps_letters)

    def _progress(self, batch: Batch, mapped: Mapped, before: Progress, written: int, bad: int) -> Progress:
        skipped = bad if self._prepared.options.on_error == "skip" else 0
        totals = Totals(mapped.read, written, len(mapped.filtered), bad, skipped)
        return Progress(before.generation, before.commits + 1, batch.position, add(before.totals, totals))

    def _streams(self, batch: Batch, mapped: Mapped) -> Sequence[SourceStream]:
        """For each mapped record, the stream that it is of, if the sink splits by them."""
        if not self._prepared.splits:
            return ()
        if batch.streams is not self._named:  # It is the same list as long as nothing changes.
            self._said |= self._found.keys
            self._named, self._found = batch.streams, SourceStreams(self._prepared.mapping.key, batch.streams)
        meta = batch.meta or [None] * len(batch.records)
        return [self._found.of(meta[mapped.origin(number)[0]]) for number in range(len(mapped.records))]

    def keys(self) -> dict[Name, tuple[str, ...]]:
        """The keys of the source's streams, as far as this run has heard of them."""
        return {one.whole_name: one.key for one in self._named if one.key} | self._said | self._found.keys

    def _stream_of(self, batch: Batch, index: int) -> SourceStream:
        """The stream that a payload is of."""
        return SourceStreams(self._prepared.mapping.key).of(batch.meta[index] if batch.meta else None)

    def _outgoing(
        self,
        batch: Batch,
        mapped: Mapped,
        streams: Sequence[SourceStream],
        kept: Sequence[int],
        progress: Progress,
        letters: Sequence[Letter],
    ) -> Outgoing:
        key, supersedes = self._prepared.mapping.key, self._keys.supersedes
        kept_letters = letters if self._keeps_letters else ()
        if len(kept) == len(mapped.records):
            records, deletes = mapped.records, mapped.deletes
        else:
            deleted = set(mapped.deletes)
            records = [mapped.records[number] for number in kept]
            deletes = [index for index, number in enumerate(kept) if number in deleted]
            streams = [streams[number] for number in kept] if streams else ()
        places = partial(_place_of_kept, batch, mapped, kept)
        return Outgoing(
            records, progress, key, deletes, kept_letters, supersedes=supersedes, places=places, streams=streams
        )

    # Culprits and letters.

    async def _letters(
        self,
        batch: Batch,
        mapped: Mapped,
        streams: Sequence[SourceStream],
        kept: Sequence[int],
        culprits: Sequence[Culprit],
        made: dict[Culprit, Letter],
    ) -> Sequence[Letter]:
        """A letter for each record that cannot be handled, in their order: that of replays."""
        if not culprits or self._prepared.options.on_error != "dead_letter":
            return ()
        ordered = sorted(culprits, key=lambda one: (one.index, one.element or 0))
        await self._make(batch, mapped, streams, ordered, made)
        # Which ones there are becomes known bit by bit, and their times tell their order.
        now_s = self._context.now_s()
        letters = [dated(made[one], now_s + place * APART_S) for place, one in enumerate(ordered)]
        if not self._is_upsert:
            return letters
        latest: dict[bytes | None, tuple[int, int]] = {}  # Of each key that is written, the last record.
        for number in kept:
            index, element = mapped.origin(number)
            stream = streams[number] if streams else None
            latest[self._keys.of_record(mapped.records[number], stream)] = (index, element or 0)
        return [
            replace(letter, outcome="superseded")
            if letter.key is not None and latest.get(letter.key, (-1, 0)) > (one.index, one.element or 0)
            else letter
            for letter, one in zip(letters, ordered, strict=True)
        ]

    async def _make(
        self,
        batch: Batch,
        mapped: Mapped,
        streams: Sequence[SourceStream],
        ordered: Sequence[Culprit],
        made: dict[Culprit, Letter],
    ) -> None:
        """The letters that are not made yet, with turns for others in between."""
        size, work = sum(len(one.content) for one in made.values()), 0
        for one in ordered:
            if one in made:
                continue
            made[one] = letter = self._letter(batch, mapped, streams, one)
            size, work = size + len(letter.content), work + LETTER_BYTES + len(letter.content)
            if size > MOST_BYTES:
                text = f"{counted(len(ordered), 'record')} of one batch cannot be handled, which is too much to be kept"
                raise ConnectorError(f"{text}; {ordered[0]}", cause=Cause.TOO_MANY_DEAD_LETTERS, hint=TOO_LARGE)
            if work > SEALED_AT_ONCE:
                work = 0
                await asyncio.sleep(0)

    def _letter(self, batch: Batch, mapped: Mapped, streams: Sequence[SourceStream], culprit: Culprit) -> Letter:
        mapping = self._prepared.mapping
        payload, meta = batch.records[culprit.index], batch.meta[culprit.index] if batch.meta else None
        if culprit.element is not None:
            payload = mapping.alone(payload, culprit.element)
        record = None if culprit.number is None else mapped.records[culprit.number]
        facts = Facts(
            one_line(culprit.place, LONGEST),
            culprit.stage,
            culprit.field and one_line(culprit.field, LONGEST),
            one_line(culprit.reason, LONGEST),
            Cause.BAD_RECORD,
            self._version,
            0.0,
            0,
        )
        key = None
        if culprit.stage != "source":
            if record is not None:
                key = self._keys.of_record(record, streams[culprit.number or 0] if streams else None)
            else:
                stream = self._stream_of(batch, culprit.index) if self._prepared.splits else None
                key = self._keys.of(mapping.key_of(payload, meta, stream.key if stream else ()), stream)
        only = culprit.element if not mapping.unnests else None
        return self._desk.letter(facts, Contents(payload, meta, record, only), key)

    def _fail(self, culprits: Sequence[Culprit]) -> None:
        """With `fail`, the first bad record stops the stream."""
        if culprits and self._prepared.options.on_error == "fail":
            first = min(culprits, key=lambda one: (one.index, one.element or 0))
            raise ConnectorError(str(first), cause=Cause.BAD_RECORD)

    def _culprit(self, batch: Batch, mapped: Mapped, number: int, bad: Bad) -> Culprit:
        """A mapped record that the sink does not take."""
        index, element = mapped.origin(number)
        return Culprit("sink", index, element, number, self._place(batch, index, element), bad.field, bad.reason)

    def _place(self, batch: Batch, index: int, element: int | None) -> str:
        """What people are told of the place of a record: with its stream, if each is written apart."""
        place = place_of(batch, index, element)
        if not self._prepared.splits or not batch.meta:
            return place
        return f"stream {one_line(self._stream_of(batch, index), 100)!r}, {place}"

    def _log(self, culprits: Sequence[Culprit]) -> None:
        first = min(culprits, key=lambda one: one.index)
        text = "records discarded" if self._prepared.options.on_error == "skip" else "records dead-lettered"
        self._context.log.warning(text, count=len(culprits), first=str(first))


def place_of(batch: Batch, index: int, element: int | None) -> str:
    """What the source calls the place of a record."""
    if batch.place is not None:
        place = batch.place(index)
    else:
        place = f"record {index + 1} of the {len(batch.records)} up to position {batch.position}"
    return place if element is None else f"{place}, element {element + 1}"


def _place_of_kept(batch: Batch, mapped: Mapped, kept: Sequence[int], index: int) -> str:
    return place_of(batch, *mapped.origin(kept[index]))


async def search(
    sink: Sink, outgoing: Outgoing, refusal: BatchRefused, write: Write, *, rehearses: bool
) -> tuple[Sequence[Bad], bool]:
    """Find the records that a sink refuses, by halves. Without rehearsals, the others are written on the way."""
    found = isolation.begin(len(outgoing.records))
    accepted: list[int] = []
    reasons: dict[int, str] = {}
    while (range_ := found.next) is not None:
        tried = [*accepted, *range(*range_)] if rehearses else list(range(*range_))
        some = part_of(outgoing, tried)
        try:
            await (cast("LetterSink", sink).rehearse(some) if rehearses else write(some))
        except BadRecords as error:
            reasons |= {tried[one.index]: str(one) for one in error.bad}
            found = isolation.refused(found)
        except BatchRefused as error:
            if range_[1] - range_[0] == 1:
                reasons[range_[0]] = error.message
            found = isolation.refused(found)
        else:
            accepted += range(*range_)
            found = isolation.accepted(found)
    if not found.bad:
        raise ConnectorError(f"{counted(len(outgoing.records), 'record')} are refused together: {refusal.message}")
    return [Bad(index, None, reasons.get(index, refusal.message)) for index in found.bad], not rehearses


def part_of(outgoing: Outgoing, numbers: Sequence[int]) -> Outgoing:
    """Some of the records."""
    indexes, called = {number: index for index, number in enumerate(numbers)}, outgoing.places
    return replace(
        outgoing,
        records=[outgoing.records[number] for number in numbers],
        deletes=[indexes[number] for number in outgoing.deletes if number in indexes],
        replays=[outgoing.replays[number] for number in numbers] if outgoing.replays else (),
        places=(lambda index: called(numbers[index])) if called is not None else None,
        streams=[outgoing.streams[number] for number in numbers] if outgoing.streams else (),
    )
