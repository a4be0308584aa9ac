"""What is wrong with an expression is said with its place and a guess."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.mapping.document import compile_mapping
from headgate.core.mapping.guesses import guess, place
from headgate.errors import ConfigError, Problem


def problem_of(expression: str) -> Problem:
    with pytest.raises(ConfigError) as caught:
        compile_mapping({"set": {"out": expression}})
    return caught.value.problems[0]


@pytest.mark.parametrize(
    ("expression", "guessed"),
    [
        ("kind = 'order'", "did you mean `kind == 'order'`?"),
        ("kind='a=b'", "did you mean `kind == 'a=b'`?"),
        ("user.kind = 1", "did you mean `user.kind == 1`?"),
        ("kind === 1", "did you mean `kind == 1`?"),
        ("kind !== 1", "did you mean `kind != 1`?"),
        ("kind <> 1", "did you mean `kind != 1`?"),
        ("a > 1 && b < 2", "did you mean `a > 1 and b < 2`?"),
        ("a || 'x && y'", "did you mean `a or 'x && y'`?"),
        ("!done", "did you mean `not done`?"),
        ("a && !(b || c)", "did you mean `a and not (b or c)`?"),
        ("a > 1 AND b = 2", "did you mean `a > 1 and b == 2`?"),
        ("a IS NOT NULL", "did you mean `a is not None`?"),
        ("a = null", "did you mean `a == None`?"),
        ("done = true", "did you mean `done == True`?"),
        ("total > 10 ? 'big' : 'small'", "did you mean `'big' if total > 10 else 'small'`?"),
        ("a ? b : c ? d : e", "did you mean `b if a else d if c else e`?"),
        ("a ?? b", "did you mean `coalesce(a, b)`?"),
        ("$.user.email", "did you mean `user.email`?"),
        (".user.email", "did you mean `user.email`?"),
        ("{{ user.email }}", "did you mean `user.email`?"),
        ("${user.email}", "did you mean `user.email`?"),
        ("kind == 'order", "a quote is not closed"),
        ("kind == \"it's", "a quote is not closed"),
        ("user.from", 'a field named from is written record["from"]'),
        ("a | b", "did you mean or?"),
        ("a & b", "did you mean and?"),
        ("~a", "did you mean not?"),
        ("null", "write None"),
        ("lowr(a)", "did you mean lower"),
        ("toLowerCase(a)", "write lower"),
        ("len(a)", "write length"),
        ("str(a)", "write text"),
        ("nvl(a, 1)", "write coalesce"),
        ("Lower(a)", "did you mean lower"),
        ("user.email.lower()", "write lower(user.email)"),
        ("name.startswith('a')", "write starts_with(name, 'a')"),
        ("name.trim()", "write strip(name)"),
        ("quux(a)", "see the list of functions"),
    ],
)
def test_a_mistake_gets_a_guess(expression: str, guessed: str) -> None:
    assert problem_of(expression).hint.startswith(guessed)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("kind = 1", "not an expression at column 6, near `= 1`"),
        ("a > 1 && b", "not an expression at column 8, near `& b`"),
        ("lower(a", "'(' was never closed at column 6, near `(a`"),
        ("a + lowr(b)", "the function lowr does not exist at column 5, near `lowr(b)`"),
        ("'grüße' + lowr(b)", "the function lowr does not exist at column 11, near `lowr(b)`"),
        ("[1,\n lowr(b)]", "the function lowr does not exist at line 2, column 2, near `lowr(b)]`"),
        ("  null", "null is not a value here at column 1, near `null`"),
        (
            "lowr(a) + '" + "x" * 50 + "'",
            "the function lowr does not exist at column 1, near `lowr(a) + 'xxxxxxxxxxxxx…`",
        ),
    ],
)
def test_a_mistake_is_shown_where_it_is(expression: str, message: str) -> None:
    assert problem_of(expression).message == message


def test_what_is_right_is_not_guessed_at() -> None:
    assert compile_mapping({"where": "a == 'x = y && !z'"}).apply([{"a": "x = y && !z"}]).filtered == []


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"total": "round(a", "2)": None}, "quote the expression: total: 'round(a, 2)'"),
        ({"a": "coalesce(x", "y": None, "'z')": None, "b": "1"}, "quote the expression: a: 'coalesce(x, y, 'z')'"),
    ],
)
def test_an_expression_that_a_comma_has_cut_in_two_gets_the_hint_to_quote_it(fields: Any, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compile_mapping({"set": fields})
    assert hint in caught.value.problems[0].hint


def test_a_part_that_a_comma_has_cut_in_two_gets_it_too() -> None:
    with pytest.raises(ConfigError) as caught:
        compile_mapping({"where": "contains(a", "'x')": None})
    assert ["quote the expression" in problem.hint for problem in caught.value.problems] == [True, False]


@given(st.text(max_size=40), st.integers(-3, 50), st.integers(-3, 50))
def test_no_text_breaks_a_guess(text: str, line: int, column: int) -> None:
    assert len(guess(text)) < 300
    assert "\n" not in place(text, line, column)
