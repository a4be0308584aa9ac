"""A member of a group: keeps a connection to some node, and knows when it is this program's turn.

What it may believe, and what it answers, is decided in `core.groups.belief`. Here are the connections, and what the
program sees.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, NoReturn, Self, TypeAlias

from websockets.exceptions import WebSocketException

from headgate.client.addresses import GROUPS_PATH, Addresses
from headgate.client.connection import GroupConnection
from headgate.client.conversation import Believer, Conversation
from headgate.client.errors import ConsumerError, Left, Lost
from headgate.client.installation import Installation
from headgate.client.turn import Turn
from headgate.clock import boot_s
from headgate.core import backoff, frames
from headgate.core.frames import JoinFrame
from headgate.core.groups.belief import (
    GoodbyeRequested,
    GoodbyeSent,
    Heard,
    LinkLost,
    Standing,
    TimePassed,
    WorkFinished,
)

OPEN_S = 3.0  # Several nodes can be tried within a lease.
LONGEST_WAIT_S = 5.0  # A node that comes back is found within this.
LONGEST_WAIT_IN_TURN_S = 1.0  # The lease runs.
TICK_S = 0.25  # A sleep does not count the time in which the machine is suspended, so it has to be short.
WORK_ENDS_S = 5.0  # Work that has not ended by then keeps its place until its lease ends.
LEAVE_S = 2.0  # Saying goodbye takes one round trip.

Work: TypeAlias = Callable[[Turn], Coroutine[Any, Any, object]]

log = logging.getLogger("headgate.client")


class Consumer:
    """One member of a group, of which one at a time has its turn. Use it as `async with Consumer(…) as consumer`.

    Entering waits until a node has taken it into the group, leaving leaves the group. An error that no other connection
    would mend (`ConsumerError`) ends the turn, and fails every call that waits and every later one. Everything else is
    mended: with no node in reach calls wait, so use `asyncio.timeout` where waiting must end.

    `fenced` says that whatever the work writes carries `turn.epoch`, that the target refuses a lower one, and that the
    work raises the epoch there before it reads anything. Then the next program has its turn as soon as this one is
    killed, and does not wait for the lease. All members of a group are fenced, or none.
    """

    def __init__(
        self,
        urls: str | Iterable[str],
        *,
        stream: str,
        group: str,
        token: str = "",
        partition: int | None = None,
        label: str | None = None,
        lease_s: float | None = None,
        fenced: bool = False,
        open_timeout_s: float = OPEN_S,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = boot_s,
    ) -> None:
        if not (1 <= len(stream) <= 200 and 1 <= len(group) <= 200):
            raise ValueError("the names of streams and groups must have 1 to 200 characters")
        if partition is not None and not 0 <= partition < 2**31:
            raise ValueError("a partition must be a number from 0")
        if lease_s is not None and not frames.SHORTEST_LEASE_S <= lease_s <= frames.LONGEST_LEASE_S:
            raise ValueError(f"a lease must be {frames.SHORTEST_LEASE_S:g} to {frames.LONGEST_LEASE_S:g} seconds")
        self._addresses = Addresses([urls] if isinstance(urls, str) else urls, GROUPS_PATH)
        self._installation = Installation(GROUPS_PATH, tls)
        self._token = token
        self._stream = stream
        self._group = group
        self._partition = partition
        self._label = label or f"{socket.gethostname()}:{os.getpid()}"
        self._lease_s = lease_s
        self._fenced = fenced
        self._open_timeout_s = open_timeout_s
        self._tls = tls
        self._clock = clock
        self._believer = Believer()
        self._turn: Turn | None = None
        self._changed = asyncio.Event()
        self._connection: GroupConnection | None = None
        self._conversation: Conversation | None = None
        self._attempt = 0  # Connections since the last one that worked.
        self._has_joined = False
        self._is_closing = False
        self._failure: ConsumerError | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._work: asyncio.Task[object] | None = None

    def __repr__(self) -> str:
        return f"Consumer(stream={self._stream!r}, group={self._group!r}, turn={self._turn!r})"

    async def __aenter__(self) -> Self:
        if self._tasks:
            raise RuntimeError("a consumer can be entered only once")
        self._tasks = [
            asyncio.create_task(self._keep_connected(), name="headgate consumer"),
            asyncio.create_task(self._watch(), name="headgate consumer's clock"),
        ]
        try:
            while not self._has_joined:
                await self._change()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def turn(self) -> Turn:
        """Wait for this program's turn. A turn that still holds is returned as it is."""
        if not self._tasks:
            raise RuntimeError("a consumer must be used within `async with`")
        while self._failure is not None or self._turn is None or not self._turn.holds:
            await self._change()
        return self._turn

    async def run(self, work: Work) -> NoReturn:
        """Do this work in each turn, one after another.

        `work(turn)` should look at `turn.stepping`, or wait for `turn.asked()`, and return soon after; the step-down is
        confirmed then. If the turn ends before, the work is cancelled, and waited for. Work that returns without being
        asked gives its turn back. Work that raises gives it back too, and ends this call.
        """
        while True:
            turn = await self.turn()
            if self._work is not None:
                raise RuntimeError("a consumer runs one piece of work at a time")
            task = self._work = asyncio.create_task(work(turn), name="headgate consumer's work")
            try:
                await _until_ended(task, turn)
            finally:
                if task.done():
                    self._work = None
                    await turn.done()
            if not task.cancelled():
                task.result()

    async def close(self) -> None:
        """End the turn, leave the group, and close the connection. It takes seconds at most.

        Work of `run` is cancelled. If it does not end, the group is not left, because somebody is still at work: the
        others wait until the lease has ended.
        """
        self._is_closing = True
        self._end_turn()
        try:
            await self._leave()
        finally:
            for task in self._tasks:
                task.cancel()
            self._fail(ConsumerError("closed", "the consumer is closed"))
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _leave(self) -> None:
        work = self._work
        if work is not None and work is not asyncio.current_task():
            await asyncio.wait([work], timeout=WORK_ENDS_S)
            if not work.done():
                return
        if self._conversation is not None:
            self._conversation.say(*self._believer.step(GoodbyeRequested()))
            await asyncio.wait(self._tasks[:1], timeout=LEAVE_S)

    # What has changed.

    async def _change(self) -> None:
        """Wait until it is worth looking again; raises the failure if there is one."""
        if self._failure is None:
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure.again()

    def _wake(self) -> None:
        self._changed.set()
        self._changed.clear()

    def _fail(self, failure: ConsumerError) -> None:
        """Fail every call that waits, and every later one: none of them hangs."""
        self._failure = self._failure or failure
        self._end_turn()
        self._wake()

    def _look(self) -> None:
        """Have the turn follow the belief."""
        now_s = self._clock()
        self._believer.step(TimePassed(now_s))
        belief = self._believer.belief
        if self._turn is not None and not belief.holds(self._turn.consumer, self._turn.epoch, now_s):
            self._end_turn()
        if belief.standing is Standing.OVER and self._connection is not None:
            self._connection.abort()
        if self._turn is None and not self._is_closing and self._failure is None:
            self._begin_turn(now_s)
        if self._turn is not None and belief.standing is Standing.STEPPING:
            self._turn.ask()

    def _begin_turn(self, now_s: float) -> None:
        belief = self._believer.belief
        if belief.consumer is not None and belief.holds(belief.consumer, belief.epoch, now_s):
            self._turn = Turn(belief.consumer, belief.epoch, belief.partition, self._is_believed, self._finish)
            self._wake()

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.end()
            self._turn = None

    def _is_believed(self, consumer: str, epoch: int) -> bool:
        return self._believer.belief.holds(consumer, epoch, self._clock())

    def _finish(self, consumer: str, epoch: int) -> None:
        said = self._believer.step(WorkFinished(consumer, epoch, self._clock()))
        if self._conversation is not None:
            self._conversation.say(*said)
        self._look()

    async def _watch(self) -> NoReturn:
        """Belief ends by itself, with or without a connection."""
        while True:
            await asyncio.sleep(TICK_S)
            self._look()

    # Keeping the connection.

    async def _keep_connected(self) -> None:
        try:
            await self._connect_again_and_again()
        except ConsumerError as error:
            self._fail(type(error)(error.code, self._hide(error.text)))
        except Exception as error:
            failure = ConsumerError("bug", f"the client failed: {type(error).__name__}")
            failure.__cause__ = error
            self._fail(failure)

    async def _connect_again_and_again(self) -> None:
        while not self._is_closing:
            address = self._addresses.next()
            level = logging.WARNING
            try:
                await self._use(address)
            except Left:
                level, reason = logging.INFO, "to join again"
            except (Lost, OSError, UnicodeError, WebSocketException) as error:  # A host's name may be malformed.
                reason = str(error) or type(error).__name__
            if self._is_closing:
                return
            self._attempt += 1
            longest_s = LONGEST_WAIT_S if self._turn is None else LONGEST_WAIT_IN_TURN_S
            wait_s = min(backoff.wait_s(self._attempt, random.random()), longest_s)
            log.log(level, "left %s: %s; the next try is in %.1f s", address, self._hide(reason), wait_s)
            await asyncio.sleep(wait_s)

    async def _use(self, address: str) -> NoReturn:
        """Connect, and work until the connection ends; raises the reason."""
        believer = self._believer
        is_given = self._addresses.is_given(address)
        await self._installation.check(address, is_given=is_given, within_s=self._open_timeout_s)
        connection, joined = await GroupConnection.open(address, self._join(), self._open_timeout_s, self._tls)
        log.info("connected to %s", address)
        self._addresses.learn(joined.nodes)
        conversation = Conversation(believer, self._clock, self._look)
        try:
            conversation.say(*believer.step(Heard(joined, self._clock())))
            self._connection, self._conversation, self._has_joined = connection, conversation, True
            self._look()
            self._wake()
            conversation.beat()
            await connection.run(conversation, believer.belief.beat_s)
        except Left:
            believer.step(GoodbyeSent())
            await connection.close()
            raise
        except asyncio.CancelledError:
            await connection.close()
            raise
        finally:
            connection.abort()
            self._connection = self._conversation = None
            believer.step(LinkLost())
            self._look()
            if conversation.has_progress:
                self._attempt = 0

    def _join(self) -> JoinFrame:
        return JoinFrame(
            frames.VERSION,
            self._token,
            self._stream,
            self._group,
            self._partition,
            self._label,
            self._believer.belief.consumer,
            self._lease_s,
            True if self._fenced else None,
        )

    def _hide(self, text: str) -> str:
        """What a node says may repeat what we said."""
        return text.replace(self._token, "…") if self._token else text


async def _until_ended(task: asyncio.Task[object], turn: Turn) -> None:
    """Wait for the work. It is cancelled when its turn is over, or when this wait is cancelled."""
    over = asyncio.create_task(turn.over())
    try:
        await asyncio.wait([task, over], return_when=asyncio.FIRST_COMPLETED)
    finally:
        over.cancel()
        task.cancel()
        await asyncio.wait([task])
