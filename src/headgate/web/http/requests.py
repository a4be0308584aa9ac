"""Cuts the bytes of one connection into requests, one after the other.

A head is parsed when all of it is there and small enough. Each has its own parser: nothing of one request can leak into
the next. What two readers of HTTP could read differently (two lengths, a length and chunks, a bare line feed, a folded
line, an encoding that we do not undo) is refused, so a proxy in front of us sees the same boundaries as we do. The
bytes after a request stay here until somebody asks for the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

import httptools

from headgate.web.http.limits import FRAMING_BYTES, HEAD_BYTES, HEADERS, Refusal

PIECE_BYTES = 64 * 1024  # Of a body in one go.
CHUNKED = -1


@dataclass(slots=True, eq=False)
class Head:
    """A request without its body."""

    raw: bytes
    method: str
    path: str  # Without the query, percent-decoded.
    headers: list[tuple[bytes, bytes]]  # Names in lower case.
    length: int  # Of the body; CHUNKED if the end of it will tell.
    is_last: bool  # Whether the caller wants the connection closed after it.
    upgrade: bytes  # To what, in lower case.
    awaits_continue: bool  # Whether the body is sent only when we ask for it.


class Piece(NamedTuple):
    """Some of a body: as it came, and what it carries."""

    raw: bytes
    data: bytes
    is_last: bool


class _Parsed:
    """What the parser calls."""

    __slots__ = ("data", "headers", "is_complete", "keeps_alive", "parser", "target", "trailing")

    def __init__(self) -> None:
        self.parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.data = b""
        self.is_complete = False  # The whole message.
        self.keeps_alive = False
        self.trailing = False  # Headers after a body say nothing to us.

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.trailing:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.trailing = True
        assert self.parser is not None
        self.keeps_alive = self.parser.should_keep_alive()  # The parser forgets it at the end of the message.

    def on_body(self, data: bytes) -> None:
        self.data += data

    def on_message_complete(self) -> None:
        self.is_complete = True

    def feed(self, raw: bytes) -> None:
        """Have it parsed."""
        assert self.parser is not None
        self.parser.feed_data(raw)

    def let_go(self) -> None:
        """The parser knows us too: without this, only the garbage collector would find both."""
        self.parser = None


class Requests:
    """The bytes of one connection that nobody has taken yet."""

    __slots__ = ("_framing", "_in_chunk", "_left", "_parsed", "_searched", "buffer")

    def __init__(self) -> None:
        self.buffer = bytearray()
        self._searched = 0  # How far the buffer has no end of a head.
        self._left = 0  # Bytes of the body that are still to come; CHUNKED until its end.
        self._in_chunk = 0  # Bytes of the chunk that are still to come.
        self._framing = 0  # How much more framing there may be.
        self._parsed: _Parsed | None = None  # Of a request whose body comes in chunks.

    @property
    def body_left(self) -> int:
        """Bytes of the body that were not taken yet; CHUNKED if nobody knows."""
        return self._left

    def head(self) -> Head | None:
        """The next head, if it is all there."""
        buffer = self.buffer
        end = buffer.find(b"\r\n\r\n", self._searched)
        if end < 0:
            self._refuse_part(buffer)
            return None
        if end == 0 or buffer[0] in b"\r\n":  # Empty lines before a request are allowed.
            self._skip_empty_lines(buffer)
            return self.head() if buffer else None
        raw = bytes(memoryview(buffer)[: end + 4])
        del buffer[: end + 4]
        self._searched = 0
        if len(raw) > HEAD_BYTES or raw.count(b"\n") > HEADERS + 2:
            raise Refusal(431, f"the headers are larger than {HEAD_BYTES} bytes or more than {HEADERS}")
        return self._parse(raw)

    def piece(self) -> Piece | None:
        """The next piece of the body, if there is one."""
        if self._left == CHUNKED:
            return self._chunked_piece()
        raw = bytes(memoryview(self.buffer)[: min(self._left, PIECE_BYTES)])
        if not raw:
            return None
        del self.buffer[: len(raw)]
        self._left -= len(raw)
        return Piece(raw, raw, self._left == 0)

    def _refuse_part(self, buffer: bytearray) -> None:
        """What can be said of a head that is not complete."""
        if buffer and buffer[0] in b"\r\n":
            self._skip_empty_lines(buffer)
        if len(buffer) > HEAD_BYTES:
            raise Refusal(431, f"the headers are larger than {HEAD_BYTES} bytes")
        if buffer and not 65 <= buffer[0] <= 90:
            raise Refusal(400, "the request does not begin with a method")
        line = buffer.find(b"\n", self._searched)
        if line > 0 and buffer[line - 1] != 13:
            raise Refusal(400, "a line ends without a carriage return")
        self._searched = max(0, len(buffer) - 3)

    def _skip_empty_lines(self, buffer: bytearray) -> None:
        del buffer[: len(buffer) - len(buffer.lstrip(b"\r\n"))]
        self._searched = 0

    def _parse(self, raw: bytes) -> Head:
        parsed = _Parsed()
        try:
            parsed.feed(raw)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError as error:
            raise Refusal(400, f"the request is not HTTP: {_words(error)}") from None
        if not parsed.trailing:
            raise Refusal(400, "the request is not HTTP")
        head = _head(raw, parsed)
        self._left = head.length
        if head.length == CHUNKED:
            self._parsed = parsed
            self._in_chunk, self._framing = 0, FRAMING_BYTES
        else:
            parsed.let_go()
        return head

    def _chunked_piece(self) -> Piece | None:
        """A line of the framing, or what a chunk carries."""
        buffer = self.buffer
        if self._in_chunk:
            raw = bytes(memoryview(buffer)[: min(self._in_chunk, PIECE_BYTES)])
        else:
            raw = bytes(memoryview(buffer)[: buffer.find(b"\n", 0, FRAMING_BYTES) + 1])
        if not raw:
            if not self._in_chunk and len(buffer) >= min(self._framing, FRAMING_BYTES):
                raise Refusal(413, "the framing of the chunks is too large")
            return None
        del buffer[: len(raw)]
        return self._fed(raw)

    def _fed(self, raw: bytes) -> Piece:
        parsed = self._parsed
        assert parsed is not None
        parsed.data = b""
        try:
            parsed.feed(raw)
        except httptools.HttpParserError as error:
            raise Refusal(400, f"the body is not chunked as it should be: {_words(error)}") from None
        if self._in_chunk:
            self._in_chunk -= len(raw)
            self._framing += len(raw)
        else:
            self._framing -= len(raw)
            if self._framing < 0:
                raise Refusal(413, "the framing of the chunks is too large")
            self._in_chunk = _size_of_chunk(raw)
        if parsed.is_complete:
            self._left, self._parsed = 0, None
            parsed.let_go()
        return Piece(raw, parsed.data, parsed.is_complete)


def _size_of_chunk(line: bytes) -> int:
    """What a line of the framing announces. The parser has read it too and has refused what is not a number."""
    digits = line.partition(b";")[0].strip()
    try:
        return int(digits, 16) if digits else 0
    except ValueError:  # A trailing header.
        return 0


_TELLING = frozenset({b"content-length", b"transfer-encoding", b"upgrade", b"expect"})


def _head(raw: bytes, parsed: _Parsed) -> Head:
    length, upgrade, awaits = 0, b"", False
    parser = parsed.parser
    assert parser is not None
    version = parser.get_http_version()
    if version not in ("1.1", "1.0"):
        raise Refusal(505, f"HTTP {version} is not spoken here")
    for name, value in parsed.headers:
        if name not in _TELLING:
            continue
        match name:
            case b"content-length":
                if not value.isdigit():
                    raise Refusal(400, "the length of the body is not a number")
                length = int(value)
            case b"transfer-encoding":
                if value.strip().lower() != b"chunked" or version == "1.0":
                    raise Refusal(501, "the only transfer encoding is chunked, since HTTP 1.1")
                length = CHUNKED
            case b"upgrade":
                upgrade = value.strip().lower()
            case b"expect":
                if value.strip().lower() != b"100-continue":
                    raise Refusal(417, "the only expectation is 100-continue")
                awaits = version != "1.0"
    if not parser.should_upgrade():
        upgrade = b""
    elif length:
        raise Refusal(400, "a request for an upgrade has a body")
    is_last = version == "1.0" or not parsed.keeps_alive
    method = parser.get_method().decode("ascii")
    return Head(raw, method, _path(parsed.target), parsed.headers, length, is_last, upgrade, awaits)


def _path(target: bytes) -> str:
    """The path that a target names, as a proxy or a browser writes it."""
    if not target.startswith(b"/"):
        scheme, found, rest = target.partition(b"://")
        if not found or scheme.lower() not in (b"http", b"https"):
            raise Refusal(400, "the target is not a path")
        target = b"/" + rest.partition(b"/")[2]
    path = target.partition(b"?")[0].partition(b"#")[0].decode("latin-1")
    return unquote(path) if "%" in path else path


def _words(error: httptools.HttpParserError) -> str:
    return str(error).replace("`", "")
