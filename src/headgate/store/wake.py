"""Wake-ups: hints that something changed, sent after the commit and heard by every node.

A wake-up is never the truth. It names a topic and perhaps a number ("registry 17"); a listener reads the state
again. One that misses it finds out by polling. So the listener may lose its connection, sit behind a pooler that cannot
LISTEN, or hang on a half-open socket, and nothing is lost but speed.

Sending is coalesced: topics that are due while a send is under way go out together with the next one. It happens
outside any transaction, because NOTIFY inside one takes a lock over the whole server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable

import asyncpg

from headgate.errors import StoreError
from headgate.log import get_logger
from headgate.store.database import Database, connect

CHANNEL = "headgate"
PING_S = 5.0  # A half-open connection is found within this time and the next.
ANSWER_S = 3.0
RETRY_S = 1.0

log = get_logger()


class Waker:
    """Sends wake-ups."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pending: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    def wake(self, topic: str, number: int = 0) -> None:
        """Tell everyone, soon. Safe to call often."""
        self._pending[topic] = max(number, self._pending.get(topic, 0))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send(), name="waker")

    async def _send(self) -> None:
        while self._pending:
            due, self._pending = self._pending, {}
            payloads = [f"{topic} {number}" for topic, number in due.items()]
            with contextlib.suppress(StoreError):  # A hint that is lost is found by polling.
                await self._database.execute("SELECT pg_notify($1, p) FROM unnest($2::text[]) AS p", CHANNEL, payloads)

    async def close(self) -> None:
        """Send what is pending."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=2.0)


class Listener:
    """Hears wake-ups over its own connection, and gets that connection back whenever it breaks."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._callbacks: dict[str, list[Callable[[int], None]]] = defaultdict(list)
        self.connected = asyncio.Event()  # For tests and for people: whether wake-ups arrive now.

    def on(self, topic: str, callback: Callable[[int], None]) -> Callable[[], None]:
        """Call back at each wake-up of this topic. Returns how to stop."""
        self._callbacks[topic].append(callback)
        return lambda: self._callbacks[topic].remove(callback)

    async def run(self) -> None:
        """Listen until cancelled."""
        while True:
            try:
                await self._listen()
            except (StoreError, OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                log.debug("listener reconnects", error=str(error))
            finally:
                self.connected.clear()
            await asyncio.sleep(RETRY_S)

    async def _listen(self) -> None:
        async with asyncio.timeout(10.0):
            connection = await connect(self._url)
        try:
            await connection.add_listener(CHANNEL, self._heard)
            self.connected.set()
            self._everything()  # What was sent while nobody listened is not known: look again.
            while True:
                await asyncio.sleep(PING_S)
                # A separate statement, outside any transaction: it holds no snapshot between pings.
                async with asyncio.timeout(ANSWER_S):
                    await connection.execute("SELECT 1")
        finally:
            connection.terminate()

    def _heard(self, connection: object, pid: int, channel: str, payload: str) -> None:
        topic, _, number = payload.partition(" ")
        for callback in list(self._callbacks.get(topic, ())):
            callback(int(number) if number.isdigit() else 0)

    def _everything(self) -> None:
        for callbacks in list(self._callbacks.values()):
            for callback in list(callbacks):
                callback(0)
