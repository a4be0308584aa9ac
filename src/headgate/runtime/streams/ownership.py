"""Commands on streams, gathered: whatever is due goes to PostgreSQL in one transaction for all streams of this node.

Each command is answered by a future. Commands on one stream keep their order; only one of them is in a transaction at a
time. A claim, a checkpoint and a release of 500 streams cost three statements. Two transactions may be under
way: while PostgreSQL works on one, the next is made ready.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from uuid import UUID

from headgate.core.streams import Checkpoint, Command, Reply, Step
from headgate.errors import NotFound, StoreError
from headgate.store.streams import Streams

MOST = 500  # Commands in one transaction.
LANES = 2  # Transactions under way.


class Ownership:
    """The way from this node to the stream rows."""

    def __init__(self, streams: Streams, node: UUID) -> None:
        self._streams = streams
        self._node = node
        self._pending: deque[tuple[UUID, Command, asyncio.Future[Step]]] = deque()
        self._under_way: set[UUID] = set()  # Streams with a command in a transaction.
        self._lanes: set[asyncio.Task[None]] = set()

    def submit(self, stream: UUID, command: Command) -> asyncio.Future[Step]:
        """Have this command carried out, soon. The future raises StoreError if the database is away."""
        future: asyncio.Future[Step] = asyncio.get_running_loop().create_future()
        self._pending.append((stream, command, future))
        if len(self._lanes) < LANES:
            lane = asyncio.create_task(self._flush(), name="ownership")
            self._lanes.add(lane)
            lane.add_done_callback(self._lanes.discard)
        return future

    async def checkpoint(self, commands: Sequence[tuple[UUID, Checkpoint]]) -> dict[UUID, Reply]:
        """Have all these checkpoints saved. A stream that is gone, or that could not be asked for now, has no answer.

        They wait for nobody: a checkpoint that comes after a release, or under an older epoch, changes nothing.
        """
        replies: dict[UUID, Reply] = {}
        batches = [dict(commands[begin : begin + MOST]) for begin in range(0, len(commands), MOST)]

        async def lane() -> None:
            while batches:
                with contextlib.suppress(StoreError):
                    replies.update(await self._streams.checkpoint(self._node, batches.pop()))

        await asyncio.gather(*(lane() for _ in range(min(LANES, len(batches)))))
        return replies

    async def _flush(self) -> None:
        while batch := self._take():
            streams = {stream for stream, _, _ in batch}
            self._under_way |= streams
            try:
                await self._carry_out(batch)
            finally:
                self._under_way -= streams

    async def _carry_out(self, batch: list[tuple[UUID, Command, asyncio.Future[Step]]]) -> None:
        try:
            steps = await self._streams.apply(self._node, {stream: command for stream, command, _ in batch})
        except StoreError as error:
            _refuse(batch, error)
        except Exception as error:
            if len(batch) == 1:
                _refuse(batch, StoreError(f"a command could not be carried out: {error}"))
            else:  # One of them is at fault: alone it harms nobody else.
                for item in batch:
                    await self._alone(item)
        else:
            _answer(batch, steps)

    async def _alone(self, item: tuple[UUID, Command, asyncio.Future[Step]]) -> None:
        try:
            _answer([item], await self._streams.apply(self._node, {item[0]: item[1]}))
        except Exception as error:
            _refuse([item], StoreError(f"a command could not be carried out: {error}"))

    def _take(self) -> list[tuple[UUID, Command, asyncio.Future[Step]]]:
        """The commands that can go now, together: at most one for each stream."""
        batch: dict[UUID, tuple[UUID, Command, asyncio.Future[Step]]] = {}
        later: deque[tuple[UUID, Command, asyncio.Future[Step]]] = deque()
        while self._pending and len(batch) < MOST:
            item = self._pending.popleft()
            if item[0] in batch or item[0] in self._under_way:
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
