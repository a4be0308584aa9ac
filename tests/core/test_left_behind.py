"""What a dump has left behind, in words, and whether that is a failure."""

from __future__ import annotations

import pytest

from headgate.core.chunks.left import Excuse, Left, excused, is_complete, plural, summed_up


def test_what_was_left_behind_is_counted_and_named() -> None:
    left = [
        *(Left("view", name) for name in ("a", "b", "c")),
        *(Left("policy", name, "orders") for name in ("p", "q")),
        Left("partitioning", of="payment"),
    ]
    assert summed_up(left) == "3 views (a, b, c), 2 policies of orders (p, q), partitioning of payment"


def test_a_line_names_a_few_of_many() -> None:
    assert summed_up([Left("view", f"v{n}") for n in range(7)]) == "7 views (v0, v1, v2, v3, v4 and more)"
    assert summed_up([Left("rewrite") for _ in range(2)]) == "2 rewrites"


def test_only_what_has_no_excuse_is_a_failure() -> None:
    asked = Left("foreign key", "f", "orders", "needs audit", Excuse.ASKED)
    assert is_complete([])
    assert is_complete([asked])
    assert not is_complete([asked, Left("view", "v")])


def test_an_excuse_that_is_there_stays() -> None:
    found = excused([Left("view", "v"), Left("index", "i", excuse=Excuse.ASKED)], Excuse.KIND)
    assert [one.excuse for one in found] == ["kind", "asked"]
    assert str(found[0]) == "view v"


@pytest.mark.parametrize(
    ("one", "many"),
    [
        ("policy", "policies"),
        ("index", "indexes"),
        ("foreign key", "foreign keys"),
        ("default of a column", "defaults of a column"),
    ],
)
def test_plurals(one: str, many: str) -> None:
    assert plural(one) == many
