"""Which records have one key: those for which a sink stores the same."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from headgate.core.letter_keys import KeyKind, key_hash

INSTALLATION = UUID(int=7)
WHEN = datetime(2026, 7, 1, 12, 30, 0, 5, UTC)
ID = UUID("6f1c2c0e-2f0b-4d6e-9a53-0d5c1b7f8e21")


def hashed(value: Any, kind: KeyKind = "other") -> bytes | None:
    return key_hash([value], INSTALLATION, (kind,))


def test_where_nothing_is_known_of_the_sink_whole_numbers_and_their_texts_are_one_key() -> None:
    same = [key_hash([value], INSTALLATION) for value in (1, "1", 1.0)]
    assert len(set(same)) == 1
    others = [key_hash(values, INSTALLATION) for values in ([2], [1, 1], ["1\x001"], [1.5], ["a", "b"], ["b", "a"])]
    assert len({*same, *others}) == 6  # `1, 1` and the text of both look alike; no table has a zero byte.
    assert key_hash([1], INSTALLATION) != key_hash([1], UUID(int=8))


@pytest.mark.parametrize("values", [None, [], [None], [1, None]])
def test_without_a_value_there_is_no_key(values: Any) -> None:
    assert key_hash(values, INSTALLATION) is None


ALIKE: list[tuple[KeyKind, list[Any], list[Any]]] = [
    ("integer", [17, "017", " +17 ", 17.0, Decimal("17.00"), "0x11", "1_7"], [18, "17.5", "x", 17.5]),
    ("integer", [1, True, "1"], [0, "true"]),
    ("number", [1.5, "1.50", "+1.5", Decimal("1.500"), "15e-1"], [1.51, "1.5x", 15]),
    ("number", [17, 17.0, "017.0", Decimal("17")], [Decimal("17.00000000000000000000000000000000001")]),
    ("double", [0.1, "0.1", Decimal("0.1"), "1e-1"], [0.2, "x"]),
    ("text", ["17", 17], ["017", 17.0, "17 "]),
    ("text", [True, "true"], [1, "True"]),
    ("padded", ["a", "a  "], [" a", "A"]),
    ("boolean", [True, "true", "T", " yes ", "on", 1, "1"], [False, "off", "maybe"]),
    ("uuid", [ID, str(ID), str(ID).upper(), f"{{{ID}}}", ID.hex], [UUID(int=1), "x"]),
    ("date", [date(2026, 7, 1), "2026-07-01", WHEN, "2026-07-01T23:00:00"], [date(2026, 7, 2), "1 July 2026"]),
    ("timestamp", [WHEN, WHEN.replace(tzinfo=None), "2026-07-01 12:30:00.000005"], [WHEN + timedelta(seconds=1)]),
    (
        "timestamptz",
        [WHEN, WHEN.astimezone(timezone(timedelta(hours=2))), "2026-07-01T14:30:00.000005+02:00"],
        [WHEN.astimezone(timezone(timedelta(hours=2))).replace(tzinfo=None), "noon"],
    ),
]


@pytest.mark.parametrize(("kind", "alike", "others"), ALIKE)
def test_values_that_a_sink_stores_alike_are_one_key_and_others_are_not(
    kind: KeyKind, alike: list[Any], others: list[Any]
) -> None:
    found = {hashed(value, kind) for value in alike}
    assert len(found) == 1
    assert found.isdisjoint(hashed(value, kind) for value in others)


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        (17, ("integer", "number", "double", "other")),
        (date(2026, 7, 1), ("date", "timestamp", "timestamptz")),
        ("2026-07-01", ("date", "timestamp", "timestamptz")),
    ],
)
def test_a_field_that_gets_wider_keeps_its_keys(value: Any, kinds: tuple[KeyKind, ...]) -> None:
    assert len({hashed(value, kind) for kind in kinds}) == 1


HOSTILE = [
    10**5000, -(10**5000), "9" * 5000, Decimal("1e999999"), Decimal("-1e-999999"), Decimal("sNaN"), float("nan"),
    float("inf"), "1e999999999", "\ud800", "\0", b"\xff", {"a": [1]}, [[]], "0x" + "f" * 5000, "9999-99-99", True,
    datetime.max, datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), object(),
]  # fmt: skip


@pytest.mark.parametrize("kind", [*{kind for kind, _, _ in ALIKE}, "other"])
def test_any_value_has_a_key_that_is_told_apart_in_no_time(kind: KeyKind) -> None:
    for value in HOSTILE:
        assert hashed(value, kind) is not None
    assert hashed(10**5000, kind) != hashed(10**5000 + 1, kind)


def test_each_field_of_a_key_counts_by_its_own_kind() -> None:
    def of(*values: Any) -> bytes | None:
        return key_hash(values, INSTALLATION, ("integer", "text"))

    assert of("017", "017") == of(17, "017")
    assert of(17, 17) != of(17, "017")
