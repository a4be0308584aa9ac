"""Makes webhooks' payloads durable, many in one commit.

Payloads that arrive while a commit is under way go into the next one together, so the number of commits does not grow
with the number of calls. The call that brought one is told when it is durable, or cannot be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import structlog

from headgate.errors import StoreError
from headgate.runtime.inbox import InboxHub
from headgate.store.inbox import InboxTable, Limit, Payload
from headgate.store.wake import Waker

MOST_IN_A_COMMIT = 2000
MOST_BYTES_IN_A_COMMIT = 16 * 1024 * 1024
ANSWERS_IN_A_GO = 250
GATHER_S = 0.001  # A commit waits this long for company: fewer commits leave more of the machine for calls.
WAKE_S = 0.1  # How long calls are gathered before other nodes are woken.

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Pending:
    """A payload on its way."""

    payload: Payload
    limit: Limit
    done: Callable[[str], None]  # Called with why it is not durable, or nothing.


class Commits:
    """The way into the inbox."""

    def __init__(self, table: InboxTable, hub: InboxHub, waker: Waker) -> None:
        self._table = table
        self._hub = hub
        self._waker = waker
        self._pending: list[Pending] = []
        self._flushing: asyncio.Task[None] | None = None
        self._waking: asyncio.TimerHandle | None = None

    def add(self, pending: Pending) -> None:
        """Make this durable, soon."""
        self._pending.append(pending)
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush(), name="inbox")

    async def _flush(self) -> None:
        while self._pending:
            await asyncio.sleep(GATHER_S)
            batch = self._take()
            limits = {pending.payload.datasource: pending.limit for pending in batch}
            full: set[UUID] | None = None
            try:
                full = await self._table.append([pending.payload for pending in batch], limits)
            except StoreError:
                pass
            except Exception:  # Whatever it is, nobody may wait for an answer that never comes.
                log.exception("payloads could not be made durable", count=len(batch))
            if full is not None:
                for datasource in limits.keys() - full:
                    self._hub.arrived(datasource)
                self._wake_others()
            await _tell(batch, full)

    def _take(self) -> list[Pending]:
        """What goes into the next commit: not too many, and not too much."""
        number = size = 0
        for pending in self._pending[:MOST_IN_A_COMMIT]:
            size += len(pending.payload.body)
            if number and size > MOST_BYTES_IN_A_COMMIT:
                break
            number += 1
        batch, self._pending = self._pending[:number], self._pending[number:]
        return batch

    def _wake_others(self) -> None:
        """Wake the sources on other nodes, a few times a second; the one on this node knows already."""
        if self._waking is None:
            self._waking = asyncio.get_running_loop().call_later(WAKE_S, self._wake)

    def _wake(self) -> None:
        self._waking = None
        self._waker.wake("inbox")


async def _tell(batch: list[Pending], full: set[UUID] | None) -> None:
    """Call them back; everybody else has a turn in between."""
    for number, pending in enumerate(batch, 1):
        try:
            if full is None:
                pending.done("the database is away")
            else:
                pending.done("the inbox is full" if pending.payload.datasource in full else "")
        except Exception:  # One caller's fault is not the others'.
            log.exception("a call could not be answered")
        if number % ANSWERS_IN_A_GO == 0:
            await asyncio.sleep(0)
