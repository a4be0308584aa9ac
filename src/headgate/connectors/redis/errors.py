"""What Redis answers when it refuses, and what that means for the worker."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.errors import Cause, ConnectorError, NotConnected, RetryLater
from headgate.text import one_line

# The server is there and cannot now: it loads, fails over, has lost its master or is full.
_AWAY = {"LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "ASK", "MOVED", "READONLY", "NOREPLICAS", "BUSY"}
_FULL = {"OOM", "MISCONF"}
_DENIED = {"NOAUTH", "WRONGPASS", "NOPERM", "DENIED"}
FULL_S = 5.0


@dataclass(frozen=True, slots=True)
class Answered:
    """An error reply: its first word, and all of it without what it may repeat of a command."""

    code: str
    text: str

    @classmethod
    def of(cls, reply: Exception) -> Answered:
        """An unknown command is repeated with its arguments, which may be values of records."""
        text = str(reply).partition(", with args")[0].partition(" script: ")[0]
        return cls(text.partition(" ")[0], one_line(text, 200))


def steering(answer: Answered, name: str) -> ConnectorError:
    """The error that tells the worker what to do."""
    why = f"{name}: {answer.text}"
    if answer.code in _AWAY or "max number of clients" in answer.text:
        return NotConnected(why)
    if answer.code in _FULL:
        return RetryLater(why, after_s=FULL_S)
    if answer.code in _DENIED or "AUTH" in answer.text or "invalid password" in answer.text:
        return ConnectorError(why, cause=Cause.AUTH)
    return ConnectorError(why, cause=Cause.CONFIG)
