"""The node's side of the push protocol: sessions, the local registry, and the barriers every 100 ms.

`core.push.notifier` says what becomes of a session's stream, `core.push.local_registry` which session of this node has
it; here their effects are performed. The end of a session reaches both of them, or, if its handler died, only one:
either has to be enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headgate.core import streams
from headgate.core.push import local_registry, notifier
from headgate.core.push.local_registry import Entry
from headgate.core.push.notifier import PendingClose
from headgate.core.streams import Granted, Progress, Revoke, Step, Why
from simulation.database import Wish
from simulation.lines import RETRY_S, Line, acquire_command
from simulation.network import Away
from simulation.pipes import Pipe
from simulation.sessions import Session

if TYPE_CHECKING:
    from simulation.manager import Manager

BARRIER_S = 0.1
COMMAND_WEIGHT = 20  # A stumble between a command and its answer is worth more than one elsewhere.
EVER = 1 << 62  # Later than any epoch.


class PushHost:
    """Everything that is pushed through one incarnation of a node."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.barrier = 0
        self.lines: dict[UUID, Line] = {}
        self._world = manager.world
        self._entries: dict[UUID, Entry] = {}
        self._sessions: dict[UUID, Session] = {}
        self._under_way: Counter[UUID] = Counter()  # Commands on streams that have no answer yet.
        self._is_beating = False

    def knows(self, stream: UUID) -> bool:
        """Whether this node is aware of having the stream, or of asking for it."""
        return stream in self._entries or self._under_way[stream] > 0

    def is_idle(self) -> bool:
        """Whether everything has been given back."""
        return not self._entries and all(count <= 0 for count in self._under_way.values())

    # From clients.

    def connected(self, pipe: Pipe) -> Session:
        """A client has connected."""
        session = Session(self._world.new_id(), pipe, self)
        self._sessions[session.id] = session
        if not self._is_beating:
            self._is_beating = True
            self.manager.node.process.spawn(self._barrier_loop())
        return session

    def why_not(self, stream: UUID) -> notifier.Reason | None:
        """Why a stream cannot be asked for now, if it cannot."""
        if stream not in self._entries and self._under_way[stream] > 0:
            return "busy"  # What was begun for it has no answer yet, and could not be told from what would follow.
        if self.manager.is_draining:
            return "draining"
        return None if self.manager.node.has_trust() else "not_ready"

    def closed(self, session: Session) -> None:
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
            del self._sessions[session.id]
        if hears != "notifier":
            for stream in list(self._entries):
                self._local(stream, local_registry.SessionClosed(session.id))

    def drain(self) -> None:
        """Commit everything, give it back, and send the clients elsewhere."""
        for session in list(self._sessions.values()):
            if session.is_open:
                self.manager.node.process.spawn(self._drain(session))

    async def _drain(self, session: Session) -> None:
        session.is_reading = False
        for stream in list(session.phases):
            if stream in self.lines:
                await self.lines[stream].settle()
        session.pipe.to_client(("restart", None, "draining"))
        session.pipe.close_by_node()
        self.closed(session)

    def lose_all(self) -> None:
        """This incarnation is over."""
        for line in self.lines.values():
            line.stop()
        for session in list(self._sessions.values()):
            for stream in list(session.phases):
                session.step(stream, notifier.StreamLost(EVER, "stale"))
            session.is_open = False
            session.pipe.close_by_node()
        self.lines, self._entries, self._sessions = {}, {}, {}
        self._under_way.clear()

    def told(self, wishes: Mapping[UUID, Wish]) -> None:
        """What is wished now: another version goes on under another grant."""
        for line in list(self.lines.values()):
            if wishes[line.stream].version != line.version:
                self._begin(line.stream, partial(line.regrant, wishes[line.stream]))

    # What sessions need.

    def ask(self, session: Session, stream: UUID) -> None:
        """A session asks for a stream."""
        self._local(stream, local_registry.Ask(session.id, self._world.name(stream)))

    def relinquish(self, session: UUID, stream: UUID, epoch: int, position: int | None) -> None:
        """A session gives a stream back."""
        self._local(stream, local_registry.Relinquish(session, epoch, position))

    def take(self, stream: UUID, ids: Sequence[int]) -> None:
        """Records to be written."""
        if stream in self.lines:
            self.lines[stream].buffer.extend(ids)

    def forget(self, session: Session) -> None:
        """A session that is over has nothing left."""
        self._sessions.pop(session.id, None)

    # The local registry.

    def _local(self, stream: UUID, event: local_registry.Event) -> None:
        """Step the local registry, and perform the effects."""
        before = self._entries.get(stream)
        step = local_registry.step(before, event)
        if step.entry is None:
            self._entries.pop(stream, None)
        else:
            self._entries[stream] = step.entry
        for effect in step.effects:
            match effect:
                case local_registry.AskGlobal():
                    self._begin(stream, partial(self._claim, stream))
                case local_registry.AcceptSession(session=session, epoch=epoch, position=position):
                    self._tell(session, stream, notifier.Accepted(epoch, position))
                case local_registry.RejectSession(session=session, reason=reason, retry_after_ms=retry_after_ms):
                    self._tell(session, stream, notifier.Rejected(reason, retry_after_ms))
                case local_registry.RelinquishGlobal(epoch=epoch, position=position):
                    id = before.session if before is not None else None
                    self._give_back(stream, id, epoch, position)

    def _tell(self, session: UUID | None, stream: UUID, event: notifier.Event) -> None:
        """Tell a session; or do what is to be done if it is gone."""
        if session in self._sessions:
            self._sessions[session].step(stream, event)
        elif session is not None:
            for effect in notifier.step(None, event).effects:
                if isinstance(effect, notifier.RelinquishLocal):
                    self.relinquish(session, stream, effect.epoch, effect.position)

    # The global registry.

    def _begin(self, stream: UUID, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Have something done for a stream. Until it is, the node knows of the stream."""
        self._under_way[stream] += 1
        self.manager.node.process.spawn(self._counted(stream, work), weight=COMMAND_WEIGHT)

    async def _counted(self, stream: UUID, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        await work()
        self._under_way[stream] -= 1

    async def acquire(self, stream: UUID, wish: Wish, is_wanted: Callable[[], bool]) -> Step | None:
        """Claim or regrant, until there is an answer. If it is no longer wanted, what may be ours is given back."""
        command = acquire_command(self.manager.id, self._world.new_id(), wish)
        while not self.manager.is_over:
            try:
                return await self.manager.apply(stream, command)
            except Away:
                await self.manager.node.process.sleep(RETRY_S)
            if not is_wanted():
                await self.manager.persist(stream, Revoke(self.manager.id))
                break
        return None

    async def _claim(self, stream: UUID) -> None:
        wish = self._world.database.wishes[stream]
        step = await self.acquire(stream, wish, lambda: True)
        if step is None:
            return
        if not isinstance(step.reply, Granted):
            self._local(stream, local_registry.GlobalDenied("owned", 500))
            return
        epoch, progress = step.stream.epoch, step.stream.progress
        process = self.manager.node.process
        found = await self._world.sinks[wish.sink].open(process, self.manager.id, stream, epoch)
        if self.manager.is_over:
            return
        if isinstance(found, str):
            await self.manager.release(stream, epoch, progress.commits, progress.position)
            self._local(stream, local_registry.GlobalDenied("not_ready", 500))
            return
        agreed = streams.agree(progress, found)
        self.lines[stream] = Line(self, stream, epoch, agreed, progress.commits, wish)
        self._local(stream, local_registry.GlobalGranted(epoch, agreed.position))

    def _give_back(self, stream: UUID, session: UUID | None, epoch: int, position: int | None) -> None:
        """The line ends, and the row is released with what it had reached."""
        line, commits = self.lines.get(stream), 0
        if line is not None and line.epoch <= epoch:
            del self.lines[stream]
            line.stop()
            commits = line.progress.commits if position == line.progress.position else line.saved.commits
        self._begin(stream, partial(self._relinquish, stream, session, epoch, commits, position))

    async def _relinquish(
        self, stream: UUID, session: UUID | None, epoch: int, commits: int, position: int | None
    ) -> None:
        nack: Why | None = await self.manager.release(stream, epoch, commits, position)
        if self.manager.is_over:
            return
        self._local(stream, local_registry.GlobalReleased(epoch))
        self._tell(session, stream, notifier.RelinquishAnswered(epoch, nack))

    # From lines.

    async def _barrier_loop(self) -> None:
        process = self.manager.node.process
        while not self.manager.is_over:
            await process.sleep(BARRIER_S)
            self.barrier += 1
            for line in list(self.lines.values()):
                if not line.is_busy() and (line.has_work() or self._is_closing(line.stream)):
                    process.spawn(line.flush(self.barrier), weight=3)

    def _session_of(self, stream: UUID) -> Session | None:
        entry = self._entries.get(stream)
        return self._sessions.get(entry.session) if entry is not None else None

    def _is_closing(self, stream: UUID) -> bool:
        session = self._session_of(stream)
        return session is not None and isinstance(session.phases.get(stream), PendingClose)

    def completed(self, line: Line, barrier: int, epoch: int, progress: Progress) -> None:
        """A barrier has made everything up to there durable and committed."""
        session = self._session_of(line.stream)
        if session is None or line.is_stopped:
            return
        last_seen = getattr(session.phases.get(line.stream), "last_seen", progress.position)
        self._local(line.stream, local_registry.Updated(session.id, epoch, progress.position, last_seen))
        session.step(line.stream, notifier.BarrierCompleted(barrier, epoch, progress.position))

    def broke(self, line: Line) -> None:
        """Its sink failed: the client keeps its records and asks again, and the stream is given back."""
        session = self._session_of(line.stream)
        if session is None or line.is_stopped:
            return
        session.step(line.stream, notifier.StreamLost(line.epoch, "sink"))
        self._local(line.stream, local_registry.Relinquish(session.id, line.epoch, line.saved.position))

    def lost(self, line: Line) -> None:
        """Its grant has ended without our doing."""
        session = self._session_of(line.stream)
        line.stop()
        if self.lines.get(line.stream) is line:
            del self.lines[line.stream]
        if session is not None:
            session.step(line.stream, notifier.StreamLost(line.epoch, "stale"))
        self._local(line.stream, local_registry.Taken(line.epoch))

    def regranted(self, stream: UUID, epoch: int, progress: Progress) -> None:
        """A new run goes on with the stream."""
        session = self._session_of(stream)
        self._local(stream, local_registry.GlobalGranted(epoch, progress.position))
        if session is not None:
            session.step(stream, notifier.Regranted(epoch))
