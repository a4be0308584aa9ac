"""The node's side of the push protocol: sessions, the local registry, and the barriers every 100 ms.

`core.notifier` says what becomes of a session's stream, `core.local_registry` which session of this node has it; here
their effects are performed. The end of a session reaches both of them, or, if its handler died, only one: either has
to be enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headgate.core import local_registry, notifier, streams
from headgate.core.local_registry import Entry
from headgate.core.notifier import PendingClose, Phase
from headgate.core.streams import Granted, Held, Revoke, Step, Why
from headgate.testing.simulator.database import Wish
from headgate.testing.simulator.lines import RETRY_S, Line, acquire_command
from headgate.testing.simulator.network import Away
from headgate.testing.simulator.pipes import Pipe

if TYPE_CHECKING:
    from headgate.testing.simulator.manager import Manager

BARRIER_S = 0.1
COMMAND_WEIGHT = 20  # A stumble between a command and its answer is worth more than one elsewhere.
EVER = 1 << 62  # Later than any epoch.


class Session:
    """One client's connection, as the node sees it."""

    def __init__(self, id: UUID, pipe: Pipe) -> None:
        self.id = id
        self.pipe = pipe
        self.phases: dict[UUID, Phase] = {}
        self.is_open = True
        self.is_reading = True
        self.restarted: set[UUID] = set()  # Streams whose client was told to ask again, and has not yet.


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
        session = Session(self._world.new_id(), pipe)
        self._sessions[session.id] = session
        if not self._is_beating:
            self._is_beating = True
            self.manager.node.process.spawn(self._barrier_loop())
        return session

    def received(self, session: Session, frame: tuple[Any, ...]) -> None:
        """A frame has come."""
        if not session.is_open or not session.is_reading or self.manager.is_over:
            return
        stream: UUID = frame[1]
        if stream in session.restarted and frame[0] != "notify":
            return  # Sent before the client had heard that it has to ask again.
        match frame[0]:
            case "notify":
                session.restarted.discard(stream)
                self._notify(session, stream)
            case "messages":
                self._step(session, stream, notifier.Received(frame[2]), frame[2])
            case "eos":
                self._step(session, stream, notifier.EndOfStream(self.barrier))

    def _notify(self, session: Session, stream: UUID) -> None:
        if stream not in self._entries and self._under_way[stream] > 0:
            # Something that was begun for it has no answer yet, and could not be told from what would follow.
            session.pipe.to_client(("refused", stream, "busy", 500))
        elif self.manager.is_draining:
            session.pipe.to_client(("refused", stream, "draining", 500))
        elif not self.manager.node.has_trust():
            session.pipe.to_client(("refused", stream, "not_ready", 500))
        else:
            self._step(session, stream, notifier.Notify())

    def closed(self, session: Session) -> None:
        """A connection is lost. Whoever of the two hears of it has to see to it that nothing stays behind."""
        if not session.is_open or self.manager.is_over:
            return
        session.is_open = False
        hears = self._world.random.choice(("both", "both", "notifier", "local registry"))
        self._world.note((self.manager.node.machine.name,), "a session is over; told: {}", hears)
        if hears != "local registry":
            for stream in list(session.phases):
                self._step(session, stream, notifier.ConnectionLost())
        else:
            del self._sessions[session.id]
        if hears != "notifier":
            for stream in list(self._entries):
                self._local(stream, local_registry.SessionClosed(session.id))

    def drain(self) -> None:
        """Have everything committed and given back, and send the clients elsewhere."""
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
        for session in self._sessions.values():
            for stream, phase in session.phases.items():
                for effect in notifier.step(phase, notifier.Lost(EVER, "stale")).effects:
                    self._perform(session, stream, effect, ())
            session.is_open = False
            session.pipe.close_by_node()
        self.lines, self._entries, self._sessions = {}, {}, {}
        self._under_way.clear()

    def told(self, wishes: Mapping[UUID, Wish]) -> None:
        """What is wished now: another version goes on under another grant."""
        for line in list(self.lines.values()):
            if wishes[line.stream].version != line.version:
                self._begin(line.stream, partial(line.regrant, wishes[line.stream]))

    # The two machines.

    def _step(self, session: Session | None, stream: UUID, event: notifier.Event, ids: Any = ()) -> None:
        """Step one stream of one session, and perform the effects."""
        step = notifier.step(None if session is None else session.phases.get(stream), event)
        if session is not None:
            if step.phase is None:
                session.phases.pop(stream, None)
                if not session.is_open and not session.phases:
                    self._sessions.pop(session.id, None)
            else:
                session.phases[stream] = step.phase
        for effect in step.effects:
            self._perform(session, stream, effect, ids)

    def _perform(self, session: Session | None, stream: UUID, effect: notifier.Effect, ids: Any) -> None:
        id, tell = (session.id, session.pipe.to_client) if session is not None else (UUID(int=0), _to_nobody)
        match effect:
            case notifier.Ask():
                self._local(stream, local_registry.Ask(id, self._world.name(stream)))
            case notifier.Relinquish(epoch=epoch, position=position):
                owner = self._entries.get(stream)
                session_id = id if session is not None or owner is None else owner.session
                self._local(stream, local_registry.Relinquish(session_id, epoch, position))
            case notifier.Take(skipped=skipped):
                if stream in self.lines:
                    self.lines[stream].buffer.extend(ids[skipped:])
            case notifier.TellAccepted(epoch=epoch, position=position):
                tell(("accepted", stream, epoch, position))
            case notifier.TellRefused(reason=reason, retry_after_ms=retry_after_ms):
                tell(("refused", stream, reason, retry_after_ms))
            case notifier.TellAcked(position=position):
                tell(("ack", stream, position))
            case notifier.TellClosed(position=position):
                tell(("closed", stream, position))
            case notifier.TellRestart(reason=reason):
                if session is not None:
                    session.restarted.add(stream)
                tell(("restart", stream, reason))
            case notifier.Fail(code=code):
                tell(("error", stream, code))

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
                case local_registry.Accept(session=session, epoch=epoch, position=position):
                    self._step(self._sessions.get(session), stream, notifier.Accepted(epoch, position))
                case local_registry.Reject(session=session, reason=reason, retry_after_ms=retry_after_ms):
                    refused = notifier.Refused(reason, retry_after_ms)
                    if session in self._sessions:
                        self._step(self._sessions[session], stream, refused)
                case local_registry.RelinquishGlobal(epoch=epoch, position=position):
                    id = before.session if before is not None else None
                    self._give_back(stream, id, epoch, position)

    # The global registry.

    def _begin(self, stream: UUID, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Have something done for a stream. Until it is, the node knows of the stream."""
        self._under_way[stream] += 1
        self.manager.node.process.spawn(self._counted(stream, work), weight=COMMAND_WEIGHT)

    async def _counted(self, stream: UUID, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        await work()
        self._under_way[stream] -= 1

    async def acquire(self, stream: UUID, wish: Wish, is_wanted: Callable[[], bool]) -> Step | None:
        """Claim or regrant, until there is an answer. If it is not wanted any more, what may be ours is given back."""
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
            self._local(stream, local_registry.Denied("owned", 500))
            return
        epoch, held = step.stream.epoch, step.stream.held
        process = self.manager.node.process
        found = await self._world.sinks[wish.sink].open(process, self.manager.id, stream, epoch)
        if self.manager.is_over:
            return
        if isinstance(found, str):
            await self.manager.release(stream, epoch, held.n, held.position)
            self._local(stream, local_registry.Denied("not_ready", 500))
            return
        agreed = streams.agree(held, found)
        self.lines[stream] = Line(self, stream, epoch, agreed, held.n, wish)
        self._local(stream, local_registry.Granted(epoch, agreed.position))

    def _give_back(self, stream: UUID, session: UUID | None, epoch: int, position: int | None) -> None:
        """The line ends, and the row is released with what it had reached."""
        line, n = self.lines.get(stream), 0
        if line is not None and line.epoch <= epoch:
            del self.lines[stream]
            line.stop()
            n = line.held.n if position == line.held.position else line.saved.n
        self._begin(stream, partial(self._relinquish, stream, session, epoch, n, position))

    async def _relinquish(self, stream: UUID, session: UUID | None, epoch: int, n: int, position: int | None) -> None:
        nack: Why | None = await self.manager.release(stream, epoch, n, position)
        if self.manager.is_over:
            return
        self._local(stream, local_registry.RelinquishAnswered(epoch))
        if session in self._sessions:
            self._step(self._sessions[session], stream, notifier.RelinquishAnswered(epoch, nack))

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

    def completed(self, line: Line, barrier: int, epoch: int, held: Held) -> None:
        """A barrier has made everything up to there durable and committed."""
        session = self._session_of(line.stream)
        if session is None or line.is_stopped:
            return
        last_seen = getattr(session.phases.get(line.stream), "last_seen", held.position)
        self._local(line.stream, local_registry.Updated(session.id, epoch, held.position, last_seen))
        self._step(session, line.stream, notifier.BarrierCompleted(barrier, epoch, held.position))

    def broke(self, line: Line) -> None:
        """Its sink failed: the client keeps its records and asks again, and the stream is given back."""
        session = self._session_of(line.stream)
        if session is None or line.is_stopped:
            return
        self._step(session, line.stream, notifier.Lost(line.epoch, "sink"))
        self._local(line.stream, local_registry.Relinquish(session.id, line.epoch, line.saved.position))

    def lost(self, line: Line) -> None:
        """Its grant has ended without our doing."""
        session = self._session_of(line.stream)
        line.stop()
        if self.lines.get(line.stream) is line:
            del self.lines[line.stream]
        if session is not None:
            self._step(session, line.stream, notifier.Lost(line.epoch, "stale"))
        self._local(line.stream, local_registry.Taken(line.epoch))

    def regranted(self, stream: UUID, epoch: int, held: Held) -> None:
        """A new run goes on with the stream."""
        session = self._session_of(stream)
        self._local(stream, local_registry.Granted(epoch, held.position))
        if session is not None:
            self._step(session, stream, notifier.Regranted(epoch))


def _to_nobody(frame: tuple[Any, ...]) -> None:
    """The client is gone."""
