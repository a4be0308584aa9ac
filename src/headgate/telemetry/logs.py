"""Structured logs: to the terminal or as JSON lines, and the last lines of each stream into the database.

A logger that is bound to `stream_id` ships its lines as well; shipping never blocks and never fails the one who logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections import deque
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any

import structlog

from headgate.errors import StoreError
from headgate.store.logs import Line, Logs
from headgate.store.wake import Waker

SHIP_S = 1.0
MOST_WAITING = 5000  # Beyond this the oldest lines are dropped: logs must not eat the node's memory.

_waiting: deque[Line] = deque(maxlen=MOST_WAITING)


def configure(style: str, level: str = "INFO") -> None:
    """Set up structlog for this process."""
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if style == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            pad_event_to=24,
            # Not the one that shows local variables: they may hold a secret, or somebody's record.
            exception_formatter=structlog.dev.plain_traceback,
        )
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info if style == "json" else _keep,
            _ship,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level)),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),  # A line is one write: processes may share it.
        cache_logger_on_first_use=False,
    )


def _keep(logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return line


def _ship(logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Put a stream's line aside for the database."""
    stream = line.pop("stream_id", None)
    if stream is not None:
        fields = {key: value for key, value in line.items() if key not in ("event", "level", "exc_info")}
        text = str(line.get("event", "")).encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
        _waiting.append(Line(stream, datetime.now(UTC), str(line.get("level", "info")), text, fields))
    return line


async def ship(logs: Logs, waker: Waker) -> None:
    """Write the waiting lines every second, until cancelled."""
    while True:
        await asyncio.sleep(SHIP_S)
        await ship_now(logs, waker)


async def ship_now(logs: Logs, waker: Waker) -> None:
    """Write what waits. Lines of a database that is away are kept, up to a limit."""
    lines = list(_waiting)
    if not lines:
        return
    _waiting.clear()
    try:
        await logs.append(lines)
    except StoreError:
        with contextlib.suppress(IndexError):
            _waiting.extendleft(reversed(lines[-(MOST_WAITING - len(_waiting)) :]))
        return
    waker.wake("logs")
