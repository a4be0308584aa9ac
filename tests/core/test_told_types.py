"""What a mapping tells of the types of its fields."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.core.mapping.document import compile_mapping
from headgate.core.mapping.functions import TYPES
from headgate.core.mapping.told import _OF_FUNCTIONS, field_types


def test_functions_and_types_tell_and_renamed_fields_keep_theirs() -> None:
    document = {
        "set": {"id": "int(id)", "at": "timestamp(ts)", "name": "lower(user.name)", "n": "a + 1",
                "x": 'coalesce(x, "")', "full": 'f"{a} {b}"', "total": "float(total)", "literal": 5, "broken": "int("},
        "rename": {"at": "placed_at"},
        "types": {"total": "decimal", "n": "date"},
    }  # fmt: skip
    assert field_types(document) == {
        "id": "int", "placed_at": "timestamp", "name": "text", "full": "text", "total": "decimal", "n": "date",
    }  # fmt: skip


@pytest.mark.parametrize("document", [None, {}, {"set": None}, {"set": [1], "types": "x", "rename": 5}])
def test_a_mapping_that_says_nothing_tells_nothing(document: Any) -> None:
    assert field_types(document) == {}


def test_every_type_that_is_told_is_one_of_the_mappings() -> None:
    assert set(_OF_FUNCTIONS.values()) <= set(TYPES)


def test_what_is_told_is_what_comes_out() -> None:
    """For each function, a value of the type that it is said to give."""
    calls = {
        "text": "text(5)", "lower": 'lower("A")', "upper": 'upper("a")', "strip": 'strip(" a")',
        "replace": 'replace("a", "a", "b")', "join": 'join(["a"], ",")', "substring": 'substring("abc", 1)',
        "format_time": 'format_time(0, "%Y")', "sha256": 'sha256("a")', "md5": 'md5("a")', "to_json": "to_json(1)",
        "int": 'int("5")', "length": 'length("abc")', "count": "count([1])", "crc32": 'crc32("a")',
        "starts_with": 'starts_with("ab", "a")', "ends_with": 'ends_with("ab", "b")', "contains": 'contains("ab", "a")',
        "split": 'split("a b")', "sort": "sort([1])", "unique": "unique([1])", "float": "float(1)",
        "decimal": 'decimal("1")', "timestamp": "timestamp(0)", "date": 'date("2026-01-02")',
    }  # fmt: skip
    kinds = {"str": "text", "int": "int", "bool": "bool", "list": "json", "float": "float", "Decimal": "decimal",
             "datetime": "timestamp", "date": "date"}  # fmt: skip
    assert set(calls) == set(_OF_FUNCTIONS)
    mapped = compile_mapping({"set": calls}).apply([{}])
    assert not mapped.failed
    assert {name: kinds[type(value).__name__] for name, value in mapped.records[0].items()} == _OF_FUNCTIONS
