"""The acceptance suite that every connector passes, ours and yours.

Derive a class from `SourceContract`, `SourceInPartsContract`, `SinkContract`, `TransactionalSinkContract` or
`ForgettingSinkContract` in a test module, say how to make the source or sink and what to expect, and pytest finds the
tests:

    class TestFilesSource(SourceContract):
        @pytest.fixture(autouse=True)
        def data(self, tmp_path): ...

        def make_source(self): return FilesSource(options, make_context())

        def expected(self): return [{"id": i} for i in range(100)]

Choose options that make small batches: a suite that reads everything at once proves little. Run it against the real
service. pytest and pytest-asyncio are needed.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec
import pytest

from headgate.connectors.api import Batch, ForgettingSink, Grant, Outgoing, Position, Progress, Sink, Source
from headgate.errors import ConnectorError, EndOfStream, Fenced
from headgate.runtime.streams.parts import Merged
from headgate.testing.contract.patience import held_resources, soon, until_no_more_than
from headgate.testing.factories import make_grant

CANCEL_AFTER = (0, 1, 2, 5, 20)  # Turns of the event loop after which a read is cancelled.


class SourceContract(ABC):
    """What every source does."""

    pytestmark = pytest.mark.asyncio
    ends = True  # Whether the source says `EndOfStream` after the last record; one that follows does not.

    @abstractmethod
    def make_source(self) -> Source:
        """A new source, not opened, on the data of this test."""

    @abstractmethod
    def expected(self) -> list[Any]:
        """All records, in order."""

    def comparable(self, record: Any) -> Any:
        """The record without what differs each time it is read."""
        return record

    async def test_reads_all_in_order(self) -> None:
        async with self._opened(None) as source:
            batches = await self._read(source, len(self.expected()))
            self._same(batches, self.expected())
            if self.ends:
                with pytest.raises(EndOfStream):
                    await soon(source.read())

    async def test_resumes_after_any_position_with_no_gap_and_no_repeat(self) -> None:
        batches = await self._read_all()
        assert len(batches) > 1, "choose options that make several batches"
        handled = 0
        for batch in batches:
            handled += len(batch.records)
            async with self._opened(_stored(batch.position)) as source:
                self._same(await self._read(source, len(self.expected()) - handled), self.expected()[handled:])

    async def test_survives_a_close_and_a_reopen_after_every_batch(self) -> None:
        batches: list[Batch] = []
        position: Position = None
        while sum(len(batch.records) for batch in batches) < len(self.expected()):
            async with self._opened(position) as source:
                batch = await soon(source.read())
                await source.ack(batch.position)
            batches.append(batch)
            position = _stored(batch.position)
        self._same(batches, self.expected())

    async def test_redelivers_what_was_not_acked(self) -> None:
        async with self._opened(None) as source:
            first = await soon(source.read())
            await source.ack(first.position)
            await self._read(source, len(self.expected()) - len(first.records))
        async with self._opened(_stored(first.position)) as source:
            rest = await self._read(source, len(self.expected()) - len(first.records))
        self._same([first, *rest], self.expected())

    async def test_a_check_takes_nothing_from_a_running_source(self) -> None:
        async with self._opened(None) as source:
            first = await soon(source.read())
            other = self.make_source()
            await soon(other.check())
            await other.close()
            rest = await self._read(source, len(self.expected()) - len(first.records))
        self._same([first, *rest], self.expected())

    async def test_a_cancelled_read_loses_nothing(self) -> None:
        for turns in CANCEL_AFTER:
            async with self._opened(None) as source:
                batches = await _cancelled(source, turns)
                handled = sum(len(batch.records) for batch in batches)
                batches += await self._read(source, len(self.expected()) - handled)
            self._same(batches, self.expected())

    async def test_names_each_part_once(self) -> None:
        source = self.make_source()
        names = list(await soon(source.parts()))
        await source.close()
        assert names
        assert len(names) == len(set(names))

    async def test_may_be_closed_twice_and_without_being_opened(self) -> None:
        await soon(self.make_source().close())
        async with self._opened(None) as source:
            await soon(source.close())

    async def test_leaks_no_files_and_no_tasks(self) -> None:
        await self._read_all()  # Whatever the client library keeps for good is there from now on.
        before = held_resources()
        for turns in CANCEL_AFTER:
            await self._read_all()
            async with self._opened(None) as source:
                await _cancelled(source, turns)
        await until_no_more_than(before)

    @asynccontextmanager
    async def _opened(self, position: Position) -> AsyncIterator[Source]:
        source = self.make_source()
        try:
            await soon(source.open(position))
            yield source
        finally:
            await soon(source.close())

    async def _read_all(self) -> list[Batch]:
        async with self._opened(None) as source:
            return await self._read(source, len(self.expected()))

    async def _read(self, source: Source, count: int) -> list[Batch]:
        """Batches until there are at least this many records."""
        batches = []
        while count > 0:
            batches.append(await soon(source.read()))
            assert batches[-1].records, "a batch has at least one record"
            count -= len(batches[-1].records)
        return batches

    def _same(self, batches: list[Batch], expected: list[Any]) -> None:
        found = [self.comparable(record) for batch in batches for record in batch.records]
        assert found == [self.comparable(record) for record in expected]


class AckedSourceContract(SourceContract):
    """What every source does whose server remembers what was acknowledged: that is gone, and all else comes again,
    whatever the position is. Each test has its own data."""

    ends = False

    async def test_resumes_after_any_position_with_no_gap_and_no_repeat(self) -> None:
        """What was acknowledged counts, not the position: that is any of an earlier session."""
        async with self._opened(None) as source:
            batches = await self._read(source, len(self.expected()))
            assert len(batches) > 2, "choose options that make several batches"
            await source.ack(batches[1].position)
        handled = sum(len(batch.records) for batch in batches[:2])
        for position in (None, _stored(batches[0].position), _stored(batches[-1].position)):
            async with self._opened(position) as source:
                self._same(await self._read(source, len(self.expected()) - handled), self.expected()[handled:])

    async def test_an_ack_of_an_earlier_session_acknowledges_nothing(self) -> None:
        async with self._opened(None) as source:
            batches = await self._read(source, len(self.expected()))
        async with self._opened(None) as source:
            await source.ack(_stored(batches[-1].position))
            await self._read(source, 1)
        async with self._opened(None) as source:
            self._same(await self._read(source, len(self.expected())), self.expected())


class SourceInPartsContract(SourceContract):
    """What every source does that can be read in parts: each part is a source, and together they are everything.

    The tests of `SourceContract` read the first part. Choose options that make three parts or more.
    """

    @abstractmethod
    def make_part(self, part: str) -> Source:
        """A new source, not opened, that reads this part; the source as a whole, which only lists them, for `""`."""

    @abstractmethod
    def expected_parts(self) -> dict[str, list[Any]]:
        """The records of each part, in order; the parts in the order in which the source lists them."""

    def make_source(self) -> Source:
        return self.make_part(next(iter(self.expected_parts())))

    def expected(self) -> list[Any]:
        return next(iter(self.expected_parts().values()))

    async def test_lists_its_parts_by_name_and_in_the_same_order_each_time(self) -> None:
        for _ in range(3):
            source = self.make_part("")
            try:
                assert list(await soon(source.parts())) == list(self.expected_parts())
                assert list(await soon(source.parts())) == list(self.expected_parts())
            finally:
                await soon(source.close())
        assert "" not in self.expected_parts(), "a part has a name"

    async def test_each_part_has_its_own_records_whoever_reads_the_others(self) -> None:
        parts = self.expected_parts()
        sources = {part: self.make_part(part) for part in parts}
        batches: dict[str, list[Batch]] = {part: [] for part in parts}
        try:
            for source in sources.values():
                await soon(source.open(None))
            for _ in range(max(map(len, parts.values()))):  # In turn, so that all are open at the same time.
                for part, source in sources.items():
                    if _count(batches[part]) < len(parts[part]):
                        batches[part] += await self._read(source, 1)
                        await source.ack(batches[part][-1].position)
        finally:
            for source in sources.values():
                await soon(source.close())
        for part, expected in parts.items():
            self._same(batches[part], expected)

    async def test_as_one_source_they_go_on_after_a_close_and_a_reopen_after_every_batch(self) -> None:
        """As a stream reads several parts: its position is a map, part to position."""
        total = sum(map(len, self.expected_parts().values()))
        records: list[Any] = []
        position: Position = None
        while len(records) < total:
            merged = Merged({part: self.make_part(part) for part in self.expected_parts()})
            try:
                await soon(merged.open(position))
                batch = await soon(merged.read())
                await merged.ack(batch.position)
            finally:
                await soon(merged.close())
            records += batch.records
            position = _stored(batch.position)
        found = [repr(self.comparable(record)) for record in records]
        expected = [repr(self.comparable(record)) for part in self.expected_parts().values() for record in part]
        assert sorted(found) == sorted(expected)

    async def test_as_one_source_a_cancelled_read_loses_nothing(self) -> None:
        total = sum(map(len, self.expected_parts().values()))
        for turns in CANCEL_AFTER:
            merged = Merged({part: self.make_part(part) for part in self.expected_parts()})
            try:
                await soon(merged.open(None))
                batches = await _cancelled(merged, turns)
                batches += await self._read(merged, total - _count(batches))
            finally:
                await soon(merged.close())
            assert _count(batches) == total


class SinkContract(ABC):
    """What every sink does."""

    pytestmark = pytest.mark.asyncio

    @abstractmethod
    def make_sink(self) -> Sink:
        """A new sink, not opened, on the place of this test."""

    @abstractmethod
    async def read_back(self) -> list[dict[str, Any]] | None:
        """All records that the sink has, in the order of `id`; None if nobody can know."""

    def make_records(self, first: int, number: int) -> list[dict[str, Any]]:
        """Records that the sink takes, with the integers from `first` on as their `id`."""
        return [{"id": id, "text": f"record {id}"} for id in range(first, first + number)]

    async def test_records_are_there_when_a_write_returns(self) -> None:
        async with self._opened(1) as sink:
            await self._write(sink, 0, 10, commits=1)
            await self._has(10)
            await self._write(sink, 10, 20, commits=2)
            await self._has(20)

    async def test_goes_on_after_a_close_and_a_reopen(self) -> None:
        for epoch in (1, 2, 3):
            async with self._opened(epoch) as sink:
                await self._write(sink, 10 * (epoch - 1), 10 * epoch, commits=epoch)
        await self._has(30)

    async def test_takes_an_empty_batch(self) -> None:
        async with self._opened(1) as sink:
            await self._write(sink, 0, 0, commits=1)
        await self._has(0)

    async def test_a_check_changes_nothing(self) -> None:
        async with self._opened(1) as sink:
            await self._write(sink, 0, 10, commits=1)
            other = self.make_sink()
            await soon(other.check())
            await other.close()
            await self._write(sink, 10, 20, commits=2)
        await self._has(20)

    async def test_may_be_closed_twice_and_without_being_opened(self) -> None:
        await soon(self.make_sink().close())
        async with self._opened(1) as sink:
            await soon(sink.close())

    async def test_leaks_no_files_and_no_tasks(self) -> None:
        async with self._opened(1) as sink:  # Whatever the client library keeps for good is there from now on.
            await self._write(sink, 0, 10, commits=1)
        before = held_resources()
        for epoch in (2, 3, 4):
            async with self._opened(epoch) as sink:
                await self._write(sink, 10 * epoch, 10 * epoch + 10, commits=epoch)
        await until_no_more_than(before)

    @asynccontextmanager
    async def _opened(self, epoch: int) -> AsyncIterator[Sink]:
        sink = self.make_sink()
        try:
            await soon(sink.open(make_grant(epoch=epoch)))
            yield sink
        finally:
            await soon(sink.close())

    async def _write(self, sink: Sink, first: int, end: int, commits: int) -> None:
        records = self.make_records(first, end - first)
        await soon(sink.write(Outgoing(records, Progress(commits=commits, position=end), key=("id",))))

    async def _has(self, number: int) -> None:
        """The sink has exactly the first `number` records."""
        found = await self.read_back()
        assert found is None or found == self.make_records(0, number)


class TransactionalSinkContract(SinkContract):
    """What every sink does that keeps the position with the data."""

    def make_refused_records(self) -> list[dict[str, Any]] | None:
        """Good records and then one that the sink refuses; None if it refuses none."""
        return None

    async def test_open_returns_what_was_committed(self) -> None:
        async with self._opened(1) as sink:
            await self._write(sink, 0, 10, commits=1)
            await self._write(sink, 10, 20, commits=2)
        assert await self._progress(2) == Progress(commits=2, position=20)

    async def test_open_with_a_stale_epoch_is_fenced(self) -> None:
        async with self._opened(5) as sink:
            await self._write(sink, 0, 10, commits=1)
            for epoch in (4, 5):
                with pytest.raises(Fenced):
                    await self._progress(epoch)
            await self._write(sink, 10, 20, commits=2)
        await self._has(20)

    async def test_a_write_with_a_stale_epoch_is_fenced_and_changes_nothing(self) -> None:
        async with self._opened(1) as old, self._opened(2) as new:
            await self._write(new, 0, 10, commits=1)
            with pytest.raises(Fenced):
                await self._write(old, 10, 20, commits=2)
        await self._has(10)
        assert await self._progress(3) == Progress(commits=1, position=10)

    async def test_position_and_data_commit_together_or_not_at_all(self) -> None:
        refused = self.make_refused_records()
        if refused is None:
            pytest.skip("this sink refuses no record")
        async with self._opened(1) as sink:
            await self._write(sink, 0, 10, commits=1)
            with pytest.raises(ConnectorError):
                await soon(sink.write(Outgoing(refused, Progress(commits=2, position=20), key=("id",))))
        await self._has(10)
        assert await self._progress(2) == Progress(commits=1, position=10)

    async def test_an_open_without_trust_keeps_nothing(self) -> None:
        """It is that of a node which others have given up: once its stream is forgotten, no row would fence it."""
        with pytest.raises(ConnectorError):
            await self._progress(make_grant(epoch=1, trust_left_s=0.0))
        async with self._opened(1) as sink:  # The same epoch: nobody has raised it.
            await self._write(sink, 0, 10, commits=1)
        await self._has(10)

    async def _progress(self, epoch: int | Grant) -> Progress | None:
        sink = self.make_sink()
        try:
            return await soon(sink.open(make_grant(epoch=epoch) if isinstance(epoch, int) else epoch))
        finally:
            await soon(sink.close())


class ForgettingSinkContract(TransactionalSinkContract):
    """What every transactional sink does that removes what it kept of streams that are gone."""

    @abstractmethod
    def make_sink(self) -> ForgettingSink:
        """A new sink, not opened, on the place of this test."""

    async def test_forgets_a_stream_and_keeps_its_records(self) -> None:
        async with self._opened(3) as sink:
            await self._write(sink, 0, 10, commits=1)
        await self._forget(make_grant())
        await self._has(10)
        # Not that of the old stream: a new one begins with what the registry says, under any epoch.
        progress = await self._progress(1)
        assert progress is None or (progress.position is None and progress.commits == 0)

    async def test_forgets_no_other_stream_and_no_other_installation(self) -> None:
        others = [make_grant("other"), make_grant(installation=UUID(int=7))]
        async with self._opened(1) as sink:
            await self._write(sink, 0, 10, commits=1)
        for number, grant in enumerate(others, start=1):
            sink = self.make_sink()
            await soon(sink.open(grant))
            await self._write(sink, 10 * number, 10 * number + 10, commits=number)
            await soon(sink.close())
        await self._forget(make_grant())
        for number, grant in enumerate(others, start=1):
            progress = await self._progress(replace(grant, epoch=2))
            assert progress is not None
            assert progress.position == 10 * number + 10

    async def test_a_run_of_a_forgotten_stream_is_fenced_and_changes_nothing(self) -> None:
        async with self._opened(1) as old:
            await self._write(old, 0, 10, commits=1)
            await self._forget(make_grant())
            with pytest.raises(Fenced):
                await self._write(old, 10, 20, commits=2)
        await self._has(10)

    async def test_a_late_open_does_not_bring_a_forgotten_stream_back(self) -> None:
        async with self._opened(1) as sink:
            await self._write(sink, 0, 10, commits=1)
        await self._forget(make_grant())
        with pytest.raises(ConnectorError):
            await self._progress(make_grant(epoch=2, trust_left_s=0.0))
        assert await self._progress(1) is not None  # No row fences the first epoch.

    async def test_forgets_what_is_not_there_and_twice(self) -> None:
        await self._forget(make_grant())
        async with self._opened(1) as sink:
            await self._write(sink, 0, 10, commits=1)
        await self._forget(make_grant("other"))
        await self._forget(make_grant())
        await self._forget(make_grant())

    async def _forget(self, grant: Grant) -> None:
        sink = self.make_sink()
        try:
            await soon(sink.forget(grant.installation, [grant.stream]))
        finally:
            await soon(sink.close())


def _count(batches: list[Batch]) -> int:
    return sum(len(batch.records) for batch in batches)


async def _cancelled(source: Source, turns: int) -> list[Batch]:
    """The batch of a read that is cancelled after this many turns of the loop; none if the read was slower."""
    reading = asyncio.ensure_future(source.read())
    for _ in range(turns):
        await asyncio.sleep(0)
    reading.cancel()
    with suppress(asyncio.CancelledError):
        return [await reading]
    return []


def _stored(position: Position) -> Position:
    """The position as it comes back from the database."""
    return msgspec.json.decode(msgspec.json.encode(position))
