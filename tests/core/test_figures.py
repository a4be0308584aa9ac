"""What people see of a stream: totals, rates, lag and backlog, put together for one moment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headgate.core.figures import (
    STALE_S,
    Backlog,
    Figures,
    InboxBacklog,
    Reported,
    Sample,
    figures,
    lag_s,
    rates,
    sampled,
    together,
)
from headgate.core.records import Totals

BEFORE, LAST = Sample(100.0, 1000, 900), Sample(105.0, 1500, 1300)
NOW = Totals(1700, 1500, 150, 50)


# Rates.


def test_a_rate_is_the_difference_of_the_holders_two_samples() -> None:
    """Whatever the totals are by now: all who look see the same."""
    assert rates(NOW, (BEFORE, LAST), 106.0) == (100.0, 80.0)
    assert rates(replace(NOW, read=9999), (BEFORE, LAST), 109.0) == (100.0, 80.0)


def test_once_the_samples_are_old_the_totals_of_now_are_compared_with_the_last() -> None:
    at_s = LAST.at_s + STALE_S + 3.0
    assert rates(Totals(1500, 1300), (BEFORE, LAST), at_s) == (0.0, 0.0)
    assert rates(NOW, (BEFORE, LAST), at_s) == (20.0, 20.0)


def test_a_stream_that_has_just_begun_has_a_rate_after_a_second_and_no_spike_before() -> None:
    begun = (Sample(100.0, 5_000_000, 5_000_000),)
    assert rates(Totals(5_000_010, 5_000_010), begun, 100.5) == (None, None)
    assert rates(Totals(5_000_020, 5_000_010), begun, 102.0) == (10.0, 5.0)
    assert rates(NOW, (), 100.0) == (None, None)


def test_a_registry_that_went_back_in_time_makes_no_rate_negative() -> None:
    assert rates(Totals(10, 10), (LAST,), LAST.at_s + 10.0) == (0.0, 0.0)


def test_what_does_not_run_has_no_rate() -> None:
    found = figures(NOW, Reported(samples=(BEFORE, LAST)), 106.0, moves=False)
    assert (found.read_per_s, found.written_per_s) == (0.0, 0.0)


def test_two_samples_are_kept_and_a_stream_at_rest_needs_no_third() -> None:
    first = sampled((), Totals(5, 5), 1.0)
    second = sampled(first, Totals(5, 5), 6.0)
    assert second == (Sample(1.0, 5, 5), Sample(6.0, 5, 5))
    assert sampled(second, Totals(5, 5), 11.0) == second
    assert sampled(second, Totals(6, 5), 11.0) == (Sample(6.0, 5, 5), Sample(11.0, 6, 5))


# Lag.


def test_lag_grows_while_a_record_is_in_hand_and_is_nothing_when_none_is() -> None:
    blocked = Reported(waiting_since_s=100.0, waiting_above=1700)
    assert [lag_s(NOW, blocked, at_s) for at_s in (101.0, 200.0)] == [1.0, 100.0]
    assert lag_s(NOW, Reported(), 200.0) == 0.0


def test_once_more_records_are_durable_the_lag_is_what_it_was() -> None:
    """The report is some seconds old, and the stream has moved since."""
    old = Reported(waiting_since_s=95.0, waiting_above=1500, samples=(BEFORE, LAST))
    assert lag_s(NOW, old, 109.0) == 10.0
    assert lag_s(NOW, replace(old, samples=()), 109.0) == 0.0


def test_of_a_webhook_the_oldest_payload_that_was_not_read_counts() -> None:
    reported = Reported(waiting_since_s=1.0, waiting_above=1700)
    assert lag_s(NOW, reported, 200.0, InboxBacklog(3, 30, 140.0)) == 60.0
    assert lag_s(NOW, reported, 200.0, InboxBacklog(0, 0, None)) == 0.0


# All of it.


def test_the_inbox_knows_the_backlog_better_than_the_source() -> None:
    reported = Reported(backlog=Backlog(5, None))
    found = figures(NOW, reported, 200.0, moves=True)
    assert (found.backlog_records, found.backlog_bytes) == (5, None)
    found = figures(NOW, reported, 200.0, moves=True, inbox=InboxBacklog(3, 30, 140.0))
    assert (found.backlog_records, found.backlog_bytes) == (3, 30)
    assert figures(NOW, Reported(), 200.0, moves=True).backlog_records is None


def test_the_figures_of_a_datasource_are_those_of_all_its_streams() -> None:
    one = Figures(records_read=5, records_written=5, read_per_s=1.0, written_per_s=1.0, lag_s=3.0, last_record_at_s=9.0)
    other = Figures(records_read=2, records_filtered=2, backlog_records=7, lag_s=9.0, last_write_s=0.5)
    found = together([one, other], Totals(100, 90, 6, 4, 1))
    assert (found.records_read, found.records_written, found.records_filtered) == (107, 95, 8)
    assert (found.records_dead_lettered, found.records_skipped) == (4, 1)
    assert (found.read_per_s, found.lag_s, found.backlog_records, found.last_record_at_s) == (1.0, 9.0, 7, 9.0)


@pytest.mark.parametrize(("known", "expected"), [([], 0.0), ([None], None), ([None, 2.0], 2.0)])
def test_a_rate_that_nobody_knows_is_not_nothing(known: list[float | None], expected: float | None) -> None:
    assert together([Figures(read_per_s=one) for one in known]).read_per_s == expected
