"""Key ranges in SQL: which databases agree on the order of a key."""

from __future__ import annotations

import pytest

from headgate.connectors.api.bulk import Column, Ordered, Range, Table
from headgate.connectors.sql.keys import WHOLE, between, plain_order
from headgate.connectors.sqlite.reader import SqliteReader
from headgate.connectors.values.kinds import TEXT, Kind, Type


def table(kind: Kind, key: tuple[str, ...] = ("id",)) -> Table:
    return Table("t", (Column("id", Type(kind)), Column("name", TEXT)), key)


@pytest.mark.parametrize("kind", [Kind.INT64, Kind.DATE, Kind.NUMERIC])
def test_numbers_and_moments_have_the_order_that_all_databases_share(kind: Kind) -> None:
    assert plain_order(table(kind)) == plain_order(table(Kind.INT16)) is not None


@pytest.mark.parametrize("key", [(), ("name",), ("id", "name"), ("absent",)])
def test_text_and_tables_without_a_key_share_no_order(key: tuple[str, ...]) -> None:
    assert plain_order(table(Kind.INT64, key)) is None


async def test_sqlite_keeps_dates_as_text_and_shares_the_order_of_whole_numbers_only() -> None:
    reader = SqliteReader("sqlite:unused.db")
    assert isinstance(reader, Ordered)
    assert await reader.order(table(Kind.INT32)) == plain_order(table(Kind.INT32), WHOLE)
    assert await reader.order(table(Kind.DATE)) is None


def test_a_range_without_a_beginning_has_one_condition() -> None:
    compared = lambda operator, bound: f"k {operator} {bound[0]}"  # noqa: E731
    assert between(Range(None, ("9",)), compared) == "k <= 9"
    assert between(Range(("1",), ("9",)), compared) == "k > 1 AND k <= 9"
