"""Failures that repeat: the first is told at once, the others in numbers, and the end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.repeats import FIRST_S, GROWTH, LONGEST_S, MOST_APART, Episode, Told, failed, is_new, over

DAY_S = 86400.0

Fact = tuple[float, str]  # When, and in which words.
facts = st.lists(st.tuples(st.floats(0, 10 * DAY_S), st.sampled_from("abcdefgh")), max_size=60).map(sorted)


def told(facts: Sequence[Fact], about: int = 0) -> tuple[Episode, list[tuple[float, str, Told]]]:
    """What is told of these."""
    episode, found = Episode(), []
    for at_s, words in facts:
        episode, one = failed(episode, about, words, at_s)
        if one is not None:
            found.append((at_s, words, one))
    return episode, found


def test_the_first_is_told_at_once_and_the_same_again_is_only_counted() -> None:
    _, found = told([(0.0, "away"), (1.0, "away"), (FIRST_S - 1.0, "away")])
    assert found == [(0.0, "away", Told(1, 0.0))]


def test_a_day_of_one_failure_a_minute_is_a_handful_of_lines() -> None:
    """And each has the number of all so far."""
    _, found = told([(60.0 * n, "away") for n in range(24 * 60)])
    assert [(at_s / 60.0, one.count) for at_s, _, one in found] == [
        (0, 1),
        (1, 2),
        (5, 6),
        (21, 22),
        (85, 86),
        (341, 342),
        (1365, 1366),
    ]


def test_the_pauses_grow_to_a_day_and_no_longer() -> None:
    _, found = told([(3600.0 * n, "away") for n in range(24 * 30)])
    pauses = [later[0] - earlier[0] for earlier, later in pairwise(found)]
    assert max(pauses) == LONGEST_S
    assert pauses[-3:] == [LONGEST_S] * 3


def test_the_end_is_told_with_the_number_of_all() -> None:
    episode, _ = told([(5.0, "away"), (6.0, "away"), (7.0, "starting up"), (8.0, "away")])
    assert over(episode) == Told(4, 5.0)


def test_where_nothing_failed_nothing_is_over() -> None:
    assert over(Episode()) is None


def test_other_words_are_told_at_once_and_both_are_counted_apart() -> None:
    _, found = told([(0.0, "away"), (1.0, "starting up"), (2.0, "away"), (61.0, "starting up"), (62.0, "away")])
    assert found == [
        (0.0, "away", Told(1, 0.0)),
        (1.0, "starting up", Told(1, 1.0)),
        (61.0, "starting up", Told(2, 1.0)),
        (62.0, "away", Told(3, 0.0)),
    ]


def test_words_that_are_new_each_time_are_counted_together() -> None:
    episode, found = told([(float(n), f"process {n} is gone") for n in range(50)])
    assert len(found) == MOST_APART + 1
    assert over(episode) == Told(50, 0.0)


def test_words_are_new_until_they_were_told() -> None:
    episode, _ = told([(0.0, "away")], about=1)
    assert not is_new(episode, 1, "away")
    assert is_new(episode, 1, "starting up")
    assert is_new(episode, 2, "away")


def test_what_somebody_did_in_between_makes_it_another_matter() -> None:
    episode, _ = told([(0.0, "away"), (1.0, "away")], about=1)
    episode, one = failed(episode, 2, "away", 2.0)
    assert one == Told(1, 2.0)
    assert over(episode) == Told(1, 2.0)


@given(facts)
def test_nothing_is_forgotten_and_between_two_lines_about_the_same_is_a_pause(facts: list[Fact]) -> None:
    episode, found = told(facts)
    end = over(episode)
    assert (end.count if end else 0) == len(facts)
    apart = list(dict.fromkeys(words for _, words in facts))[:MOST_APART]
    for words in apart:
        lines = [(at_s, one) for at_s, said, one in found if said == words]
        assert lines[0] == (lines[0][0], Told(1, lines[0][0]))
        for number, (earlier, later) in enumerate(pairwise(lines)):
            assert later[1].count > earlier[1].count
            assert later[0] - earlier[0] >= min(LONGEST_S, FIRST_S * GROWTH**number) * 0.999
