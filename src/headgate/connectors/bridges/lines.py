"""Cuts what a program writes into lines, however it comes, with a limit to how long a line may be."""

from __future__ import annotations

from dataclasses import dataclass

KEPT_BYTES = 64 * 1024  # Of a line that is too long: enough to see what it was.


@dataclass(frozen=True, slots=True)
class TooLong:
    """In place of a line that is longer than lines may be."""

    beginning: bytes
    size_bytes: int


class Lines:
    """What has come of a line that is not whole yet."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._rest = bytearray()
        self._size_bytes = 0  # Of the line that is too long, while one is; its beginning is the rest.

    def feed(self, data: bytes) -> list[bytes | TooLong]:
        """The lines that end in this."""
        found: list[bytes | TooLong] = []
        if self._size_bytes:
            end = data.find(b"\n")
            if end < 0:
                self._size_bytes += len(data)
                return found
            found.append(TooLong(bytes(self._rest), self._size_bytes + end))
            self._rest, self._size_bytes, data = bytearray(), 0, data[end + 1 :]
        if (end := data.rfind(b"\n")) < 0:
            self._rest += data
        else:
            self._rest += data[:end]
            found += [self._judged(bytes(line)) for line in self._rest.split(b"\n")]
            self._rest = bytearray(data[end + 1 :])
        if len(self._rest) > self._most_bytes:
            self._size_bytes = len(self._rest)
            del self._rest[KEPT_BYTES:]
        return found

    def end(self) -> list[bytes | TooLong]:
        """The last line, if the program did not end it."""
        rest, size_bytes = bytes(self._rest), self._size_bytes
        self._rest, self._size_bytes = bytearray(), 0
        if size_bytes:
            return [TooLong(rest, size_bytes)]
        return [rest] if rest else []

    def _judged(self, line: bytes) -> bytes | TooLong:
        return line if len(line) <= self._most_bytes else TooLong(line[:KEPT_BYTES], len(line))
