"""A source that lives in a process.

A read that is cancelled here goes on there: its batch waits for the next read, so nothing of it is lost. There is one
read at a time, so at most one batch is on its way.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from headgate.connectors.api import Backlog, Batch, Position
from headgate.errors import ConnectorError
from headgate.runtime.apart import values
from headgate.runtime.apart.process import Answered
from headgate.runtime.apart.remote import Remote, Side
from headgate.runtime.apart.wire import Batched, NonsenseError, decoded

MOST_PLACE = 500  # Characters.


class RemoteSource(Remote):
    """Seen as any other source."""

    _side: Side = "source"
    _reading: asyncio.Future[Answered] | None = None  # A read whose batch nobody has taken.

    async def parts(self) -> Sequence[str]:
        """As the connector's."""
        found: list[str] = await self._ask("parts")
        return found

    async def open(self, position: Position) -> None:
        """As the connector's."""
        await self._ask("open", position)

    async def read(self) -> Batch:
        """The next batch, or the one that a cancelled read has left."""
        if self._reading is None:
            self._reading = await self._process.request(self._call("read"))
        reading = self._reading
        await asyncio.wait({reading})
        if reading.cancelled():
            raise ConnectorError("the source was closed while it was read")
        if reading.exception() is not None:
            self._reading = None
        try:
            batch = await self._batch(*reading.result())
        except (NonsenseError, ValueError) as error:
            raise self._nonsense(str(error)) from None
        self._reading = None
        return batch

    async def ack(self, position: Position) -> None:
        """As the connector's."""
        await self._ask("ack", position)

    async def backlog(self) -> Backlog | None:
        """As the connector's."""
        found: Backlog | None = await self._ask("backlog")
        return found

    async def _batch(self, head: object, slices: list[bytes]) -> Batch:
        if not isinstance(head, Batched):
            raise NonsenseError("a read has no batch")
        if head.size_bytes < 0 or (head.event_time_s is not None and not math.isfinite(head.event_time_s)):
            raise NonsenseError("a batch has no size, or no time")
        records: list[object] = []
        metas: list[object] = []
        for number, one in enumerate(slices):
            if number:
                await asyncio.sleep(0)  # A large batch gives way to others.
            some, meta = values.from_slice(one)
            records += some
            metas += meta or []
        if metas and len(metas) != len(records):
            raise NonsenseError("some records have meta, and others have none")
        place = None if head.places is None else _Places(head.places, len(records))
        return Batch(records, head.position, head.size_bytes, head.event_time_s, metas or None, place)


class _Places:
    """What the source calls the places of a batch. Hardly anybody asks, so they are read when somebody does."""

    def __init__(self, data: bytes, records: int) -> None:
        self._data = data
        self._records = records
        self._found: Sequence[str] | None = None

    def __call__(self, index: int) -> str:
        if self._found is None:
            try:
                self._found = decoded(self._data, list[str])
            except NonsenseError:
                self._found = []
        return self._found[index][:MOST_PLACE] if index < len(self._found) else f"record {index + 1}"
