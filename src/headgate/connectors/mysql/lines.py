"""Rows as the server sends them, one value each: a Python object for each column would cost more than all the rest.

`Lines` takes them from the packets as they arrive. The format of a packet: three bytes of length, one number, the data;
of a row with one value: its length (one byte up to 250, else a mark and 2, 3 or 8 bytes), then the value.
"""

from __future__ import annotations

import struct
from typing import Any

import pymysql
from pymysql.connections import Connection

PIECE = 1 << 20  # Bytes of rows that are handed on together.
_BLOCK = 1 << 18  # Bytes asked of the socket at once.
_WHOLE = 0xFFFFFF  # A packet of this length is continued in the next one.


class EmptyRow(Exception):
    """The server has rendered no line for a row: it has a value that may not be copied."""


class Lines:
    """The lines that a statement with one text column gives, as they come from the socket."""

    def __init__(self, connection: Connection[Any], sql: str) -> None:
        connection.query(sql, unbuffered=True)
        self._connection: Any = connection
        self._data = b""
        self._wanted = 1  # Bytes without which nothing more can be taken.
        self._has_ended = False

    def piece(self) -> tuple[bytes, int] | None:
        """About a mebibyte of lines, and how many they are. None: that was all."""
        lines: list[bytes] = []
        size = 0
        while size < PIECE and not self._has_ended:
            self._receive()
            size += self._take(lines)
        if not lines:
            return None
        lines.append(b"")
        return b"\n".join(lines), len(lines) - 1

    def _receive(self) -> None:
        held, size = [self._data], len(self._data)
        while size < self._wanted or len(held) == 1:
            some = self._connection._rfile.read1(_BLOCK)
            if not some:
                raise pymysql.OperationalError(2013, "the connection was lost in the middle of the rows")
            held.append(some)
            size += len(some)
        self._data = b"".join(held)

    def _take(self, lines: list[bytes]) -> int:
        """Take the whole rows that are there. Returns their bytes."""
        data, at, end = self._data, 0, len(self._data)
        add, header = lines.append, _HEADER
        self._wanted = 1
        try:
            while True:
                low, high, _, first = header(data, at)
                stop = at + 4 + low
                if high or first > 250:
                    stop = self._take_long(lines, at)
                    if not stop:
                        break
                elif stop > end:
                    break
                else:
                    add(data[at + 5 : stop])
                at = stop
        except struct.error:  # Less than a header is there.
            pass
        self._data = data[at:]
        return at

    def _take_long(self, lines: list[bytes], at: int) -> int:
        """A packet that is not a short row. Returns where it ends; 0: it is not here yet, or was the last."""
        data, begun = self._data, at
        parts: list[bytes] = []
        length = _WHOLE
        while length == _WHOLE:
            if len(data) < at + 4:
                self._wanted = at + 4 - begun
                return 0
            length = int.from_bytes(data[at : at + 3], "little")
            if len(data) < at + 4 + length:
                self._wanted = at + 4 + length - begun
                return 0
            parts.append(data[at + 4 : at + 4 + length])
            at += 4 + length
        packet = b"".join(parts) if len(parts) > 1 else parts[0]
        match packet[0]:
            case 0xFF:
                self._end()
                pymysql.err.raise_mysql_exception(packet)
            case 0xFB:
                raise EmptyRow
            case 0xFE if len(packet) < 9:
                self._end()
                return 0
        lines.append(packet[{0xFC: 3, 0xFD: 4, 0xFE: 9}.get(packet[0], 1) :])
        return at

    def _end(self) -> None:
        """The result is read to its end; the connection may be used for another."""
        self._has_ended = True
        self._connection._result.unbuffered_active = False
        self._connection._result = None


_HEADER = struct.Struct("<HBBB").unpack_from
