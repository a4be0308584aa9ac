"""The session of a node's beats, on both sides of the wire, and the lock that it holds at the server.

The server lets go of the lock when it learns that the session has ended: mostly at once; late, if nothing comes from
the client any more, and its own timeouts have to pass; and early, if something between the two has cut the session of a
process that lives. Behind a pooler there is no lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from simulation.kernel import Cancelled, Process
from simulation.network import Away
from simulation.transactions import Transaction

if TYPE_CHECKING:
    from simulation.database import Database

ANSWER_S = 2.0  # A beat is not waited for longer.
AGAIN_S = 0.5  # TCP sends again what nobody has acknowledged.
AT_ONCE_S = 0.0115  # By when the kernel's word has mostly arrived.
TIMEOUT_S = (3.0, 11.0)  # When the server gives up a client of which it hears nothing.
SELDOM = 0.15  # How often its end is noticed late.


def lock_of(node: UUID) -> tuple[str, UUID]:
    """The key of the lock that an incarnation holds while it lives."""
    return "incarnation", node


class Session(Transaction):
    """A session at the server: it has no transaction that could lie idle, and its locks last as long as it does."""

    def __init__(self, database: Database, client: Process, on_broken: Callable[[Session], None]) -> None:
        super().__init__(database, client)
        self._database = database
        self._on_broken = on_broken

    def is_usable(self) -> bool:
        """Whether it is open."""
        return self.is_open

    def break_off(self) -> None:
        """The server ends it, or something in between does; the client learns of it in its time."""
        if self.is_open:
            self._database.end(self)
            network = self._database.network
            if network.mode(self.client.name, self._database.name) == "up":
                network.loop.after(network.delay_s(), self.client.run, lambda: self._on_broken(self))

    def abandon(self) -> None:
        """The client is gone, or has given it up: the server learns of it at once, or by a timeout."""
        random = self._database.network.random
        loop = self._database.network.loop
        loop.after(random.uniform(*TIMEOUT_S), self._database.end, self)
        if random.random() > SELDOM:
            loop.after(random.random() * AT_ONCE_S, self._notice)

    def _notice(self) -> None:
        network = self._database.network
        if not self.is_open:
            return
        if network.mode(self.client.name, self._database.name) == "up":
            self._database.end(self)
        else:
            network.loop.after(AGAIN_S, self._notice)


class BeatSession:
    """The client's side: opened when it is needed, and again whenever it is broken."""

    def __init__(self, database: Database, client: Process, node: UUID, *, is_pooled: bool) -> None:
        self._database = database
        self._client = client
        self._node = node
        self._is_pooled = is_pooled
        self._on_broken: Callable[[], None] = lambda: None
        self._session: Session | None = None

    def when_broken(self, act: Callable[[], None]) -> None:
        """Do this as soon as a session is known to have ended."""
        self._on_broken = act

    async def beat(self) -> bool:
        """One more beat, with the lock if it can be had. False: this incarnation has been ended."""
        database, stamp_s = self._database, self._client.clock_s()
        try:
            session = self._session = self._session or await self._ask(self._open)
            if not self._is_pooled and not self._has_lock(session):
                await self._ask(lambda: self._take_lock(session))
            found: bool = await database.at_once(
                self._client, lambda: [(self._node, "share")], lambda: self._beat(session, stamp_s), ANSWER_S
            )
        except (Away, Cancelled):
            self.close()
            raise
        return found

    def close(self) -> None:
        """Let go of the session; so does the death of the process."""
        if self._session is not None:
            self._session.abandon()
            self._session = None

    def _open(self) -> Session:
        session = Session(self._database, self._client, self._broken)
        self._database.sessions.append(session)
        return session

    def _broken(self, session: Session) -> None:
        if session is self._session:
            self._session = None
            self._on_broken()

    def _take_lock(self, session: Session) -> None:
        if session.is_open:
            self._database.take(session, lock_of(self._node), "skip")

    def _beat(self, session: Session, stamp_s: float) -> bool | Away:
        if not session.is_open:
            return Away("the session was ended")
        return self._database.beat(self._node, stamp_s, has_lock=self._has_lock(session))

    def _has_lock(self, session: Session) -> bool:
        return lock_of(self._node) in session.locks

    async def _ask(self, work: Callable[[], object]) -> Session:
        found: Session = await self._database.ask(self._client, work, ANSWER_S)
        return found
