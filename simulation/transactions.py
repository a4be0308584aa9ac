"""Transactions as a client of PostgreSQL sees them: lock, think, commit, each a message that can be late or lost.

Locks are taken in the order in which a transaction asks for them, and waited for. Between two messages the transaction
lies idle at the server, with its locks; a client that was stopped there holds others up until the server ends it. Only
what reaches the server as a commit of a transaction that is still open changes anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, TypeAlias

from simulation.kernel import Process
from simulation.network import Away, Network, Reply, Service

Key: TypeAlias = Hashable
Mode: TypeAlias = Literal["share", "exclusive", "skip"]  # `skip`: exclusive, or not at all if somebody has it.
Stage: TypeAlias = Callable[[], Sequence[tuple[Key, Mode]]]

LOCK_S = 5.0


class Transaction:
    """One transaction, on both sides of the wire."""

    def __init__(self, service: TransactionalService, client: Process) -> None:
        self.service = service
        self.client = client
        self.is_open = True
        self.is_idle = False
        self.idle_since_s = 0.0
        self.locks: dict[Key, bool] = {}  # Key → whether it is held exclusively.

    async def lock(self, stages: Sequence[Stage], read: Callable[[], Any]) -> Any:
        """Take locks, stage by stage, and read what they protect."""
        return await self.service.call(self.client, lambda reply: _Taking(self, stages, read, reply).go_on())

    async def execute(self, work: Callable[[], Any]) -> Any:
        """A statement that needs no further locks."""
        return await self.service.call(self.client, lambda reply: self._work(work, reply))

    async def commit(self, write: Callable[[], Any]) -> Any:
        """Write and commit."""
        return await self.service.call(self.client, lambda reply: self._commit(write, reply), is_commit=True)

    def close(self) -> None:
        """The client lets go of its connection; the server notices, unless the wire is cut."""
        network = self.service.network
        if network.mode(self.client.name, self.service.name) == "up":
            network.loop.after(network.delay_s(), self.service.end, self)

    def answer(self, value: Any, reply: Reply) -> None:
        """Send an answer, and lie idle until the next message."""
        self.is_idle, self.idle_since_s = True, self.service.network.loop.now_s
        self.service.watch(self)
        reply(value)

    def is_usable(self) -> bool:
        """Whether it is still open: the server ends one that lies idle for too long, even if nobody watches."""
        now_s = self.service.network.loop.now_s
        if self.is_open and self.is_idle and now_s - self.idle_since_s > self.service.idle_s:
            self.service.end(self)
        return self.is_open

    def _work(self, work: Callable[[], Any], reply: Reply) -> None:
        if self.is_usable():
            self.answer(work(), reply)
        else:
            reply(Away("the transaction was ended"))

    def _commit(self, write: Callable[[], Any], reply: Reply) -> None:
        if not self.is_usable():
            reply(Away("the transaction was ended"))
            return
        value = write()
        self.service.end(self)
        reply(value)


class _Taking:
    """The locks that one message asks for, taken one after the other."""

    __slots__ = ("_due", "_read", "_reply", "_stages", "_transaction", "is_waiting")

    def __init__(
        self, transaction: Transaction, stages: Sequence[Stage], read: Callable[[], Any], reply: Reply
    ) -> None:
        self._transaction = transaction
        self._stages = deque(stages)
        self._due: deque[tuple[Key, Mode]] = deque()
        self._read = read
        self._reply = reply
        self.is_waiting = False

    def go_on(self) -> None:
        """Take what can be taken; wait for the first that cannot."""
        transaction, service = self._transaction, self._transaction.service
        self.is_waiting = False
        if not transaction.is_open:
            self._reply(Away("the transaction was ended"))
            return
        transaction.is_idle = False
        while True:
            while self._due:
                key, mode = self._due[0]
                if not service.take(transaction, key, mode) and mode != "skip":
                    self.is_waiting = True
                    service.wait(self, key)
                    return
                self._due.popleft()
            if not self._stages:
                break
            # What a stage locks is decided only when the locks of the one before are held.
            self._due.extend(self._stages.popleft()())
        transaction.answer(self._read(), self._reply)

    def give_up(self) -> None:
        """Waited too long."""
        if self.is_waiting:
            self.is_waiting = False
            self._transaction.service.end(self._transaction)
            self._reply(Away("lock timeout"))


class TransactionalService(Service):
    """A service with transactions."""

    def __init__(self, network: Network, name: str, idle_s: float) -> None:
        super().__init__(network, name)
        self.idle_s = idle_s
        self._holders: dict[Key, list[Transaction]] = {}
        self._waiting: dict[Key, list[_Taking]] = {}

    def begin(self, client: Process) -> Transaction:
        """A new transaction."""
        return Transaction(self, client)

    def at_once(self, client: Process, stage: Stage, work: Callable[[], Any], timeout_s: float) -> Any:
        """One statement that is its own transaction."""
        transaction = Transaction(self, client)

        def finish() -> Any:
            value = work()
            self.end(transaction)
            return value

        return self.call(client, lambda reply: _Taking(transaction, [stage], finish, reply).go_on(), timeout_s)

    def holders(self, key: Key) -> list[Transaction]:
        """Who has this lock."""
        return list(self._holders.get(key, ()))

    def take(self, transaction: Transaction, key: Key, mode: Mode) -> bool:
        """Take a lock if that is possible now."""
        wants_all = mode != "share"
        if key in transaction.locks and transaction.locks[key] >= wants_all:
            return True
        others = [one for one in self.holders(key) if one is not transaction and one.is_usable()]
        if others and (wants_all or any(one.locks[key] for one in others)):
            return False
        if key not in transaction.locks:
            self._holders.setdefault(key, []).append(transaction)
        transaction.locks[key] = wants_all
        return True

    def wait(self, taking: _Taking, key: Key) -> None:
        """Stand in line for a lock, but not forever."""
        self._waiting.setdefault(key, []).append(taking)
        self.network.loop.after(LOCK_S, taking.give_up)
        for holder in self._holders.get(key, ()):
            self.watch(holder)

    def watch(self, transaction: Transaction) -> None:
        """End a transaction that lies idle while others wait for it. One that is in nobody's way may stay."""
        if self._waiting and transaction.is_idle and any(key in self._waiting for key in transaction.locks):
            left_s = transaction.idle_since_s + self.idle_s - self.network.loop.now_s
            self.network.loop.after(max(0.0, left_s), self._end_if_idle, transaction, transaction.idle_since_s)

    def _end_if_idle(self, transaction: Transaction, since_s: float) -> None:
        if transaction.is_idle and transaction.idle_since_s == since_s:
            self.end(transaction)

    def end(self, transaction: Transaction) -> None:
        """Let go of its locks, and let others on."""
        if not transaction.is_open:
            return
        transaction.is_open = transaction.is_idle = False
        for key in transaction.locks:
            holders = self._holders[key]
            holders.remove(transaction)
            if not holders:
                del self._holders[key]
            for taking in self._waiting.pop(key, ()):
                if taking.is_waiting:
                    self.network.loop.soon(taking.go_on)
