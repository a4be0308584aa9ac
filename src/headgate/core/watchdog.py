"""Whether a node that shows no sign of life is blocked, or only gets no CPU.

The node's main loop gives a sign four times a second; another thread looks once a second. A loop that gives no sign
does no work, so its node stops beating, and others take over. If no sign comes until the node's trust has ended, a
connector blocks the loop: it burns CPU in the loop's thread, or sits there in a system call. The process ends itself.

On a starved machine the loop's thread is ready to run and does not get to. The kernel counts that time, the *run-queue
delay*, for each thread. It proves nothing against the loop and is taken off its silence, so a starved node goes on
beating for as long as it gets to beat. The same goes for a process that was stopped as a whole, or a machine that
slept: then the looking thread did not run either, and the count begins again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

LOOK_S = 1.0
LATE_S = 1.0  # A look that is this late means that the looking thread did not run either.
SILENT_S = 2.0  # Without a sign for longer than this, the node does not beat.

Verdict: TypeAlias = Literal["beat", "hold", "end"]


@dataclass(frozen=True, slots=True)
class Sign:
    """The loop's thread was at work, and had waited for a CPU for this long in its life."""

    at_s: float
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Watch:
    """What the looking thread knows."""

    sign: Sign  # The last one.
    looked_at_s: float


def silent_s(watch: Watch, now: Sign) -> float:
    """How long the loop has given no sign although it could."""
    return max(0.0, now.at_s - watch.sign.at_s - max(0.0, now.waited_s - watch.sign.waited_s))


def look(watch: Watch, now: Sign, trust_left_s: float) -> tuple[Watch, Verdict]:
    """Judge the loop. `now` has the time, and how long the loop's thread has waited for a CPU up to now."""
    if now.at_s - watch.looked_at_s > LOOK_S + LATE_S:
        watch = replace(watch, sign=now)
    watch = replace(watch, looked_at_s=now.at_s)
    if silent_s(watch, now) <= SILENT_S:
        return watch, "beat"
    return watch, "hold" if trust_left_s > 0.0 else "end"


def signed(watch: Watch, sign: Sign) -> Watch:
    """The loop has given a sign. One that was overtaken changes nothing."""
    return replace(watch, sign=sign) if sign.at_s > watch.sign.at_s else watch
