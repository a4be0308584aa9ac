"""What a program that uses a client has to deal with: everything else the client handles by itself."""

from __future__ import annotations

from typing import Self

from headgate.core.frames import ErrorFrame
from headgate.errors import HeadgateError

# The node says that these are our fault, so that the next connection would end the same way.
FATAL = frozenset(
    {
        "unauthorized",
        "forbidden",
        "not_found",
        "version",
        "bad_frame",
        "unknown_frame",
        "too_large",
        "not_granted",
        "backwards",
        "overdraft",
        "bad_payload",
        "unexpected",
    }
)
GROUP_FATAL = frozenset(
    {
        "unauthorized",
        "forbidden",
        "version",
        "partition_index_conflict",
        "fenced_conflict",
        "bad_frame",
        "unknown_frame",
        "too_large",
        "too_many",
        "not_joined",
        "unexpected",
    }
)
# The program itself is in order.
GROUP_REFUSED = frozenset({"unauthorized", "forbidden", "partition_index_conflict", "fenced_conflict"})


class ClientError(HeadgateError):
    """The client cannot continue: every call that waits, and every later one, fails with this code."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{text} ({code})", code=code)
        self.text = text

    def again(self) -> Self:
        """The same for another caller; one exception raised twice would mix the stacks of both."""
        same = type(self)(self.code, self.text)
        same.__cause__ = self.__cause__
        return same


class PushError(ClientError):
    """Nothing more can be pushed."""


class PushRefused(PushError):
    """This stream cannot be pushed; the others of the client go on."""


class ConsumerError(ClientError):
    """The consumer cannot continue."""


class ConsumerRefused(ConsumerError):
    """The group does not take this consumer: for its token or its partition, or because only some are fenced."""


class Lost(Exception):
    """The connection has ended; another may work."""


class Left(Exception):
    """Everything is said, and the consumer has left its group."""


class Moved(Exception):
    """The node asks us to go: to this address, or to any other."""

    def __init__(self, address: str | None, reason: str) -> None:
        super().__init__(reason)
        self.address = address


def error_of(frame: ErrorFrame) -> Exception:
    """What an error frame means for us: the end, or only the end of the connection."""
    if frame.code in FATAL:
        return PushError(frame.code, frame.text)
    return Lost(f"{frame.text} ({frame.code})")


def group_error_of(frame: ErrorFrame) -> Exception:
    """The same for a consumer."""
    if frame.code in GROUP_FATAL:
        kind = ConsumerRefused if frame.code in GROUP_REFUSED else ConsumerError
        return kind(frame.code, frame.text)
    return Lost(f"{frame.text} ({frame.code})")
