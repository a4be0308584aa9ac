"""The points of a run at which records can be looked at, and the pipes that begin there.

A run asks one thing for each batch: whether there are taps at all (`Points.active`). If there are, and one is of its
datasource, the batch is left in the tap's pipe and the run goes on: to judge and to write down what is shown is done
elsewhere, with a small share of the event loop (`runtime.taps.hub`). A pipe that is full drops the batch and counts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from headgate.clock import unix_s
from headgate.connectors.api import Batch, Grant
from headgate.core.mapping.document import Mapping
from headgate.core.mapping.mapped import Mapped
from headgate.core.tap import At, Meter, Shown, Tap, condition_of, is_full, judge, pay, pick, show
from headgate.runtime.streams.batches import Culprit, Written, place_of

BATCHES_WAITING = 4  # They stay in memory for as long as they wait.
RECORDS_READY = 400  # That were not fetched: two seconds' worth.
BYTES_READY = 2_000_000


@dataclass(frozen=True, slots=True)
class Offered:
    """Records of one batch at one point of a run."""

    records: list[Any]
    meta: list[Any] | None  # For conditions.
    show: Callable[[int], Shown]  # The record of this number, as it is to be shown.


class Pipe:
    """One tap, on a node that may run streams of its datasource."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap
        self._condition = condition_of(tap.where)
        self._meter = Meter()
        self._waiting: deque[tuple[Offered, Sequence[int] | None]] = deque()
        self._ready: list[bytes] = []
        self._ready_bytes = 0
        self._dropped = 0

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to judge."""
        return bool(self._waiting)

    def offer(self, offered: Offered) -> None:
        """Take these records, or some of them, or count that they were dropped."""
        picked: Sequence[int] | None = None
        number = -(-len(offered.records) // self.tap.sample)
        if self._condition is None:  # Nothing to judge: what is not shown need not wait.
            self._meter, picked, dropped = pick(self._meter, self.tap.sample, len(offered.records), unix_s())
            self._dropped += dropped
            number = len(picked)
        if len(self._waiting) >= BATCHES_WAITING:
            self._dropped += number
        elif number:
            self._waiting.append((offered, picked))

    def judged(self) -> Iterator[None]:
        """Judge what has waited longest, and write down what is shown. Yields after every few milliseconds."""
        offered, picked = self._waiting.popleft()
        if picked is None:
            assert self._condition is not None
            found, done = Mapped(), 0
            while done < len(offered.records):
                done = judge(self._condition, offered.records, offered.meta, done, found)
                yield
            self._meter, numbers, dropped = pick(self._meter, self.tap.sample, len(found.records), unix_s())
            self._dropped += dropped
            picked = [found.origin(number)[0] for number in numbers]
        for number in picked:
            self._write(offered, number)
            yield

    def _write(self, offered: Offered, number: int) -> None:
        has_room = len(self._ready) < RECORDS_READY and self._ready_bytes < BYTES_READY
        if has_room and not is_full(self._meter, unix_s()):
            try:
                body = show(offered.show(number))
            except Exception:  # Whatever a connector has put there, it cannot be shown.
                self._dropped += 1
                return
            self._meter, has_room = pay(self._meter, len(body), unix_s())
            if has_room:
                self._ready.append(body)
                self._ready_bytes += len(body)
                return
        self._dropped += 1

    def drop(self, number: int) -> None:
        """This many records could not be handed over."""
        self._dropped += number

    def fetch(self) -> tuple[list[bytes], int]:
        """The records to show, and how many were dropped, since the last time."""
        found = self._ready, self._dropped
        self._ready, self._ready_bytes, self._dropped = [], 0, 0
        return found


class Points:
    """What the runs of a node know of taps."""

    def __init__(self, node: str = "") -> None:
        self._node = node  # Its name.
        self.active: dict[UUID, tuple[Pipe, ...]] = {}  # By datasource; usually empty.
        self.offered = asyncio.Event()  # There is something to judge.

    def read(self, grant: Grant, batch: Batch) -> None:
        """A source has read these."""

        def shown(index: int) -> Shown:
            meta = batch.meta[index] if batch.meta else None
            return self._shown(grant, place_of(batch, index, None), batch.records[index], meta=meta)

        self._offer(grant, "source", lambda: Offered(batch.records, batch.meta, shown))

    def mapped(self, grant: Grant, batch: Batch, mapped: Mapped) -> None:
        """The mapping has made these of them."""
        self._offer(grant, "mapped", lambda: self._outputs(grant, batch, mapped, range(len(mapped.records))))

    def written(self, grant: Grant, mapping: Mapping, batch: Batch, mapped: Mapped, written: Written) -> None:
        """These are durable in the sink, but for those that could not be handled."""
        culprits = written.culprits

        def kept() -> list[int]:
            gone = {one.number for one in culprits}
            return [number for number in range(len(mapped.records)) if number not in gone]

        self._offer(grant, "written", lambda: self._outputs(grant, batch, mapped, kept()))
        if culprits:
            self._offer(grant, "dead", lambda: self._dead(grant, mapping, batch, mapped, culprits))

    def _outputs(self, grant: Grant, batch: Batch, mapped: Mapped, numbers: Sequence[int]) -> Offered:
        deletes = set(mapped.deletes)

        def shown(index: int) -> Shown:
            number = numbers[index]
            place = place_of(batch, *mapped.origin(number))
            return self._shown(grant, place, mapped.records[number], is_deletion=number in deletes)

        return Offered([mapped.records[number] for number in numbers], None, shown)

    def _dead(
        self, grant: Grant, mapping: Mapping, batch: Batch, mapped: Mapped, culprits: Sequence[Culprit]
    ) -> Offered:
        def shown(index: int) -> Shown:
            one = culprits[index]
            return self._shown(
                grant,
                one.place,
                mapping.alone(batch.records[one.index], one.element),
                meta=batch.meta[one.index] if batch.meta else None,
                mapped=None if one.number is None else mapped.records[one.number],
                stage=one.stage,
                field=one.field,
                reason=one.reason,
            )

        metas = [batch.meta[one.index] for one in culprits] if batch.meta else None
        return Offered([batch.records[one.index] for one in culprits], metas, shown)

    def _shown(self, grant: Grant, place: str, record: object, **more: Any) -> Shown:
        return Shown(stream=grant.name, node=self._node, place=place, record=record, **more)

    def _offer(self, grant: Grant, at: At, offered: Callable[[], Offered]) -> None:
        for pipe in self.active.get(grant.datasource, ()):
            if pipe.tap.at == at:
                pipe.offer(offered())
                self.offered.set()


NOBODY = Points()
"""For a run of which nobody can see anything."""
