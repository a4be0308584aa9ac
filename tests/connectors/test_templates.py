"""Texts with fields of a record in them."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.connectors.templates import Template


@pytest.mark.parametrize(
    ("text", "record", "becomes"),
    [
        ("orders", {}, "orders"),
        ("orders.{kind}", {"kind": "new"}, "orders.new"),
        ("{a}{b}", {"a": 1, "b": True}, "1true"),
        ("{{x}} {a}", {"a": "{x}"}, "{x} {x}"),
        ("{a b.c}", {"a b.c": "x"}, "x"),
        ("", {}, ""),
    ],
)
def test_fields_stand_in_their_places(text: str, record: dict[str, Any], becomes: str) -> None:
    assert Template(text).of(record) == becomes


@pytest.mark.parametrize("value", [None, 1.5, [], {}])
def test_what_is_no_text_and_no_number_is_not_shown(value: Any) -> None:
    with pytest.raises(ValueError, match="kind is"):
        Template("{kind}").of({"kind": value})


@pytest.mark.parametrize("text", ["{", "}", "a{b", "{}", "{{}"])
def test_a_brace_does_not_stand_alone(text: str) -> None:
    with pytest.raises(ValueError, match="stands alone"):
        Template(text)


def test_a_text_without_fields_is_constant() -> None:
    assert Template("a{{b}}").is_constant
    assert not Template("a{b}").is_constant
