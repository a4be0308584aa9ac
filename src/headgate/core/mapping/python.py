"""A mapping's own function in Python: what it is given, and what it may give back.

It has a copy of the record, because the record as it was read is kept if it fails, and it gives a record, None to leave
it out, or a list of records. What it gives is held to the values that records have, so that what a sink meets does not
depend on whose function made it. An error fails the record and is named by its type alone: its text may quote the
record.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

from headgate.core.mapping.mistakes import MistakeError, WrongKindError, kind
from headgate.core.mapping.prices import STEP, Budget

Function: TypeAlias = Callable[[dict[str, Any], Any], object]

_MOMENTS = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta)
_SCALARS = (str, int, float, bool, type(None), Decimal, *_MOMENTS, bytes, UUID)
_ANYTHING = (object,)


class FunctionFailedError(MistakeError):
    """The function raised an error, or gave no answer."""


class FunctionUnavailableError(BaseException):
    """The function cannot be called, whatever the record is. No record fails for that, so it is no `Exception`."""

    def __init__(self, said: str, hint: str) -> None:
        super().__init__(said)
        self.said = said
        self.hint = hint


def call(function: Function, record: dict[str, Any], meta: Any, budget: Budget, *, many: bool) -> object:
    """What the function makes of a record: a record, a list of records, or None."""
    given = _own(record, budget, _ANYTHING), _own(meta, budget, _ANYTHING)
    try:
        made = function(*given)
    except (FunctionFailedError, FunctionUnavailableError):
        raise
    except BaseException as error:  # It must not end the thread, nor the node, whatever it does.
        raise FunctionFailedError(f"the function raised {type(error).__name__}") from None
    if made is None:
        return None
    if isinstance(made, list) and many:
        return [_record(one, budget) for one in made]
    if isinstance(made, list):
        raise WrongKindError("the function gave a list, which does not go with unnest")
    return _record(made, budget)


def _record(made: object, budget: Budget) -> dict[str, Any]:
    if not isinstance(made, dict):
        raise WrongKindError(f"the function gave {kind(made)}; a dict, a list of dicts or None is expected")
    if not all(isinstance(field, str) and field for field in made):
        raise WrongKindError("the function gave a field whose name is not text")
    found: dict[str, Any] = _own(made, budget, _SCALARS)
    return found


def _own(value: Any, budget: Budget, scalars: tuple[type, ...]) -> Any:
    """Copy lists and dicts, and pay for it."""
    if isinstance(value, dict):
        budget.charge(STEP * (1 + len(value)))
        return {key: _own(one, budget, scalars) for key, one in value.items()}
    if isinstance(value, list | tuple):
        budget.charge(STEP * (1 + len(value)))
        return [_own(one, budget, scalars) for one in value]
    if not isinstance(value, scalars):
        raise WrongKindError(f"the function gave a value of type {kind(value)}, which records do not have")
    return value
