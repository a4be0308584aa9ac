"""What a node sends to its consumers and what it echoes, and when an observer gives a consumer up."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from headgate.core.groups import deadlines, delivery
from headgate.core.groups.deadlines import FORGOTTEN_S, Silent, observed, request_of
from headgate.core.groups.delivery import ADRIFT_S, ANSWER_S, JOINING_S, LEASE_S, RESEND_S, Link, Order
from headgate.core.groups.machine import DisconnectedTimeout
from headgate.core.groups.requests import Bury, ConnectionEnded, Drop, Joined

A, B, GROUP, OTHER = UUID(int=1), UUID(int=2), UUID(int=100), UUID(int=101)
TRUSTED_S = 1.0


def place(consumer: UUID = A, incarnation: int = 0, lease_s: float = 5.0, muted: bool = False) -> Joined:
    return Joined(consumer, GROUP, incarnation, lease_s, muted)


def link(*places: Joined, at_s: float = 0.0) -> Link:
    found = Link()
    for one in places or (place(),):
        found = delivery.joined(found, one, at_s)
    return found


# Echoes.


def test_beats_are_echoed_unless_a_consumer_is_muted_or_the_connection_is_over_or_the_node_has_no_trust() -> None:
    assert link().may_echo(TRUSTED_S)
    assert not link().may_echo(0.0)
    assert not replace(link(), is_over=True).may_echo(TRUSTED_S)
    shared = link(place(A), place(B, muted=True))
    assert not shared.may_echo(TRUSTED_S)
    assert delivery.without(shared, B).may_echo(TRUSTED_S)


def test_the_longest_lease_of_a_connection_counts() -> None:
    assert Link().lease_s == LEASE_S
    assert link(place(A, lease_s=3.0), place(B, lease_s=7.0)).lease_s == 7.0


def test_a_connection_is_not_silent_while_consumers_join_on_it() -> None:
    """A thousand joins that come at once take longer than a lease, and the first beat is sent after them."""
    found = delivery.joined(link(place(A), at_s=0.0), place(B), 4.0)
    assert not found.is_silent(9.0)
    assert found.is_silent(9.1)


@pytest.mark.parametrize(
    ("has_more", "now_s", "may_have"),
    [(True, 30.0, True), (False, 30.0, False), (True, 20.0 + JOINING_S, False)],
)
def test_an_answer_may_have_come_while_there_is_more_to_read_but_not_for_long(
    has_more: bool, now_s: float, may_have: bool
) -> None:
    found = delivery.joined(link(place(A), at_s=20.0), place(B), 25.0)
    assert delivery.may_have_answered(found, has_more, now_s) is may_have


def test_an_order_whose_answer_may_wait_to_be_read_is_sent_again_and_mutes_nobody() -> None:
    sent, _ = delivery.due_orders({}, [order()], {A: 0}, 0.0)
    sent, due = delivery.due_orders(sent, [order()], {A: 0}, ANSWER_S + 1.0, {A})
    assert due == [("send", order())]
    _, due = delivery.due_orders(sent, [order()], {A: 0}, 2 * ANSWER_S + 1.0)
    assert due == [("send", order())]
    _, due = delivery.due_orders(sent, [order()], {A: 0}, 2 * ANSWER_S + 1.1)
    assert due == [("mute", order())]


def test_the_end_of_a_connection_is_proof_only_if_no_beat_was_echoed_for_a_lease() -> None:
    for now_s, is_proved in ((5.0, False), (5.1, True)):
        left, ends = delivery.ended(link(place(A, 3), place(B, 4)), now_s)
        assert ends == [(GROUP, ConnectionEnded(A, 3, is_proved)), (GROUP, ConnectionEnded(B, 4, is_proved))]
        assert left.is_over
        assert not left.consumers
        assert delivery.ended(left, now_s)[1] == []


def test_an_end_that_the_program_makes_itself_is_passed_on_as_such() -> None:
    _, ends = delivery.ended(link(place(A, 3)), 5.0, is_own=True)
    assert ends == [(GROUP, ConnectionEnded(A, 3, is_proved=False, is_own=True))]


# Orders.


def order(incarnation: int = 0, epoch: int = 1, is_active: bool = True, consumer: UUID = A) -> Order:
    return Order(consumer, GROUP, is_active, epoch, incarnation, None)


def test_an_order_is_sent_at_once_and_then_again_until_it_is_answered() -> None:
    sent, due = delivery.due_orders({}, [order()], {A: 0}, 0.0)
    assert due == [("send", order())]
    sent, due = delivery.due_orders(sent, [order()], {A: 0}, RESEND_S - 0.1)
    assert due == []
    sent, due = delivery.due_orders(sent, [order()], {A: 0}, RESEND_S)
    assert due == [("send", order())]
    sent, due = delivery.due_orders(sent, [order()], {A: 0}, RESEND_S + 0.1)
    assert due == []
    assert delivery.due_orders(sent, [], {A: 0}, 3.0) == ({}, [])


def test_a_consumer_that_has_not_answered_for_too_long_is_muted() -> None:
    sent, _ = delivery.due_orders({}, [order()], {A: 0}, 0.0)
    sent, due = delivery.due_orders(sent, [order()], {A: 0}, ANSWER_S)
    assert due == [("send", order())]
    sent, due = delivery.due_orders(sent, [order()], {A: 0}, ANSWER_S + 0.1)
    assert due == [("mute", order())]
    assert delivery.due_orders(sent, [order()], {A: 0}, ANSWER_S + 5.0)[1] == [("mute", order())], (
        "until the rows say so"
    )


def test_each_order_has_its_own_time() -> None:
    sent, _ = delivery.due_orders({}, [order()], {A: 0}, 0.0)
    stepping = order(is_active=False)
    _, due = delivery.due_orders(sent, [stepping, order(epoch=2)], {A: 0}, ANSWER_S + 0.1)
    assert due == [("send", stepping), ("send", order(epoch=2))]


def test_an_order_for_another_connection_is_left_alone_and_its_time_runs_on() -> None:
    for here in ({}, {A: 1}, {B: 0}):
        assert delivery.due_orders({}, [order()], here, 0.0) == ({}, [])
    sent, _ = delivery.due_orders({}, [order()], {A: 0}, 0.0)
    away, due = delivery.due_orders(sent, [order(1)], {A: 0}, ANSWER_S + 0.1)
    assert due == []
    assert delivery.due_orders(away, [order(1)], {A: 1}, ANSWER_S + 0.2)[1] == [("mute", order(1))]


# What the rows say.


def test_a_consumer_that_was_dropped_or_is_elsewhere_is_replaced() -> None:
    connected = {A: (GROUP, 1), B: (GROUP, 1)}
    assert delivery.replaced(connected, connected) == []
    assert delivery.replaced(connected, {A: (GROUP, 1)}) == [B]
    assert delivery.replaced(connected, {A: (GROUP, 2), B: (OTHER, 1)}) == [A, B]


def test_a_consumer_that_is_here_in_the_rows_only_is_silent_after_a_while() -> None:
    rows = {A: (GROUP, 1), B: (GROUP, 0)}
    seen, overdue = delivery.adrift({}, {B}, rows, 0.0)
    assert overdue == []
    seen, overdue = delivery.adrift(seen, {B}, rows, ADRIFT_S)
    assert overdue == []
    assert delivery.adrift(seen, {B}, rows, ADRIFT_S + 0.1)[1] == [(GROUP, ConnectionEnded(A, 1, is_proved=False))]
    assert delivery.adrift(seen, {B}, {A: (GROUP, 2)}, ADRIFT_S + 0.1)[1] == [], "that is another connection"
    assert delivery.adrift(seen, {A, B}, rows, ADRIFT_S + 0.1) == ({}, [])


# Deadlines.


SILENT = Silent(A, GROUP, "disconnected", 3, 7, muted=False, lease_s=5.0, trust_s=2.0)


@pytest.mark.parametrize(
    ("one", "what", "within_s"),
    [
        (SILENT, "forget", 5.0),
        (replace(SILENT, has_node=False), "forget", 7.0),
        (replace(SILENT, connectivity="forgotten"), "bury", FORGOTTEN_S),
        (replace(SILENT, connectivity="forgotten", has_node=False), "bury", 5.0),
        (replace(SILENT, connectivity="connected", muted=True), "drop", 5.0),
    ],
)
def test_a_deadline_is_counted_from_the_first_look_of_this_observer(
    one: Silent, what: deadlines.What, within_s: float
) -> None:
    seen, due = observed({}, [one], 100.0)
    assert due == []
    assert deadlines.left_s(seen, one, 101.0) == within_s - 1.0
    seen, due = observed(seen, [one], 100.0 + within_s)
    assert due == []
    assert observed(seen, [one], 100.1 + within_s)[1] == [(what, one)]


def test_another_silence_and_another_order_have_another_deadline() -> None:
    seen, _ = observed({}, [SILENT], 0.0)
    assert observed(seen, [replace(SILENT, incarnation=4)], 6.0)[1] == []
    unanswered = replace(SILENT, connectivity="connected", muted=True)
    seen, _ = observed({}, [unanswered], 0.0)
    assert observed(seen, [replace(unanswered, epoch=8)], 6.0)[1] == []
    assert observed(seen, [], 6.0) == ({}, [])


def test_a_request_names_what_was_timed() -> None:
    assert request_of("forget", SILENT) == DisconnectedTimeout(str(A), 3)
    assert request_of("drop", SILENT) == Drop(A, 7)
    assert request_of("bury", SILENT) == Bury(A, 3)
