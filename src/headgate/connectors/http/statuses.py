"""What a status means, and how long a server asks to be left in peace.

| status | what follows |
| --- | --- |
| 401, 403 | `Cause.AUTH`; a 403 that asks for patience is a limit of the rate |
| 408, 425, 429, 5xx with Retry-After | `RetryLater` |
| 429 without | `Cause.RATE_LIMIT`: the worker backs off |
| 408, 425, 5xx without | `NotConnected` |
| any other 4xx | the caller's: a source is not configured right, a sink has a record that is refused |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from headgate.connectors.http.wire import Answer
from headgate.errors import Cause, ConnectorError, NotConnected, RetryLater

LONGEST_WAIT_S = 3600.0  # Whatever a server says: then it is asked again.
SHORTEST_WAIT_S = 1.0
_MOST_DIGITS = 9
_DENIED = frozenset({401, 403})
_RETRIED = frozenset({408, 425, 429})


def named(status: int) -> str:
    """`429 Too Many Requests`."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def raise_if_not_now(answer: Answer, origin: str, now_s: float) -> None:
    """Raise if the same request could be answered otherwise later, or by somebody else."""
    status = answer.status
    after_s = retry_after_s(answer.headers, now_s)
    may_retry = status in _RETRIED or status >= 500 or (status == 403 and after_s is not None)
    said = f"{origin} answered {named(status)}"
    if may_retry and after_s is not None:
        raise RetryLater(said, after_s=after_s)
    if status == 429:
        raise ConnectorError(said, cause=Cause.RATE_LIMIT)
    if may_retry:
        raise NotConnected(said)
    if status in _DENIED:
        raise ConnectorError(said, cause=Cause.AUTH, hint="correct `auth`, or the rights of its user")


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """How long to wait, from the header Retry-After: seconds or a date. None: it does not say."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        wait_s = float(text) if len(text) <= _MOST_DIGITS else LONGEST_WAIT_S
    else:
        try:
            at = parsedate_to_datetime(text)
        except (TypeError, ValueError, IndexError, OverflowError):
            return None
        wait_s = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now_s
    return min(LONGEST_WAIT_S, max(SHORTEST_WAIT_S, math.ceil(wait_s)))
