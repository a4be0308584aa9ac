"""The body of every error: an RFC 9457 problem."""

from __future__ import annotations

from msgspec import field

from headgate.web.bodies import Answer
from headgate.web.bodies.datasources import Problem


class ProblemDetails(Answer, omit_defaults=True):
    """What is wrong, and what to do about it."""

    type: str
    title: str
    status: int
    detail: str = ""
    code: str = ""  # For programs; `docs/reference/http.md` lists them.
    hint: str = ""
    problems: tuple[Problem, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)  # How much is at stake, where a `yes` is asked for.
