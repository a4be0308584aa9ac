"""How much a connection may send, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass

HEAD_BYTES = 64 * 1024  # Of a request line with its headers.
HEADERS = 256  # In one request: each costs a call.
HEAD_S = 10.0  # From the first byte of a request, or from the connection, to the end of its headers.
BODY_S = 30.0  # From the end of the headers to the end of the body.
IDLE_S = 60.0  # Between two requests.
UNREAD_S = 30.0  # In which a caller must take something of what it was sent,
UNREAD_BYTES = 32 * 1024  # at least this much.
FRAMING_BYTES = 64 * 1024  # Of chunked framing, beyond as many bytes as it carried.
AHEAD_BYTES = 64 * 1024  # Taken from the socket before they are wanted.
DROPPED_BYTES = 64 * 1024  # Of a refused body that are read and dropped, so that the connection can be used again.
LINGER_S = 2.0  # For a caller that is still sending to read why it was refused,
LINGER_BYTES = 16 * 1024 * 1024  # and this much of what it sends.
GO_S = 0.005  # Of the event loop in one go; then it is somebody else's turn.


@dataclass(frozen=True, slots=True)
class Limits:
    """What differs between nodes."""

    connections: int
    per_address: int


class Refusal(Exception):
    """A request that goes no further. Its connection ends."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
