"""Points of a chart: what moved, what did not, and where nobody said anything."""

from __future__ import annotations

from headgate.core.minutes import RANGES, Point, history, last_minute


def test_what_was_reported_and_did_not_move_is_zero_and_what_was_not_is_a_gap() -> None:
    points = [
        Point(-1, read=9, backlog=7),
        Point(1, read=5, written=3, dead_lettered=1, bytes=50, backlog=4, lag_s=1.5),
    ]
    found = history(points, frozenset({0, 1, 2}), 4)
    assert list(found.read) == [0, 5, 0, None]
    assert list(found.filtered) == [0, 1, 0, None]
    assert list(found.lag_s) == [0.0, 1.5, 0.0, None]
    assert list(found.backlog) == [7, 4, 4, None]  # It waits until a line says otherwise.


def test_a_point_is_shown_even_if_the_mark_of_its_minute_is_missing() -> None:
    assert list(history([Point(0, read=1)], frozenset(), 2).read) == [1, None]


def test_the_last_point_is_the_last_minute_that_was_reported_unless_nobody_reports() -> None:
    assert last_minute(1200.0, None) == 1140
    assert last_minute(1203.0, 1080.0) == 1080  # The nodes are about to write the next one.
    assert last_minute(1210.0, 1140.0) == 1140
    assert last_minute(1900.0, 1140.0) == 1800
    assert last_minute(1200.0, 1260.0) == 1260  # A clock that was put back: time stands still.


def test_every_range_has_few_points_and_none_is_longer_than_what_is_kept() -> None:
    assert all(one.points <= 200 and one.minutes <= 7 * 24 * 60 for one in RANGES.values())
