"""Runs one job, in its process: reads, maps, rehearses the write, and sends what became of each input."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import msgspec

from headgate.connectors.api import Context, HasColumns, LetterSink, Outgoing, Progress, SourceStream
from headgate.connectors.guard import Guard
from headgate.core.harness.results import Given, Result
from headgate.core.mapping.document import Mapping, compile_mapping
from headgate.core.records import Unreadable
from headgate.core.source_streams import SourceStreams
from headgate.datasources import functions
from headgate.datasources.prepared import Prepared, prepare
from headgate.errors import Bad, BadRecords, BatchRefused
from headgate.runtime.harness import inputs
from headgate.runtime.harness.inputs import Item, OneByOne
from headgate.runtime.harness.mapped import results_of
from headgate.runtime.harness.safe import safe, size_of
from headgate.runtime.harness.wire import Case, Finished, Job, Message, Outcome, Stage
from headgate.runtime.streams import sides
from headgate.runtime.streams.hosting import Threaded
from headgate.runtime.streams.shared import SharedThings

MOST_REHEARSALS = 500  # Each is a transaction; halves of a few bad records take far fewer.

Send = Callable[[Message], None]


@dataclass(slots=True)
class _Tried:
    """One input, what became of it, and what of that the sink would get."""

    case: int
    item: Item
    results: list[Result]
    rows: list[dict[str, Any]]
    took_s: float


async def run_job(job: Job, guards: tuple[Guard, Guard], log: Any, send: Send) -> Finished:
    """All of it; raises what keeps it from going on."""
    found = prepare(job.content, job.secrets, "", job.guard.guard(), functions.load_here)
    prepared = replace(found, source_guard=guards[0], sink_guard=guards[1])
    feed = OneByOne()
    context = Context(f"{job.name}:test", log, time.time, SharedThings(), inbox=feed, feed=feed, is_rehearsal=True)
    return await _Running(job, prepared, context, send).run()


class _Running:
    """One run of a job."""

    def __init__(self, job: Job, prepared: Prepared, context: Context, send: Send) -> None:
        self._job = job
        self._prepared = prepared
        self._context = context
        self._send = send
        self._left = job.results
        load = partial(functions.load_here, guard=job.guard.guard())
        self._published = compile_mapping(job.published_mapping, load=load) if job.is_compared else None

    async def run(self) -> Finished:
        tried: list[_Tried] = []
        for number, case in enumerate(self._job.cases):
            self._send(Stage("reading"))
            async for item in self._items(case):
                one = self._try(number, item)
                if self._job.is_rehearsed:
                    tried.append(one)
                else:
                    self._tell(one)
                if self._left <= 0:
                    return Finished(is_cut=True)
        columns = await self._rehearse(tried) if self._job.is_rehearsed else None
        for one in tried:
            self._tell(one)
        return Finished(columns)

    def _items(self, case: Case) -> AsyncIterator[Item]:
        if case.fetch:
            return inputs.from_source(self._prepared, self._context, case.fetch)
        given = case.given
        if case.payload is not None:
            given = inputs.from_payload(self._prepared, case.payload, case.at_s)
        return inputs.from_given(self._prepared, self._context, given)

    def _try(self, case: int, item: Item) -> _Tried:
        began = time.perf_counter()
        made = results_of(self._prepared.mapping, item.record, item.meta)
        took_s = time.perf_counter() - began
        kept = made.results[: max(self._left, 0)]
        self._left -= len(made.results)
        return _Tried(case, item, kept, made.rows[: len(kept)], took_s)

    def _tell(self, one: _Tried) -> None:
        item = one.item
        again = self._mapped(self._prepared.mapping, item) if self._job.is_repeated else []
        published = [] if self._published is None else self._mapped(self._published, item)
        before, size_bytes = _shown(item.record), size_of(item.record)
        found = Outcome(one.case, item.index, item.given, before, one.results, again, published, one.took_s, size_bytes)
        try:
            self._send(found)
        except ValueError:  # Too long for a frame: what became of it is told without the values.
            bare = [_bare(result) for result in one.results]
            self._send(Outcome(one.case, item.index, Given(), None, bare, [], [], one.took_s, size_bytes, True))

    def _mapped(self, mapping: Mapping, item: Item) -> list[Result]:
        return results_of(mapping, item.record, item.meta).results[: self._job.results]

    # The sink.

    async def _rehearse(self, tried: list[_Tried]) -> list[str] | None:
        """Have the sink write all that it would get, and take it back. Those that it refuses become dead letters."""
        self._send(Stage("writing"))
        sink = cast(LetterSink, sides.build_sink(self._prepared, self._context))
        try:
            key = self._prepared.mapping.key
            streams = SourceStreams(key) if self._prepared.splits else None
            rows = [
                _Row(row, one.results[at].is_delete, None if streams is None else streams.of(one.item.meta))
                for one in tried
                for at, row in enumerate(one.rows)
            ]
            refused = await _refused(sink, rows, key)
            first = 0
            for one in tried:
                bad = {at - first: refused[at] for at in range(first, first + len(one.rows)) if at in refused}
                one.results = _with_refused(one.results, bad)
                first += len(one.rows)
            if isinstance(sink, HasColumns) and not isinstance(sink, Threaded):  # That one has any name.
                return list(await sink.columns()) or None
            return None
        finally:
            await inputs.close(sink)


def _shown(record: Any) -> Any:
    return record.body.decode("utf-8", "replace") if isinstance(record, Unreadable) else safe(record)


def _bare(result: Result) -> Result:
    """The result without its values."""
    return msgspec.structs.replace(result, after=None)


def _with_refused(results: list[Result], bad: dict[int, Bad]) -> list[Result]:
    """The results of which those that the sink refuses are dead letters. `bad` counts the written ones."""
    found, written = [], 0
    for one in results:
        if one.outcome == "written":
            if (why := bad.get(written)) is not None:
                one = Result("dead_lettered", one.after, one.is_delete, "sink", why.field, why.reason)
            written += 1
        found.append(one)
    return found


@dataclass(frozen=True, slots=True)
class _Row:
    """A record for the sink. Those that are written come first among the results of their input."""

    fields: dict[str, Any]
    is_delete: bool
    stream: SourceStream | None  # If the sink splits by them.


async def _refused(sink: LetterSink, rows: list[_Row], key: tuple[str, ...]) -> dict[int, Bad]:
    """Which rows the sink would refuse, by their index. It need not be open for a rehearsal."""
    bad: dict[int, Bad] = {}
    waiting = [list(range(len(rows)))] if rows else []
    for _ in range(MOST_REHEARSALS):
        if not waiting:
            break
        some = [index for index in waiting.pop(0) if index not in bad]
        if not some:
            continue
        try:
            deletes = [number for number, index in enumerate(some) if rows[index].is_delete]
            streams = [stream for index in some if (stream := rows[index].stream) is not None]
            records = [rows[index].fields for index in some]
            await sink.rehearse(Outgoing(records, Progress(0, 1, None), key, deletes, streams=streams))
        except BadRecords as error:
            bad |= {some[one.index]: replace(one, index=some[one.index]) for one in error.bad}
            waiting.insert(0, some)
        except BatchRefused as error:
            if len(some) == 1:
                bad[some[0]] = Bad(some[0], None, error.message)
            else:
                waiting[:0] = [some[: len(some) // 2], some[len(some) // 2 :]]
    return bad
