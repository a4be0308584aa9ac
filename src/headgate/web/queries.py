"""Parameters of queries that take more than a look at their type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from litestar.exceptions import ValidationException

from headgate.errors import ConfigError, Problem


@contextmanager
def in_query() -> Iterator[None]:
    """What is wrong with a parameter is answered as the framework answers it."""
    try:
        yield
    except ConfigError as error:
        extra = [{"key": one.path, "message": one.message, "source": "query"} for one in error.problems]
        raise ValidationException(error.message, extra=extra) from None


def moment(path: str, given: datetime | None) -> datetime | None:
    """A time that the database can compare with its own."""
    if given is None:
        return None
    if given.tzinfo is None or not 1900 <= given.year <= 9000:  # Beyond that, not every zone can say it.
        raise ConfigError([Problem(path, "must be a time with a zone, as in 2026-07-01T12:00:00Z")])
    return given.astimezone(UTC)
