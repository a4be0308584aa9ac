"""What a record may cost.

Mapping runs in a process that has other things to do, and its sender decides what a record holds. So work is
paid for, in *units* of about ten nanoseconds: a character or an eighth of an element that is read or made costs one, a
node of an expression that a loop evaluates costs `STEP`. What a function costs grows with what it is given, and is paid
before the work begins; what has no such bound is refused.

Records are first mapped on the event loop, in slices: a slice ends before the record that its allowance no longer
covers. A record that a whole slice does not cover is mapped apart, in another thread, where it has `BUDGET`; one that
costs more still fails. There the interpreter takes turns between the two threads, but not within a call of a function
that is written in C: none of those is given more than `MOST_AT_ONCE`, or it walks through long lists in runs.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from headgate.core.mapping.mistakes import MistakeError, WrongKindError, kind
from headgate.core.mapping.patterns import Pattern

SLICE = 500_000  # Units of one slice: about five milliseconds.
BUDGET = 16_000_000  # Units that one record may cost. It bounds the memory, too.
MOST_AT_ONCE = 2_000_000  # Characters, or eighths of elements, that one call reads or makes.
STEP = 16  # A node of an expression in a loop.
ELEMENT = 8  # An element of a list or a dict: what a pointer takes in bytes.
POWER = 16_000  # A power of decimals.

_CONTAINERS = (list, dict)
_TEXTS = frozenset({str, bytes})


class TooMuchError(MistakeError):
    """An expression asked for more than may be made."""


class TooExpensiveError(TooMuchError):
    """The record costs more than its budget."""


class Budget:
    """What is left to spend."""

    __slots__ = ("left",)

    def __init__(self, units: int = BUDGET) -> None:
        self.left = units

    def charge(self, units: int) -> None:
        """Pay, or raise if that is too much. What is refused is not paid for: a dear element of a list leaves enough
        for those after it."""
        left = self.left - units
        if left < 0:
            raise TooExpensiveError("too expensive: the record costs too much work or memory")
        self.left = left

    def call(self, function: Callable[..., object], *arguments: object) -> object:
        """Call a function and pay for what it reads and what it gives."""
        units = sum(map(size, arguments))
        self.charge(units)
        _fit_at_once(units)
        result = function(*arguments)
        self.charge(size(result))
        return result

    def call_deep(self, function: Callable[..., object], *arguments: object) -> object:
        """As `call`, for functions that look at everything inside their arguments."""
        for argument in arguments:
            self.weigh(argument)
        result = function(*arguments)
        self.charge(size(result))
        return result

    def guard(self, function: Callable[..., object], first: object, *rest: object) -> object:
        """As `call`, and None for None."""
        return None if first is None else self.call(function, first, *rest)

    def guard_deep(self, function: Callable[..., object], first: object, *rest: object) -> object:
        """As `call_deep`, and None for None."""
        return None if first is None else self.call_deep(function, first, *rest)

    def power(self, function: Callable[..., object], left: object, right: object) -> object:
        """Raise a number to a power. Those of decimals are dear, whatever they are."""
        if isinstance(left, Decimal) or isinstance(right, Decimal):
            self.charge(POWER)
        return function(left, right)

    def find(self, text: object, pattern: Pattern) -> str | None:
        """Search a text for a pattern and pay for the worst that this can take."""
        if text is None:
            return None
        if not isinstance(text, str):
            raise WrongKindError(f"expects text, not {kind(text)}")
        self.charge(len(text) + pattern.price(text))
        return pattern.find(text)

    def each(self, values: object, step: int) -> list[object]:
        """Give what a comprehension walks over, and pay for all its steps before the first."""
        if values is None:
            return []
        if not isinstance(values, list):
            raise WrongKindError(f"a comprehension expects a list, not {kind(values)}")
        self.charge(len(values) * step)
        return values

    def copied(self, record: dict[str, object]) -> dict[str, object]:
        """Copy a record, and pay for it."""
        self.charge(ELEMENT * len(record))
        return record.copy()

    def weigh(self, value: object) -> None:
        """Pay for everything inside a value."""
        rest = [value]
        while rest:
            value = rest.pop()
            units = size(value) + STEP
            self.charge(units)
            if isinstance(value, _CONTAINERS):
                rest.extend(value.values() if isinstance(value, dict) else value)
            else:
                _fit_at_once(units)


def _fit_at_once(units: int) -> None:
    if units > MOST_AT_ONCE:
        raise TooMuchError("too expensive: the value is too large for one call")


def size(value: object) -> int:
    """The units for which a value is read or made, without what is inside of it."""
    if value.__class__ in _TEXTS:
        return len(value)
    return ELEMENT * len(value) if isinstance(value, _CONTAINERS) else 0
