"""Writes JSON Lines: appends to one file.

No file is kept open between calls. Several streams may write one file: each batch is appended under a lock on the file,
and only after its last line has an end: two records are never glued together. Half a line that this sink wrote when it
was killed is removed; what anybody else wrote never is (`files.journal`).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from headgate.connectors import api
from headgate.connectors.files.journal import Journal, half_written, kept, note, pieces_of
from headgate.connectors.files.lines import NOT_JSON, encode, encode_lines, opened
from headgate.connectors.files.options import FilesSinkOptions
from headgate.errors import Bad, BadRecords, Cause, ConnectorError, Fenced


class FilesSink:
    """Appends lines. A batch that fails leaves nothing behind."""

    def __init__(self, options: FilesSinkOptions, context: api.Context) -> None:
        self._path = options.path
        self._sync = options.sync
        self._log = context.log
        self._guard = context.guard
        self._trust_left_s: Callable[[], float] = lambda: 0.0

    async def check(self) -> None:
        path = Path(self._guard.path(self._path))
        if path.exists() and not path.is_file():
            raise ConnectorError(f"{path} is not a regular file", cause=Cause.CONFIG)
        if not path.parent.is_dir():
            raise ConnectorError(f"folder {path.parent} does not exist", cause=Cause.CONFIG, hint="make it first")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ConnectorError(f"{path} may not be written", cause=Cause.CONFIG)

    async def open(self, grant: api.Grant) -> api.Progress | None:
        await self.check()
        self._trust_left_s = grant.trust_left_s
        await asyncio.to_thread(self._append, b"")
        return None

    async def write(self, batch: api.Outgoing) -> None:
        await asyncio.to_thread(self._append, _lines(batch.records))

    async def close(self) -> None:
        """No file is held open."""

    def _append(self, data: bytes) -> None:
        with opened(self._path, self._guard, os.O_RDWR | os.O_APPEND | os.O_CREAT) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if self._trust_left_s() <= 0:
                raise Fenced(f"the right to write {self._path} has ended")
            with kept(self._path, self._guard) as journal:
                size = self._repair(descriptor, journal)
                self._put(descriptor, journal, size, data)
        if self._sync and size == 0:  # The name of a new file must be durable too.
            with opened(str(Path(self._path).parent), self._guard, os.O_RDONLY | os.O_DIRECTORY) as folder:
                os.fsync(folder)

    def _put(self, descriptor: int, journal: Journal, size: int, data: bytes) -> None:
        """Append a batch at the end of the file. One that fails leaves nothing behind, unless somebody else has
        written meanwhile."""
        at = size
        try:
            for piece in pieces_of(data):
                note(journal, descriptor, at, piece)
                end = at + len(piece)
                while at < end:
                    at += os.write(descriptor, piece[at - end :])
            if self._sync:
                os.fsync(descriptor)
        except OSError:
            with suppress(OSError):
                if os.fstat(descriptor).st_size == at:
                    os.ftruncate(descriptor, size)
            raise

    def _repair(self, descriptor: int, journal: Journal) -> int:
        """Make sure that the file ends with a whole line, and return its size."""
        size = os.fstat(descriptor).st_size
        if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
            return size
        if (found := half_written(journal, descriptor)) is not None:
            offset, ours, missing = found
            start = offset + ours.rfind(b"\n") + 1
            if not missing.startswith(b"\n"):
                os.ftruncate(descriptor, start)
                self._log.warning("half a line removed", path=self._path, offset=start, size_bytes=size - start)
                return start
        return size + os.write(descriptor, b"\n")


def _lines(records: list[dict[str, Any]]) -> bytes:
    """The records as JSON Lines."""
    try:
        return encode_lines(records)
    except NOT_JSON:
        raise BadRecords(list(_bad(records))) from None


def _bad(records: list[dict[str, Any]]) -> Iterator[Bad]:
    """Those that cannot be encoded."""
    for index, record in enumerate(records):
        try:
            encode(record)
        except NOT_JSON:
            yield Bad(index, None, "cannot be written as JSON")
