"""Commands on streams, gathered: whatever is due goes to PostgreSQL in one transaction for all streams of this node.

Each command is answered by a future. Commands on one stream keep their order; only one of them is in a transaction at a
time. A claim, a checkpoint and a release of a thousand streams cost three statements.
"""

from __future__ import annotations

import asyncio
from collections import deque
from uuid import UUID

from headgate.core.streams import Command, Step
from headgate.errors import NotFound, StoreError
from headgate.store.streams import Streams

MOST = 1000  # Commands in one transaction.


class Ownership:
    """The way from this node to the stream rows."""

    def __init__(self, streams: Streams, node: UUID) -> None:
        self._streams = streams
        self._node = node
        self._pending: deque[tuple[UUID, Command, asyncio.Future[Step]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def submit(self, stream: UUID, command: Command) -> asyncio.Future[Step]:
        """Have this command carried out, soon. The future raises StoreError if the database is away."""
        future: asyncio.Future[Step] = asyncio.get_running_loop().create_future()
        self._pending.append((stream, command, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush(), name="ownership")
        return future

    async def _flush(self) -> None:
        while self._pending:
            batch = self._take()
            try:
                steps = await self._streams.apply(self._node, {stream: command for stream, command, _ in batch})
            except StoreError as error:
                _refuse(batch, error)
                continue
            except Exception as error:
                if len(batch) == 1:
                    _refuse(batch, StoreError(f"a command could not be carried out: {error}"))
                else:  # One of them is at fault: alone it harms nobody else.
                    for item in batch:
                        await self._alone(item)
                continue
            _answer(batch, steps)

    async def _alone(self, item: tuple[UUID, Command, asyncio.Future[Step]]) -> None:
        try:
            _answer([item], await self._streams.apply(self._node, {item[0]: item[1]}))
        except Exception as error:
            _refuse([item], StoreError(f"a command could not be carried out: {error}"))

    def _take(self) -> list[tuple[UUID, Command, asyncio.Future[Step]]]:
        """The commands that can go together: at most one for each stream."""
        batch: dict[UUID, tuple[UUID, Command, asyncio.Future[Step]]] = {}
        later: deque[tuple[UUID, Command, asyncio.Future[Step]]] = deque()
        while self._pending and len(batch) < MOST:
            item = self._pending.popleft()
            if item[0] in batch:
                later.append(item)
            else:
                batch[item[0]] = item
        self._pending.extendleft(reversed(later))
        return list(batch.values())


def _answer(batch: list[tuple[UUID, Command, asyncio.Future[Step]]], steps: dict[UUID, Step]) -> None:
    for stream, _, future in batch:
        if future.done():
            continue
        if stream in steps:
            future.set_result(steps[stream])
        else:
            future.set_exception(NotFound("the stream is gone"))


def _refuse(batch: list[tuple[UUID, Command, asyncio.Future[Step]]], error: StoreError) -> None:
    for _, _, future in batch:
        if not future.done():
            future.set_exception(error)
