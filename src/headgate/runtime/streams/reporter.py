"""Reports: states and events, written for all streams of a node together. Transitions at once, figures now and then."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from headgate.clock import boot_s, unix_s
from headgate.core import repeats
from headgate.core.figures import SAMPLE_S
from headgate.core.lifecycle import Failure, Running
from headgate.core.repeats import Episode, Told
from headgate.datasources.registry import Registry
from headgate.errors import StoreError
from headgate.runtime.streams.batches import Written
from headgate.runtime.streams.handle import Handle, figures, state_of
from headgate.runtime.streams.run import Run

FIGURES_S = SAMPLE_S
ROUNDS = 12  # In which every stream has had its turn: a minute.
RETRY_S = 1.0
ASKED_AT_ONCE = 50  # Sources that are asked for their backlog at a time,
BACKLOG_S = 1.0  # and how long for.
CULPRITS_S = 60.0  # From one event about records that cannot be handled to the next, of one stream.


class Reporter:
    """Gathers what changed, and writes it."""

    def __init__(self, registry: Registry, node: UUID, handles: Callable[[], Iterable[Handle]]) -> None:
        self._registry = registry
        self._node = node
        self._handles = handles
        self._changed = asyncio.Event()
        self._dirty: set[Handle] = set()
        self._moved: set[Handle] = set()  # Their figures have changed.
        self._since_minute: set[Handle] = set()  # The same, since the last minute was written.
        self._round = 0
        self._events: list[tuple[UUID, str, dict[str, Any]]] = []
        self._proofs: dict[UUID, int] = {}

    def changed(self, handle: Handle) -> None:
        """Its state should be written now. Its figures follow, so that what waits at its source is soon known."""
        self._dirty.add(handle)
        self.moved(handle)
        self._changed.set()

    def moved(self, handle: Handle) -> None:
        """Its figures should be written with the next."""
        self._moved.add(handle)
        self._since_minute.add(handle)

    def take_moved(self) -> set[Handle]:
        """Those whose figures have changed since this was last asked for, also if they are not here any more."""
        taken, self._since_minute = self._since_minute, set()
        return taken

    def event(self, handle: Handle, type: str, **payload: Any) -> None:
        """Something happened."""
        self._events.append((handle.datasource, type, {"stream": handle.name, **payload}))
        self._changed.set()

    def proved(self, handle: Handle, version: int) -> None:
        """This version has proved itself."""
        self._proofs[handle.datasource] = version
        self._changed.set()

    def note(self, handle: Handle, type: str, failure: Failure | None) -> None:
        """A step in a worker's life, for people: in the log and as an event."""
        if failure is None:
            ended = repeats.over(handle.episode)
            handle.episode = Episode()
            after = {} if ended is None else {"failures": ended.count, "since": _moment(ended.since_s)}
            handle.log.info(type, **after)
            if handle.pusher is None:  # Programs come and go; their streams' history tells it.
                self.event(handle, f"worker_{type}", **after)
        else:
            handle.stats.restarts += type == "failed"
            if (told := self._told(handle, type, failure)) is not None:
                said: dict[str, Any] = {"cause": str(failure.cause), "error": failure.message, "count": told.count}
                if told.count > 1:
                    said["since"] = _moment(told.since_s)
                handle.log.error(type, **said)
                self.event(handle, f"worker_{type}", **said)

    def is_new(self, handle: Handle, failure: Failure) -> bool:
        """Whether a run has not failed like this before, so that people should see where it happened."""
        return repeats.is_new(handle.episode, *_matter(handle, "failed", failure))

    def _told(self, handle: Handle, type: str, failure: Failure) -> Told | None:
        """What to tell of a failure that may be one of very many."""
        handle.episode, told = repeats.failed(handle.episode, *_matter(handle, type, failure), boot_s())
        return told

    def culprits(self, handle: Handle, written: Written) -> None:
        """Records could not be handled: an event now and then, in numbers, whatever comes in."""
        count, since_s = handle.culprits
        count += len(written.culprits)
        if boot_s() - since_s >= CULPRITS_S:
            first = written.culprits[0]
            payload = {"stage": first.stage, "place": first.place, "field": first.field, "reason": first.reason}
            self.event(handle, "dead_lettered", count=count, **payload)
            count, since_s = 0, boot_s()
        handle.culprits = (count, since_s)

    async def run(self) -> None:
        """Write until cancelled."""
        figures_at_s = boot_s() + FIGURES_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, figures_at_s - boot_s())):
                    await self._changed.wait()
            due, self._dirty = self._dirty, set()
            self._changed.clear()
            if boot_s() >= figures_at_s:
                figures_at_s = boot_s() + FIGURES_S
                due |= await self._with_figures()
            try:
                await self.write(due)
            except StoreError:
                self._dirty |= due
                await asyncio.sleep(RETRY_S)

    async def _with_figures(self) -> set[Handle]:
        """Streams that have moved, and those that have a record in hand; and some of the others in turn, as what they
        did in the last hour grows less. Those are not sampled: that they have not moved is no news."""
        due, self._moved = self._moved, set()
        self._round += 1
        in_turn = []
        for place, handle in enumerate(self._handles()):
            if handle.stats.waiting_since_s is not None:
                due.add(handle)
            elif (place + self._round) % ROUNDS == 0:
                in_turn.append(handle)
        for handle in due:
            if isinstance(handle.state.phase, Running):
                handle.stats.sample(handle.totals)
        self._since_minute |= due
        due.update(in_turn)
        asked = [(handle, handle.run) for handle in due if handle.run is not None and handle.run.knows_backlog]
        for begin in range(0, len(asked), ASKED_AT_ONCE):
            await _see_backlogs(asked[begin : begin + ASKED_AT_ONCE])
        return due

    async def flush(self) -> None:
        """Write what is due now."""
        due, self._dirty = self._dirty, set()
        await self.write(due)

    async def write(self, due: set[Handle]) -> None:
        """Write the events and proofs, and those states that differ from what was last written."""
        await self._write_events()
        await self._write_proofs()
        if not due:
            return
        # A stream that was given back and granted again has had two handles: the one that is live speaks for it.
        live = {handle.stream: handle for handle in self._handles()}
        speakers = {live.get(handle.stream, handle).stream: live.get(handle.stream, handle) for handle in due}
        fresh = {handle: state_of(handle) for handle in speakers.values()}
        changed = [handle for handle, state in fresh.items() if figures(state) != handle.reported]
        if not changed:
            return
        taken = await self._registry.update_state(self._node, [fresh[handle] for handle in changed])
        for handle in changed:
            # What was not taken has been overtaken by a newer grant, unless we shall hold that ourselves.
            handle.reported = figures(fresh[handle]) if handle.stream in taken else ()

    async def _write_events(self) -> None:
        events, self._events = self._events, []
        try:
            if events:
                await self._registry.record_events(events)
        except StoreError:
            self._events = events + self._events
            raise

    async def _write_proofs(self) -> None:
        proofs, self._proofs = self._proofs, {}
        try:
            if proofs:
                await self._registry.prove(proofs)
        except StoreError:
            self._proofs = proofs | self._proofs
            raise


def _matter(handle: Handle, type: str, failure: Failure) -> tuple[Hashable, Hashable]:
    """What a failure is about, and what makes it the same as another: what it waits for, or else its words."""
    wanted = handle.state.wanted
    about = None if wanted is None else (wanted.published, wanted.restarts)
    return about, (type, failure.cause, failure.awaits or failure.message)


def _moment(at_s: float) -> str:
    """A time since the boot, for people."""
    return datetime.fromtimestamp(unix_s() - boot_s() + at_s, UTC).isoformat(timespec="seconds")


async def _see_backlogs(asked: Sequence[tuple[Handle, Run]]) -> None:
    """Ask these sources what waits. One that does not answer in time has said nothing."""
    tasks = [asyncio.ensure_future(run.backlog()) for _, run in asked]
    await asyncio.wait(tasks, timeout=BACKLOG_S)
    for (handle, run), task in zip(asked, tasks, strict=True):
        if handle.run is run:
            handle.stats.sees(task.result() if task.done() and not task.cancelled() else None)
        task.cancel()
