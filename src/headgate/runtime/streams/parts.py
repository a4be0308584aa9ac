"""Sources that are read in parts: one source for each part that a stream reads, seen as one source.

A part's next batch is read as soon as its last one was taken, so of each part there is at most one batch in memory, and
batches are taken in the order in which they came: a part that has much does not keep the others waiting. The position
is a map, part → position, of everything that was taken so far. Parts that are not read now, because the source does not
list them any more or they are another stream's, keep their place in it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from headgate.connectors.api import Backlog, Batch, Position, Source
from headgate.core.parts import UNNAMED, parts_of
from headgate.errors import Cause, ConnectorError, EndOfStream, RetryLater

MOST = 10_000  # Parts of one source. Their names are one value in the registry.
OPENING = 50  # Parts opened at a time.
CANCEL_S = 1.0  # For a cancelled read to end; after that its source is closed anyway.


async def _as_found(names: Sequence[str]) -> Sequence[str]:
    return names


@dataclass(frozen=True, slots=True)
class Share:
    """Which parts of the source a run reads: those of stream `index` of `of`, by their places in the registry."""

    index: int = 0
    of: int = 1
    listed: Callable[[Sequence[str]], Awaitable[Sequence[str]]] = _as_found  # All names, once these were found.


async def take(build: Callable[[str], Source], share: Share) -> Source:
    """What a run reads: one source as it is, if it has one unnamed part, or the parts of this share as one."""
    whole = build("")
    try:
        names = tuple(await whole.parts())
        _check_names(names)
        if names == UNNAMED and share.index == 0:
            return whole
        mine = [] if names == UNNAMED else parts_of(share.index, share.of, await share.listed(names))
        present = set(names)
        # Before the whole is closed, because a process that all of them live in ends with the last one.
        found = Nothing() if names == UNNAMED else Merged({name: build(name) for name in mine if name in present})
    except BaseException:
        with suppress(Exception):
            await whole.close()
        raise
    await whole.close()
    return found


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) != len(names) or ("" in names and names != UNNAMED):
        raise ConnectorError("the source lists a part twice, or one without a name among others")
    if len(names) > MOST:
        raise ConnectorError(f"the source has {len(names)} parts; at most {MOST} are allowed", cause=Cause.CONFIG)


class Nothing:
    """The source of a stream that has nothing to read. Its position stays as it is."""

    async def check(self) -> None:
        """Nothing can be missing."""

    async def parts(self) -> Sequence[str]:
        return []

    async def open(self, position: Position) -> None:
        """Nothing needs to be opened."""

    async def read(self) -> Batch:
        raise EndOfStream("no part of the source is this stream's")

    async def backlog(self) -> Backlog | None:
        """Nothing waits for it."""
        return None

    async def ack(self, position: Position) -> None:
        """Nothing was read."""

    async def close(self) -> None:
        """Nothing is held."""


class Merged:
    """Several sources as one."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = dict(sources)
        self._reading: dict[str, asyncio.Task[Batch]] = {}
        self._ready: deque[str] = deque()  # Parts whose task is done, oldest first.
        self._arrived = asyncio.Event()
        self._ended: set[str] = set()
        self._position: dict[str, Position] = {}
        self._acked: dict[str, Position] = {}

    async def check(self) -> None:
        await _all(source.check() for source in self._sources.values())

    async def parts(self) -> Sequence[str]:
        return list(self._sources)

    async def open(self, position: Position) -> None:
        if position is not None and not isinstance(position, Mapping):
            raise ConnectorError(
                f"the position of a source with parts is a map from part to position, not {position!r}",
                cause=Cause.CONFIG,
                hint="headgate streams set-position",
            )
        self._position = dict(position or {})
        self._acked = dict(self._position)
        limit = asyncio.Semaphore(OPENING)

        async def open_one(part: str, source: Source) -> None:
            async with limit:
                await source.open(self._position.get(part))

        await _all(open_one(part, source) for part, source in self._sources.items())

    async def read(self) -> Batch:
        for part in self._sources:
            if part not in self._reading and part not in self._ended:
                self._start(part)
        while True:
            while not self._ready:
                if not self._reading:
                    raise EndOfStream("all parts have ended")
                self._arrived.clear()
                await self._arrived.wait()
            part = self._ready.popleft()
            try:
                batch = self._reading.pop(part).result()
            except EndOfStream:
                self._ended.add(part)
                continue
            self._start(part)
            self._position = {**self._position, part: batch.position}
            return replace(batch, position=self._position, place=_placed(part, batch))

    def _start(self, part: str) -> None:
        task = self._reading[part] = asyncio.ensure_future(_next(self._sources[part]))
        task.add_done_callback(lambda done: self._done(part, done))

    def _done(self, part: str, task: asyncio.Task[Batch]) -> None:
        if not task.cancelled():
            task.exception()  # `next` raises it; if nobody calls that any more, asyncio need not complain.
            self._ready.append(part)
            self._arrived.set()

    async def ack(self, position: Position) -> None:
        changed = {part: at for part, at in position.items() if part in self._sources and at != self._acked.get(part)}
        for part, at in changed.items():
            await self._sources[part].ack(at)
        self._acked = position

    async def backlog(self) -> Backlog | None:
        """That of all parts together."""
        found = await asyncio.gather(*(source.backlog() for source in self._sources.values()))  # type: ignore[attr-defined]
        known = [one for one in found if one is not None]
        return Backlog(_sum([one.records for one in known]), _sum([one.bytes for one in known])) if known else None

    async def close(self) -> None:
        reading, self._reading = self._reading, {}
        for task in reading.values():
            task.cancel()
        self._ready.clear()
        if reading:
            await asyncio.wait(reading.values(), timeout=CANCEL_S)
        await _all(source.close() for source in self._sources.values())


def _sum(found: Iterable[int | None]) -> int | None:
    known = [one for one in found if one is not None]
    return sum(known) if known else None


def _placed(part: str, batch: Batch) -> Callable[[int], str] | None:
    """The places of a part's records, with its name."""
    place = batch.place
    return None if place is None else lambda index: f"{part}, {place(index)}"


async def _next(source: Source) -> Batch:
    """The next batch of one part. One that asks for patience holds up nobody else."""
    while True:
        try:
            return await source.read()
        except RetryLater as later:
            await asyncio.sleep(later.after_s)


async def _all(waiting: Iterable[Awaitable[Any]]) -> None:
    """Await all of them, then raise the first error."""
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
