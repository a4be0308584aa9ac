"""The lookout: it notices when something comes back that streams of this node wait for.

Streams that wait for the same thing, such as one server, are one watch: one of them lends its probe each time, and an
answer to it, or to any other stream, ends the wait of all (`core.awaited` says when). The registry needs no probe: the
manager asks it twice a second anyway.

However many streams wait, a watch costs a probe a second, and they try again a few at a time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from headgate.clock import boot_s
from headgate.core import awaited, lifecycle
from headgate.core.awaited import Target
from headgate.errors import Cause
from headgate.runtime.cluster.beat import RunLabel, label_current
from headgate.runtime.streams import sides
from headgate.runtime.streams.handle import Handle

PROBE_S = 3.0  # A probe that takes longer has no answer.
AT_ONCE = 20  # Probes.
TOLD_AT_ONCE = 200  # Streams: about 5 ms.


@dataclass(slots=True)
class _Watch:
    """What streams of this node wait for, and which do."""

    target: Target = field(default_factory=Target)
    waiting: dict[Handle, None] = field(default_factory=dict)  # In the order in which they lend their probes.
    last_at_s: float = 0.0  # When somebody last waited.
    task: asyncio.Task[None] | None = None


class Lookout:
    """All watches of one incarnation."""

    def __init__(self, tell: Callable[[Handle, lifecycle.Event], None]) -> None:
        self._tell = tell
        self._watches: dict[str, _Watch] = {}
        self._few = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    # What streams tell.

    def look(self, handle: Handle) -> None:
        """A stream has gone into another phase: it may have begun to wait, or waits no more."""
        wanted, phase = handle.awaited, handle.state.phase
        if wanted is None:
            return
        if not isinstance(phase, lifecycle.BackingOff):
            handle.awaited = None
            self._leave(handle, wanted.key)
            return
        watch = self._watches.setdefault(wanted.key, _Watch())
        if handle in watch.waiting:
            return
        watch.waiting[handle] = None
        if awaited.is_news(watch.target, phase.tried_at_s):
            # Its try was under way when that came back. The machine is in the midst of another event now.
            asyncio.get_running_loop().call_soon(self._tell_one, handle, wanted.key, watch)
        if wanted.probe is not None and (watch.task is None or watch.task.done()):
            watch.task = self._spawn(self._ask(wanted.key, watch))

    def works(self, targets: Callable[[], Iterable[str]]) -> None:
        """A stream has opened its sides, or has written: what they reach, answers. This happens with every batch."""
        if self._watches:
            for key in targets():
                if (watch := self._watches.get(key)) is not None and watch.target.is_away:
                    self.answered(key)

    # What is known of targets.

    def is_away(self, key: str) -> bool:
        """Whether it was asked and did not answer. As long as somebody waits for it, it is asked again."""
        return (watch := self._watches.get(key)) is not None and watch.target.is_away

    def answered(self, key: str) -> None:
        """Somebody has got an answer. What nobody waits for is no news."""
        if (watch := self._watches.get(key)) is None:
            return
        before, watch.target = watch.target, awaited.answered(watch.target, boot_s())
        if awaited.is_back(before, watch.target) and watch.waiting:
            self._spawn(self._tell_all(key, watch))

    def silent(self, key: str, asked_at_s: float) -> None:
        """Somebody has asked, and got no answer."""
        if (watch := self._watches.get(key)) is not None:
            watch.target = awaited.silent(watch.target, asked_at_s)

    def close(self) -> None:
        """This incarnation has ended."""
        for task in list(self._tasks):
            task.cancel()

    # Asking.

    async def _ask(self, key: str, watch: _Watch) -> None:
        """Ask as long as somebody waits."""
        while watch.waiting:
            handle = next(iter(watch.waiting))
            watch.waiting[handle] = watch.waiting.pop(handle)  # Another's turn next time.
            if handle.awaited is not None and handle.awaited.probe is not None:
                asked_at_s = boot_s()
                if await self._answers(handle, handle.awaited.probe):
                    self.answered(key)
                else:
                    self.silent(key, asked_at_s)
            await asyncio.sleep(awaited.pause_s(watch.target, len(self._watches)))
        self._purge()

    async def _answers(self, handle: Handle, probe: Callable[[], Awaitable[None]]) -> bool:
        """Whatever it says but that it is away is an answer. One that does not end is left to itself."""
        async with self._few:
            asking = self._spawn(_labelled(handle, probe))
            done, _ = await asyncio.wait({asking}, timeout=PROBE_S)
        if not done:
            asking.cancel()
            return False
        error = None if asking.cancelled() else asking.exception()
        return error is None or sides.failure_of(error).cause is not Cause.NETWORK

    # Telling.

    async def _tell_all(self, key: str, watch: _Watch) -> None:
        """It has come back. Very many are told in pieces, so that others have turns."""
        handles = list(watch.waiting)
        spread_s = awaited.spread_s(len(handles))
        for begin in range(0, len(handles), TOLD_AT_ONCE):
            if begin:
                await asyncio.sleep(0)
            for handle in handles[begin : begin + TOLD_AT_ONCE]:
                self._tell_one(handle, key, watch, spread_s)

    def _tell_one(self, handle: Handle, key: str, watch: _Watch, spread_s: float = awaited.EACH_S) -> None:
        self._tell(handle, lifecycle.CameBack(key, watch.target.back_at_s, boot_s(), spread_s, random.random()))

    # Books.

    def _leave(self, handle: Handle, key: str) -> None:
        watch = self._watches.get(key)
        if watch is not None and handle in watch.waiting:
            del watch.waiting[handle]
            watch.last_at_s = boot_s()

    def _purge(self) -> None:
        """Forget what nobody has waited for in a while."""
        until_s = boot_s() - awaited.KEPT_S
        self._watches = {k: watch for k, watch in self._watches.items() if watch.waiting or watch.last_at_s > until_s}

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name="lookout")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _labelled(handle: Handle, probe: Callable[[], Awaitable[None]]) -> None:
    """The probe is a connector's: what it blocks is blamed on its datasource."""
    label_current(RunLabel(handle.datasource, handle.name))
    await probe()
