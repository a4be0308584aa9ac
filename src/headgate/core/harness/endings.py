"""How the process of a test ended, in one line. Whatever a connector does to itself is an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from headgate.text import duration, size

How: TypeAlias = Literal["exit", "signal", "wall", "memory", "output", "frame", "abandoned", "lost"]
"""By itself, by a signal, or because it went beyond a limit; `lost`: what watched it is gone."""

ALL: tuple[How, ...] = get_args(How)

_SIGNALS = {
    4: "an illegal instruction",
    6: "it aborted",
    7: "a bus error",
    8: "a wrong calculation",
    9: "it was killed",
    11: "a segmentation fault",
    15: "it was told to end",
    24: "it used up its CPU time",
    25: "it wrote a file that is too large",
    31: "a forbidden system call",
}


@dataclass(frozen=True, slots=True)
class Ending:
    """How it ended, and what it took."""

    how: How
    number: int = 0  # The exit code, or the signal.
    cpu_s: float = 0.0
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Bound:
    """The limits that an ending may name."""

    wall_s: float
    cpu_s: float
    memory_bytes: int
    output_bytes: int


def said(ending: Ending, bound: Bound, stage: str, done: int) -> str:
    """What happened, and how far it got."""
    far = f"after {done} records" if done != 1 else "after 1 record"
    return f"{_what(ending, bound)}, while {stage}, {far}"


def _what(ending: Ending, bound: Bound) -> str:
    match ending.how:
        case "wall":
            return f"it took longer than {duration(bound.wall_s)} and was killed"
        case "memory":
            return f"it took more than {size(bound.memory_bytes)} of memory and was killed"
        case "output":
            return f"it wrote more than {size(bound.output_bytes)} and was killed"
        case "frame":
            return "it sent something that is no answer and was killed"
        case "abandoned":
            return "nobody waited for it any more"
        case "lost":
            return "the process that watched it was killed"
        case "exit":
            return f"the process exited with code {ending.number}"
        case "signal":
            return f"the process ended with signal {ending.number}: {signal_said(ending.number)}"


def signal_said(number: int) -> str:
    """What a signal means, for somebody who does not know its number."""
    return _SIGNALS.get(number, "unknown")
