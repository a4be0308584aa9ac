"""What streams wait for: when it is away, when it has come back, and to whom that is news."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.awaited import (
    ASK_S,
    LONGEST_S,
    MOST_PER_S,
    SPREAD_S,
    Target,
    answered,
    is_back,
    is_news,
    pause_s,
    silent,
    spread_s,
)

# A question that is begun at one time and ends at another, with an answer or without.
questions = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0, 100), st.booleans()).map(lambda q: (min(q[:2]), max(q[:2]), q[2])),
    max_size=30,
).map(lambda found: sorted(found, key=lambda q: q[1]))


def test_it_is_back_with_the_first_answer_after_it_was_away() -> None:
    away = silent(Target(), 1.0)
    assert away.is_away
    back = answered(away, 2.0)
    assert is_back(away, back)
    assert back.back_at_s == 2.0
    again = answered(back, 3.0)
    assert not is_back(back, again)
    assert again.back_at_s == 2.0


def test_what_always_answers_never_comes_back() -> None:
    target = answered(answered(Target(), 1.0), 2.0)
    assert target.back_at_s == -math.inf
    assert not is_news(target, 0.0)


def test_a_question_from_before_the_last_answer_tells_nothing_however_late_it_fails() -> None:
    """It hung while the target was away, and ran out of time after it was back."""
    back = answered(silent(Target(), 1.0), 5.0)
    assert silent(back, 4.0) == back
    assert silent(back, 5.0).is_away


def test_a_return_is_news_to_whoever_tried_before_it() -> None:
    back = answered(silent(Target(), 1.0), 5.0)
    assert is_news(back, 4.9)
    assert not is_news(back, 5.0)
    assert not is_news(back, 6.0)


def test_what_is_away_is_asked_every_second_and_what_answers_ever_more_seldom() -> None:
    target = silent(Target(), 0.0)
    assert pause_s(target, 1) == ASK_S
    assert pause_s(silent(target, 9.0), 1) == ASK_S
    pauses = []
    for _ in range(10):
        target = answered(target, 10.0)
        pauses.append(pause_s(target, 1))
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60, 60, 60]
    assert pauses[-1] == LONGEST_S
    assert pause_s(silent(target, 11.0), 1) == ASK_S


@given(targets=st.integers(1, 10**6), answers=st.integers(0, 10**9))
def test_a_node_asks_so_many_questions_a_second_and_no_more(targets: int, answers: int) -> None:
    assert targets / pause_s(Target(answers=answers), targets) <= max(MOST_PER_S, 1 / ASK_S) + 1e-9


def test_few_try_again_at_once_and_many_over_a_second() -> None:
    assert spread_s(1) < 0.01
    assert spread_s(100) < SPREAD_S
    assert spread_s(5000) == SPREAD_S


@given(questions)
def test_between_two_returns_it_was_away(found: list[tuple[float, float, bool]]) -> None:
    target, returns, was_away = Target(), 0, 0
    for asked_at_s, ended_at_s, has_answer in found:
        before = target
        target = answered(target, ended_at_s) if has_answer else silent(target, asked_at_s)
        was_away += target.is_away and not before.is_away
        returns += is_back(before, target)
        assert returns <= was_away <= returns + 1
        assert target.back_at_s <= target.answered_at_s
        if is_back(before, target):
            assert is_news(target, math.nextafter(ended_at_s, -math.inf))
            assert not is_news(target, ended_at_s)
