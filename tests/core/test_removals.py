"""How long a node tries to remove what a deleted datasource left in its sink."""

from __future__ import annotations

from headgate.config import Settings
from headgate.core.removals import FIRST_S, GIVEN_UP_S, LEFT_ALONE_S, LONGEST_S, is_given_up, wait_s


def test_it_is_left_alone_for_longer_than_any_lease_lasts() -> None:
    """Whoever held the stream last has no trust any more when its fence goes."""
    (longest,) = [limit.le for limit in Settings.model_fields["lease_s"].metadata if hasattr(limit, "le")]
    assert longest < LEFT_ALONE_S


def test_waits_double_up_to_the_longest() -> None:
    waits = [wait_s(attempts) for attempts in range(1, 12)]
    assert waits[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert waits == sorted(waits)
    assert waits[-1] == wait_s(10**9) == LONGEST_S


def test_it_is_given_up_after_a_week() -> None:
    assert not is_given_up(GIVEN_UP_S - 1.0)
    assert is_given_up(GIVEN_UP_S)
