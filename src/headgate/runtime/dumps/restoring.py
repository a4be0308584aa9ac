"""Restoring: makes the definitions of a whole database around its rows.

`core.chunks.definitions` says when each can be made. Those that come before the rows are made one after another; the
others as soon as they can be, as many at a time as the dump has workers, each by its own session. One that cannot be
made is noted, and the others go on. The target's ledger knows what is made, so that a dump which is resumed goes on
there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from uuid import UUID

from headgate.connectors.api.bulk import Reader, StorageError, Writer
from headgate.connectors.api.whole import Around, Definition, Left, Moment, Wanted, WholeReader, WholeWriter
from headgate.core.chunks.definitions import startable
from headgate.runtime.dumps.plan import Storages

BARE = "it has no column that could be copied"
NEW = "the table was made after the dump was planned"


class Restoring:
    """The definitions of one dump."""

    def __init__(
        self,
        storages: Storages,
        dump: UUID,
        wanted: Wanted,
        around: Around | None,
        places: int,
        on_change: Callable[[], None],
    ) -> None:
        self._storages = storages
        self._dump = dump
        self._wanted = wanted
        self._around = around
        self._places = places
        self._on_change = on_change
        self._reader: Reader = storages.read()
        self._idle: list[Writer] = []  # Sessions that nobody uses.
        self._made: set[str] = set()  # Keys that the ledger had at the start.
        self._waiting: dict[int, Definition] = {}
        self._running: dict[asyncio.Task[None], Definition] = {}
        self._full: set[str] = set()
        self._last = 0  # The greatest number of a definition.
        self._is_after = False
        self._is_last = False  # What follows everything else has been asked for.
        self._error: BaseException | None = None
        self._left: list[Left] = []

    async def begin(self, snapshot: str, planned: Collection[str], bare: Mapping[str, bool]) -> None:
        """Learn the definitions, and make those that the rows need. `planned` are the tables whose rows are copied, and
        `bare` those that have nothing to copy, some with rows; nothing waits for any other."""
        self._reader = self._storages.read(snapshot)
        reader, writer = self._whole_reader(), self._storages.write()
        self._idle.append(writer)
        if self._around is None:
            definitions, self._left = await reader.definitions(self._wanted)
        else:
            definitions = list(self._around.definitions)
        others = {table for one in definitions for table in one.tables} - set(planned)
        self._full |= others
        self._left += [Left("rows", of=name, why=BARE) for name in sorted(bare) if bare[name]]
        self._left += [Left("rows", of=name, why=NEW) for name in sorted(others - bare.keys())]
        self._last = max((one.number for one in definitions), default=0)
        self._made = await _whole(writer).made(self._dump)
        for one in definitions:
            if one.moment is Moment.BEFORE:
                await self._make(writer, one)
            else:
                self._waiting[one.number] = one

    def fill(self, tables: Iterable[str]) -> None:
        """These tables have all their rows."""
        self._full.update(tables)
        self._start()

    async def end(self) -> None:
        """All tables are full, or given up in this run. Make the rest; `is_over` says when it is made."""
        if not self._is_last:
            self._is_last = self._is_after = True
            for one in await self._whole_reader().last_definitions(self._wanted, self._last):
                self._waiting[one.number] = one
        self._start()

    @property
    def is_over(self) -> bool:
        """Whether nothing more can be made in this run. Raises what ended it."""
        if self._error is not None:
            raise self._error
        return self._is_last and not self._running

    def left_behind(self) -> list[Left]:
        """What could not be made, and what waits for a table that is not full."""
        return self._left + [one.left("what it needs is not there yet") for one in self._waiting.values()]

    def _start(self) -> None:
        if self._error is not None:
            return
        found = startable(self._waiting, self._running.values(), self._full, self._places, is_after=self._is_after)
        for one in found:
            del self._waiting[one.number]
            task = asyncio.create_task(self._work(one), name=f"make {one.kind} {one.name}")
            self._running[task] = one
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
        elif not task.cancelled():
            self._start()
        self._on_change()

    async def _work(self, one: Definition) -> None:
        writer = self._idle.pop() if self._idle else self._storages.write()
        try:
            await self._make(writer, one)
        finally:
            self._idle.append(writer)

    async def _make(self, writer: Writer, one: Definition) -> None:
        if one.key in self._made:
            return
        statements = None if one.statement else self._whole_reader().statements(one)
        self._left += await _whole(writer).make(self._dump, one, statements)

    def _whole_reader(self) -> WholeReader:
        if not isinstance(self._reader, WholeReader):
            raise StorageError("the source cannot tell its definitions")
        return self._reader

    async def tidy_up(self) -> None:
        """All is made: the target keeps nothing of the dump."""
        writer = self._idle.pop() if self._idle else self._storages.write()
        self._idle.append(writer)
        await _whole(writer).tidy_up(self._dump)

    async def give_up(self) -> list[Left]:
        """The dump is cancelled: make again what was dropped for the rows. Returns what cannot be."""
        dropped = self._around.made_again if self._around is not None else []
        writer = self._storages.write()
        try:
            for one in dropped:
                await self._make(writer, one)
        finally:
            await writer.close()
        return self._left

    async def close(self) -> None:
        """End all sessions, and what they do."""
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        sessions: list[Reader | Writer] = [self._reader, *self._idle]
        for session in sessions:
            with suppress(Exception):
                await session.close()


def _whole(writer: Writer) -> WholeWriter:
    if not isinstance(writer, WholeWriter):
        raise StorageError("the target cannot make definitions of another database")
    return writer
