"""Which definitions of a whole database can be made now, and the order of tables that refer to each other."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.chunks.definitions import Definition, Moment, startable
from headgate.core.chunks.order import Reference, ordered


def definition(number: int, moment: Moment = Moment.FULL, **more: Any) -> Definition:
    return Definition(number, "index", f"i{number}", "t", moment, f"CREATE {number}", **more)


def found(*waiting: Definition, running: tuple[Definition, ...] = (), full: set[str] = {"t"}, **more: Any) -> list[int]:  # noqa: B006
    asked = {"places": 2, "is_after": False} | more
    return [one.number for one in startable({one.number: one for one in waiting}, running, full, **asked)]


# Definitions.


def test_an_index_waits_until_its_table_is_full() -> None:
    assert found(definition(1, tables=("t",)), definition(2, tables=("u",))) == [1]


def test_no_more_are_begun_than_there_are_places() -> None:
    assert found(*(definition(number) for number in range(5))) == [0, 1]
    assert found(definition(1), definition(2), running=(definition(9),)) == [1]


def test_what_needs_another_waits_for_it() -> None:
    first, second = definition(1), definition(2, needs=(1,))
    assert found(first, second) == [1]
    assert found(second, running=(first,)) == []
    assert found(second) == [2]


def test_foreign_keys_wait_for_all_rows() -> None:
    key = definition(1, Moment.AFTER, tables=("t",))
    assert found(key) == []
    assert found(key, is_after=True) == [1]
    assert found(key, is_after=True, full=set()) == []


def test_two_that_lock_one_table_are_not_made_at_once() -> None:
    plain, locking = definition(1, tables=("t",)), definition(2, tables=("t",), alone=True)
    assert found(plain, locking) == [1]
    assert found(plain, running=(locking,)) == []
    assert found(definition(3, tables=("t",)), plain) == [3, 1]


def test_a_definition_that_has_changed_is_another() -> None:
    assert definition(1).key == definition(1, tables=("t",)).key
    assert definition(1).key != definition(2).key


# Order.


def test_a_table_is_filled_after_those_that_it_refers_to() -> None:
    order = ordered(["a", "b", "c"], [Reference("ab", "a", "b"), Reference("bc", "b", "c"), Reference("ax", "a", "x")])
    assert order.tables == ("c", "b", "a")
    assert order.after["a"] == {"b"}
    assert not order.circular


def test_foreign_keys_in_a_circle_give_way_and_others_stay() -> None:
    keys = [
        Reference("self", "a", "a"),
        Reference("ab", "a", "b"),
        Reference("ba", "b", "a"),
        Reference("ca", "c", "a"),
    ]
    order = ordered(["c", "a", "b"], keys)
    assert order.circular == {"self", "ab", "ba"}
    assert order.tables.index("c") > order.tables.index("a")


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6))))
def test_whatever_refers_to_what_every_table_has_its_place(pairs: list[tuple[int, int]]) -> None:
    names = [f"t{number}" for number in range(7)]
    keys = [Reference(f"k{place}", f"t{child}", f"t{parent}") for place, (child, parent) in enumerate(pairs)]
    order = ordered(names, keys)
    assert sorted(order.tables) == names
    for one in keys:
        if one.key not in order.circular:
            assert order.tables.index(one.parent) < order.tables.index(one.child)
