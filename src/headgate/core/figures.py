"""What a stream has done, and why its last run failed: values that the runtime reports and people see."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figures:
    """What a stream has done since its node took it."""

    records_in: int = 0
    records_out: int = 0
    records_failed: int = 0  # Those that could not be mapped.
    records_skipped: int = 0  # Those that the mapping's `where` left out.
    bytes_in: int = 0
    batches: int = 0
    errors: int = 0  # Runs that failed, quarantined ones among them.
    restarts: int = 0  # Runs that failed and were tried again.
    write_s: float = 0.0  # Spent in the sink, in all.
    last_write_s: float = 0.0
    last_record_at_s: float | None = None  # When the newest batch became durable, in Unix time.
    lag_s: float | None = None  # From the newest record's own time to its being durable.
    last_hour: int = 0  # Records written in the last hour.


@dataclass(frozen=True, slots=True)
class LastFailure:
    """Why the last run failed."""

    cause: str  # One of `errors.Cause`.
    message: str
