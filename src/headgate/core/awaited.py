"""What streams wait for: whether it answers, as far as is known, and when it came back.

A stream that fails because something outside is away waits, longer each time (`core.backoff`). How long is a guess; the
return of what it waits for is news, and ends the wait. What many streams wait for, such as a server, is one *target*:
it is asked once for all of them.

A target is *away* when it was asked and did not answer. It is *back* with the first answer after that, to any of these:
somebody who asked on behalf of those who wait, or any stream that has opened it or written to it. What was asked before
the last answer came and fails later tells nothing: it was under way when the target came back.

A return is news to those streams whose last try began before it. A stream whose try began later has met the target as
it is now, and failed all the same. So one return gives each stream one try, and a target that answers questions
while streams fail with it costs no more tries than if nobody had asked.

A target that is away is asked every `ASK_S`. One that answers is not what its streams need: it is asked less and less
often while they wait. If there are very many targets, all of them are asked less often.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

ASK_S = 1.0
LONGEST_S = 60.0
MOST_PER_S = 50.0  # Questions of one node. Each is a connection, which costs about a millisecond.
KEPT_S = 60.0  # A target is remembered for this long after the last wait for it: longer than any try lasts.
SPREAD_S = 1.0  # Over which very many streams try again.
EACH_S = 0.005  # How much of it a stream adds.


@dataclass(frozen=True, slots=True)
class Target:
    """What is known of something that streams wait for."""

    is_away: bool = False
    answered_at_s: float = -math.inf  # The last time.
    back_at_s: float = -math.inf  # The first time after it was away.
    answers: int = 0  # In a row.


def silent(target: Target, asked_at_s: float) -> Target:
    """It was asked at this time, and has not answered."""
    return target if asked_at_s < target.answered_at_s else replace(target, is_away=True, answers=0)


def answered(target: Target, now_s: float) -> Target:
    """It has answered somebody."""
    back_at_s = now_s if target.is_away else target.back_at_s
    return Target(False, now_s, back_at_s, target.answers + 1)


def is_back(before: Target, now: Target) -> bool:
    """Whether it has come back between the two."""
    return before.is_away and not now.is_away


def is_news(target: Target, tried_at_s: float) -> bool:
    """Whether it has come back since a try that was begun at this time."""
    return tried_at_s < target.back_at_s


def pause_s(target: Target, targets: int) -> float:
    """Until it is asked again, on a node that waits for this number of targets."""
    alone_s = min(LONGEST_S, ASK_S * 2.0 ** min(target.answers, 16))
    return max(alone_s, targets / MOST_PER_S)


def spread_s(waiting: int) -> float:
    """Over which time this number of streams try again."""
    return min(SPREAD_S, EACH_S * waiting)
