"""Looks at what the sinks have, past Headgate, and enters it into the lanes.

Rows that have been entered are deleted, so that a long storm needs no more room than a short one. A row is entered once
even if nobody knows whether its deletion was committed: it has a number, which is kept until it is certainly gone. The
rows of one lane become visible in the order of these numbers, because one stream at a time writes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable

import asyncpg
import msgspec

from tests.storm.accounting import Fate, Lane
from tests.storm.senders import Program, Sender
from tests.storm.workload import Datasource

EVERY_S = 2.0
QUERY_S = 20.0

READ = "SELECT n, datasource, lane, id FROM arrived ORDER BY n"
FORGET = "DELETE FROM arrived WHERE n = ANY ($1::bigint[])"


class Auditor:
    """The lanes of all datasources, by name and number."""

    def __init__(
        self,
        url: str,
        datasources: Iterable[Datasource],
        senders: Iterable[Sender],
        fail: Callable[[str], None],
        *,
        registry_may_lose: bool = False,
    ) -> None:
        self.lanes: dict[tuple[str, int], Lane] = {}
        self.arrived_at_s: dict[tuple[str, int], float] = {}  # When something last came, on the monotonic clock.
        self._url = url
        self._fail = fail
        self._senders = {(one.datasource.name, one.lane): one for one in senders}
        self._files = {one.name: File(one) for one in datasources if not one.is_exact}
        self._entered: set[int] = set()  # Numbers of rows that are entered and may still be in the table.
        self._strangers: set[tuple[str, int]] = set()
        self._connection: asyncpg.Connection | None = None
        for one in datasources:
            for number in range(one.lanes):
                sender = self._senders.get((one.name, number))
                fate = one.fate if sender is None else sender.fate
                forgives = one.kept_by_registry if registry_may_lose else frozenset()
                self.lanes[one.name, number] = Lane(fate, is_exact=one.is_exact, forgives=forgives, keys=one.keys)

    @property
    def rows(self) -> int:
        return sum(lane.rows for lane in self.lanes.values())

    @property
    def repeats(self) -> int:
        return sum(lane.repeats for lane in self.lanes.values() if lane.is_exact)

    @property
    def missing(self) -> int:
        return sum(len(lane.missing) for lane in self.lanes.values())

    async def run(self) -> None:
        """Look again and again, whatever becomes of the database meanwhile."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.look()

    async def look(self) -> bool:
        """Enter what is new. Whether everything could be seen."""
        acked = {place: one.acked for place, one in self._senders.items() if isinstance(one, Program)}
        for name, file in self._files.items():
            for lane, id in file.read(self._fail):
                self._enter(name, lane, id)
        try:
            async with asyncio.timeout(QUERY_S):
                await self._read_rows()
        except Exception:  # Whatever it is that a server which goes away does to its client: later.
            self._disconnect()
            return False
        for place, last in acked.items():
            if self.lanes[place].owes(last):
                self._fail(
                    f"{place[0]}: record {last} of lane {place[1]} was acknowledged, and some before it are missing"
                )
        return True

    async def _read_rows(self) -> None:
        if self._connection is None:
            self._connection = await asyncpg.connect(self._url)
        rows = await self._connection.fetch(READ)
        for row in rows:
            if row["n"] not in self._entered:
                self._enter(row["datasource"], row["lane"], row["id"])
        self._entered = {row["n"] for row in rows}
        await self._connection.execute(FORGET, list(self._entered))
        self._entered.clear()

    def _enter(self, name: str, number: int, id: int) -> None:
        place = (name, number)
        lane = self.lanes.get(place)
        if lane is None:
            if place not in self._strangers:
                self._strangers.add(place)
                self._fail(f"a row of lane {number} of {name}, which nobody sent")
            return
        before = len(lane.missing), lane.repeats
        lane.arrive(id)
        self.arrived_at_s[place] = time.monotonic()
        if lane.is_exact and len(lane.missing) > before[0] and Fate.ROW not in lane.forgives:
            self._fail(f"{name}: record {id} of lane {number} came, and before it {sorted(lane.missing)[:5]} did not")
        if lane.is_exact and lane.repeats > before[1]:
            self._fail(f"{name}: record {id} of lane {number} came again")

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    def close(self) -> None:
        """No more looking."""
        self._disconnect()


class File:
    """A file that a sink appends to."""

    def __init__(self, datasource: Datasource) -> None:
        self._datasource = datasource
        self._offset = 0

    def read(self, fail: Callable[[str], None]) -> list[tuple[int, int]]:
        """Lane and record of each whole line since the last look."""
        found: list[tuple[int, int]] = []
        with contextlib.suppress(FileNotFoundError), self._datasource.outgoing.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
            data = data[: data.rfind(b"\n") + 1]
            self._offset += len(data)
            for line in data.splitlines():
                try:
                    record = msgspec.json.decode(line)
                    found.append((record["lane"], record["id"]))
                except (msgspec.DecodeError, TypeError, KeyError):
                    fail(f"{self._datasource.outgoing.name} has a line that nobody wrote: {line[:100]!r}")
        return found
