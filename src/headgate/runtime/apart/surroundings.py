"""What a connector finds around it in its process: a logger, a context, and what it is refused there."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, NoReturn

import structlog

from headgate.connectors.api import Context
from headgate.connectors.guard import Guard
from headgate.errors import Cause, ConnectorError
from headgate.runtime.apart.wire import Begin, Noted, Resolved, Said, shown
from headgate.runtime.streams.shared import SharedThings

LINES = 100  # That may be said at once,
LINES_PER_S = 20.0  # and from then on.
MOST_TEXT = 2000
MOST_FIELD = 500
MOST_FIELDS = 20
_LEVELS = {"debug", "info", "warning", "error", "critical"}

Send = Callable[[Any], None]


class Bucket:
    """How often something may be done: so often at once, and then so often a second."""

    def __init__(self, most: int, per_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._most = float(most)
        self._per_s = per_s
        self._now_s = now_s
        self._left = self._most
        self._at_s = now_s()

    def take(self) -> bool:
        """Whether it may be done now."""
        now_s = self._now_s()
        self._left = min(self._most, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class _Refused:
    """Stands for what a process does not have."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> NoReturn:
        raise ConnectorError(
            f"a connector that runs in a process has no {self._what}", cause=Cause.CONFIG, hint='runs="async"'
        )


def context(begin: Begin, part: str, guard: Guard, log: Any, send: Send) -> Context:
    """For one source or sink."""
    refused: Any = _Refused
    return Context(
        begin.stream,
        log,
        time.time,
        SharedThings(),
        inbox=refused("inbox"),
        feed=refused("feed"),
        part=part,
        guard=guard,
        field_types=begin.field_types,
        note=partial(_note, send),
        letters_resolved=lambda: send(Resolved()),
        is_rehearsal=begin.is_rehearsal,
        memory_mb=begin.memory_mb,
    )


def _note(send: Send, type: str, **payload: Any) -> None:
    send(Noted(shown(type, MOST_FIELD), {name: shown(value, MOST_FIELD) for name, value in payload.items()}))


def fast_loop() -> asyncio.AbstractEventLoop:
    """The kind of loop that a node has."""
    import uvloop

    return uvloop.new_event_loop()


# What it logs.


def logger(send: Send) -> Any:
    """A structured logger whose lines go to the node; what libraries warn of goes there, too."""
    lines = _Lines(send)

    def keep(logger: Any, method: str, line: MutableMapping[str, Any]) -> str:
        fields = {key: value for key, value in line.items() if key not in ("event", "exc_info")}
        lines.say(method, str(line.get("event", "")), fields)
        raise structlog.DropEvent

    logging.getLogger().addHandler(_Handler(lines))
    logging.getLogger().setLevel(logging.WARNING)
    structlog.configure(processors=[keep], wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    return structlog.get_logger()


class _Lines:
    """What was logged, as much of it as a node takes."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._bucket = Bucket(LINES, LINES_PER_S)
        self._left_out = 0

    def say(self, level: str, text: str, fields: MutableMapping[str, Any]) -> None:
        if not self._bucket.take():
            self._left_out += 1
            return
        found = {shown(key, 100): shown(value, MOST_FIELD) for key, value in list(fields.items())[:MOST_FIELDS]}
        if self._left_out:
            found["left_out"] = str(self._left_out)  # Lines before this one, because there were too many.
            self._left_out = 0
        self._send(Said(level if level in _LEVELS else "info", shown(text, MOST_TEXT), found))


class _Handler(logging.Handler):
    """What libraries log."""

    def __init__(self, lines: _Lines) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.say(record.levelname.lower(), record.getMessage(), {"logger": record.name})
