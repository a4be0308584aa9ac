"""The listener: all push sessions of a node, between the notifiers (one per session) and the registry's rows.

A session's frames are events of its notifier (`core.notifier`). Who has which stream on this node is the local registry
(`core.local_registry`). The rows are claimed and released by the worker manager, which runs a pushed stream exactly
like any other: same sink, same mapping, same fencing, same swap of versions. This module carries events from one to
the others and performs what they say.

A *barrier* runs at most every `BARRIER_S` while something is due: it checkpoints, in one statement, every pushed stream
whose sink has got further, and tells the programs what is durable. Without trust there are no sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias
from uuid import UUID

import structlog

from headgate.connectors.api import Progress
from headgate.core.push import local_registry as local
from headgate.core.push import notifier
from headgate.core.streams import Why
from headgate.errors import StoreError
from headgate.ids import is_label, new_id
from headgate.runtime.push.feed import Piece, PushFeed
from headgate.runtime.streams.handle import Handle
from headgate.runtime.streams.manager import WorkerManager
from headgate.store.streams import Streams

BARRIER_S = 0.1
TRUST_POLL_S = 0.25
NOT_READY_MS = 1000
MOST_STREAMS = 10_000  # Of one session.

Key: TypeAlias = tuple[UUID, str]
"""A datasource and a stream's label."""

log = structlog.get_logger()


class Peer(Protocol):
    """What a session says to its program."""

    def accepted(self, stream: str, epoch: int, position: int | None) -> None:
        """It may push this stream."""

    def refused(self, stream: str, reason: notifier.Reason, retry_after_ms: int) -> None:
        """It may not."""

    def acked(self, credits: int, positions: list[tuple[str, int | None]]) -> None:
        """Records up to these positions are durable, and this many more may come."""

    def closed(self, stream: str, position: int | None) -> None:
        """The end of the stream is durable."""

    def restart(self, stream: str | None, address: str | None, reason: str) -> None:
        """Ask again for this stream, or for all of them, perhaps elsewhere."""

    def fail(self, code: str, text: str) -> None:
        """The session is over, and why."""


class Session:
    """One program's streams."""

    def __init__(self, listener: PushListener, peer: Peer, datasource: UUID) -> None:
        self.id = new_id()
        self.datasource = datasource
        self.peer = peer
        self.credits_due = 0  # Of records that were skipped or are durable, and not given back yet.
        self.acks: dict[str, int | None] = {}
        self.streams: dict[str, notifier.Phase] = {}
        self.taken: set[str] = set()  # Streams that were taken from it: what it had sent by then is nobody's fault.
        self.is_over = False
        self._listener = listener

    def notify(self, stream: str, name: str) -> None:
        """The program would push this stream."""
        self.taken.discard(stream)
        if not is_label(stream):
            self.peer.refused(stream, "bad_stream", 0)
        elif len(self.streams) >= MOST_STREAMS:
            self.peer.refused(stream, "busy", local.OWNED_RETRY_MS)
        else:
            self.step(stream, notifier.Notify(), name=name)

    def received(self, stream: str, piece: Piece) -> None:
        """Records have come."""
        if stream in self.taken:
            self.give_credits(len(piece.ids))
        else:
            self.step(stream, notifier.Received(piece.ids), piece=piece)

    def ended(self, stream: str) -> None:
        """There is no more of this stream."""
        if stream in self.taken:
            return
        self.step(stream, notifier.EndOfStream(self._listener.barrier))
        self._listener.due.set()

    def close(self) -> None:
        """The connection is gone."""
        self.is_over = True
        for stream in list(self.streams):
            self.step(stream, notifier.ConnectionLost())
        self._listener.closed(self)

    def step(self, stream: str, event: notifier.Event, *, name: str = "", piece: Piece | None = None) -> None:
        """One event of one stream, and what follows from it."""
        step = notifier.step(self.streams.get(stream), event)
        if step.phase is None:
            self.streams.pop(stream, None)
        else:
            self.streams[stream] = step.phase
        for effect in step.effects:
            self._perform(stream, effect, name, piece)

    def _perform(self, stream: str, effect: notifier.Effect, name: str, piece: Piece | None) -> None:
        match effect:
            case notifier.AskLocal():
                self._listener.ask(self, stream, name)
            case notifier.TellAccepted(epoch=epoch, position=position):
                self.peer.accepted(stream, epoch, position)
            case notifier.TellRejected(reason=reason, retry_after_ms=retry_after_ms):
                self.peer.refused(stream, reason, retry_after_ms)
            case notifier.Take(skipped=skipped):
                assert piece is not None
                self._listener.take(self, stream, piece, skipped)
            case notifier.TellAcked(position=position):
                self.acks[stream] = position
            case notifier.RelinquishLocal(epoch=epoch, position=position):
                self._listener.relinquish(self, stream, epoch, position)
            case notifier.TellClosed(position=position):
                self.flush()
                self.peer.closed(stream, position)
            case notifier.TellRestart(reason=reason):
                self.taken.add(stream)
                self.peer.restart(stream, None, reason)
            case notifier.Fail(code=code, text=text):
                self.peer.fail(code, text)

    def give_credits(self, records: int) -> None:
        """So many records are under way no longer, durable or not."""
        if records:
            self.credits_due += records
            self._listener.due.set()

    def flush(self) -> None:
        """Tell the program what it can forget, and how much more it may send."""
        if self.acks or self.credits_due:
            self.peer.acked(self.credits_due, list(self.acks.items()))
            self.acks, self.credits_due = {}, 0


class Pushed:
    """One pushed stream of this node: what the manager tells of it goes to the local registry and to its session."""

    def __init__(self, listener: PushListener, key: Key, session: Session) -> None:
        self.feed = PushFeed()
        self.session = session
        self.handle: Handle | None = None
        self.epoch = 0
        self.acked_commits = -1  # The commit that the program was last told of.
        self._listener = listener
        self._key = key

    def refused(self, reason: notifier.Reason) -> None:
        """It could not be had, or not be opened; or a later run of it was denied."""
        if not self._listener.is_current(self._key, self):
            return
        if not isinstance(self._listener.entry(self._key), local.Asking):
            self.released("owned_by_other")
            return
        retry_after_ms = local.OWNED_RETRY_MS if reason == "owned" else NOT_READY_MS
        self._listener.step(self._key, local.GlobalDenied(reason, retry_after_ms))
        self._listener.forget(self._key, self)

    def opened(self, epoch: int, progress: Progress) -> None:
        """A run has opened it: the first one makes it active, a later one goes on with it."""
        if not self._listener.is_current(self._key, self):
            self._listener.give_back(self)  # Its session has been told that it is over.
            return
        self.epoch = epoch
        self._listener.step(self._key, local.GlobalGranted(epoch, progress.position))
        self.session.step(self._key[1], notifier.Regranted(epoch))
        self._listener.due.set()

    def committed(self) -> None:
        """Something more is durable."""
        self._listener.due.set()

    def released(self, nack: Why | None) -> None:
        """It is not ours any more: given back, or taken from us."""
        if not self._listener.is_current(self._key, self):
            return
        if isinstance(self._listener.entry(self._key), local.Asking):
            self.refused("not_ready")
            return
        self._listener.step(self._key, local.GlobalReleased(self.epoch))
        self._listener.forget(self._key, self)
        self.session.give_credits(self.feed.clear())  # Its program has what was not durable, and sends it again.
        stream = self._key[1]
        if isinstance(self.session.streams.get(stream), notifier.PendingRelinquish):
            self.session.step(stream, notifier.RelinquishAnswered(self.epoch, nack))
        else:
            self.session.step(stream, notifier.StreamLost(self.epoch, nack or self._listener.why_released()))


class PushListener:
    """All push sessions of one node."""

    def __init__(
        self, streams: Streams, trust_left_s: Callable[[], float], address: Callable[[], Awaitable[str | None]]
    ) -> None:
        self._rows = streams
        self._trust_left_s = trust_left_s
        self._address = address  # Of another node, for programs that have to go elsewhere.
        self._manager: WorkerManager | None = None
        self._entries: dict[Key, local.Entry] = {}
        self._pushed: dict[Key, Pushed] = {}
        self._asked: dict[Key, Pushed] = {}
        self._asking: asyncio.Task[None] | None = None
        self._draining = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self.sessions: set[Session] = set()
        self.barrier = 0  # The number of the last one that has begun.
        self.due = asyncio.Event()

    # Incarnations.

    def begin(self, manager: WorkerManager) -> None:
        """A new incarnation: it holds nothing yet."""
        self._manager = manager
        self._draining = False

    def lose_all(self) -> None:
        """The incarnation has ended: nothing here is ours any more."""
        self._manager = None
        self._entries, self._pushed, self._asked = {}, {}, {}
        self._end_sessions("not_ready", "this node starts over")

    def drain(self, draining: bool) -> None:
        """Have programs go elsewhere; or let them come again."""
        if draining and not self._draining:
            self._spawn(self._send_away(list(self.sessions)))
        self._draining = draining

    async def _send_away(self, sessions: list[Session]) -> None:
        address = await self._address() if sessions else None
        for session in sessions:
            session.peer.restart(None, address, "draining")

    def why_released(self) -> str:
        """Why a stream was given back that its program still wants."""
        return "draining" if self._draining else "stopped"

    # Sessions.

    def open(self, peer: Peer, datasource: UUID) -> Session:
        """A program has said hello."""
        session = Session(self, peer, datasource)
        self.sessions.add(session)
        if self._draining:
            self._spawn(self._send_away([session]))
        return session

    def closed(self, session: Session) -> None:
        """A connection is gone."""
        self.sessions.discard(session)
        for stream in list(session.streams):
            key = (session.datasource, stream)
            self.step(key, local.SessionClosed(session.id))
            if (pushed := self._pushed.get(key)) is not None and pushed.session is session:
                self.give_back(pushed)

    def ask(self, session: Session, stream: str, name: str) -> None:
        """A session would have a stream."""
        self.step((session.datasource, stream), local.Ask(session.id, name), session)

    def take(self, session: Session, stream: str, piece: Piece, skipped: int) -> None:
        """Hand records to the pipeline, but those that are durable already."""
        session.give_credits(skipped)
        if skipped == len(piece.ids):
            return
        if skipped:
            piece = Piece(
                piece.ids[skipped:],
                piece.records[skipped:],
                piece.meta[skipped:],
                piece.size_bytes,
                piece.event_time_s,
            )
        self._pushed[session.datasource, stream].feed.append(piece)

    def relinquish(self, session: Session, stream: str, epoch: int, position: int | None) -> None:
        """A session gives a stream back."""
        self.step((session.datasource, stream), local.Relinquish(session.id, epoch, position))

    # The local registry.

    def entry(self, key: Key) -> local.Entry | None:
        """Who has this stream here."""
        return self._entries.get(key)

    def is_current(self, key: Key, pushed: Pushed) -> bool:
        """Whether nobody has asked for the stream anew since."""
        return self._pushed.get(key) is pushed

    def forget(self, key: Key, pushed: Pushed) -> None:
        """Its run is over."""
        if self.is_current(key, pushed):
            del self._pushed[key]

    def step(self, key: Key, event: local.Event, session: Session | None = None) -> None:
        """One event of one stream, and what follows from it."""
        step = local.step(self._entries.get(key), event)
        if step.entry is None:
            self._entries.pop(key, None)
        else:
            self._entries[key] = step.entry
        for effect in step.effects:
            self._perform(key, effect, session)

    def _perform(self, key: Key, effect: local.Effect, asker: Session | None) -> None:
        match effect:
            case local.AskGlobal():
                assert asker is not None
                self._claim(key, Pushed(self, key, asker))
            case local.AcceptSession(epoch=epoch, position=position):
                self._pushed[key].session.step(key[1], notifier.Accepted(epoch, position))
            case local.RejectSession(session=session, reason=reason, retry_after_ms=retry_after_ms):
                found = asker or self._session_of(key, session)
                if found is not None:
                    found.step(key[1], notifier.Rejected(reason, retry_after_ms))
            case local.RelinquishGlobal():
                if (pushed := self._pushed.get(key)) is not None:
                    self.give_back(pushed)

    def _session_of(self, key: Key, session: UUID) -> Session | None:
        pushed = self._pushed.get(key)
        return pushed.session if pushed is not None and pushed.session.id == session else None

    # The rows.

    def _claim(self, key: Key, pushed: Pushed) -> None:
        """Claim a row. Those that are asked for together are looked up together."""
        self._pushed[key] = self._asked[key] = pushed
        if self._asking is None or self._asking.done():
            self._asking = self._spawn(self._claim_asked())

    async def _claim_asked(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, {}
            ids: dict[Key, UUID] = {}
            try:
                ids = await self._rows.label(asked)
            except StoreError:
                pass
            except Exception:  # Whatever it is, nobody waits for an answer that never comes.
                log.exception("streams could not be looked up")
            for key, pushed in asked.items():
                if self.is_current(key, pushed):
                    self._claim_row(key, pushed, ids.get(key))

    def _claim_row(self, key: Key, pushed: Pushed, stream: UUID | None) -> None:
        reason: notifier.Reason | None = "draining" if self._draining else None
        if stream is None or self._manager is None:
            reason = "not_ready"
        elif reason is None:
            claimed = self._manager.claim(stream, key[0], key[1], pushed)
            if isinstance(claimed, Handle):
                pushed.handle = claimed
                if pushed.session.is_over:
                    self.give_back(pushed)
                return
            reason = claimed
        pushed.refused(reason)

    def give_back(self, pushed: Pushed) -> None:
        """Have its run end and its row released."""
        if self._manager is not None and pushed.handle is not None:
            self._manager.give_back(pushed.handle)

    # Barriers.

    async def run(self) -> None:
        """Barriers, until cancelled; and no session outlives our trust."""
        watching = asyncio.create_task(self._watch_trust(), name="push trust")
        try:
            while True:
                await self.due.wait()
                self.due.clear()
                await self._barrier()
                await asyncio.sleep(BARRIER_S)
        finally:
            watching.cancel()

    async def _barrier(self) -> None:
        """Commit what is durable, and tell the programs."""
        manager = self._manager
        if manager is None:
            return
        self.barrier += 1
        number = self.barrier
        waiting = [(key, pushed) for key, pushed in self._pushed.items() if _is_due(key, pushed)]
        handles = [pushed.handle for _, pushed in waiting if pushed.handle is not None]
        await manager.checkpoint(handles)
        for key, pushed in waiting:
            self._reached(number, key, pushed)
        for session in list(self.sessions):
            session.flush()
        if any(handle.holding.is_unsaved for handle in handles):
            self.due.set()  # The database was away, or more has become durable meanwhile.

    def _reached(self, number: int, key: Key, pushed: Pushed) -> None:
        if pushed.handle is None or pushed.handle.holding.epoch is None:
            return
        position, stream, session = pushed.handle.holding.saved.position, key[1], pushed.session
        pushed.acked_commits = pushed.handle.holding.saved.commits
        session.step(stream, notifier.BarrierCompleted(number, pushed.epoch, position))
        session.credits_due += pushed.feed.trim(position)
        phase = session.streams.get(stream)
        if isinstance(phase, notifier.Active | notifier.PendingClose):
            self.step(key, local.Updated(session.id, phase.epoch, phase.last_acked, phase.last_seen))

    async def _watch_trust(self) -> None:
        while True:
            await asyncio.sleep(TRUST_POLL_S)
            if self.sessions and self._trust_left_s() <= 0.0:
                self._end_sessions("not_ready", "this node may not act now")

    def _end_sessions(self, code: str, text: str) -> None:
        for session in list(self.sessions):
            session.peer.fail(code, text)

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _is_due(key: Key, pushed: Pushed) -> bool:
    handle = pushed.handle
    if handle is None or not handle.holding.is_opened:
        return False
    is_closing = isinstance(pushed.session.streams.get(key[1]), notifier.PendingClose)
    return is_closing or handle.holding.progress.commits > pushed.acked_commits
