"""What a node knows of a stream that it runs: what is in hand, and since when."""

from __future__ import annotations

import pytest

from headgate.connectors.api import Backlog, Batch
from headgate.core.records import Totals
from headgate.runtime.streams import stats as module
from headgate.runtime.streams.stats import Stats


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The present, to be set."""
    now_s = [1000.0]
    monkeypatch.setattr(module, "unix_s", lambda: now_s[0])
    return now_s


def batch(at_s: float | None = None) -> Batch:
    return Batch([1, 2], position=1, size_bytes=10, event_time_s=at_s)


def test_the_oldest_record_in_hand_is_that_of_the_batch_being_written(clock: list[float]) -> None:
    stats = Stats()
    stats.reads()
    stats.has_read(batch(990.0))
    stats.writes()
    stats.reads()
    stats.has_read(batch(995.0))
    assert (stats.waiting_since_s, stats.reading_since_s) == (990.0, None)
    clock[0] = 1003.0
    stats.committed(batch(990.0), 2, 0.5)
    assert (stats.waiting_since_s, stats.writing_since_s, stats.last_event_delay_s) == (995.0, None, 13.0)
    stats.writes()
    stats.committed(batch(995.0), 2, 0.5)
    assert stats.waiting_since_s is None
    assert (stats.bytes_in, stats.batches, stats.write_s) == (20, 2, 1.0)


def test_a_record_that_says_no_time_is_as_old_as_its_reading(clock: list[float]) -> None:
    stats = Stats()
    stats.has_read(batch())
    assert stats.waiting_since_s == 1000.0


def test_a_failed_batch_waits_on_through_the_tries_that_follow(clock: list[float]) -> None:
    stats = Stats()
    stats.has_read(batch())
    stats.writes()
    stats.fails()
    clock[0] = 1060.0
    stats.has_read(batch())
    assert (stats.waiting_since_s, stats.writing_since_s, stats.errors) == (1000.0, None, 1)
    stats.writes()
    stats.committed(batch(), 2, 0.1)
    assert stats.waiting_since_s is None


def test_nothing_waits_after_an_end_in_good_order(clock: list[float]) -> None:
    stats = Stats()
    stats.has_read(batch())
    stats.sees(Backlog(5))
    stats.rests()
    found = stats.reported(Totals(5, 5))
    assert (found.waiting_since_s, found.backlog, found.waiting_above) == (None, None, 0)


def test_the_next_node_goes_on_counting_where_the_last_one_left_off(clock: list[float]) -> None:
    stats = Stats()
    stats.opened(Totals(10, 10))
    stats.has_read(batch(990.0))
    stats.fails()
    taken_over = Stats.after(stats.reported(Totals(10, 10)))
    clock[0] = 1002.0
    found = taken_over.reported(Totals())  # It has not acquired the stream yet.
    assert (found.errors, found.waiting_since_s, found.waiting_above) == (1, 990.0, 10)
    assert found.samples == stats.samples
    assert Stats.after(None).reported(Totals()) == Stats().reported(Totals())


def test_a_backlog_counts_from_when_it_was_first_seen_during_one_read(clock: list[float]) -> None:
    stats = Stats()
    stats.reads()
    stats.sees(Backlog(0))
    assert stats.backlog_since_s is None
    clock[0] = 1100.0
    stats.sees(Backlog(3))
    clock[0] = 1110.0
    stats.sees(Backlog(4))
    assert stats.backlog_since_s == 1100.0
    stats.has_read(batch())
    assert stats.backlog_since_s is None


def test_a_run_that_begins_long_after_the_last_one_is_compared_with_its_own_beginning(clock: list[float]) -> None:
    stats = Stats()
    stats.opened(Totals(10, 10))
    clock[0] = 1003.0
    stats.opened(Totals(20, 20))
    assert [one.read for one in stats.samples] == [10]
    clock[0] = 5000.0
    stats.opened(Totals(30, 30))
    assert [(one.at_s, one.read) for one in stats.samples] == [(5000.0, 30)]


def test_a_minute_has_what_was_read_in_it_and_the_longest_lag_also_of_what_still_waits(clock: list[float]) -> None:
    stats = Stats.after(Stats(bytes_in=1000).reported(Totals()))
    stats.has_read(batch(990.0))
    stats.writes()
    clock[0] = 1004.0
    stats.committed(batch(990.0), 2, 0.5)
    stats.has_read(batch(1003.0))
    assert stats.minute() == (10, 14.0)
    assert stats.minute() == (0, 1.0)
    clock[0] = 1064.0
    assert stats.minute() == (0, 61.0)
