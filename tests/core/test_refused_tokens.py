"""When failures are written down."""

from __future__ import annotations

from headgate.core.failures import Tally, failed, written


def events(times_s: list[float]) -> list[float]:
    """When failures at these times are written down, by a loop that looks at each of them and at the end."""
    tally, found = Tally(), []
    for now_s in times_s:
        while tally.due_s is not None and tally.due_s <= now_s:
            found.append(tally.due_s)
            tally = written(tally, tally.due_s)
        tally = failed(tally, now_s)
    if tally.due_s is not None:
        found.append(tally.due_s)
    return found


def test_one_failure_is_one_event_a_second_later() -> None:
    assert events([100.0]) == [101.0]


def test_a_flood_is_one_event_and_then_one_a_minute_and_one_an_hour() -> None:
    flood = [100.0 + number / 10 for number in range(20_000)]  # 2,000 s.
    assert len(events(flood)) == 3


def test_after_a_quiet_time_the_next_failure_is_told_soon_again() -> None:
    assert events([100.0, 10_000.0]) == [101.0, 10_001.0]
