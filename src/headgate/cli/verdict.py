"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the doctor: what was looked at, how it is, and what to do."""

    name: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    hint: str = ""


def ok(name: str, detail: str) -> Verdict:
    """As it should be."""
    return Verdict(name, "ok", detail)


def warn(name: str, detail: str, hint: str) -> Verdict:
    """Worth knowing; a node works all the same."""
    return Verdict(name, "warn", detail, hint)


def fail(name: str, detail: str, hint: str) -> Verdict:
    """A node cannot work, or not for long."""
    return Verdict(name, "fail", detail, hint)
