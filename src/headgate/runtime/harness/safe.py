"""Any value as JSON, for people: what JSON cannot say becomes text."""

from __future__ import annotations

from typing import Any

import msgspec

LONGEST_TEXT = 1000


def safe(value: Any) -> Any:
    """The same as plain JSON."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value, enc_hook=str))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return {"shown as": repr(value)[:LONGEST_TEXT]}


def size_of(value: Any) -> int:
    """How many bytes it has as JSON."""
    try:
        return len(msgspec.json.encode(value, enc_hook=str))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return 0
