"""The listener: all push sessions of a node, between the notifiers (one per session) and the registry's rows.

A session's frames are events of its notifier (`core.push.notifier`). Who has which stream on this node is the local
registry (`core.push.local_registry`). The rows are claimed and released by the worker manager, which runs a pushed
stream exactly like any other: same sink, same mapping, same fencing, same swap of versions. This module carries events
from one to the others and performs what they say.

A *barrier* runs at most every `BARRIER_S` while something is due: it checkpoints, in one statement, every pushed stream
whose sink has got further, and tells the programs what is durable. Without trust there are no sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar
from uuid import UUID

import structlog

from headgate.core.push import local_registry as local
from headgate.core.push import notifier
from headgate.errors import StoreError
from headgate.runtime.push.feed import Piece
from headgate.runtime.push.session import Key, Peer, Pushed, Session
from headgate.runtime.streams.handle import Handle
from headgate.runtime.streams.manager import WorkerManager
from headgate.store.streams import Streams

BARRIER_S = 0.1
AT_ONCE = 20  # Streams of which something is done before others have their turn: a session may have 10,000.
TRUST_POLL_S = 0.25

T = TypeVar("T")

log = structlog.get_logger()


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

    def why_released(self, datasource: UUID) -> str:
        """Why a stream was given back that its program still wants."""
        return "stopped" if self._manager is None else self._manager.why_given_back(datasource)

    # Sessions.

    def open(self, peer: Peer, datasource: UUID) -> Session:
        """A program has said hello."""
        session = Session(self, peer, datasource)
        self.sessions.add(session)
        if self._draining:
            self._spawn(self._send_away([session]))
        return session

    def closed(self, session: Session) -> None:
        """A connection is gone. One with very many streams lets go of some of them at a time."""
        self.sessions.discard(session)
        streams = list(session.streams)
        if len(streams) <= AT_ONCE:
            self._let_go(session, streams)
        else:
            self._spawn(self._let_go_of_many(session, streams))

    async def _let_go_of_many(self, session: Session, streams: list[str]) -> None:
        for some in _slices(streams):
            self._let_go(session, some)
            await asyncio.sleep(0)

    def _let_go(self, session: Session, streams: Sequence[str]) -> None:
        for stream in streams:
            session.step(stream, notifier.ConnectionLost())
            key = (session.datasource, stream)
            self.step(key, local.SessionClosed(session.id))
            if (pushed := self._pushed.get(key)) is not None and pushed.session is session:
                self.give_back(pushed)

    def ask(self, session: Session, stream: str, name: str) -> None:
        """A session asks for a stream."""
        self.step((session.datasource, stream), local.Ask(session.id, name), session)

    def take(self, session: Session, stream: str, piece: Piece, skipped: int) -> None:
        """Hand records to the pipeline, except those that are already durable."""
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
        """Whether nobody has asked for the stream again since."""
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
            except Exception:  # Whatever the error is, every session that asked gets an answer.
                log.exception("streams could not be looked up")
            for some in _slices(list(asked.items())):
                for key, pushed in some:
                    if self.is_current(key, pushed):
                        self._claim_row(key, pushed, ids.get(key))
                await asyncio.sleep(0)

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
        for some in _slices(waiting):
            for key, pushed in some:
                if self.is_current(key, pushed):
                    self._reached(number, key, pushed)
            if len(waiting) > AT_ONCE:
                await asyncio.sleep(0)
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


def _slices(all_: Sequence[T]) -> Iterator[Sequence[T]]:
    """As many as are looked at in one go."""
    return (all_[start : start + AT_ONCE] for start in range(0, len(all_), AT_ONCE))


def _is_due(key: Key, pushed: Pushed) -> bool:
    handle = pushed.handle
    if handle is None or not handle.holding.is_opened:
        return False
    is_closing = isinstance(pushed.session.streams.get(key[1]), notifier.PendingClose)
    return is_closing or handle.holding.progress.commits > pushed.acked_commits
