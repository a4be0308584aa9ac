"""A program that takes turns with others, and keeps a table of when it believed that the turn was its own.

It is run as a process of its own, `python -m tests.acceptance.taker`, with its settings as JSON on the command line.

A row says: at this moment this process believed in this epoch. The moment is read on the machine's boot clock, which
all processes share, and *before* the process asks whether its turn holds: one that is stopped between the two finds
that it does not, and leaves no row. What cannot be written now is written later, so what was believed while the
database was away is not forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import Any

import asyncpg
import msgspec

from headgate.client import Consumer, Turn
from headgate.clock import boot_s

TABLE = 'CREATE TABLE turns ("group" text, epoch bigint, pid integer, at_s double precision)'
INSERT = 'INSERT INTO turns ("group", epoch, pid, at_s) VALUES ($1, $2, $3, $4)'
EVERY_S = 0.02
WRITE_S = 2.0


class Settings(msgspec.Struct):
    """What a taker is told."""

    urls: list[str]
    token: str
    group: str
    partition: int | None
    lease_s: float
    database: str
    fenced: bool = False


class Taker:
    """Works in its turns, and writes down that it did."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._rows: list[tuple[str, int, int, float]] = []
        self._connection: Any = None

    async def run(self) -> None:
        """Until it is told to end; then it leaves the group."""
        given = self._settings
        consumer = Consumer(
            given.urls,
            stream="invoices",
            group=given.group,
            token=given.token,
            partition=given.partition,
            lease_s=given.lease_s,
            fenced=given.fenced,
        )
        writing = asyncio.create_task(self._write())
        with contextlib.suppress(asyncio.CancelledError):
            async with consumer:
                await consumer.run(self._work)
        writing.cancel()

    async def _work(self, turn: Turn) -> None:
        while not turn.stepping:
            at_s = boot_s()
            if not turn.holds:
                return
            self._rows.append((self._settings.group, turn.epoch, os.getpid(), at_s))
            await asyncio.sleep(EVERY_S)

    async def _write(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            rows, self._rows = self._rows, []
            try:
                async with asyncio.timeout(WRITE_S):
                    if self._connection is None:
                        self._connection = await asyncpg.connect(self._settings.database)
                    await self._connection.executemany(INSERT, rows)
            except Exception:  # Whatever it is that a server which goes away does to its client: later.
                self._rows = rows + self._rows
                if self._connection is not None:
                    self._connection.terminate()
                self._connection = None


async def main() -> None:
    """End when told to, as programs do."""
    taker = asyncio.ensure_future(Taker(msgspec.json.decode(sys.argv[1], type=Settings)).run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, taker.cancel)
    await taker


if __name__ == "__main__":
    asyncio.run(main())
