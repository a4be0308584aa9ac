"""Why records fail is said without a word of what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from headgate.core.mapping import functions
from headgate.core.mapping.document import compile_mapping
from headgate.core.mapping.functions import FUNCTIONS, TYPES
from headgate.core.mapping.mistakes import UNSAID, WrongKindError, reason_of
from headgate.core.records import Unreadable

MARKER = "SEKRIT"
NUMBER = 73195  # Another value to look for.
VALUES: list[Any] = [
    MARKER,
    f"{MARKER}\ud800",
    f"{{{MARKER}",
    f"{NUMBER}",
    f"2026-13-{MARKER}",
    "2026-02-31",
    f"1e{NUMBER}",
    MARKER.encode() + b"\xff",
    NUMBER,
    -NUMBER,
    10**400 + NUMBER,
    float(NUMBER) * 1e300,
    float("nan"),
    float("inf"),
    Decimal(NUMBER),
    Decimal(f"{NUMBER}e9999"),
    Decimal("sNaN"),
    Decimal("Infinity"),
    True,
    datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    datetime(2026, 1, 1),
    date(2026, 1, 1),
    [MARKER, NUMBER],
    [NUMBER, MARKER],
    [[MARKER], {MARKER: NUMBER}],
    {MARKER: NUMBER},
    {"value": {MARKER: MARKER}},
    (MARKER,),
    object(),
]
SIGNS = ("+", "-", "*", "/", "//", "%", "**", "<", "<=", ">", ">=", "==", "!=", "in", "not in")


def expressions() -> Iterator[str]:
    yield from (f"a {sign} b" for sign in SIGNS)
    yield from (f"[x {sign} y for x in [a] for y in [b]]" for sign in SIGNS)
    yield from ("-a", "not a", "a < b < a", "a[b]", "a.b", "[x for x in a]", "a if b else -a", "[-x for x in a]")
    yield from (f"f'{{a:{layout}}}'" for layout in ("", "d", "5.2f", "s", "c", ",", "x"))
    for name, function in FUNCTIONS.items():
        most = 3 if function.most is None else function.most
        for number in range(function.least, most + 1):
            arguments = ["a", *(["'l+'"] if name == "match" else ["b", "a"])][:number]
            yield f"{name}({', '.join(arguments)})"
            yield f"[{name}({', '.join(['x', *arguments[1:]])}) for x in [a]]"


def check(document: dict[str, Any], records: list[Any]) -> int:
    """Map the records, look at all reasons and count them."""
    mapped = compile_mapping(document).apply(records)
    for failed in mapped.failed:
        said = f"{failed.field} {failed.reason}"
        assert MARKER not in said, f"{document} says {said}"
        assert str(NUMBER) not in said, f"{document} says {said}"
        assert failed.reason
        assert len(failed.reason) <= 200
        assert "\n" not in said
    return len(mapped.failed)


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_no_operator_and_no_function_repeats_a_value(expression: str) -> None:
    records = [{"a": one, "b": other} for one in VALUES for other in VALUES]
    check({"set": {"out": expression}}, records)


@pytest.mark.parametrize("name", TYPES)
def test_no_conversion_repeats_a_value(name: str) -> None:
    records = [{"a": one} for one in VALUES]
    failures = check({"types": {"a": name}}, records) + check({"set": {"a": "a"}, "types": {"a": name}}, records)
    assert failures > 0


@pytest.mark.parametrize(
    "document",
    [
        {"unnest": "a"},
        {"unnest": "a.value"},
        {"unnest": "a", "set": {"x": "item + 1"}},
        {"where": "a > b"},
        {"delete": "a > b", "key": "a"},
        {"types": {"a": "int"}, "key": "a", "delete": "True"},
    ],
)
def test_no_part_repeats_a_value(document: dict[str, Any]) -> None:
    assert check(document, [{"a": one, "b": other} for one in VALUES for other in VALUES]) > 0


def test_the_search_finds_what_it_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def telling(value: object) -> str:
        raise WrongKindError(f"cannot read {value!r}")

    monkeypatch.setitem(functions.TYPES, "text", telling)
    with pytest.raises(AssertionError):
        check({"types": {"a": "text"}}, [{"a": one} for one in VALUES])


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (WrongKindError("expects text, not int"), "expects text, not int"),
        (ZeroDivisionError(MARKER), "division by zero"),
        (ValueError(f"invalid literal for int() with base 10: {MARKER}"), UNSAID),
        (ValueError(f"Invalid isoformat string: {MARKER}"), "cannot read text as a timestamp"),
        (OverflowError(MARKER), "the number or the time is out of range"),
        (KeyError(MARKER), UNSAID),
        (UnicodeDecodeError("utf-8", MARKER.encode(), 0, 1, MARKER), "is not text in Unicode"),
        (TypeError(MARKER), "the value has a kind that cannot be used here"),
        (RuntimeError(MARKER), UNSAID),
    ],
)
def test_what_python_says_is_told_in_fixed_words(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason


def test_the_reason_of_a_payload_that_cannot_be_read_is_one_short_line() -> None:
    [failed] = compile_mapping(None).apply([Unreadable(b"x", "is\nnot JSON " * 100)]).failed

    assert "\n" not in failed.reason
    assert len(failed.reason) <= 200
