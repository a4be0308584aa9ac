"""What the operators of expressions do when the operands are not two plain numbers.

Compiled expressions handle plain numbers in place and come here for the rest: None, text, lists, moments, decimals and
mistakes. None in gives None out. Anything that could grow is bounded, either here before it is built or by the
`Budget` of the record (`mapping.prices`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar

from headgate.core.mapping.mistakes import WrongKindError, WrongValueError, kind
from headgate.core.mapping.prices import MOST_AT_ONCE, TooMuchError, size

T = TypeVar("T")

INTEGER_BITS = 4_096  # Far beyond any count or amount, and still quick to multiply.
EXPONENT_LIMIT = 1_000  # Decimals beyond 10^1000 become texts of that length.

NUMBERS = frozenset({int, float})
_NUMERIC = (int, float, Decimal)


def bounded(number: T) -> T:
    """Give the number back unless it is so large that further work with it would never end."""
    if isinstance(number, int) and number.bit_length() > INTEGER_BITS:
        raise TooMuchError(f"the number has more than {INTEGER_BITS} bits")
    if isinstance(number, Decimal) and number.is_finite() and abs(number.adjusted()) > EXPONENT_LIMIT:
        raise TooMuchError(f"the decimal is beyond 10^{EXPONENT_LIMIT}")
    return number


# Arithmetic.


def add(left: object, right: object) -> object:
    if left is None or right is None:
        return None
    if isinstance(left, str | list) and type(left) is type(right):
        return operator.add(left, right)
    if isinstance(left, datetime) and isinstance(right, int | float):
        return left + timedelta(seconds=right)
    return _arithmetic(operator.add, "add", left, right)


def subtract(left: object, right: object) -> object:
    if left is None or right is None:
        return None
    if isinstance(left, datetime) and isinstance(right, datetime):
        return (left - right).total_seconds()
    if isinstance(left, datetime) and isinstance(right, int | float):
        return left - timedelta(seconds=right)
    return _arithmetic(operator.sub, "subtract", left, right)


def multiply(left: object, right: object) -> object:
    if left is None or right is None:
        return None
    if isinstance(left, int) and isinstance(right, str | list):
        left, right = right, left
    if isinstance(left, str | list) and isinstance(right, int):
        if size(left) * right > MOST_AT_ONCE:
            raise TooMuchError(f"repeating {kind(left)} this often is too much")
        return left * right
    return _arithmetic(operator.mul, "multiply", left, right)


def divide(left: object, right: object) -> object:
    return _arithmetic(operator.truediv, "divide", left, right)


def floor_divide(left: object, right: object) -> object:
    return _arithmetic(operator.floordiv, "divide", left, right)


def modulo(left: object, right: object) -> object:
    return _arithmetic(operator.mod, "divide", left, right)


def power(left: object, right: object) -> object:
    """Refuse by the size of the result, before the work."""
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > INTEGER_BITS:
        raise TooMuchError(f"the power has more than {INTEGER_BITS} bits")
    result = _arithmetic(_raised, "raise", left, right)
    if isinstance(result, complex):
        raise WrongValueError("a fractional power of a negative number")
    return result


def _raised(left: Any, right: Any) -> object:
    """A power of decimals takes longer the more digits they have, many times over: beyond those that the result has,
    they are rounded."""
    if isinstance(left, Decimal) or isinstance(right, Decimal):
        left, right = (+one if isinstance(one, Decimal) else one for one in (left, right))
    return left**right


def negate(value: object) -> object:
    if value is None:
        return None
    if not isinstance(value, _NUMERIC):
        raise WrongKindError(f"cannot negate {kind(value)}")
    return -value


def _arithmetic(function: Callable[..., object], verb: str, left: object, right: object) -> object:
    if left is None or right is None:
        return None
    if not (isinstance(left, _NUMERIC) and isinstance(right, _NUMERIC)):
        raise WrongKindError(f"cannot {verb} {kind(left)} and {kind(right)}")
    return bounded(function(*_alike(left, right)))


def _alike(left: object, right: object) -> tuple[object, object]:
    """Python does not mix decimals and floats; here the float is read as it is written."""
    if isinstance(left, Decimal) and isinstance(right, float):
        return left, Decimal(repr(right))
    if isinstance(right, Decimal) and isinstance(left, float):
        return Decimal(repr(left)), right
    return left, right


# Comparison.


def less(left: object, right: object) -> object:
    return _order(operator.lt, left, right)


def less_equal(left: object, right: object) -> object:
    return _order(operator.le, left, right)


def greater(left: object, right: object) -> object:
    return _order(operator.gt, left, right)


def greater_equal(left: object, right: object) -> object:
    return _order(operator.ge, left, right)


def is_in(value: object, container: object) -> object:
    """Whether a list holds a value, a text a part, or a dict a key."""
    if container is None:
        return None
    if isinstance(container, str) and not isinstance(value, str):
        return None if value is None else _refuse_in(value, container)
    if not isinstance(container, str | list | dict) or (isinstance(container, dict) and isinstance(value, list | dict)):
        return _refuse_in(value, container)
    return value in container


def is_not_in(value: object, container: object) -> object:
    found = is_in(value, container)
    return None if found is None else not found


def chain(names: tuple[str, ...], *values: object) -> object:
    """Compare neighbours, as in `1 < a < 5`; the first that is not true is the answer."""
    answer: object = True
    for name, left, right in zip(names, values, values[1:], strict=False):
        answer = COMPARISONS[name](left, right)
        if not answer:
            return answer
    return answer


def _order(function: Callable[..., object], left: object, right: object) -> object:
    if left is None or right is None:
        return None
    if isinstance(left, datetime) is not isinstance(right, datetime) and isinstance(left, date):
        raise WrongKindError("cannot compare a date and a timestamp")
    try:
        return function(left, right)
    except TypeError:
        if isinstance(left, datetime) and isinstance(right, datetime):
            raise WrongKindError("cannot compare timestamps with and without a zone") from None
        raise WrongKindError(f"cannot compare {kind(left)} and {kind(right)}") from None


def _refuse_in(value: object, container: object) -> object:
    raise WrongKindError(f"cannot look for {kind(value)} in {kind(container)}")


COMPARISONS: dict[str, Callable[..., object]] = {
    "less": less,
    "less_equal": less_equal,
    "greater": greater,
    "greater_equal": greater_equal,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "is_in": is_in,
    "is_not_in": is_not_in,
}

ARITHMETIC: dict[str, Callable[..., object]] = {
    "add": add,
    "subtract": subtract,
    "multiply": multiply,
    "divide": divide,
    "floor_divide": floor_divide,
    "modulo": modulo,
    "power": power,
}


def item(value: object, key: object) -> object:
    """Walk one step into a value: None where there is nothing."""
    if isinstance(value, dict):
        return value.get(key) if isinstance(key, str | int) else None
    if isinstance(value, list | str) and isinstance(key, int):
        return value[key] if -len(value) <= key < len(value) else None
    return None
