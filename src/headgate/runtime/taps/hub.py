"""All taps of a node: those that somebody asked it for, and those of whose datasources it may run streams.

A tap is a row that the node which was asked renews every few seconds. Every node reads the rows, twice a second while
there are some, and has a pipe for each (`runtime.taps.points`). What comes out of a pipe goes to the view of the person
who looks: straight if that is on the same node, else by the database, where the node that was asked fetches it. A view
that is not read drops the oldest records and counts them; one that nobody has read for a while ends, and so does a tap
whose node is gone.

Everything that judging costs is taken from a share of the event loop. What does not fit into it is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias
from uuid import UUID

from headgate.clock import boot_s
from headgate.core.tap import MOST_TAPS, Tap, condition_of
from headgate.errors import ConfigError, Refused, StoreError
from headgate.runtime.taps.points import BYTES_READY, RECORDS_READY, Pipe, Points
from headgate.store.taps import LIVES, Parcel, TapTable
from headgate.store.wake import Waker

IDLE_S = 2.0  # Finds a tap whose wake-up was missed.
BUSY_S = 0.5
RENEW_S = 2.0
UNREAD_S = 15.0  # A caller that does not read is cut off before.
TURN_S = 0.003  # Judging for so long,
REST = 4  # it then rests for this many times as long.

End: TypeAlias = Literal["limit", "time"]
"""Why a tap has ended: all that was asked for was shown, or its time is over."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a view shows now."""

    records: Sequence[bytes]  # Each as JSON.
    dropped: int  # How many others were not shown since the last look.
    ended: End | None


class View:
    """What one person looks at. It holds two seconds' worth of records, for a reader that is slow."""

    def __init__(self, tap: Tap, limit: int | None, ends_at_s: float, closed: asyncio.Event) -> None:
        self.tap = tap
        self._left = limit
        self._ends_at_s = ends_at_s
        self._closed = closed
        self._records: deque[bytes] = deque()
        self._size_bytes = 0
        self._dropped = 0
        self._news = asyncio.Event()
        self._read_at_s = boot_s()
        self._is_closed = False

    def put(self, records: Iterable[bytes], dropped: int) -> None:
        """There is more to show."""
        for body in records:
            self._records.append(body)
            self._size_bytes += len(body)
        self._dropped += dropped
        while len(self._records) > RECORDS_READY or self._size_bytes > BYTES_READY:
            self._size_bytes -= len(self._records.popleft())
            self._dropped += 1
        if self._records or self._dropped:
            self._news.set()

    async def look(self, within_s: float) -> Look:
        """What there is to show; waits for it, but not for long."""
        self._read_at_s = boot_s()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(within_s, self._ends_at_s - boot_s()))):
                await self._news.wait()
        self._news.clear()
        self._read_at_s = boot_s()
        found, dropped = list(self._records), self._dropped
        self._records.clear()
        self._size_bytes = self._dropped = 0
        if self._left is not None:
            found = found[: self._left]
            self._left -= len(found)
        ended: End | None = "limit" if self._left == 0 else "time" if boot_s() >= self._ends_at_s else None
        return Look(found, dropped, ended)

    def close(self) -> None:
        """Nobody looks any more."""
        self._is_closed = True
        self._closed.set()

    @property
    def is_over(self) -> bool:
        """Whether nobody looks any more."""
        return self._is_closed or boot_s() > self._read_at_s + UNREAD_S


class Taps:
    """Views, pipes, and what goes from these to those."""

    def __init__(self, table: TapTable, waker: Waker, node: str) -> None:
        self._table = table
        self._waker = waker
        self.points = Points(node)
        self._views: dict[UUID, View] = {}
        self._pipes: dict[UUID, Pipe] = {}
        self._news = asyncio.Event()
        self._renewed_at_s = self._read_at_s = boot_s()

    # What people ask for.

    async def open(self, tap: Tap, limit: int | None, for_s: float) -> View:
        """Begin to look. The view ends when it has shown this many records, after this time, or when it is closed."""
        condition_of(tap.where)
        if not await self._table.open(tap):
            raise Refused(f"{MOST_TAPS} taps are open already", code="too_many", hint="end one, or try again later")
        view = self._views[tap.id] = View(tap, limit, boot_s() + for_s, self._news)
        self._set([pipe.tap for pipe in self._pipes.values()])
        self._waker.wake("taps")
        return view

    # Loops.

    def look(self) -> None:
        """Somebody has begun to look, or has ended."""
        self._news.set()

    async def run(self) -> None:
        """See to the taps until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._judge_all())
            group.create_task(self._look_again())

    async def _look_again(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BUSY_S if self._views or self._pipes else IDLE_S):
                    await self._news.wait()
            self._news.clear()
            try:
                await self._look()
            except StoreError:
                if boot_s() > self._read_at_s + LIVES.total_seconds():
                    self._set([])  # Who still looks is not known; here, it is.

    async def _look(self) -> None:
        over = [id for id, view in self._views.items() if view.is_over]
        for id in over:
            del self._views[id]
        if over:
            await self._table.close(over)
            self._waker.wake("taps")
        if self._views and boot_s() >= self._renewed_at_s + RENEW_S:
            await self._table.renew([view.tap for view in self._views.values()])
            self._renewed_at_s = boot_s()
        self._set(await self._table.all())
        self._read_at_s = boot_s()
        self._show()
        await self._send()
        if self._views:
            for parcel in await self._table.take(list(self._views)):
                if parcel.tap in self._views:
                    self._views[parcel.tap].put(parcel.records, parcel.dropped)

    def _set(self, taps: Iterable[Tap]) -> None:
        """Have a pipe for each of these taps, and of those that are looked at here, and no other."""
        wanted = {tap.id: tap for tap in taps} | {id: view.tap for id, view in self._views.items()}
        for id in [id for id in self._pipes if id not in wanted]:
            del self._pipes[id]
        for id, tap in wanted.items():
            if id not in self._pipes:
                with contextlib.suppress(ConfigError):  # Of a node of another release, that knows more functions.
                    self._pipes[id] = Pipe(tap)
        active: dict[UUID, tuple[Pipe, ...]] = {}
        for pipe in self._pipes.values():
            active[pipe.tap.datasource] = (*active.get(pipe.tap.datasource, ()), pipe)
        self.points.active = active

    async def _send(self) -> None:
        """Hand over what is for other nodes. What the database does not take is dropped."""
        found = [(pipe, *pipe.fetch()) for id, pipe in self._pipes.items() if id not in self._views]
        parcels = [Parcel(pipe.tap.id, records, dropped) for pipe, records, dropped in found if records or dropped]
        try:
            if parcels:
                await self._table.send(parcels)
        except StoreError:
            for pipe, records, dropped in found:
                pipe.drop(len(records) + dropped)
            raise

    # Judging.

    async def _judge_all(self) -> None:
        """Judge what waits, with a share of the loop."""
        spent_s = 0.0
        while True:
            await self.points.offered.wait()
            self.points.offered.clear()
            began_s = time.perf_counter()
            while waiting := [pipe for pipe in self._pipes.values() if pipe.is_waiting]:
                for pipe in waiting:
                    for _ in pipe.judged():
                        if (took_s := spent_s + time.perf_counter() - began_s) >= TURN_S:
                            await asyncio.sleep(took_s * REST)
                            spent_s, began_s = 0.0, time.perf_counter()
                self._show()
            spent_s += time.perf_counter() - began_s

    def _show(self) -> None:
        """Hand over what is for views of this node."""
        for id, view in self._views.items():
            if id in self._pipes:
                view.put(*self._pipes[id].fetch())
