"""The logger of modules that short commands import too: it costs nothing until something is said.

structlog takes a tenth of a second to import, because it brings along what draws tracebacks on terminals. A dump says
nothing by logs, and should be at its first chunk by then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_prepare: list[Callable[[], None]] = []


class Logger:
    """structlog's logger, once it is used."""

    def __getattr__(self, name: str) -> Any:
        import structlog

        while _prepare:
            _prepare.pop()()
        return getattr(structlog.get_logger(), name)


def get_logger() -> Logger:
    """For a module."""
    return Logger()


def configure_by(configure: Callable[[], None]) -> None:
    """Have structlog configured: now, if it is imported, or before it is first used."""
    if "structlog" in sys.modules:
        configure()
    else:
        _prepare.append(configure)
