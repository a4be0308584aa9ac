"""The archive of `pg_dump`, patterns of tables, and which entries are chosen by them."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from headgate.connectors.api.whole import Wanted, WholeReader
from headgate.connectors.guard import Bound, Guard
from headgate.connectors.plugins import open_reader
from headgate.connectors.postgres.archive import Entry, NotAnArchive, Section, parse
from headgate.connectors.postgres.chosen import chosen
from headgate.connectors.sql.patterns import is_meant, is_schema_meant
from headgate.core.reach import AddressRule, Reach
from headgate.errors import ConfigError


def number(value: int) -> bytes:
    return bytes([value < 0]) + struct.pack("<I", abs(value))


def text(value: str | None) -> bytes:
    return number(-1) if value is None else number(len(value.encode())) + value.encode()


def archive(minor: int = 14, count: int = 1, form: int = 1) -> bytes:
    """One table, as pg_dump writes it."""
    head = b"PGDMP" + bytes([1, minor, 0, 4, 8, form]) + (b"\0" if minor >= 15 else number(0))
    head += number(1) * 7 + text("db") + text("15.1") + text("15.1") + number(count)
    entry = number(7) + number(0) + text("1259") + text("16384") + text("Tä ble") + text("TABLE") + number(2)
    entry += text("CREATE TABLE x ();\n\\! false\n") + text("DROP TABLE x;") + text(None) + text("public") + text(None)
    entry += text("heap") + (number(114) if minor >= 16 else b"") + text("me") + text("false")
    return head + entry + text("3") + text("5") + text(None) + b"\3" + bytes(8)


@pytest.mark.parametrize("minor", [14, 15, 16])
def test_an_entry_is_read_with_all_that_it_says(minor: int) -> None:
    (one,) = parse(archive(minor))
    assert (one.number, one.kind, one.tag, one.schema, one.owner, one.access_method) == (
        *(7, "TABLE", "Tä ble", "public", "me", "heap"),
    )
    assert (one.section, one.needs, one.drop) == (Section.PRE_DATA, (3, 5), "DROP TABLE x;")
    assert one.sql == "CREATE TABLE x ();\n\\! false\n"  # Nobody obeys it: to the server it is a syntax error.


@pytest.mark.parametrize("minor", [13, 17])
def test_another_version_is_not_read(minor: int) -> None:
    with pytest.raises(NotAnArchive, match=f"1.{minor} are not known"):
        parse(archive(minor))


def test_whatever_is_cut_off_or_changed_is_refused() -> None:
    whole = archive()
    for end in range(len(whole)):
        with pytest.raises(NotAnArchive):
            parse(whole[:end])
    for broken in (b"", b"-- a script", archive(form=3), archive(count=-1), archive(count=10**9)):
        with pytest.raises(NotAnArchive):
            parse(broken)


# Patterns.


@pytest.mark.parametrize(
    ("pattern", "schema", "name", "is_so"),
    [
        ("orders", "public", "orders", True),
        ("ORDERS", "public", "orders", True),
        ("orders", "public", "orders_old", False),
        ("orders", "orders", "anything", True),
        ("public.order?", "public", "orders", True),
        ("sales.*", "sales", "x", True),
        ("sales.*", "public", "sales", False),
        ('"Sales".*', "Sales", "x", True),
        ('"Sales".*', "sales", "x", False),
        ('"a.b"', "public", "a.b", True),
        ('"a*"', "public", "ab", False),
        ("a.b", "public", "a.b", False),
        ("a+b", "public", "aab", False),
    ],
)
def test_a_pattern_means_tables(pattern: str, schema: str, name: str, is_so: bool) -> None:
    assert is_meant([pattern], schema, name) is is_so


def test_a_pattern_means_whole_schemas() -> None:
    assert is_schema_meant(["sales"], "sales")
    assert is_schema_meant(["sales.*"], "sales")
    assert not is_schema_meant(["sales.a*"], "sales")


@pytest.mark.parametrize("wrong", ["", "a..b", "a.b.c", '"open'])
def test_what_is_no_pattern_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError):
        is_meant([wrong], "public", "a")


# Chosen.


def entry(number: int, kind: str, tag: str, *needs: int, **more: Any) -> Entry:
    schema = more.get("schema", "public")
    return Entry(number, kind, tag, schema, "", Section.PRE_DATA, "", "", "", "", needs)


SHOP = [
    entry(1, "TYPE", "state"),
    entry(2, "FUNCTION", "f()"),
    entry(3, "TABLE", "orders", 1),
    entry(4, "SEQUENCE", "orders_id_seq"),
    entry(5, "SEQUENCE OWNED BY", "orders_id_seq", 4, 3),
    entry(6, "TABLE", "customers"),
    entry(7, "DEFAULT", "orders id", 3, 4),
    entry(8, "VIEW", "both", 3, 6),
    entry(9, "CONSTRAINT", "orders orders_pkey", 3),
    entry(10, "FK CONSTRAINT", "orders to_customers", 3, 6),
    entry(11, "TRIGGER", "customers t", 2, 6),
    entry(12, "TABLE", "parts"),
    entry(13, "TABLE", "parts_1"),
    entry(14, "TABLE ATTACH", "parts_1", 12, 13),
]


def numbers(**wanted: Any) -> tuple[set[int], dict[int, str]]:
    kept, left = chosen(SHOP, Wanted(**wanted))
    return {one.number for one in kept}, {one.number: why for one, why in left}


def test_what_is_included_brings_what_it_needs_and_what_belongs_to_it() -> None:
    assert numbers(include=("orders",)) == ({1, 3, 4, 5, 7, 9}, {10: "needs customers"})
    assert numbers(include=("parts",)) == ({12, 13, 14}, {})


def test_what_is_excluded_takes_what_belongs_to_it_and_names_what_needs_it() -> None:
    assert numbers(exclude=("customers",)) == (
        {1, 2, 3, 4, 5, 7, 9, 12, 13, 14},
        {8: "needs customers", 10: "needs customers"},
    )
    kept, left = numbers(exclude=("orders",))
    assert (kept, left) == ({1, 2, 6, 11, 12, 13, 14}, {8: "needs orders"})
    assert numbers(exclude=("parts",))[0] == set(range(1, 12))


@pytest.mark.parametrize("is_bounded", [False, True])
async def test_the_tool_is_not_for_dumps_that_may_not_reach_everything(empty_url: str, is_bounded: bool) -> None:
    """It opens its own connection, which no guard sees."""
    bound = Bound(Reach(addresses=(AddressRule(network=None, host="db.example.com"),)))
    reader = open_reader(empty_url, None, (), Guard((bound,)) if is_bounded else Guard())
    assert isinstance(reader, WholeReader)
    try:
        assert ("only a dump of an admin" in await reader.why_not_whole()) is is_bounded
    finally:
        await reader.close()
