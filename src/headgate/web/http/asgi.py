"""Hands a request to uvicorn, which speaks ASGI to everything that is no webhook.

uvicorn's protocol sees one request and no more: what comes before and after it, how long it takes and when the
connection ends is decided here. It writes to a `_Transport` that ends with its request, so an answer that comes too
late reaches nobody.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from headgate.web.http.requests import Head, Piece


class Line(Protocol):
    """The connection, as uvicorn uses it."""

    transport: asyncio.Transport

    def hold(self, is_held: bool) -> None:
        """Whether to wait before more of the body is handed over."""

    def answered(self, *, close: bool) -> None:
        """The answer is complete."""

    def upgraded(self, protocol: asyncio.Protocol) -> None:
        """From now on another protocol has the connection."""


@dataclass(frozen=True, slots=True)
class AsgiServer:
    """What uvicorn's protocols need."""

    config: Config
    state: ServerState


class _Transport:
    """What uvicorn takes for the socket."""

    def __init__(self, line: Line) -> None:
        self._line: Line | None = line
        self._socket = line.transport

    def end(self, *, close: bool) -> None:
        """The answer is complete."""
        line, self._line = self._line, None
        if line is not None:
            line.answered(close=close)

    def cut(self) -> bool:
        """Whatever is written from now on is dropped. Whether it was not so before."""
        line, self._line = self._line, None
        return line is not None

    def write(self, data: bytes) -> None:
        if self._line is not None and not self._socket.is_closing():
            self._socket.write(data)

    def close(self) -> None:
        self.end(close=True)

    def is_closing(self) -> bool:
        return self._line is None or self._socket.is_closing()

    def pause_reading(self) -> None:
        if self._line is not None:
            self._line.hold(True)

    def resume_reading(self) -> None:
        if self._line is not None:
            self._line.hold(False)

    def get_write_buffer_size(self) -> int:
        return self._socket.get_write_buffer_size()

    def abort(self) -> None:
        if self._line is not None:
            self._socket.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket.get_extra_info(name, default)


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol for one request. It does not count idle time: that is the connection's."""

    def __init__(self, server: AsgiServer, line: Line) -> None:
        super().__init__(server.config, server.state, {})
        self._line = line
        self._end = _Transport(line)
        self.connection_made(cast(asyncio.Transport, self._end))
        self.connections.discard(self)  # The connection itself is there.

    def cut(self) -> bool:
        """Its answer reaches nobody from now on. Whether it was not so before."""
        return self._end.cut()

    def on_response_complete(self) -> None:
        """Called after the last byte of an answer was written."""
        self.server_state.total_requests += 1
        self._end.end(close=not self.cycle.keep_alive)

    def handle_websocket_upgrade(self) -> None:
        """Called when a WebSocket may take over."""
        self._end.cut()
        self.transport = self._line.transport
        super().handle_websocket_upgrade()
        self._line.upgraded(cast(asyncio.Protocol, self.transport.get_protocol()))

    def _unsupported_upgrade_warning(self) -> None:
        """Anyone may ask for an upgrade to anything: it is no news."""


class AsgiExchange:
    """One request that uvicorn answers."""

    def __init__(self, line: Line, server: AsgiServer) -> None:
        self._protocol = _Protocol(server, line)

    @property
    def may_be_refused(self) -> bool:
        """Whether nothing of an answer has been sent."""
        cycle = self._protocol.cycle
        return cycle is None or not cycle.response_started

    def begin(self, head: Head) -> None:
        """Hand over the head; a WebSocket goes its own way from here."""
        self._protocol.data_received(head.raw)

    def take(self, piece: Piece) -> None:
        """Hand over some of the body as it came: uvicorn parses it as we did."""
        self._protocol.data_received(piece.raw)

    def lost(self) -> None:
        """Nobody waits for the answer any more."""
        if self._protocol.cut():
            self._protocol.connection_lost(None)

    def shut_down(self) -> None:
        """The node stops: this is the connection's last answer."""
        self._protocol.shutdown()

    def pause_writing(self) -> None:
        """The caller is slower than the answer."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._protocol.resume_writing()
