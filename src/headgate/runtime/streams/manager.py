"""The worker manager: runs the streams that this node has been granted, or that its push sessions claim.

`look` asks what was granted and what the registry changed, and tells each worker what is wanted of it. Each `Want` and
each fact goes through `_dispatch`, which steps the pure machine in `core.lifecycle`; `Effects` does what the machine
asks for, `Checkpoints` saves positions, and the reporter writes states and events. A worker exists as long as its
grant: streams of other nodes cost nothing here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

import structlog

from headgate.clock import boot_s
from headgate.core import lifecycle
from headgate.core.lifecycle import Wanted, holding
from headgate.core.lifecycle.holding import Declined, Holding
from headgate.core.push.notifier import Reason
from headgate.core.reconcile import Entry, Place, wanted_here, why_given_back
from headgate.datasources.registry import Registry
from headgate.errors import StoreError
from headgate.ids import stream_name
from headgate.runtime.forever import forever
from headgate.runtime.inbox import InboxHub
from headgate.runtime.streams.checkpoints import Checkpoints
from headgate.runtime.streams.effects import Effects, Surroundings
from headgate.runtime.streams.handle import Handle, Pusher
from headgate.runtime.streams.lookout import Lookout
from headgate.runtime.streams.minutes import MinuteKeeper
from headgate.runtime.streams.ownership import Ownership
from headgate.runtime.streams.parts import Share
from headgate.runtime.streams.reporter import Reporter
from headgate.runtime.streams.run import Run
from headgate.runtime.streams.sides import REGISTRY
from headgate.runtime.streams.stats import Stats
from headgate.runtime.streams.strays import Strays
from headgate.runtime.taps.points import NOBODY, Points
from headgate.store.letters import Letters
from headgate.store.minutes import Minutes
from headgate.store.streams import Offer, Streams

POLL_S = 0.5  # Finds what a wake-up missed.
OWNED_S = 5.0  # A stream that was taken from us is missed within this, if nothing is written that would be fenced.
RETRY_S = 1.0
WANTED_AT_ONCE = 200  # Workers that are told in one go what is wanted: about 3 ms.

ELSEWHERE = lifecycle.Idle("elsewhere")


class WorkerManager:
    """All streams of one incarnation of this node."""

    def __init__(
        self,
        registry: Registry,
        rows: Streams,
        letters: Letters,
        minutes: Minutes,
        node: UUID,
        installation: UUID,
        trust_left_s: Callable[[], float],
        inboxes: InboxHub,
        is_listed: Callable[[str], bool] = lambda name: True,
        taps: Points = NOBODY,
        memory_mb: int = 512,
    ) -> None:
        self.node = node
        self._registry = registry
        self._rows = rows
        self._letters = letters
        self._trust_left_s = trust_left_s
        self._is_listed = is_listed  # Whether the registry in use names this datasource.
        self._handles: dict[UUID, Handle] = {}  # By stream.
        self._declining: set[UUID] = set()
        self._looking = asyncio.Lock()
        self._wake = asyncio.Event()
        self._reporter = Reporter(registry, node, self._handles.values)
        self.minutes = MinuteKeeper(minutes, inboxes, node, self._reporter.take_moved)
        ownership = Ownership(rows, node)
        self._checkpoints = Checkpoints(ownership, node, self._lose)
        self._lookout = Lookout(self._dispatch)
        around = Surroundings(
            node=node,
            installation=installation,
            registry=registry,
            letters=letters,
            ownership=ownership,
            reporter=self._reporter,
            checkpoints=self._checkpoints,
            lookout=self._lookout,
            inboxes=inboxes,
            taps=taps,
            trust_left_s=trust_left_s,
            is_draining=lambda: self._draining,
            dispatch=self._dispatch,
            give_back=self.give_back,
            lose=self._lose,
            remove=self._remove,
            is_current=lambda handle: self._handles.get(handle.stream, handle) is handle,
            memory_mb=memory_mb,
        )
        self._effects = Effects(around)
        self._strays = Strays(letters, node, self.claim, self.give_back)
        self._draining = False
        self.is_stopping = False
        self._over = False  # The incarnation has ended: no event changes anything any more.
        self._last_runs: list[Run] = []  # Those that were under way then.
        self.synced = asyncio.Event()  # The registry has been read at least once.

    async def run(self) -> None:
        """Manage until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(forever(self._sync_loop, "sync"), name="sync")
            group.create_task(forever(self._checkpoints.run, "checkpoint"), name="checkpoint")
            group.create_task(forever(self._reporter.run, "report"), name="report")
            group.create_task(forever(self._owned_loop, "owned"), name="owned")
            group.create_task(forever(self.minutes.run, "minutes"), name="minutes")

    # What is wanted.

    def wake(self) -> None:
        """Look at the registry now."""
        self._wake.set()

    async def _sync_loop(self) -> None:
        while True:
            self._wake.clear()
            began_at_s = boot_s()
            try:
                await self.look()
                self._lookout.answered(REGISTRY.key)
            except StoreError:
                self._lookout.silent(REGISTRY.key, began_at_s)
                await asyncio.sleep(RETRY_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._wake.wait()

    async def look(self) -> None:
        """Bring everything here in line with the registry and with what was granted."""
        async with self._looking:
            # Grants are read first: whatever they were granted for is then in the registry's answer.
            offers = await self._rows.granted(self.node)
            asked = await self._letters.asked(self.node)
            changed = {entry.datasource for entry in await self._registry.sync()}
        if changed:  # This runs twice a second, and must not walk through all streams for nothing.
            await self._want_all([handle for handle in self.handles() if handle.datasource in changed])
        for offer in offers:
            self._take(offer)
        for stream in asked:
            self._replay(stream)
        await self._strays.look()
        self.synced.set()

    def _replay(self, stream: UUID) -> None:
        """Somebody wants letters of this stream replayed. One that does not run yet sees to it when it begins."""
        handle = self._handles.get(stream)
        if handle is not None and handle.run is not None:
            handle.run.replay()

    async def _want_all(self, handles: Sequence[Handle]) -> None:
        """Tell these workers what is wanted of them. A datasource may have thousands, so others have turns."""
        for begin in range(0, len(handles), WANTED_AT_ONCE):
            if begin:
                await asyncio.sleep(0)
            for handle in handles[begin : begin + WANTED_AT_ONCE]:
                if self._handles.get(handle.stream) is handle:  # It may have ended meanwhile.
                    self._want(handle)

    def reconsider(self) -> None:
        """Tell every worker again what is wanted: what this node adds to it has changed."""
        for handle in self.handles():
            self._want(handle)

    def drain(self, draining: bool) -> None:
        """Give all streams back and take no more; or be ready for some again."""
        if self._draining != (draining or self.is_stopping):
            self._draining = draining or self.is_stopping
            self.reconsider()

    def _wanted(
        self, entry: Entry | None, *, is_pushed: bool, index: int = 0, dealt: int | None = None
    ) -> Wanted | None:
        lists = entry is not None and self._is_listed(entry.name)
        return wanted_here(entry, Place(self._draining, lists), is_pushed=is_pushed, index=index, dealt=dealt)

    def _want(self, handle: Handle) -> None:
        """Tell a worker what is wanted of it. Telling it twice changes nothing."""
        entry = self._registry.entry_of(handle.datasource)
        share, is_pushed = handle.share, handle.pusher is not None
        dealt = None if is_pushed else share.of
        wanted = self._wanted(entry, is_pushed=is_pushed, index=share.index, dealt=dealt)
        wanted_key = entry.wanted_key_of(handle.share.index) if entry is not None else ""
        handle.holding = replace(handle.holding, wanted_key=wanted_key)
        self._dispatch(handle, lifecycle.Want(holding.wanted_of(handle.holding, wanted), boot_s()))

    # Streams come and go.

    def _take(self, offer: Offer) -> None:
        """Begin to run a stream that was granted to us, or decline it; or step down from one that we have."""
        handle = self._handles.get(offer.stream)
        if offer.steps_down and handle is not None and holding.is_meant(handle.holding, offer.epoch):
            self.give_back(handle)
        if handle is not None or offer.stream in self._declining:
            return  # An older worker is about to end; the next look finds the offer again.
        entry = self._registry.entry_of(offer.datasource)
        wanted = self._wanted(entry, is_pushed=False, index=offer.index)
        if entry is None or offer.steps_down or wanted is None:
            self._declining.add(offer.stream)
            self._effects.spawn(self._decline(offer, entry))
            return
        handle = self._add(offer.stream, entry, stream_name(entry.name, offer.index), offer.index, offer.dealt)
        handle.stats, handle.totals_before = Stats.after(offer.reported), offer.totals
        handle.holding = holding.granted(offer.epoch, offer.is_settled)
        self._want(handle)

    async def _decline(self, offer: Offer, entry: Entry | None) -> None:
        declined = Declined(offer.epoch, offer.steps_down, self._draining)
        if entry is not None and entry.is_to_run and not self._is_listed(entry.name):
            declined = replace(declined, is_unlisted=True, wanted_key=entry.wanted_key_of(offer.index))
        await self._effects.decline(offer.stream, declined)
        self._declining.discard(offer.stream)

    def claim(self, stream: UUID, datasource: UUID, label: str, pusher: Pusher) -> Handle | Reason:
        """Begin to run a stream that a program pushes through this node; or say why not."""
        entry = self._registry.entry_of(datasource)
        if (present := self._handles.get(stream)) is not None:
            if present.pusher is not None and present.pusher.is_brief:
                self.give_back(present)
            return "busy"
        if entry is None or self._wanted(entry, is_pushed=True) is None:
            return "draining" if self._draining else "not_ready"
        handle = self._add(stream, entry, stream_name(entry.name, label))
        handle.pusher, handle.holding = pusher, Holding(is_pushed=True)
        self._want(handle)
        return handle

    def give_back(self, handle: Handle) -> None:
        """Its session is done with it, or another node is to have it: drain and release."""
        handle.holding = replace(handle.holding, is_given_back=True)
        self._want(handle)

    def why_given_back(self, datasource: UUID) -> str:
        """Why a stream of this datasource ended that its program still wants."""
        return why_given_back(self._registry.entry_of(datasource), Place(self._draining))

    def _add(self, stream: UUID, entry: Entry, name: str, index: int = 0, dealt: int = 1) -> Handle:
        bound = structlog.get_logger("headgate.stream").bind(datasource=entry.name, stream=name, stream_id=stream)
        share = Share(index, dealt, partial(self._registry.list_parts, entry.datasource))
        handle = self._handles[stream] = Handle(stream, entry.datasource, name, bound, share)
        return handle

    def _remove(self, handle: Handle) -> None:
        if self._handles.get(handle.stream) is handle:
            del self._handles[handle.stream]
            self._wake.set()  # It may have been granted to us again meanwhile.

    def _lose(self, handle: Handle, epoch: int) -> None:
        """A grant of ours has ended without our doing."""
        if handle.holding.epoch == epoch:
            handle.holding = holding.lost(handle.holding)
            if handle.run is not None:
                handle.run.abandoned = True
            self._dispatch(handle, lifecycle.OwnershipLost(boot_s()))
            if handle.pusher is not None:
                handle.pusher.released("stale")

    async def _owned_loop(self) -> None:
        """A run that has nothing to write is never fenced: it has to ask whether its stream is still ours."""
        while True:
            await asyncio.sleep(OWNED_S)
            running = {handle: handle.holding.epoch for handle in self.handles() if _is_running(handle)}
            if not running:
                continue
            with contextlib.suppress(StoreError):
                owned = await self._rows.owned(self.node)
                for handle, epoch in running.items():
                    if epoch is not None and owned.get(handle.stream) != epoch and _is_running(handle):
                        handle.log.warning("this stream was taken from us")
                        self._lose(handle, epoch)

    async def checkpoint(self, handles: Iterable[Handle]) -> None:
        """Save where these streams stand, now."""
        await self._checkpoints.save(handles)

    # The machine.

    def _dispatch(self, handle: Handle, event: lifecycle.Event) -> None:
        if self._over:
            return
        before = handle.state
        step = lifecycle.step(before, event)
        handle.state = step.worker
        for effect in step.effects:
            self._effects.perform(handle, effect)
        self._set_timer(handle)
        if step.worker.phase != before.phase:
            self._transition(handle)
        if step.worker.phase == ELSEWHERE:
            handle.holding = holding.lost(handle.holding)
            self._remove(handle)

    def _transition(self, handle: Handle) -> None:
        status, detail = lifecycle.status(handle.state)
        handle.log.debug("worker", status=status, detail=detail)
        self._lookout.look(handle)
        self._reporter.changed(handle)

    def _set_timer(self, handle: Handle) -> None:
        if handle.timer is not None:
            handle.timer.cancel()
            handle.timer = None
        due_s = lifecycle.due_s(handle.state)
        if due_s is not None:
            loop = asyncio.get_running_loop()
            handle.timer = loop.call_later(max(0.0, due_s - boot_s()) + 0.001, self._tick, handle)

    def _tick(self, handle: Handle) -> None:
        self._dispatch(handle, lifecycle.Tick(boot_s()))

    # From outside.

    def lose_all(self) -> None:
        """This incarnation has ended: nothing here is ours any more."""
        self._draining = self._over = True
        self._last_runs = [handle.run for handle in self._handles.values() if handle.run is not None]
        for handle in list(self._handles.values()):
            handle.holding = holding.lost(handle.holding)
            if handle.run is not None:
                handle.run.abandoned = True
            if handle.timer is not None:
                handle.timer.cancel()
            if handle.task is not None:
                handle.task.cancel()
        self._effects.cancel_all()
        self._lookout.close()

    async def ended(self) -> bool:
        """Wait until nothing of this incarnation runs any more, once all is lost. Returns whether no write was cut off
        on its way: one that was may still arrive, from a thread or out of a socket."""
        await self._effects.ended()
        return not any(run.is_in_doubt for run in self._last_runs)

    async def stop(self) -> None:
        """Drain every stream and give it back; over within the stop's deadline, and when there is no more trust."""
        self.is_stopping = True
        self.drain(True)
        deadline_s = boot_s() + lifecycle.STOP_S + 1.0
        while self._trust_left_s() > 0.0 and boot_s() < deadline_s and any(map(_is_busy, self._handles.values())):
            await asyncio.sleep(0.02)  # This happens once in a node's life, so polling is simpler than a signal.
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(2.0):
                await self._reporter.flush()
                await self.minutes.write()

    def kept(self) -> list[str]:
        """The streams that are still ours."""
        ours = {handle.name for handle in self._handles.values() if handle.holding.epoch is not None}
        return sorted(ours | self._effects.revoking)

    def handles(self) -> list[Handle]:
        """All streams here, for figures."""
        return list(self._handles.values())


def _is_running(handle: Handle) -> bool:
    """Whether nothing is under way that changes what is ours: neither an acquisition nor a release."""
    return isinstance(handle.state.phase, lifecycle.Running)


def _is_busy(handle: Handle) -> bool:
    return not isinstance(handle.state.phase, lifecycle.Idle) or handle.holding.epoch is not None
