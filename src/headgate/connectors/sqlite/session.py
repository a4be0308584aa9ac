"""One connection with an SQLite file, the thread in which it works, and what its errors mean."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

from headgate.connectors.api.bulk import StorageError, StorageGone
from headgate.connectors.guard import present
from headgate.connectors.urls import path_and_options
from headgate.errors import NotFound
from headgate.text import one_line

BUSY_S = 300.0  # Writers queue up behind a chunk; there may be as many of them as it takes to wait for minutes.
P = ParamSpec("P")
T = TypeVar("T")


class Session:
    """One connection, and the thread in which it works."""

    def __init__(self, url: str, mode: str) -> None:
        self.path = path_and_options(url, ())[0]
        self._mode = mode
        self._guard = present()
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None

    def connection(self) -> sqlite3.Connection:
        """The connection, opened when it is first needed. Only in the thread."""
        if self._connection is None:
            if self._mode != "rwc" and not self.path.exists():
                raise NotFound(f"file {self.path} does not exist")
            place = self._guard.path(self.path)
            self._connection = sqlite3.connect(
                f"file:{quote(place)}?mode={self._mode}",
                uri=True,
                isolation_level=None,
                timeout=BUSY_S,
                check_same_thread=False,
            )
        return self._connection

    async def run(self, work: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do something in the thread, after what was asked for before."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "sqlite")

        def run() -> T:
            with translate_errors(self.path):
                return work(self.connection(), *args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    async def close(self) -> None:
        """End the session."""
        if self._connection is not None:
            self._connection.interrupt()
            await self.run(_closed)
            self._connection = None
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None


def _closed(connection: sqlite3.Connection) -> None:
    """The last session of a file writes the log into it, unless it is still interrupted: a statement ends that."""
    connection.execute("SELECT 1").fetchone()
    connection.close()


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except sqlite3.Error as error:
        text = f"{path}: {one_line(error)}"
        if getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_READONLY")):
            raise StorageGone(text) from None
        hint = "make room and resume" if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL" else ""
        raise StorageError(text, hint=hint) from None


@contextmanager
def tidying_up() -> Iterator[None]:
    """For what follows an error, or the end: what goes wrong there does not matter, unless the file is gone."""
    try:
        yield
    except StorageGone:
        raise
    except StorageError:
        pass
