"""When streams may be moved, and when one is taken from a holder that does not let go."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from headgate.core.lifecycle import STOP_S
from headgate.core.patience import (
    WAIT_OUT_S,
    Patience,
    StandingOrder,
    may_move,
    overdue,
    seen,
    takes_in_s,
    vanished,
)

NODE, STREAM = UUID(int=1), UUID(int=2)
ORDER = StandingOrder(STREAM, NODE, epoch=5, lease_s=3.0)


@pytest.mark.parametrize(("later_s", "expected"), [(0.0, False), (WAIT_OUT_S, False), (WAIT_OUT_S + 0.1, True)])
def test_nothing_moves_until_a_node_that_vanished_had_time_to_come_back(later_s: float, expected: bool) -> None:
    assert may_move(Patience(), [], 0.0), "at the start nobody has vanished"
    assert may_move(vanished(Patience(), 100.0), [], 100.0 + later_s) == expected


def test_nothing_moves_while_a_node_is_silent() -> None:
    assert not may_move(Patience(), [NODE], 100.0)


def test_a_stream_is_taken_when_its_holder_had_time_to_stop_and_its_lease_has_passed() -> None:
    patience = seen(Patience(), [ORDER], 100.0)
    assert takes_in_s(patience, ORDER.key, ORDER.lease_s, 100.0) == STOP_S + 3.0
    assert overdue(patience, [ORDER], 100.0 + STOP_S + 2.9) == []
    assert overdue(patience, [ORDER], 100.0 + STOP_S + 3.0) == [ORDER]


def test_the_count_begins_when_the_order_is_first_seen_and_not_again() -> None:
    patience = seen(seen(Patience(), [ORDER], 100.0), [ORDER], 105.0)
    assert patience.orders == {ORDER.key: 100.0}


def test_an_order_that_was_carried_out_is_forgotten() -> None:
    patience = seen(seen(Patience(), [ORDER], 100.0), [], 101.0)
    assert takes_in_s(patience, ORDER.key, 3.0, 101.0) is None
    assert overdue(patience, [ORDER], 1000.0) == [], "never seen, never taken"


def test_an_order_about_a_newer_grant_is_another_one() -> None:
    newer = replace(ORDER, epoch=6)
    patience = seen(seen(Patience(), [ORDER], 100.0), [newer], 110.0)
    assert patience.orders == {newer.key: 110.0}


def test_a_node_that_vanished_does_not_make_the_orders_younger() -> None:
    assert vanished(seen(Patience(), [ORDER], 100.0), 105.0).orders == {ORDER.key: 100.0}
