"""Errors on their way out of the process of a connector, with all that they say; and how a process ended, in words."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from headgate.connectors.guard import OutOfReach
from headgate.core.harness.endings import signal_said
from headgate.errors import (
    Bad,
    BadRecords,
    BatchRefused,
    Cause,
    ConfigError,
    ConnectorError,
    EndOfStream,
    Fenced,
    HeadgateError,
    NotConnected,
    Problem,
    RetryLater,
)
from headgate.runtime.apart.wire import NonsenseError, WireError, shown
from headgate.text import error_line, one_line

MOST_SAID = 2000  # Characters of a message.
MOST_HINT = 500
MOST_PROBLEMS = 100
LONGEST_PAUSE_S = 86400.0
MEMORY, CANCELLED = "memory", "cancelled"

_PLAIN: tuple[type[ConnectorError], ...] = (NotConnected, EndOfStream, BatchRefused, Fenced, OutOfReach, ConnectorError)


# Out of the process.


def to_wire(error: BaseException) -> WireError:
    """Whatever was raised."""
    hint = shown(getattr(error, "hint", ""), MOST_HINT)
    match error:
        case RetryLater():
            return WireError("RetryLater", shown(error.message, MOST_SAID), hint, after_s=float(error.after_s))
        case BadRecords():
            bad = [(one.index, one.field and shown(one.field, 200), shown(one.reason, 500)) for one in error.bad]
            return WireError("BadRecords", "", bad=bad)
        case ConnectorError():
            kind = next(one for one in _PLAIN if isinstance(error, one))
            return WireError(kind.__name__, shown(error.message, MOST_SAID), hint, str(error.cause))
        case ConfigError():
            listed = [(one.path, one.message, one.hint) for one in error.problems[:MOST_PROBLEMS]]
            problems = [
                (shown(path, 200), shown(said, MOST_SAID), shown(help, MOST_HINT)) for path, said, help in listed
            ]
            return WireError("ConfigError", shown(error.message, MOST_SAID), hint, problems=problems)
        case HeadgateError():
            return WireError("ConnectorError", shown(error.message, MOST_SAID), hint, str(Cause.CONFIG))
        case MemoryError():
            return WireError(MEMORY, "")
        case _:
            cause = Cause.NETWORK if isinstance(error, OSError) else Cause.BUG
            return WireError("ConnectorError", shown(error_line(error), MOST_SAID), cause=str(cause))


# In the node.


def from_wire(found: WireError, records: int, memory_mb: int) -> HeadgateError:
    """The error again. `records`: how many there were to be bad. Raises NonsenseError."""
    message, hint = one_line(found.message, MOST_SAID), one_line(found.hint, MOST_HINT)
    if found.kind == MEMORY:
        return ConnectorError(needed(memory_mb), hint=ROOM)
    if found.kind == "RetryLater":
        if not 0.0 <= found.after_s < math.inf:
            raise NonsenseError("a pause is no time")
        return RetryLater(message, after_s=min(found.after_s, LONGEST_PAUSE_S))
    if found.kind == "BadRecords":
        return _bad_records(found, records)
    if found.kind == "ConfigError":
        problems = [Problem(*(one_line(text, MOST_SAID) for text in one)) for one in found.problems[:MOST_PROBLEMS]]
        return ConfigError(problems or message, hint=hint)
    kind = next((one for one in _PLAIN if one.__name__ == found.kind), None)
    if kind is None or found.cause not in set(Cause):
        raise NonsenseError("an error is of no kind")
    return kind(message, cause=Cause(found.cause), hint=hint)


def _bad_records(found: WireError, records: int) -> BadRecords:
    indexes = {index for index, _, _ in found.bad}
    if not found.bad or len(indexes) < len(found.bad) or not indexes <= set(range(records)):
        raise NonsenseError("records are bad that are not there")
    return BadRecords(
        [Bad(i, None if field is None else one_line(field, 200), one_line(why, 500)) for i, field, why in found.bad]
    )


# How it ended.

ROOM = "HEADGATE_CONNECTOR_MEMORY_MB sets how much; smaller batches need less"
UNKNOWN = "it was killed with the process that watched it"
NONSENSE = "it said what nobody understands, and was killed"


def needed(memory_mb: int) -> str:
    """For one that wanted too much."""
    return f"the connector's process needed more than {memory_mb} MB"


def ending_of(told: str, memory_mb: int) -> ConnectorError:
    """From what its warden said: `exit 3`, `signal 11`, `memory 0`, `processes 64`; nothing, if that has gone."""
    how, _, text = told.partition(" ")
    number = int(text) if text.isascii() and text.isdecimal() else 0
    said: dict[str, Callable[[], Any]] = {
        "exit": lambda: f"the connector's process ended: exit code {number}",
        "signal": lambda: f"the connector's process ended: signal {number}, {signal_said(number)}",
        "processes": lambda: f"the connector's process had started more than {number} others",
    }
    if how == "memory":
        return ConnectorError(needed(memory_mb), hint=ROOM)
    return ConnectorError(said[how]() if how in said else f"the connector's process ended: {UNKNOWN}")
