"""Dead letters: what they hold comes back as it was, keys are told apart, and too many are told from some."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest

from headgate.core.letters import (
    IN_A_ROW,
    Contents,
    Recent,
    StopAfter,
    is_too_many,
    note,
    pack,
    parse_stop_after,
    plain,
    text_of,
    unpack,
)
from headgate.core.records import Unreadable


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": [1, 2.5, True, None, "text"], "b": {"c": b"bytes"}},
        2**63 - 1,
        -(2**63),
        2**200,
        Decimal("1.10"),
        UUID(int=3),
        datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        datetime(2026, 1, 2),
        date(2026, 1, 2),
        time(1, 2, 3),
        timedelta(days=-1, seconds=5, microseconds=7),
        float("inf"),
        {"nul": "a\0b", 5: "a number as a name"},
        Unreadable(b"\xff\x00{", "the body is not JSON"),
    ],
)
def test_what_is_packed_comes_back_as_it_was(value: Any) -> None:
    found = unpack(pack(Contents(value, {"id": 1}, {"x": value}, 3)))
    assert found == Contents(value, {"id": 1}, {"x": value}, 3)
    assert type(found.payload) is type(value)


def test_what_has_no_form_is_kept_as_text() -> None:
    assert unpack(pack(Contents(complex(1, 2), None, None))).payload == "(1+2j)"


def test_what_is_nested_too_deeply_or_is_no_text_can_still_be_packed() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert isinstance(unpack(pack(Contents(deep, None, None))).payload, str)
    assert isinstance(unpack(pack(Contents("\ud800", None, None))).payload, str)


@pytest.mark.parametrize(
    ("text", "rule"),
    [("1000 in 10m", StopAfter(1000, 600.0)), ("1 in 5s", StopAfter(1, 5.0)), ("never", StopAfter(None))],
)
def test_a_rule_is_read(text: str, rule: StopAfter) -> None:
    assert parse_stop_after(text) == rule


@pytest.mark.parametrize("text", ["", "1000", "0 in 10m", "10m", "ten in 10m", "-1 in 10m", "1000 in 10 minutes"])
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_stop_after(text)


def test_the_rule_counts_letters_within_its_time_and_no_others() -> None:
    rule, recent = StopAfter(10, 600.0), Recent()
    for minute in range(9):
        recent = note(recent, rule, 1, 50, minute * 60.0)
    assert is_too_many(recent, rule) is None
    assert is_too_many(note(recent, rule, 1, 50, 599.0), rule) == "10 records could not be handled within 600 s"
    assert is_too_many(note(recent, rule, 1, 50, 620.0), rule) is None


def test_a_hundred_in_a_row_are_too_many_and_one_success_starts_over() -> None:
    rule, recent = StopAfter(), Recent()
    for _ in range(IN_A_ROW - 1):
        recent = note(recent, rule, 1, 0, 1.0)
    assert is_too_many(recent, rule) is None
    assert is_too_many(note(recent, rule, 1, 0, 1.0), rule) == "100 records in a row could not be handled"
    assert is_too_many(note(note(recent, rule, 0, 1, 1.0), rule, 1, 0, 1.0), rule) is None


def test_filtered_records_are_neither_success_nor_failure() -> None:
    rule = StopAfter()
    recent = note(Recent(), rule, 50, 0, 1.0)
    assert note(recent, rule, 0, 0, 1.0) == recent


def test_never_is_never() -> None:
    rule = parse_stop_after("never")
    assert is_too_many(note(Recent(), rule, 10**9, 0, 1.0), rule) is None


def test_a_recent_stays_small() -> None:
    rule, recent = StopAfter(), Recent()
    for second in range(100_000):
        recent = note(recent, rule, 1, 1, float(second))
    assert len(recent.buckets) <= 61


# Showing.


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (2**63, 2**63),
        (2**64, str(2**64)),
        (-(2**70), str(-(2**70))),
        (1.5, 1.5),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ("a\x00b", "a\x00b"),
        ("\ud800", "\\ud800"),
        (b"\xff{", "/3s="),
        (Decimal("9.50"), "9.50"),
        (date(2026, 7, 1), "2026-07-01"),
        (datetime(2026, 7, 1, 12, tzinfo=UTC), "2026-07-01T12:00:00+00:00"),
        (UUID(int=1), str(UUID(int=1))),
        ({1: (b"a", {"b": Decimal(1)})}, {"1": ["YQ==", {"b": "1"}]}),
    ],
)
def test_a_value_is_shown_as_json_or_as_text(value: object, shown: object) -> None:
    assert plain(value) == shown
    assert msgspec.json.decode(msgspec.json.encode(plain(value))) == shown


def test_bytes_are_text_if_they_are() -> None:
    assert text_of("grün".encode()) == "grün"
    assert text_of(b"\xff") is None


def test_a_number_of_thousands_of_digits_has_a_form() -> None:
    """Python refuses to write it in decimal digits."""
    assert plain(10**5000).startswith("0x")
    assert unpack(pack(Contents(10**5000, None, None))).payload == 10**5000
