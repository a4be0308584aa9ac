"""Waiting before trying again, and when to stop trying."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.core.backoff import BUDGET, FIRST_S, LONGEST_S, WINDOW_S, is_spent, spend, wait_s

jitters = st.floats(min_value=0.0, max_value=1.0, exclude_max=True)


def test_waits_double_from_the_first_to_the_longest() -> None:
    ceilings = [2 * wait_s(attempt, 0.0) for attempt in range(1, 10)]
    assert ceilings == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert ceilings[0] == FIRST_S


@given(attempt=st.integers(min_value=1, max_value=10**9), jitter=jitters)
def test_jitter_spreads_the_upper_half_of_each_wait(attempt: int, jitter: float) -> None:
    ceiling = 2 * wait_s(attempt, 0.0)
    assert ceiling / 2 <= wait_s(attempt, jitter) <= ceiling <= LONGEST_S


def test_what_is_watched_is_tried_seldom() -> None:
    ceilings = [2 * wait_s(attempt, 0.0, is_watched=True) for attempt in range(1, 9)]
    assert ceilings == [15.0, 30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0]


def test_more_jitter_waits_longer() -> None:
    assert wait_s(3, 0.0) < wait_s(3, 0.4) < wait_s(3, 0.9) < 2.0


def test_a_failure_counts_until_the_window_has_passed() -> None:
    failures = spend(spend((), 0.0), 1.0)
    assert failures == (0.0, 1.0)
    assert spend(failures, WINDOW_S - 0.1) == (0.0, 1.0, WINDOW_S - 0.1)
    assert spend(failures, WINDOW_S) == (1.0, WINDOW_S)


def test_the_budget_is_spent_by_one_failure_more_than_it_allows() -> None:
    failures: tuple[float, ...] = ()
    for n in range(BUDGET):
        failures = spend(failures, float(n))
    assert not is_spent(failures)
    assert is_spent(spend(failures, float(BUDGET)))
