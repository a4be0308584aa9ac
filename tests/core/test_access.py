"""Who may do what: the table, the patterns of bounds, and who is locked out."""

from __future__ import annotations

import time
from itertools import product
from uuid import uuid4

import pytest

from headgate.core import access
from headgate.core.access import (
    ANYONE,
    ROLES,
    RULES,
    AdminToken,
    Bounds,
    Caller,
    OfDatasource,
    OfGroup,
    Scope,
    locks_out,
    matches,
    may,
    names,
    refusal,
)

INSIDE = OfDatasource("orders-eu")


def caller(role: access.Role, *datasources: str, groups: tuple[str, ...] = ()) -> Caller:
    bounds = Bounds(datasources, groups) if datasources or groups else None
    return Caller(uuid4(), "a caller", role, bounds)


def test_an_admin_may_do_everything_and_an_operator_all_but_administer() -> None:
    assert all(may(caller("admin"), action, INSIDE) and may(ANYONE, action, INSIDE) for action in RULES)
    assert {action for action in RULES if not may(caller("operator"), action, INSIDE)} == {"administer"}


def test_a_viewer_sees_and_a_sender_sends_and_neither_does_more() -> None:
    seen = {"learn", "list", "see", "see_all", "sign_in"}
    assert {action for action in RULES if may(caller("viewer"), action)} == seen
    assert {action for action in RULES if may(caller("sender", "orders-*"), action, INSIDE)} == {"send"}


@pytest.mark.parametrize("role", ["viewer", "sender", "operator"])
def test_what_spans_everything_is_for_tokens_without_bounds(role: access.Role) -> None:
    spanning = [action for action, rule in RULES.items() if rule.scope is Scope.ALL]
    assert spanning == ["see_all", "operate_all", "administer"]
    assert not any(may(caller(role, "*", groups=("*/*",)), action) for action in spanning)


def test_a_refusal_repeats_nothing_of_what_was_asked() -> None:
    for subject in (OfDatasource("secret-plan"), OfGroup("secret-plan", "secret-plan")):
        for role in ROLES:
            for action in RULES:
                assert "secret-plan" not in (refusal(caller(role, "orders-*"), action, subject) or "")


@pytest.mark.parametrize(
    ("pattern", "name", "is_named"),
    [
        ("orders", "orders", True),
        ("orders", "orders-eu", False),
        ("orders-*", "orders-eu", True),
        ("orders-*", "orders-", True),
        ("orders-*", "orders", False),
        ("*", "anything", True),
        ("*-eu", "orders-eu", True),
        ("*-eu", "eu", False),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("a*b*b", "a-b", False),
        ("**", "x", True),
        ("orders-?", "orders-1", False),
        ("orders-[a]", "orders-a", False),
        ("orders.", "orders-", False),
    ],
)
def test_a_star_stands_for_any_text_and_nothing_else_is_special(pattern: str, name: str, is_named: bool) -> None:
    assert names(caller("viewer", pattern), OfDatasource(name)) == is_named


@pytest.mark.parametrize(
    ("pattern", "stream", "group", "is_named"),
    [
        ("invoices/billing", "invoices", "billing", True),
        ("invoices/billing", "invoices/billing", "", False),
        ("invoices/*", "invoices", "a/b", True),
        ("invoices/*", "invoices/eu", "billing", False),
        ("*/billing", "orders-7", "billing", True),
        ("*/billing", "orders-7", "x/billing", False),
        ("a%2Fb/c", "a/b", "c", True),
        ("a%2Ab/c", "a*b", "c", True),
        ("a%2Ab/c", "axb", "c", False),
        ("a%252Fb/c", "a%2Fb", "c", True),
    ],
)
def test_a_group_is_named_by_stream_and_group_and_a_slash_in_a_name_is_quoted(
    pattern: str, stream: str, group: str, is_named: bool
) -> None:
    found = caller("sender", groups=(pattern,))
    assert names(found, OfGroup(stream, group)) == is_named
    assert not names(found, OfDatasource(stream))


def test_a_hostile_pattern_takes_no_longer_than_a_search() -> None:
    """A regular expression would try every way to spread the stars."""
    found, began_s = caller("viewer", "*".join("a" * 50) + "*b"), time.process_time()
    for _ in range(100):
        assert not names(found, OfDatasource("a" * 100))
    assert time.process_time() - began_s < 5


def test_the_last_admin_that_does_not_end_is_kept_and_others_are_not() -> None:
    lasting, other, ending = AdminToken(uuid4(), False), AdminToken(uuid4(), False), AdminToken(uuid4(), True)
    assert locks_out([lasting], lasting.id)
    assert locks_out([lasting, ending], lasting.id)  # The other ends by itself, and then nobody is left.
    assert locks_out([ending], ending.id)
    assert not locks_out([lasting, ending], ending.id)
    assert not locks_out([lasting, other], lasting.id)
    assert not locks_out([lasting], uuid4())  # It is no admin's.


def test_a_token_names_what_any_of_its_patterns_says_whatever_their_shapes() -> None:
    texts = ["".join(some) for length in range(1, 4) for some in product("ab*", repeat=length)]
    found = ["".join(some) for length in range(1, 4) for some in product("ab", repeat=length)]
    for patterns in product(texts, ["b", "a*", "*ab", "a*b*"]):
        caller = Caller(None, "bound", "viewer", Bounds(patterns))
        for name in found:
            assert names(caller, OfDatasource(name)) == any(matches(one, name) for one in patterns)
