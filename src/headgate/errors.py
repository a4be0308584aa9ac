"""Errors, sorted by what the caller should do about them.

`ConfigError`: fix the input. `NotFound`: name something that exists. `Refused`: not now, or not like this.
`Unauthorized`, `Forbidden`: bring another token. `StoreError`: the database did not answer.
`ConnectorError` and its children are raised by connectors and steer the worker that runs them.

Every message is one line that says what is wrong and where; `hint` says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why a run failed. It decides whether trying again can help."""

    CONFIG = "config"  # The configuration is wrong; trying again cannot help.
    AUTH = "auth"  # The other side does not accept us; trying again makes it worse.
    NETWORK = "network"  # The other side is away; it will come back.
    RATE_LIMIT = "rate_limit"  # The other side asks for patience.
    BAD_RECORD = "bad_record"  # One record cannot be handled.
    TOO_MANY_DEAD_LETTERS = "too_many_dead_letters"  # The source or the mapping is broken: somebody should look.
    BUG = "bug"  # The connector's code, or ours, is wrong.


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a document, where it is, and what to do about it."""

    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.path}: {self.message}" if self.path else self.message
        return f"{text} ({self.hint})" if self.hint else text


class HeadgateError(Exception):
    """Something that a person should read."""

    code = "error"

    def __init__(self, message: str, *, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code:
            self.code = code


class ConfigError(HeadgateError):
    """The input is wrong; every problem found is listed."""

    code = "invalid"

    def __init__(self, problems: list[Problem] | str, *, hint: str = "") -> None:
        self.problems = [Problem("", problems, hint)] if isinstance(problems, str) else problems
        super().__init__("; ".join(str(problem) for problem in self.problems), hint=hint)


class NotFound(HeadgateError):
    """What was named does not exist."""

    code = "not_found"


class Refused(HeadgateError):
    """The request is understood and may not be done now, or not like this.

    `problems`: where, if that can be said. `counts`: how much is at stake, for programs, where a `yes` is asked for.
    """

    code = "refused"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        code: str = "",
        problems: Sequence[Problem] = (),
        counts: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.problems = list(problems)
        self.counts = dict(counts or {})


class Busy(HeadgateError):
    """Too much is under way; the same request may be made again soon."""

    code = "busy"


class Unauthorized(HeadgateError):
    """The token is absent or wrong."""

    code = "unauthorized"


class Forbidden(HeadgateError):
    """The token's role does not allow this."""

    code = "forbidden"


class StoreError(HeadgateError):
    """Headgate's own database did not answer, or answered that it cannot now."""

    code = "store_unavailable"


class Displaced(StoreError):
    """The database answers, and its registry went back in time or is a copy: nothing may be done with it yet."""

    code = "displaced"


class ConnectorError(HeadgateError):
    """A connector cannot go on."""

    code = "connector"
    cause: Cause = Cause.BUG

    def __init__(self, message: str, *, cause: Cause | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        if cause is not None:
            self.cause = cause


class NotConnected(ConnectorError):
    """The other side is away: open again."""

    cause = Cause.NETWORK


class EndOfStream(ConnectorError):
    """The source has no more records and will never have more."""


class RetryLater(ConnectorError):
    """The other side asks for a pause; the run continues."""

    cause = Cause.RATE_LIMIT

    def __init__(self, message: str, *, after_s: float) -> None:
        super().__init__(message)
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class Bad:
    """A record that cannot be handled: which one, where in it, and why. It repeats no value of the record."""

    index: int  # In the batch.
    field: str | None
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}" if self.field else self.reason


class BadRecords(ConnectorError):
    """These records of the batch cannot be handled; nothing of the batch was written."""

    cause = Cause.BAD_RECORD

    def __init__(self, bad: Sequence[Bad]) -> None:
        super().__init__(f"record {bad[0].index + 1}: {bad[0]}")
        self.bad = bad


class BatchRefused(ConnectorError):
    """A record of the batch cannot be handled, and the sink does not know which; nothing of the batch was written."""

    cause = Cause.BAD_RECORD


class Fenced(ConnectorError):
    """Another run holds this stream now; this one must end and change nothing more."""
