"""Commands on streams, one after the other: of each stream only one is in a transaction at a time."""

from __future__ import annotations

from collections import deque
from uuid import UUID

from headgate.core.streams import Command, Step
from simulation.kernel import Future
from simulation.store import Store


class Ownership:
    """The way from a node to the stream rows."""

    def __init__(self, store: Store, node: UUID) -> None:
        self._store = store
        self._node = node
        self._turns: dict[UUID, deque[Future[None]]] = {}

    async def submit(self, stream: UUID, command: Command) -> Step:
        """Have this command carried out when those before it are answered."""
        turns = self._turns.setdefault(stream, deque())
        turn: Future[None] = Future()
        turns.append(turn)
        try:
            if turns[0] is not turn:
                await turn
            return (await self._store.apply(self._node, {stream: command}))[stream]
        finally:
            was_next = turns[0] is turn
            turns.remove(turn)
            if turns and was_next:
                turns[0].resolve()
            elif not turns:
                self._turns.pop(stream, None)
