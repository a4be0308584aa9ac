"""The part of a stream that programs see."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from headgate.client.outgoing import EventTime, Key, Outgoing, Payload, Phase


class PushStream:
    """One stream that this client pushes; `PushClient.stream` makes it.

    Ids are the program's own: integers from 0 that rise strictly, with gaps if it likes. They are how a program and
    the node speak about what is durable, so the same record should have the same id after a restart of the program.
    """

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing

    def __repr__(self) -> str:
        return f"PushStream({self.name!r}, position={self.position})"

    @property
    def name(self) -> str:
        """The stream's name within its datasource."""
        return self._outgoing.name

    @property
    def position(self) -> int | None:
        """The id of the last record that is durable, or None: a program continues after it."""
        return self._outgoing.position

    async def send(self, id: int, payload: Payload, key: Key = None, event_time: EventTime = None) -> None:
        """Hand in one record; waits only while the resend buffer is full.

        The payload is bytes, or a value that becomes JSON, or None. The event time is microseconds since 1970, or a
        datetime with a time zone. An id at or below the position at which the node accepted the stream is skipped, so
        that a program can simply replay its input. A wrong id, or a record too large for a frame, is a ValueError and
        changes nothing. If the call is cancelled, the record was not taken.
        """
        outgoing = self._outgoing
        if outgoing.room.held >= outgoing.room.limit:
            await self._until_room()
        if outgoing.add(id, payload, key, event_time):
            await asyncio.sleep(0)

    async def send_many(self, records: Iterable[tuple[int, Payload] | tuple[Any, ...]]) -> None:
        """Hand in many: `(id, payload)`, or with a key and an event time after them.

        It is `send` for each of them: those before one that is wrong, and those before a cancellation, are taken.
        """
        outgoing = self._outgoing
        room = outgoing.room
        for record in records:
            if room.held >= room.limit:
                await self._until_room()
            if outgoing.add(*record):
                await asyncio.sleep(0)

    async def flush(self) -> None:
        """Wait until everything that was handed in so far is durable."""
        outgoing = self._outgoing
        last_id = outgoing.last_id
        await outgoing.until(lambda: (first := outgoing.buffer.first_id) is None or first > last_id)

    async def finish(self) -> int | None:
        """Say that there is no more, wait until the node has closed the stream, and return its final position."""
        outgoing = self._outgoing
        outgoing.end()
        await outgoing.until(lambda: outgoing.phase is Phase.ENDED)
        return outgoing.position

    async def _until_room(self) -> None:
        outgoing = self._outgoing
        room = outgoing.room
        while room.held >= room.limit and outgoing.failure is None:
            await room.changed()
