"""What names of streams may become, and how a batch of several streams is cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headgate.connectors.api import SourceStream
from headgate.connectors.bridges.typed import field_types
from headgate.connectors.postgres.names import LONGEST, mark_of, table_of
from headgate.connectors.postgres.options import PostgresOptions
from headgate.connectors.postgres.pieces import by_stream, in_order, parents_first, unnamed
from headgate.core.source_streams import SourceStreams

URL = "postgresql://u@h/d"


@pytest.mark.parametrize(
    ("stream", "table"),
    [
        ("users", "raw.users"),
        ("public-orders", "raw.public_orders"),
        ("Orders_2024", "raw.Orders_2024"),
        ('x"; DROP TABLE users; --', "raw.x___DROP_TABLE_users____"),
        ("../../etc/passwd", "raw.______etc_passwd"),
        ("a.b", "raw.a_b"),
        ("naïve", "raw.na_ve"),
        ("nul\0 and \ud800", "raw.nul__and__"),
        ("{stream}", "raw._stream_"),
    ],
)
def test_only_letters_digits_and_underscores_are_left_of_a_name(stream: str, table: str) -> None:
    assert table_of("raw.{stream}", stream) == table


@given(st.text(), st.sampled_from(["{stream}", "raw.{stream}", "ä.shop_{stream}_raw", f"raw.{'p' * 43}{{stream}}"]))
def test_no_name_leaves_its_schema_or_is_longer_than_a_name_may_be(stream: str, option: str) -> None:
    schema, dot, name = table_of(option, stream).rpartition(".")
    assert f"{schema}{dot}" == option[: option.rfind(".") + 1]
    assert len(name.encode()) <= LONGEST
    before, _, after = option.rpartition(".")[2].partition("{stream}")
    left = name.removeprefix(before).removesuffix(after)
    assert all(one.isascii() and (one.isalnum() or one == "_") for one in left)


def test_long_names_that_begin_alike_are_two_tables() -> None:
    one, other = (table_of("raw.{stream}", f"{'x' * 100}{end}") for end in "ab")
    assert one != other
    assert len(one) == len(other) == len("raw.") + LONGEST


def test_the_mark_of_a_stream_has_its_namespace_and_nothing_else() -> None:
    users = SourceStream("users", key=("id",))
    assert mark_of(users) == mark_of(SourceStream("users", key=("name",)))
    assert len({mark_of(one) for one in (users, SourceStream("users", "a"), SourceStream("a.users"))}) == 3


@pytest.mark.parametrize("table", ["{stream}.users", "{stream}_{stream}", "a.{stream}.b", f"{'x' * 50}{{stream}}"])
def test_a_table_has_a_stream_once_and_in_its_name(table: str) -> None:
    with pytest.raises(ValidationError):
        PostgresOptions(url=URL, table=table)


def test_records_are_cut_by_stream_or_wherever_it_changes() -> None:
    a, b = SourceStream("a", key=("id",)), SourceStream("b")
    assert by_stream([b, a, b, b, a]) == [(b, [0, 2, 3]), (a, [1, 4])]
    assert in_order([b, a, b, b, a]) == [(b, [0]), (a, [1]), (b, [2, 3]), (a, [4])]
    assert [one.index for one in unnamed([a, SourceStream(""), b])] == [1]


def test_parents_come_before_children_and_all_else_stays() -> None:
    assert parents_first(["c", "x", "p", "y"], {("c", "p")}) == ["x", "p", "c", "y"]
    assert parents_first(["c", "p", "g"], {("c", "p"), ("p", "g"), ("g", "elsewhere")}) == ["g", "p", "c"]
    assert parents_first(["b", "a", "c"], {("a", "b"), ("b", "a"), ("b", "b"), ("b", "c")}) == ["c", "b", "a"]


def test_the_stream_of_a_record_is_in_its_meta() -> None:
    streams = SourceStreams(known=[SourceStream("users", "s", types={"at": "timestamp"})])
    found = streams.of({"stream": "users", "namespace": "s", "key": ["id"]})
    assert (found.name, found.namespace, found.key, found.types) == ("users", "s", ("id",), {"at": "timestamp"})
    assert streams.of({"stream": "users", "namespace": "s", "key": ["id"], "version": 1}) is found
    assert streams.of({"stream": "users", "key": ["id"]}).types == {}
    assert SourceStreams(("name",)).of({"stream": "users", "key": ["id"]}).key == ("name",)


@pytest.mark.parametrize("meta", [None, 7, {}, {"stream": 7, "key": "id", "namespace": []}])
def test_a_record_whose_meta_says_nothing_is_of_no_stream(meta: Any) -> None:
    assert SourceStreams().of(meta) == SourceStream("")


def test_types_of_fields_are_said_in_words() -> None:
    number = {"type": ["null", "number"]}
    properties = {
        "id": {"type": "integer"},
        "text": {"type": ["null", "string"]},
        "at": {"type": "string", "format": "date-time"},
        "day": {"format": "date"},
        "uuid": {"type": "string", "format": "uuid"},
        "share": number,
        "price": {**number, "multipleOf": 0.01},
        "is": {"type": ["boolean", "null"]},
        "lines": {"type": "array"},
        "data": {"type": "string", "contentEncoding": "base64"},
        "any": {},
        "odd": {"type": [{}, 7, None]},
        "none": 7,
    }
    assert field_types({"properties": properties}) == {
        "id": "int",
        "text": "text",
        "at": "timestamp",
        "day": "date",
        "uuid": "uuid",
        "share": "decimal",
        "price": "decimal",
        "is": "bool",
        "lines": "json",
        "data": "bytes",
    }
    assert field_types({"properties": []}) == field_types(None) == {}
