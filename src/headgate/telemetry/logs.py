"""Structured logs: to the terminal or as JSON lines, and the lines of each stream to who keeps them.

A logger that is bound to `stream_id` hands its lines over as well, to be read with `headgate ds logs`. No line shows a
secret, whatever a connector logs.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any

import structlog

from headgate.hidden import hide
from headgate.store.logs import Line


def configure(style: str, keep: Callable[[Line], None] | None = None, level: str = "INFO") -> None:
    """Set up structlog for this process. `keep` gets the lines of streams."""
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
    if not (root := logging.getLogger()).handlers:  # What asyncio and the libraries log.
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Hiding())
        handler.setLevel(logging.WARNING)
        root.addHandler(handler)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info if style == "json" else _unchanged,
            _hide_fields,
            _handing_to(keep or _drop),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
            _hide_line,  # A stack trace for people is written by the renderer.
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level)),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),  # A line is one write: processes may share it.
        cache_logger_on_first_use=False,
    )


class _Hiding(logging.Formatter):
    """As Python writes it, stack traces included, without any secret."""

    def format(self, record: logging.LogRecord) -> str:
        return hide(super().format(record))


def _unchanged(logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return line


def _hide_fields(logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {key: value if key == "exc_info" else _hidden(value) for key, value in line.items()}


def _hidden(value: Any) -> Any:
    match value:
        case str():
            return hide(value)
        case dict():
            return {key: _hidden(item) for key, item in value.items()}
        case list():
            return [_hidden(item) for item in value]
        case None | bool() | int() | float():
            return value
    text = str(value)  # An error, say: it becomes text where it is written.
    return value if hide(text) == text else hide(text)


def _hide_line(logger: Any, method: str, line: Any) -> str:
    return hide(str(line))


def _drop(line: Line) -> None:
    """Nobody keeps lines where no node runs."""


def _handing_to(keep: Callable[[Line], None]) -> Any:
    def hand_over(logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        stream = line.pop("stream_id", None)
        if stream is not None:
            fields = {key: value for key, value in line.items() if key not in ("event", "level", "exc_info")}
            text = str(line.get("event", "")).encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
            keep(Line(stream, datetime.now(UTC), str(line.get("level", "info")), text, fields))
        return line

    return hand_over
