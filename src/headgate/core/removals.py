"""What deleted datasources have left in sinks, and how long a node tries to remove it.

A transactional sink keeps a stream's position and its dead letters. Once the datasource is deleted and nobody holds the
stream, both are worth nothing; but the row of the position is also the fence that keeps an older run from writing. It
is not needed any more only when no such run can begin: the node that held the stream last must have lost its trust,
which ends within a lease. Therefore a removal waits for longer than any lease lasts, and a sink lets no run open that
has no trust (`connectors.api.streaming`). A run that was open before finds its row gone, and is fenced by that.

A sink may be away, and its secret may be gone. Tries become rarer, and end after a week: what is left then is harmless,
and an event says where it is.
"""

from __future__ import annotations

LEFT_ALONE_S = 600.0  # Twice the longest lease: by then a holder that was given up does not trust itself any more.
FIRST_S = 60.0
LONGEST_S = 3600.0  # A sink that is away for hours is no hurry.
GIVEN_UP_S = 7 * 86400.0  # From the first try on: somebody would have brought the sink back by then.


def wait_s(attempts: int) -> float:
    """The wait after this many tries."""
    return float(min(LONGEST_S, FIRST_S * 2.0 ** min(max(attempts - 1, 0), 16)))


def is_given_up(age_s: float) -> bool:
    """Whether it has been tried for long enough."""
    return age_s >= GIVEN_UP_S
