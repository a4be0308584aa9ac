"""How long to wait before trying again, and when to stop trying.

Waits double from `FIRST_S` to `LONGEST_S`; full jitter spreads the upper half of each wait, so that a thousand streams
that failed together do not come back together. What is asked all the time whether it answers, and does not, need not be
tried as well: its return will be told (`core.awaited`), and a try now and then is for the case that it was asked in the
wrong way. The budget counts failures in a sliding window: a stream that keeps
failing, and whose own fault it is, is quarantined instead of burning a core.
"""

from __future__ import annotations

FIRST_S = 0.5  # Short enough that a dropped connection is not noticed.
LONGEST_S = 60.0  # Long enough that a thousand streams against a dead sink cost nothing.
WATCHED_FIRST_S = 15.0
WATCHED_LONGEST_S = 600.0  # Five thousand streams that wait for one server then try ten times a second in all.
BUDGET = 10  # Failures in a window before a stream is quarantined.
WINDOW_S = 600.0


def wait_s(attempt: int, jitter: float, *, is_watched: bool = False) -> float:
    """The wait before try number `attempt` (1 is the first retry); `jitter` is in [0, 1). `is_watched`: for something
    that was asked and did not answer, and is asked again and again."""
    first_s, longest_s = (WATCHED_FIRST_S, WATCHED_LONGEST_S) if is_watched else (FIRST_S, LONGEST_S)
    ceiling = min(longest_s, first_s * 2.0 ** min(attempt - 1, 16))
    return float(ceiling * (0.5 + jitter / 2))


def spend(failures: tuple[float, ...], at_s: float) -> tuple[float, ...]:
    """The failures that still count, with this one added."""
    return (*(t for t in failures if t > at_s - WINDOW_S), at_s)


def is_spent(failures: tuple[float, ...]) -> bool:
    """Whether the window holds more failures than the budget allows."""
    return len(failures) > BUDGET
