"""What RabbitMQ's codes mean for a worker."""

from __future__ import annotations

from headgate.errors import Cause, ConnectorError, NotConnected
from headgate.text import one_line

# Of AMQP 0.9.1.
_AUTH = {403}
_CONFIG = {402, 404, 405, 406, 530, 540}
_GONE = {311, 313, 320, 506, 541}
_TIMED_OUT = "timed out"  # Of an acknowledgement: the code is that of a failed precondition.

# Of the stream protocol.
_STREAM_TEXTS = {
    2: "the stream does not exist",
    6: "the stream is not available at this node",
    7: "the server does not take a user and a password",
    8: "user or password is wrong",
    9: "user or password is wrong",
    11: "this user may only connect from the server's own machine",
    12: "this user may not use the virtual host, or there is none",
    14: "a frame was too large",
    15: "an error inside of the server",
    16: "this user may not do that",
    17: "the server refuses that now, perhaps because it is short of memory or disk",
    18: "the server has forgotten this publisher",
}
_STREAM_AUTH = {7, 8, 9, 11, 16}
_STREAM_CONFIG = {2, 12}


def amqp_error(name: str, code: int, text: str) -> ConnectorError:
    """A connection or a channel was closed by the server with this code."""
    said = f"{name}: {one_line(text)}"
    if code in _GONE or _TIMED_OUT in text:
        return NotConnected(said)
    cause = Cause.AUTH if code in _AUTH else Cause.CONFIG if code in _CONFIG else Cause.BUG
    return ConnectorError(said, cause=cause, hint=_hint(code))


def _hint(code: int) -> str:
    match code:
        case 404:
            return "declare it first, or mend its name"
        case 405:
            return "it is exclusive to another connection; name a queue that can be shared"
        case 530:
            return "name a virtual host that exists: …/name, with / written as %2F"
        case _:
            return ""


def stream_error(name: str, what: str, code: int) -> ConnectorError:
    """A request of the stream protocol was answered with this code. `what` is what was asked for."""
    said = f"{name}: {what}: {_STREAM_TEXTS.get(code, f'refused with code {code}')}"
    if code in _STREAM_AUTH:
        return ConnectorError(said, cause=Cause.AUTH)
    if code in _STREAM_CONFIG:
        return ConnectorError(said, cause=Cause.CONFIG, hint=_hint(404) if code == 2 else "")
    return NotConnected(said)
