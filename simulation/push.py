"""The node's side of the push protocol: sessions, the local registry, and the barriers every 100 ms.

`core.push.notifier` says what becomes of a session's stream, `core.push.local_registry` which session of this node has
it; a pushed stream is run by the manager like any other. The end of a session reaches both machines, or, if its handler
died, only one: either has to be enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from headgate.core.push import local_registry, notifier
from headgate.core.push.local_registry import Asking, Entry
from headgate.core.push.notifier import PendingClose, PendingRelinquish, Reason
from headgate.core.streams import Progress, Why
from simulation.handle import Handle
from simulation.network import Away
from simulation.pipes import Pipe
from simulation.sessions import Session
from simulation.sources import Feed

if TYPE_CHECKING:
    from simulation.manager import Manager

BARRIER_S = 0.1
ASK_WEIGHT = 20  # A stumble between a question and its answer is worth more than one elsewhere.


class Pushed:
    """One pushed stream of this node: what the manager tells of it goes to the local registry and to its session."""

    def __init__(self, host: PushHost, stream: UUID, session: Session) -> None:
        self.feed = Feed()
        self.stream = stream
        self.session = session
        self.handle: Handle | None = None
        self.epoch = 0
        self.acked_commits = -1  # The commit that the program was last told of.
        self._host = host

    def refused(self, reason: Reason) -> None:
        """It could not be had, or not be opened; or a later run of it was denied."""
        if not self._host.is_current(self):
            return
        if not isinstance(self._host.entry(self.stream), Asking):
            self.released("owned_by_other")
            return
        self._host.local(self.stream, local_registry.GlobalDenied(reason))
        self._host.forget_pushed(self)

    def opened(self, epoch: int, progress: Progress) -> None:
        """A run has opened it: the first one makes it active, a later one goes on with it."""
        if not self._host.is_current(self):
            self._host.give_back(self)  # Its session has been told that it is over.
            return
        self.epoch = epoch
        self._host.local(self.stream, local_registry.GlobalGranted(epoch, progress.position))
        self.session.step(self.stream, notifier.Regranted(epoch))

    def released(self, nack: Why | None) -> None:
        """It is not ours any more: given back, or taken from us."""
        if not self._host.is_current(self):
            return
        if isinstance(self._host.entry(self.stream), Asking):
            self.refused("not_ready")
            return
        self._host.local(self.stream, local_registry.GlobalReleased(self.epoch))
        self._host.forget_pushed(self)
        self.feed.clear()  # Its program has what was not durable, and sends it again.
        if isinstance(self.session.phases.get(self.stream), PendingRelinquish):
            self.session.step(self.stream, notifier.RelinquishAnswered(self.epoch, nack))
        else:
            self.session.step(self.stream, notifier.StreamLost(self.epoch, nack or "stopped"))

    def is_due(self) -> bool:
        """Whether a barrier has anything to do for it."""
        handle = self.handle
        if handle is None or not handle.holding.is_opened:
            return False
        is_closing = isinstance(self.session.phases.get(self.stream), PendingClose)
        return is_closing or handle.holding.progress.commits > self.acked_commits


class PushHost:
    """Everything that is pushed through one incarnation of a node."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.barrier = 0
        self._world = manager.world
        self._entries: dict[UUID, Entry] = {}
        self._pushed: dict[UUID, Pushed] = {}
        self._sessions: dict[UUID, Session] = {}
        self._is_beating = False

    # From clients.

    def connected(self, pipe: Pipe) -> Session:
        """A client has connected."""
        session = Session(self._world.new_id(), pipe, self)
        self._sessions[session.id] = session
        if not self._is_beating:
            self._is_beating = True
            self.manager.spawn(self._barrier_loop())
        if self.manager.is_draining:
            self._send_away(session)
        return session

    def closed(self, session: Session, *, is_own: bool = False) -> None:
        """A connection is lost. Whichever of the two hears of it has to make sure that nothing stays behind."""
        if not session.is_open or self.manager.is_over:
            return
        session.is_open = False
        hears = self._world.random.choice(("both", "both", "notifier", "local registry"))
        self._world.note((self.manager.node.machine.name,), "a session is over; told: {}", hears)
        if hears != "local registry":
            for stream in list(session.phases):
                session.step(stream, notifier.ConnectionLost())
        else:
            session.is_dead = True
            self.forget(session)
        if hears != "notifier":
            for stream in list(self._entries):
                self.local(stream, local_registry.SessionClosed(session.id))
        if hears == "both":
            for pushed in [one for one in self._pushed.values() if one.session is session]:
                self.give_back(pushed)

    def drain(self, draining: bool) -> None:
        """Send the clients elsewhere; what they have pushed is drained like any other stream."""
        for session in list(self._sessions.values()) if draining else ():
            self._send_away(session)

    def _send_away(self, session: Session) -> None:
        session.pipe.to_client(("restart", None, "draining"))

    def lose_all(self) -> None:
        """This incarnation is over."""
        sessions = list(self._sessions.values())
        self._entries, self._pushed, self._sessions = {}, {}, {}
        for session in sessions:
            session.is_open = False
            session.pipe.close_by_node()

    # What sessions need.

    def why_not(self) -> Reason | None:
        """Why nothing can be asked for now, if it cannot."""
        return None if self.manager.node.has_trust() else "not_ready"

    def ask(self, session: Session, stream: UUID) -> None:
        """A session asks for a stream."""
        self.local(stream, local_registry.Ask(session.id, self._world.name(stream)), session)

    def relinquish(self, session: UUID, stream: UUID, epoch: int, position: int | None) -> None:
        """A session gives a stream back."""
        self.local(stream, local_registry.Relinquish(session, epoch, position))

    def take(self, stream: UUID, ids: Sequence[int]) -> None:
        """Records to be written."""
        if stream in self._pushed:
            self._pushed[stream].feed.append(ids)
        else:
            self._world.checkers.push_dropped(stream, self.manager.node.machine.name)

    def forget(self, session: Session) -> None:
        """A session that is over has nothing left."""
        self._sessions.pop(session.id, None)

    # The local registry.

    def entry(self, stream: UUID) -> Entry | None:
        """Who has this stream here."""
        return self._entries.get(stream)

    def is_current(self, pushed: Pushed) -> bool:
        """Whether nobody has asked for the stream again since."""
        return self._pushed.get(pushed.stream) is pushed

    def forget_pushed(self, pushed: Pushed) -> None:
        """Its run is over."""
        if self.is_current(pushed):
            del self._pushed[pushed.stream]

    def local(self, stream: UUID, event: local_registry.Event, asker: Session | None = None) -> None:
        """Step the local registry, and perform the effects."""
        step = local_registry.step(self._entries.get(stream), event)
        if step.entry is None:
            self._entries.pop(stream, None)
        else:
            self._entries[stream] = step.entry
        for effect in step.effects:
            match effect:
                case local_registry.AskGlobal():
                    assert asker is not None
                    pushed = self._pushed[stream] = Pushed(self, stream, asker)
                    self.manager.spawn(self._claim(pushed), weight=ASK_WEIGHT)
                case local_registry.AcceptSession(session=id, epoch=epoch, position=position):
                    self._tell(id, stream, notifier.Accepted(epoch, position))
                case local_registry.RejectSession(session=id, reason=reason, retry_after_ms=retry_after_ms):
                    self._tell(id, stream, notifier.Rejected(reason, retry_after_ms))
                case local_registry.RelinquishGlobal():
                    if stream in self._pushed:
                        self.give_back(self._pushed[stream])

    def _tell(self, session: UUID, stream: UUID, event: notifier.Event) -> None:
        """Tell a session; or do what is to be done if it is gone."""
        if session in self._sessions:
            self._sessions[session].step(stream, event)
        else:
            for effect in notifier.step(None, event).effects:
                if isinstance(effect, notifier.RelinquishLocal):
                    self.relinquish(session, stream, effect.epoch, effect.position)

    # The rows.

    async def _claim(self, pushed: Pushed) -> None:
        """Look the row up, then claim it."""
        database = self._world.database
        try:
            await database.ask(self.manager.node.process, lambda: pushed.stream in database.streams)
        except Away:
            pushed.refused("not_ready")
            return
        if self.manager.is_over or not self.is_current(pushed):
            return
        claimed = self.manager.claim(pushed.stream, pushed)
        if isinstance(claimed, Handle):
            pushed.handle = claimed
        else:
            pushed.refused(claimed)

    def give_back(self, pushed: Pushed) -> None:
        """Have its run end and its row released."""
        if pushed.handle is not None:
            self.manager.give_back(pushed.handle)

    # Barriers.

    async def _barrier_loop(self) -> None:
        while not self.manager.is_over:
            await self.manager.node.process.sleep(BARRIER_S)
            if any(pushed.is_due() for pushed in self._pushed.values()):
                await self._barrier()

    async def _barrier(self) -> None:
        """Commit what is durable, and tell the programs."""
        self.barrier += 1
        number = self.barrier
        waiting = [pushed for pushed in self._pushed.values() if pushed.is_due()]
        await self._save(waiting)
        for pushed in waiting:
            if self.is_current(pushed) and pushed.handle is not None and pushed.handle.holding.epoch is not None:
                self._reached(number, pushed, pushed.handle.holding.saved)

    async def _save(self, waiting: Sequence[Pushed]) -> None:
        await self.manager.checkpoint([pushed.handle for pushed in waiting if pushed.handle is not None])

    def _reached(self, number: int, pushed: Pushed, saved: Progress) -> None:
        pushed.acked_commits = saved.commits
        session, stream = pushed.session, pushed.stream
        session.step(stream, notifier.BarrierCompleted(number, pushed.epoch, saved.position))
        pushed.feed.trim(saved.position)
        phase = session.phases.get(stream)
        if isinstance(phase, notifier.Active | PendingClose):
            self.local(stream, local_registry.Updated(session.id, phase.epoch, phase.last_acked, phase.last_seen))
