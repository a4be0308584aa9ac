"""Bodies about taps."""

from __future__ import annotations

from headgate.core.tap import Shown
from headgate.web.bodies import Answer


class Tapped(Answer):
    """One step of a tap: a record, or how many were not shown, or that it has ended."""

    shown: Shown | None = None
    dropped: int = 0  # Records that matched, or could not be judged in time, and are not shown.
    ended: str | None = None  # `limit` or `time`.
