"""Digests: what means the same has the same hash, whatever type it came in, and what does not has another."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headgate.connectors.api.bulk import Column, Digest, StorageError
from headgate.connectors.values.hashes import add
from headgate.connectors.values.kinds import Kind, Type

INTEGER = Type(Kind.INT32)
SMALL = Type(Kind.DECIMAL, 12, 10)


def digest(array: Any, type: Type) -> Digest:
    column = Column("v", type)
    found = Digest(nulls={"v": 0})
    add(found, pa.RecordBatch.from_arrays([array], ["v"]), [column], [column])
    return found


def decimals(precision: int, scale: int, *values: str) -> Any:
    return pa.array([Decimal(one) for one in values], pa.decimal128(precision, scale))


SAME = {
    "another-scale": (Type(Kind.DECIMAL, 12, 2), decimals(12, 2, "1.50", "100.00"), decimals(14, 4, "1.5", "100")),
    "a-number-as-text": (Type(Kind.DECIMAL, 12, 2), decimals(12, 2, "1.50", "0.00"), pa.array(["1.5", "0"])),
    "a-number-below-nought": (Type(Kind.DECIMAL, 12, 2), decimals(12, 2, "-0.50", "-20.00"), pa.array(["-0.5", "-20"])),
    "a-wide-number": (Type(Kind.DECIMAL, 12, 2), decimals(12, 2, "-1.50", "7"), decimals(30, 9, "-1.5", "7")),
    "a-slice": (Type(Kind.DECIMAL, 12, 2), decimals(12, 2, "9", "1.50", "8").slice(1, 1), pa.array(["1.5"])),
    "a-very-small-number": (SMALL, decimals(12, 10, "0.0000000015"), pa.array(["0.0000000015"])),
    "a-wider-integer": (Type(Kind.INT32), pa.array([1, None], pa.int32()), pa.array([1, None], pa.int64())),
    "a-flag-as-a-number": (Type(Kind.BOOL), pa.array([True, False]), pa.array([1, 0], pa.int16())),
    "any-nan": (Type(Kind.FLOAT64), pa.array([float("nan")]), pa.array([-float("nan")])),
    "a-moment-as-text": (
        Type(Kind.TIMESTAMP),
        pa.array([1_500_000], pa.timestamp("us")),
        pa.array(["1970-01-01 00:00:01.5"]),
    ),
    "a-short-float-by-its-digits": (
        Type(Kind.FLOAT32),
        pa.array([0.1, 0.25, None], pa.float32()),
        pa.array([0.1, 0.25, None], pa.float64()),
    ),
    "a-short-float-by-its-number": (Type(Kind.FLOAT32), pa.array([0.1], pa.float32()), pa.array([0.10000000149011612])),
    "a-document": (
        Type(Kind.JSON),
        pa.array(['{"b": 1, "a": [1.50, 100]}']),
        pa.array(['{"a":[1.5,1e2],"b":1.0}']),
    ),
}
OTHER = {
    "digits": (Type(Kind.DECIMAL, 12, 2), decimals(12, 2, "1.50"), decimals(14, 4, "1.5001")),
    "small-digits": (SMALL, decimals(12, 10, "0.0000000015"), decimals(12, 10, "0.0000000001")),
    "noughts-before-the-point": (Type(Kind.DECIMAL, 12, 2), decimals(12, 2, "100.00"), decimals(12, 2, "10.00")),
    "the-sign": (Type(Kind.DECIMAL, 12, 2), decimals(12, 2, "1.50"), pa.array(["-1.5"])),
    "no-number": (Type(Kind.DECIMAL, 12, 2), decimals(12, 2, "1.50"), pa.array(["NaN"])),
    "no-flag": (Type(Kind.BOOL), pa.array([True]), pa.array([2], pa.int16())),
    "the-sign-of-nought": (Type(Kind.FLOAT64), pa.array([0.0]), pa.array([-0.0])),
    "a-null": (Type(Kind.INT64), pa.array([None], pa.int64()), pa.array([0], pa.int64())),
    "text": (Type(Kind.TEXT), pa.array(["a"]), pa.array(["a "])),
    "a-short-float": (Type(Kind.FLOAT32), pa.array([0.1], pa.float32()), pa.array([0.1000000001])),
    "a-number-wider-than-a-word": (
        Type(Kind.DECIMAL, 30, 0),
        decimals(30, 0, "1"),
        decimals(30, 0, str(2**64 + 1)),
    ),
    "all-digits-of-a-document": (
        Type(Kind.JSON),
        pa.array(['{"a": 1.00000000000000000001}']),
        pa.array(['{"a": 1.0}']),
    ),
    "an-exponent": (Type(Kind.JSON), pa.array(["1e400"]), pa.array(["1e401"])),
}


@pytest.mark.parametrize("name", SAME)
def test_what_means_the_same_has_the_same_digest(name: str) -> None:
    type, one, other = SAME[name]
    assert digest(one, type).difference(digest(other, type)) == ""


@pytest.mark.parametrize("name", OTHER)
def test_what_differs_has_another_digest(name: str) -> None:
    type, one, other = OTHER[name]
    assert digest(one, type).difference(digest(other, type)) != ""


def test_a_value_that_another_row_cannot_hold_changes_no_other_hash() -> None:
    """An upsert looks for the source's rows among others, which may be anything."""
    column = Column("v", Type(Kind.DECIMAL, 12, 2))
    source, target = Digest(nulls={"v": 0}), Digest(nulls={"v": 0})
    source.hashes, target.hashes = Counter(), Counter()
    add(source, pa.RecordBatch.from_arrays([decimals(12, 2, "1.50")], ["v"]), [column], [column])
    add(target, pa.RecordBatch.from_arrays([decimals(14, 4, "1.5", "2.0001")], ["v"]), [column], [column])
    assert source.missing(target) == 0


def test_the_order_of_rows_does_not_matter_and_that_of_columns_does() -> None:
    one = pa.array([1, 2], pa.int32())
    two = pa.array([2, 1], pa.int32())
    assert digest(one, INTEGER).sum == digest(two, INTEGER).sum
    columns = [Column("a", INTEGER), Column("b", INTEGER)]
    found = []
    for arrays in ([one, two], [two.slice(0, 1), two.slice(1)]):
        made = Digest(nulls={"a": 0, "b": 0})
        add(made, pa.RecordBatch.from_arrays([arrays[0], arrays[1]], ["a", "b"]), columns, columns)
        found.append(made.sum)
    assert found[0] != found[1]


def test_a_sign_between_two_texts_is_no_border_that_a_text_could_have() -> None:
    columns = [Column("a", Type(Kind.TEXT)), Column("b", Type(Kind.TEXT))]
    sums = set()
    for one, other in (("x\x1f", "y"), ("x", "\x1fy"), ("x\x1fy", ""), ("", "x\x1fy")):
        found = Digest(nulls={"a": 0, "b": 0})
        add(found, pa.RecordBatch.from_arrays([pa.array([one]), pa.array([other])], ["a", "b"]), columns, columns)
        sums.add(found.sum)
    assert len(sums) == 4


def test_what_cannot_be_compared_is_told_with_its_column() -> None:
    with pytest.raises(StorageError, match="column 'v' cannot be compared"):
        digest(pa.array([2**40]), INTEGER)
