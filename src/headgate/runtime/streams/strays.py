"""Letters of pushed streams whose programs are away: a node runs the stream for as long as their replay takes.

Only a run replays letters, and a pushed stream runs while its program is connected. So whichever node finds such a
stream first claims it, as for a program that pushes nothing: the run replays what was asked for, and the stream is free
again when nothing is left. A program that asks meanwhile waits no longer than `BRIEF_S`; on the same node it does not
wait at all. Between two tries the stream is left alone for a while, for programs and for sinks that are away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn, TypeAlias
from uuid import UUID

from headgate.clock import boot_s
from headgate.connectors.api import Backlog, Position, Progress
from headgate.core.push.notifier import Reason
from headgate.core.streams import Why
from headgate.errors import StoreError
from headgate.runtime.streams.handle import Handle, Pusher
from headgate.store.letters import Letters

BRIEF_S = 5.0  # A program may wait for so long.
LOOK_S = 0.2  # From one look whether letters are left to the next.
PAUSE_S = 5.0  # From one claim of a stream to the next.

Claim: TypeAlias = Callable[[UUID, UUID, str, Pusher], Handle | Reason]


class Strays:
    """The pushed streams that this node runs for their letters."""

    def __init__(self, letters: Letters, node: UUID, claim: Claim, give_back: Callable[[Handle], None]) -> None:
        self._letters = letters
        self._node = node
        self._claim = claim
        self._give_back = give_back
        self._not_before_s: dict[UUID, float] = {}

    async def look(self) -> None:
        """Run those that have letters to replay and nobody to do it."""
        found, now_s = await self._letters.strays(), boot_s()
        if not found:
            self._not_before_s.clear()
        for one in found:
            if self._not_before_s.get(one.stream, 0.0) <= now_s:
                self._not_before_s[one.stream] = now_s + PAUSE_S
                caretaker = Caretaker(partial(self._is_waiting, one.stream), self._give_back)
                claimed = self._claim(one.stream, one.datasource, one.label, caretaker)
                if isinstance(claimed, Handle):
                    caretaker.handle = claimed

    async def _is_waiting(self, stream: UUID) -> bool:
        """Whether a stream of this node still has letters to replay: a newer version may be about to do it."""
        try:
            return stream in await self._letters.asked(self._node)
        except StoreError:
            return True


class Caretaker:
    """Stands in for the session of a program that is away."""

    is_brief = True

    def __init__(self, is_waiting: Callable[[], Awaitable[bool]], give_back: Callable[[Handle], None]) -> None:
        self.feed = _NoRecords(is_waiting, self._done)
        self.handle: Handle | None = None
        self._give_back = give_back

    def refused(self, reason: Reason) -> None:
        """Another node was faster, or it cannot be opened."""

    def opened(self, epoch: int, progress: Progress) -> None:
        """The run replays now."""
        asyncio.get_running_loop().call_later(BRIEF_S, self._done)

    def committed(self) -> None:
        """Some were replayed."""

    def released(self, nack: Why | None) -> None:
        """It is free again."""
        self.handle = None

    def _done(self) -> None:
        if self.handle is not None:
            self._give_back(self.handle)


class _NoRecords:
    """A feed without records. It is read when the run has replayed what it could."""

    def __init__(self, is_waiting: Callable[[], Awaitable[bool]], on_done: Callable[[], None]) -> None:
        self._is_waiting = is_waiting
        self._on_done = on_done

    def rewind(self, position: Position) -> None:
        """There is nothing to go back to."""

    async def read(self) -> NoReturn:
        """Wait until there is nothing left to do; and then to be stopped."""
        while True:
            if not await self._is_waiting():
                self._on_done()
            await asyncio.sleep(LOOK_S)

    def backlog(self) -> Backlog:
        """Nothing waits."""
        return Backlog()
