"""Writes JSON Lines: appends to one file.

No file is kept open between calls. Several streams may write one file: each batch is appended under a lock on the file,
and only after a torn last line, left by a crash, was repaired: two records are never glued together.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from headgate.connectors import api
from headgate.connectors.files.lines import NOT_JSON, decode, encode, opened
from headgate.connectors.files.options import FilesSinkOptions
from headgate.errors import BadRecord, Cause, ConnectorError, Fenced


class FilesSink:
    """Appends lines. A batch that fails leaves nothing behind."""

    def __init__(self, options: FilesSinkOptions, context: api.Context) -> None:
        self._path = options.path
        self._sync = options.sync
        self._log = context.log
        self._trust_left_s: Callable[[], float] = lambda: 0.0

    async def check(self) -> None:
        path = Path(self._path)
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
        with opened(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if self._trust_left_s() <= 0:
                raise Fenced(f"the right to write {self._path} has ended")
            size = self._repair(descriptor)
            try:
                while data:
                    data = data[os.write(descriptor, data) :]
                if self._sync:
                    os.fsync(descriptor)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise
        if self._sync and size == 0:  # The name of a new file must be durable too.
            with opened(str(Path(self._path).parent)) as folder:
                os.fsync(folder)

    def _repair(self, descriptor: int) -> int:
        """Make sure that the file ends with a whole line, and return its size."""
        size = os.fstat(descriptor).st_size
        if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
            return size
        with mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) as data:
            start = data.rfind(b"\n") + 1
            torn = data[start:]
        try:
            decode(torn)
        except NOT_JSON:
            os.ftruncate(descriptor, start)
            self._log.warning("torn last line removed", path=self._path, offset=start, size_bytes=len(torn))
            return start
        return size + os.write(descriptor, b"\n")  # The record is whole; only its line feed is missing.


def _lines(records: list[dict[str, Any]]) -> bytes:
    """The records as JSON Lines."""
    lines = []
    for index, record in enumerate(records):
        try:
            lines.append(encode(record))
        except NOT_JSON as error:
            raise BadRecord(f"record {index} cannot be written as JSON: {error}", index=index) from error
    return b"\n".join([*lines, b""])
