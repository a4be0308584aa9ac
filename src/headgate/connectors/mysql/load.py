"""The way of a chunk into MySQL: a pipe between the pieces that arrive and the thread that loads them.

One end is written by the event loop, as far as there is room. The other is read in the session's thread: by the client
library, which takes it for a file, or record by record where the server wants INSERT statements.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
from collections.abc import Iterator

from headgate.connectors.api.bulk import Csv, Pieces, StorageError
from headgate.connectors.sql.quoting import escaped_literal as text_literal
from headgate.text import counted

CSV = Csv(null="NULL", delimiter="\x1f")  # A delimiter that text hardly ever holds lets others write it faster.
_STATEMENT = 1 << 20  # Bytes of rows in one INSERT.
_PIPE = 1 << 20
_FIELD = re.compile(rb'("[^"]*(?:""[^"]*)*"|[^\x1f\n"]*)(\x1f|\n)')


class Feed:
    """A pipe from the pieces of a chunk to the statement that loads them. It has no name in any folder."""

    def __init__(self) -> None:
        self.end, self._begin = os.pipe()
        self.rows = 0  # As far as the pieces say.
        self.is_whole = False  # All of them came.
        os.set_blocking(self._begin, False)
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(self._begin, fcntl.F_SETPIPE_SZ, _PIPE)

    async def pour(self, pieces: Pieces) -> None:
        """Put in what comes. If the reader has stopped, its own error says why."""
        try:
            async for piece in pieces:
                self.rows += piece.rows
                await self._put(memoryview(piece.data))
            self.is_whole = True
        except BrokenPipeError:
            pass
        finally:
            os.close(self._begin)

    async def _put(self, data: memoryview) -> None:
        while data:
            try:
                data = data[os.write(self._begin, data) :]
            except BlockingIOError:
                await self._has_room()

    async def _has_room(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_writer(self._begin, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_writer(self._begin)

    def close(self) -> None:
        """Nobody reads any more."""
        os.close(self.end)


def records_of(pipe: int, columns: int) -> Iterator[list[list[str]]]:
    """The records that come through a pipe, as SQL, some at a time."""
    rest, size = b"", 1
    while size:
        held = [rest]
        while sum(map(len, held)) < _STATEMENT and (some := os.read(pipe, _PIPE)):
            held.append(some)
        data = b"".join(held)
        size = len(data) - len(rest)
        records: list[list[str]] = []
        record: list[str] = []
        at = begun = 0
        while (found := _FIELD.match(data, at)) is not None and found.end() > at:
            record.append(_literal(found[1]))
            at = found.end()
            if found[2] == b"\n":
                if len(record) != columns:
                    raise StorageError(f"a record has {counted(len(record), 'value')}, not {columns}")
                records.append(record)
                record, begun = [], at
        rest = data[begun:]
        if records:
            yield records
    if rest:
        raise StorageError("the last record is not terminated")


def _literal(field: bytes) -> str:
    if field == b"NULL":
        return "NULL"
    text = field.decode()
    return text_literal(text[1:-1].replace('""', '"') if text.startswith('"') else text)
