"""How long to wait before trying again, and when to stop trying.

Waits double from `FIRST_S` to `LONGEST_S`; full jitter spreads the upper half of each wait, so that a thousand streams
that failed together do not come back together. The budget counts failures in a sliding window: a stream that keeps
failing, and whose own fault it is, is quarantined instead of burning a core.
"""

from __future__ import annotations

FIRST_S = 0.5  # Short enough that a dropped connection is not noticed.
LONGEST_S = 60.0  # Long enough that a thousand streams against a dead sink cost nothing.
BUDGET = 10  # Failures in a window before a stream is quarantined.
WINDOW_S = 600.0


def wait_s(attempt: int, jitter: float) -> float:
    """The wait before try number `attempt` (1 is the first retry); `jitter` is in [0, 1)."""
    ceiling = min(LONGEST_S, FIRST_S * 2.0 ** min(attempt - 1, 16))
    return float(ceiling * (0.5 + jitter / 2))


def spend(failures: tuple[float, ...], at_s: float) -> tuple[float, ...]:
    """The failures that still count, with this one added."""
    return (*(t for t in failures if t > at_s - WINDOW_S), at_s)


def is_spent(failures: tuple[float, ...]) -> bool:
    """Whether the window holds more failures than the budget allows."""
    return len(failures) > BUDGET
