"""Takes elements from a list, oldest first, and keeps each until it is written.

An element is moved, not popped: into a list of this stream's own, in the same order, where it stays until it is
acknowledged. Elements there have numbers that never change, because they are only appended and only removed in front.
The position is such a number, with the *history* in which it means something. A history ends when a position cannot be
of it, as after a loss of data, and then everything that was taken is read again. So into a sink that keeps the position
nothing comes twice, and nothing is lost if a run ends anywhere.

A run that was replaced may still move elements: they end up in the same list, and are read from there. Elements are
therefore always read from that list by their numbers, never from the reply of the command that moved them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from headgate.connectors.api import Backlog, Batch, Context, Position
from headgate.connectors.payloads import KEPT_BYTES, decoded, too_large
from headgate.connectors.redis.options import RedisSourceOptions, next_to
from headgate.connectors.redis.scripts import TAKE, TAKE_BEGIN, TAKE_END
from headgate.connectors.redis.session import ANSWER_S, Session, TooMuch, address_of
from headgate.errors import Cause, ConnectorError

WAIT_S = 5.0  # An empty list is asked again this often, so that a server that is gone is noticed.
PEEKED = 10  # Elements that a rehearsal looks at together.


class RedisListSource:
    """Takes from one list."""

    def __init__(self, options: RedisSourceOptions, context: Context) -> None:
        assert options.list is not None
        self._options = options
        self._list = options.list
        self._taken = options.processing or next_to(options.list, f"taken:{context.stream}")
        self._state = next_to(self._taken, f"state:{context.stream}") if options.processing else f"{self._taken}:state"
        self._is_rehearsal = context.is_rehearsal
        address = address_of(options.url.get_secret_value())
        self._session = Session(address, context.guard)
        self._other = Session(address, context.guard)  # For what is asked and said while a read waits on the first.
        self._format = options.format or "json"
        assert self._format != "fields"
        self._history = ""
        self._last = 0  # The number of the last element that was read.

    async def check(self) -> None:
        """An empty list does not exist, so only another kind of value is wrong."""
        for key in (self._list, self._taken):
            kind = (await self._session.call("TYPE", key)).decode()
            if kind not in ("none", "list"):
                raise ConnectorError(
                    f"{self._session.name}: {key!r} is no list, but a {kind}",
                    cause=Cause.CONFIG,
                    hint="name the stream with stream" if kind == "stream" else "name another key",
                )

    async def parts(self) -> Sequence[str]:
        """One."""
        return [""]

    async def open(self, position: Position) -> None:
        """What was taken and is not written comes first."""
        match position:
            case None:
                history, number = "", 0
            case {"history": str() as history, "number": int() as number}:
                pass
            case _:
                raise ConnectorError("the position is not that of an element", cause=Cause.CONFIG)
        await self.check()
        self._last = 0
        if not self._is_rehearsal:
            keys = [self._taken, self._state]
            history, self._last = await TAKE_BEGIN.run(self._session, keys, history, number, uuid4().hex[:12])
            self._history = history.decode()

    async def read(self) -> Batch:
        """Wait for elements."""
        while True:
            sizes, elements = await self._take()
            if elements:
                return await self._batch(sizes, elements)
            await self._wait()

    async def backlog(self) -> Backlog | None:
        """How many elements wait in the list."""
        waiting = await self._other.call("LLEN", self._list)
        return Backlog(waiting)

    async def ack(self, position: Position) -> None:
        """Remove what is written."""
        assert isinstance(position, dict)
        if not self._is_rehearsal:
            keys = [self._taken, self._state]
            await TAKE_END.run(self._other, keys, position["history"], position["number"])

    async def close(self) -> None:
        """End the connections. What was taken and is not written stays where it is."""
        await self._session.close()
        await self._other.close()

    async def _take(self) -> tuple[list[int], list[bytes]]:
        options = self._options
        if self._is_rehearsal:
            last = self._last + min(options.batch, PEEKED) - 1
            elements = await self._session.call("LRANGE", self._list, self._last, last)
            return [len(one) for one in elements], elements
        sizes, elements = await TAKE.run(
            self._session,
            [self._taken, self._state, self._list],
            self._history,
            self._last,
            options.batch,
            options.batch_bytes,
            options.max_message_bytes,
            KEPT_BYTES,
            most_bytes=options.batch_bytes + max(options.max_message_bytes, KEPT_BYTES) + 64 * (options.batch + 1),
        )
        return sizes, elements

    async def _wait(self) -> None:
        """Until there is an element, which is moved, or for a while."""
        wait: tuple[Any, ...] = ("BLMOVE", self._list, self._taken, "LEFT", "RIGHT", WAIT_S)
        if self._is_rehearsal:  # Nothing may be moved: a list that both ends stay in.
            wait = ("BLMOVE", self._list, self._list, "LEFT", "LEFT", WAIT_S)
        try:
            await self._session.call(*wait, most_bytes=self._options.max_message_bytes, within_s=WAIT_S + ANSWER_S)
        except TooMuch:  # It is where it should be, and is read from there.
            return

    async def _batch(self, sizes: list[int], elements: list[bytes]) -> Batch:
        most, key = self._options.max_message_bytes, self._list
        assert self._format != "fields"
        records = await decoded(elements, self._format, most)
        for index, size_bytes in enumerate(sizes):
            if size_bytes > most:
                records[index] = too_large(elements[index], size_bytes, most)
        first = self._last + 1
        self._last += len(elements)
        return Batch(
            records,
            position={"history": self._history, "number": self._last},
            size_bytes=sum(map(len, elements)),
            meta=[{"list": key, "number": first + index} for index in range(len(elements))],
            place=lambda index: f"list {key}, element {first + index}",
        )
