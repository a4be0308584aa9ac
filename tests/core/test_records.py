"""Every record that was read is accounted for."""

from __future__ import annotations

import pytest

from headgate.core.records import NOTHING, Totals, add
from headgate.core.streams import Progress, agree


def test_batches_add_up() -> None:
    totals = add(add(NOTHING, Totals(10, 7, 2, 1)), Totals(5, 0, 0, 5, 5))
    assert totals == Totals(15, 7, 2, 6, 5)
    assert totals.is_lawful


@pytest.mark.parametrize("batch", [Totals(1), Totals(1, 1, 1), Totals(2, 1, 0, 0), Totals(1, 1, 0, 0, 1)])
def test_a_batch_that_lost_or_made_up_a_record_stops_the_stream(batch: Totals) -> None:
    with pytest.raises(AssertionError, match="does not add up"):
        add(NOTHING, batch)


def test_totals_follow_the_higher_number_of_commits_whoever_wins_the_position() -> None:
    registry, sink = Progress(1, 5, "edited", Totals(5, 5)), Progress(0, 7, "old", Totals(7, 7))
    assert agree(registry, sink) == Progress(1, 7, "edited", Totals(7, 7))
    assert agree(Progress(1, 9, "b", Totals(9, 9)), Progress(1, 7, "a", Totals(7, 7))).totals == Totals(9, 9)


def test_a_sink_that_has_kept_no_totals_does_not_reset_them() -> None:
    assert agree(Progress(0, 5, "a", Totals(5, 5)), Progress(0, 7, "b")).totals == Totals(5, 5)
