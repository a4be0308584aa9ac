"""The beat: a thread that says once a second that this node lives, and keeps the node's trust.

It has its own event loop and its own session (`store.beats`), so that a busy node still beats. The session holds the
lock of this incarnation, so one that breaks is opened again at once, before anybody takes us for dead.

A node whose main loop gives no sign does no work: `core.watchdog` says when the thread stops beating, and when it is
sure that a connector blocks the loop. Another node would take over the stream and be blocked in turn; so the thread
quarantines the datasource whose run it was, and ends the process. With the database away it leaves a file that the next
start reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import structlog

from headgate.clock import boot_s
from headgate.core import lease, watchdog
from headgate.core.lease import Trust
from headgate.core.watchdog import Sign, Watch
from headgate.errors import HeadgateError, StoreError
from headgate.runtime.cluster import quarantine
from headgate.store.beats import BeatSession
from headgate.store.database import Check, Database
from headgate.store.datasources import Datasources

ANSWER_S = 2.0
SOONEST_S, LATEST_S = 0.05, lease.BEAT_S  # Between two attempts to open a session: each waits twice as long.
QUARANTINE_S = 10.0  # Nothing else is left to do, and a file in this home does not spare the next node.
EXIT_BLOCKED = 70  # EX_SOFTWARE.

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RunLabel:
    """Which run a task works for."""

    datasource: UUID
    stream: str


current_run: ContextVar[RunLabel | None] = ContextVar("current_run", default=None)
_labels: weakref.WeakKeyDictionary[asyncio.Task[Any], RunLabel] = weakref.WeakKeyDictionary()


def label_current(label: RunLabel) -> None:
    """This task, and those that it makes, work for this run."""
    current_run.set(label)
    task = asyncio.current_task()
    if task is not None:
        _labels[task] = label


def label_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Remember for every task which run made it, however deep inside a connector."""

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=loop, **kwargs)
        label = current_run.get()
        if label is not None:
            _labels[task] = label
        return task

    loop.set_task_factory(factory)


class Beat:
    """One incarnation's beat."""

    def __init__(
        self, url: str, check: Check, incarnation: UUID, lease_s: float, home: Path, on_ended: Callable[[], None]
    ) -> None:
        self.trust = Trust(incarnation, lease_s)
        self._url = url
        self._check = check
        self._home = home
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._schedstat = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        now = self.moment()
        self._watch = Watch(now, now.at_s)
        self._last_sign = now
        self._session: BeatSession | None = None
        self._retry_s = SOONEST_S
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="beat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Stop beating; trust runs out by itself."""
        self._stop.set()
        self._thread.join(timeout=ANSWER_S + 1.0)

    def sign(self) -> None:
        """The main loop is alive."""
        self._last_sign = self.moment()

    def trust_left_s(self) -> float:
        """How long this node may still act."""
        return self.trust.left_s(boot_s())

    def moment(self) -> Sign:
        """Now, and how long the loop's thread has waited for a CPU; 0 where the system does not count that."""
        try:
            waited_s = int(self._schedstat.read_bytes().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            waited_s = 0.0
        return Sign(boot_s(), waited_s)

    def _run(self) -> None:
        asyncio.run(self._beat_until_stopped())

    async def _beat_until_stopped(self) -> None:
        while not self._stop.is_set() and not self.trust.ended:
            now = self.moment()
            watch = watchdog.signed(self._watch, self._last_sign)
            self._watch, verdict = watchdog.look(watch, now, self.trust.left_s(now.at_s))
            if verdict == "end":
                await self._end_blocked_process()
            elif verdict == "beat":
                await self._beat()
            await self._pause(now.at_s)
        self._close()

    async def _beat(self) -> None:
        sent_at_s = boot_s()
        try:
            async with asyncio.timeout(ANSWER_S):
                if self._session is None:
                    self._session = await BeatSession.open(self._url, self._check, self.trust.incarnation)
                    sent_at_s = boot_s()
                alive = await self._session.beat()
        except (HeadgateError, TimeoutError):
            self._close()
        except Exception:
            # Whatever the error is, the thread must survive it: without beats the node loses its trust.
            log.exception("a beat failed")
            self._close()
        else:
            self._answered(sent_at_s, alive=alive)

    def _answered(self, sent_at_s: float, *, alive: bool) -> None:
        self._retry_s = SOONEST_S
        if alive:
            self.trust = lease.beat_answered(self.trust, sent_at_s)
        else:
            self.trust = lease.beat_refused(self.trust)
            self._loop.call_soon_threadsafe(self._on_ended)

    async def _pause(self, began_s: float) -> None:
        """Until the next beat is due; or, without a session, until the next attempt to open one."""
        if self._session is None:
            await asyncio.sleep(self._retry_s)
            self._retry_s = min(2 * self._retry_s, LATEST_S)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(SOONEST_S, lease.BEAT_S - (boot_s() - began_s))):
                await self._session.broken.wait()
                self._close()

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    async def _end_blocked_process(self) -> None:
        """The loop is blocked for good: quarantine the datasource whose run blocks it, and end the process."""
        task = asyncio.current_task(self._loop)
        label = _labels.get(task) if task is not None else None
        stack = "".join(traceback.format_stack(sys._current_frames().get(self._loop_thread)))
        stream = label.stream if label else "unknown"
        log.critical("the event loop is blocked: ending the process", stream=stream, stack=stack)
        if label is not None:
            await self._quarantine(label)
        os._exit(EXIT_BLOCKED)

    async def _quarantine(self, label: RunLabel) -> None:
        reason = f"the connector of {label.stream} blocked the event loop until this node's trust ended"
        try:
            async with asyncio.timeout(QUARANTINE_S):
                database = await Database.open(self._url, size=1, check=self._check)
                async with Datasources(database).change("headgate") as change:
                    await change.quarantine(label.datasource, reason)
                    change.event(await change.find_by_id(label.datasource), "quarantined", reason=reason)
        except (StoreError, TimeoutError):
            quarantine.leave(self._home, label.datasource, reason)
