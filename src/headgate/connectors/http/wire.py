"""One connection: a request is written, and its answer is taken in within limits.

The parser is llhttp (`httptools`), which refuses what two readers could understand in two ways. What it reads is
counted: an answer whose head or body is larger than allowed ends the connection, and no more of it is kept than that.
A connection is used for one request at a time. Whatever is not wholly in order afterwards (a cancelled request, an
answer that was cut short, bytes that nobody asked for) ends it, so a kept one is always at the beginning of an answer.

An answer without a length ends with its connection. Then nothing tells a whole one from one that was cut, which it
says (`is_delimited`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import httptools

HEAD_BYTES = 64 * 1024  # Of the names and values of an answer's headers. Servers allow 8 to 16 KiB.
_FORBIDDEN = frozenset("\r\n\0")
_CONTINUES = range(100, 200)  # An interim answer: the real one follows.


class Garbled(Exception):
    """What came is not HTTP."""


class TooLarge(Exception):
    """An answer has more than may be taken in."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said."""

    status: int
    headers: Mapping[str, str]  # By their names in lower case. Several of one name are joined with commas.
    body: bytes  # As it was sent: perhaps compressed.
    is_delimited: bool = True  # The server said where it ends, and it ended there.
    is_whole: bool = True  # False: there was more than the caller wanted, which was not read.


def head_of(method: str, path: str, headers: Sequence[tuple[str, str]]) -> bytes:
    """The first line and the headers. Raises ValueError for a text that would end its line."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    for line in lines:
        if not line.isascii() or not _FORBIDDEN.isdisjoint(line):
            raise ValueError(f"{line.partition(':')[0][:40]!r} has a sign that no header may have")
    return "\r\n".join([*lines, "", ""]).encode("ascii")


class Wire(asyncio.Protocol):
    """A connection to a server."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiting: asyncio.Future[Answer] | None = None
        self._most_bytes = 0
        self._truncates = False
        self._is_sound = True  # At the beginning of an answer, as far as this side knows.
        self._begin()

    def _begin(self) -> None:
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._pieces: list[bytes] = []
        self._body_bytes = 0
        self._is_in_body = False
        self._is_over = False

    @property
    def is_usable(self) -> bool:
        """Whether another request can go this way."""
        return self._is_sound and self._transport is not None and not self._transport.is_closing()

    @property
    def has_heard(self) -> bool:
        """Whether anything of the answer has come."""
        return self._head_bytes > 0 or self._is_in_body

    async def exchange(self, head: bytes, body: bytes, most_bytes: int, *, truncates: bool = False) -> Answer:
        """The answer to a request. `truncates`: one with a larger body is answered without the rest of it."""
        assert self._transport is not None
        assert self._waiting is None, "one request at a time"
        self._begin()
        self._most_bytes, self._truncates = most_bytes, truncates
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting = waiting
        self._is_sound = False
        try:
            self._transport.write(head + body if len(body) < HEAD_BYTES else head)
            if len(body) >= HEAD_BYTES:
                self._transport.write(body)
            return await waiting
        finally:
            self._waiting = None
            if not self._is_sound:
                self.close()

    def close(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """The next bytes. Those that nobody has asked for end the connection."""
        if self._waiting is None or self._waiting.done():
            self._is_sound = False
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._is_sound = False
            self._fail(Garbled("the server wants to speak another protocol"))
        except httptools.HttpParserError as error:
            self._is_sound = False
            self._fail(Garbled(f"what came is not HTTP: {error}"))
        if self._head_bytes > HEAD_BYTES:
            self._fail(TooLarge(f"its headers have more than {HEAD_BYTES:,} bytes"))
        elif self._body_bytes > self._most_bytes:
            if self._truncates:
                self._finish(is_whole=False)
            self._fail(TooLarge(f"its body has more than {self._most_bytes:,} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended, by the other side or by this one."""
        self._is_sound = False
        if self._is_in_body and not self._is_over and not self._has_length and exc is None:
            self._finish(is_delimited=False)
        self._fail(exc or ConnectionResetError("the connection was closed in the middle of an answer"))

    # Called by the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header. Nothing is kept of a head that is too large, or that follows the answer."""
        if self._is_over:
            self._is_sound = False
            return
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes <= HEAD_BYTES:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        """The body follows."""
        self._is_in_body = self._parser.get_status_code() not in _CONTINUES

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._body_bytes += len(data)
        if self._body_bytes <= self._most_bytes:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        """That was all of an answer, or of an interim one."""
        if self._is_over:
            return
        if self._parser.get_status_code() in _CONTINUES:
            head_bytes = self._head_bytes
            self._begin()
            self._head_bytes = head_bytes + 16  # They count together, so they cannot go on without end.
            return
        if self._head_bytes <= HEAD_BYTES and self._body_bytes <= self._most_bytes:
            self._is_sound = self._parser.should_keep_alive()
            self._finish()

    # The end.

    @property
    def _has_length(self) -> bool:
        return "content-length" in self._headers or "transfer-encoding" in self._headers

    def _finish(self, *, is_delimited: bool = True, is_whole: bool = True) -> None:
        self._is_over = True
        if self._waiting is not None and not self._waiting.done():
            status, body = self._parser.get_status_code(), b"".join(self._pieces)
            self._waiting.set_result(Answer(status, self._headers, body, is_delimited, is_whole))
        self._pieces = []

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
