"""What a tap shows: which records, how many, and how."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from headgate.core.mapping.mapped import Mapped
from headgate.core.records import Unreadable
from headgate.core.tap import (
    BYTES_A_SECOND,
    RECORD_BYTES,
    RECORDS_A_SECOND,
    Meter,
    Shown,
    condition_of,
    is_full,
    judge,
    pay,
    pick,
    show,
)
from headgate.errors import ConfigError


def matching(where: str, records: list[Any], meta: list[Any] | None = None) -> list[int]:
    condition = condition_of(where)
    assert condition is not None
    found, done = Mapped(), 0
    while done < len(records):
        before, done = done, judge(condition, records, meta, done, found)
        assert done > before
    return [found.origin(number)[0] for number in range(len(found.records))]


def shown(record: Any, **more: Any) -> dict[str, Any]:
    body = show(Shown(stream="orders:0", node="left", place="line 7", record=record, **more))
    found: dict[str, Any] = json.loads(body)
    return found


# Conditions.


def test_no_condition_matches_everything() -> None:
    assert condition_of("") is None
    assert condition_of("  ") is None


def test_a_condition_sees_the_record_and_what_the_source_says_about_it() -> None:
    records = [{"id": number} for number in range(6)]
    assert matching("id > 3", records) == [4, 5]
    assert matching('meta.kind == "b"', records[:2], [{"kind": "a"}, {"kind": "b"}]) == [1]


def test_a_record_on_which_the_condition_fails_does_not_match() -> None:
    records = [{"id": 1}, {"id": "one"}, Unreadable(b"{", "not JSON"), 7, {"id": 3}]
    assert matching("id + 1 > 1", records) == [0, 4]


def test_a_record_that_is_too_dear_to_judge_does_not_match_and_the_others_do() -> None:
    dear = {"id": 1, "all": list(range(200_000))}
    assert matching("id == 1 and count([x for x in all if x >= 0]) >= 0", [{"id": 1, "all": [1]}, dear, dear]) == [0]


def test_more_records_than_a_slice_has_are_all_judged() -> None:
    assert matching("id % 1000 == 7", [{"id": number} for number in range(5000)]) == [7, 1007, 2007, 3007, 4007]


@pytest.mark.parametrize("where", ["id >", "open('x')", "id = 1", "x" * 3000])
def test_a_condition_that_is_no_expression_is_a_problem_of_the_tap(where: str) -> None:
    with pytest.raises(ConfigError) as raised:
        condition_of(where)
    assert [problem.path for problem in raised.value.problems] == ["tap.where"]


# Samples and limits.


def test_the_sample_is_every_nth_of_those_that_match_over_all_batches() -> None:
    meter, found, begin = Meter(), [], 0
    for matches in (1, 4, 0, 7, 2, 11):
        meter, picked, dropped = pick(meter, 5, matches, 0.0)
        assert dropped == 0
        found += [begin + number for number in picked]
        begin += matches
    assert found == [0, 5, 10, 15, 20]


def test_what_does_not_fit_into_a_second_is_dropped_and_counted_and_the_next_second_begins_again() -> None:
    meter, picked, dropped = pick(Meter(), 1, 5000, 10.2)
    assert (len(picked), dropped) == (RECORDS_A_SECOND, 5000 - RECORDS_A_SECOND)
    for _ in picked:
        meter, fits = pay(meter, 100, 10.3)
        assert fits
    assert is_full(meter, 10.9)
    assert not pay(meter, 1, 10.9)[1]
    assert pick(meter, 1, 3, 10.9)[1:] == (range(0), 3)
    assert not is_full(meter, 11.0)
    assert pick(meter, 1, 3, 11.0)[1:] == (range(3), 0)


def test_large_records_use_up_the_second_by_their_size() -> None:
    meter, number = Meter(), 0
    while (paid := pay(meter, RECORD_BYTES, 5.0))[1]:
        meter, number = paid[0], number + 1
    assert number == BYTES_A_SECOND // RECORD_BYTES
    assert pay(meter, 1, 5.0)[1]  # A small one still fits.
    assert pay(meter, RECORD_BYTES, 6.0)[1]


def test_a_clock_that_is_set_back_begins_another_second() -> None:
    meter, _ = pay(Meter(second=100, records=RECORDS_A_SECOND), 1, 50.0)
    assert meter.records == 1


# How records look.


def test_a_record_is_shown_with_its_place() -> None:
    assert shown({"id": 1}, meta={"offset": 3}) == {
        "stream": "orders:0",
        "node": "left",
        "place": "line 7",
        "record": {"id": 1},
        "meta": {"offset": 3},
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (2**70, str(2**70)),
        (10**5000, "a value of the type int"),
        (Decimal("1.50"), "1.50"),
        (date(2026, 1, 2), "2026-01-02"),
        (datetime(2026, 1, 2, 3), "2026-01-02T03:00:00"),
        (UUID(int=7), str(UUID(int=7))),
        (b"caf\xc3\xa9 \xff", "café \\xff"),
        ("\ud800x", "\\ud800x"),
        (Unreadable(b"{broken", "not JSON"), "{broken"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_has_no_form_for_is_shown_as_text(value: Any, text: str) -> None:
    assert shown({"v": value})["record"] == {"v": text}


def test_what_cannot_even_be_a_text_is_shown_by_its_type() -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert shown([Odd()])["record"] == ["a value of the type Odd"]


def test_names_that_are_no_text_and_other_collections_are_shown_too() -> None:
    assert shown({1: (True, None), None: {3}})["record"] == {"1": [True, None], "None": [3]}


def test_a_payload_that_could_not_be_read_says_why() -> None:
    found = shown(Unreadable(b"{", "not JSON"))
    assert (found["record"], found["reason"]) == ("{", "not JSON")


def deep(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize(
    "value",
    [
        "x" * 1_000_000,
        "\0" * 1_000_000,
        "é" * 1_000_000,
        "\ud800" * 1_000_000,
        b"\xff" * 1_000_000,
        Unreadable(b"\xff" * 1_000_000, "not JSON"),
        list(range(10**18, 10**18 + 100_000)),
        {f"field {number}": "some text" for number in range(100_000)},
        [["x"] * 10 for _ in range(100_000)],
        [{} for _ in range(1_000_000)],
        deep(900),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_too_long_or_too_deep_is_cut_and_says_so(value: Any) -> None:
    body = show(Shown(stream="orders:0", node="left", place="p" * 10, record={"v": value, "after": "y" * 1000}))
    assert len(body) < RECORD_BYTES * 1.2
    assert json.loads(body)["is_cut"]


def test_a_record_that_fits_is_not_cut() -> None:
    assert "is_cut" not in shown({"v": "é" * 20_000, "list": list(range(500))})
