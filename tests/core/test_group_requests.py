"""Requests to a group: each names what it is about, and does nothing once that is over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from msgspec.structs import replace

from headgate.core.groups import requests
from headgate.core.groups.machine import (
    Confirm,
    ConnectionDisconnected,
    DisconnectedTimeout,
    Group,
    Ok,
    Refused,
    Unregister,
)
from headgate.core.groups.requests import (
    MOST_CONSUMERS,
    Answered,
    Bury,
    ConnectionEnded,
    Drop,
    DropSilent,
    Join,
    Joined,
    Mute,
    Outcome,
    Rejoin,
    Request,
    StillBelieving,
    carry_out,
)
from headgate.core.groups.roster import Roster

GROUP, NODE, OTHER = UUID(int=100), UUID(int=200), UUID(int=201)
A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)
START = datetime(2026, 1, 1, tzinfo=UTC)
EMPTY = Roster(GROUP, "invoices", "group", 30.0, Group(), {})


def join(consumer: UUID, partition: int | None = None, lease_s: float = 10.0, *, is_fenced: bool = False) -> Join:
    return Join(consumer, NODE, 5.0, partition, f"consumer {consumer.int}", lease_s, is_fenced)


def back(consumer: UUID, name: str = "group", *, is_fenced: bool = False) -> Rejoin:
    return Rejoin(consumer, OTHER, 6.0, "invoices", name, is_fenced)


def after(*asked: Request, roster: Roster = EMPTY, at_s: float = 0.0) -> Outcome:
    return carry_out(roster, asked, START + timedelta(seconds=at_s))


def statuses(outcome: Outcome) -> dict[int, str]:
    return {UUID(c.id).int: f"{c.connectivity} {c.activity}" for c in outcome.roster.group.consumers}


def answered(outcome: Outcome, consumer: UUID = A) -> bool:
    return outcome.roster.seats[str(consumer)].answered


def muted(outcome: Outcome, consumer: UUID = A) -> bool:
    return outcome.roster.seats[str(consumer)].muted


def unchanged(before: Outcome, *asked: Request) -> bool:
    return after(*asked, roster=before.roster).roster == before.roster


# One that was told to step down, and the one that follows it.
STEPPING = (join(A, 1), Answered(A, 1), join(B, 1))


# Joining.


def test_the_first_consumer_decides_the_lease_and_the_partition_and_each_has_the_next_number() -> None:
    found = after(join(A, 1, 7.0), join(B, 1, 9.0), join(C, 2))
    assert found.roster.lease_s == 7.0
    assert found.roster.group.partition == 1
    assert {id: seat.number for id, seat in found.roster.seats.items()} == {str(A): 1, str(B): 2}
    assert found.replies[:2] == (Joined(A, GROUP, 0, 7.0, muted=False), Joined(B, GROUP, 0, 7.0, muted=False))
    assert found.replies[2] == Refused("partition_index_conflict")


def test_a_group_is_full_at_a_thousand_and_a_return_is_no_join() -> None:
    ids = [UUID(int=n + 1) for n in range(MOST_CONSUMERS)]
    few = after(*map(join, ids[:3])).roster
    full = replace(few, seats={str(id): replace(few.seats[str(A)], number=n) for n, id in enumerate(ids)})
    again = after(join(UUID(int=5000)), back(A), roster=full)
    assert again.replies[0] == Refused("too_many")
    assert isinstance(again.replies[1], Joined)


def test_a_group_that_became_empty_takes_another_partition_and_lease_and_its_epochs_rise_on() -> None:
    emptied = after(join(A, 1), Unregister(str(A)))
    again = after(join(B, None, 3.0), roster=emptied.roster)
    assert (again.roster.group.partition, again.roster.lease_s, again.roster.group.epoch) == (None, 3.0, 2)


def test_the_first_epoch_is_above_those_of_all_groups_that_were_removed() -> None:
    assert after(join(A), roster=replace(EMPTY, epoch_floor=41)).roster.group.epoch == 42
    assert after(join(A), join(B), roster=replace(EMPTY, epoch_floor=41)).roster.group.epoch == 42


def test_a_return_has_a_higher_incarnation_and_another_node_even_if_nobody_noticed_the_loss() -> None:
    found = after(join(A), back(A))
    assert found.replies[-1] == Joined(A, GROUP, 1, 10.0, muted=False)
    assert statuses(found) == {1: "connected active"}
    seat = found.roster.seats[str(A)]
    assert (seat.node, seat.trust_s, seat.number) == (OTHER, 6.0, 1)


def test_a_stranger_and_one_of_another_group_do_not_come_back() -> None:
    joined = after(join(A))
    for request in (back(B), back(A, "another")):
        found = after(request, roster=joined.roster)
        assert found.replies == (Refused("not_found"),)
        assert found.roster == joined.roster


# Answers.


def test_an_order_is_unanswered_until_its_answer_comes() -> None:
    told = after(join(A))
    assert not answered(told)
    assert answered(after(Answered(A, 1), roster=told.roster))
    stepping = after(*STEPPING)
    assert not answered(stepping)
    done = after(Confirm(str(A), 1), roster=stepping.roster)
    assert answered(done)
    assert statuses(done) == {1: "connected waiting", 2: "connected active"}


def test_an_answer_of_a_stranger_or_to_another_epoch_is_counted_and_answers_nothing() -> None:
    told = after(join(A), join(B))
    for request in (Answered(C, 1), Answered(A, 2), Answered(B, 1), Answered(B, 0)):
        found = after(request, roster=told.roster)
        assert found.replies == (Refused("stale"),)
        assert found.roster == replace(told.roster, group=replace(told.roster.group, ignored=1))


def test_an_answer_to_an_order_that_another_one_has_followed_answers_nothing() -> None:
    found = after(*STEPPING, Mute(A, 1, 0), Answered(A, 1))
    assert found.replies[-1] == Refused("stale")
    assert not answered(found)
    assert muted(found)


# Consumers that do not answer.


def test_one_that_left_an_order_unanswered_is_muted_until_it_answers() -> None:
    found = after(*STEPPING, Mute(A, 1, 0))
    assert muted(found)
    assert muted(after(back(A), roster=found.roster)), "coming back is no answer"
    assert after(back(A), roster=found.roster).replies == (Joined(A, GROUP, 1, 10.0, muted=True),)
    assert not muted(after(Confirm(str(A), 1), roster=found.roster))
    told = after(join(A), Mute(A, 1, 0))
    assert muted(told)
    assert not muted(after(Answered(A, 1), roster=told.roster))


def test_one_that_has_answered_or_come_back_since_is_not_muted() -> None:
    assert unchanged(after(join(A), Answered(A, 1)), Mute(A, 1, 0))
    assert unchanged(after(*STEPPING, back(A)), Mute(A, 1, 0)), "its new node echoes its beats"
    assert unchanged(after(*STEPPING), Mute(A, 2, 0), Mute(C, 1, 0))


def test_one_that_was_muted_for_a_lease_is_dropped_unless_it_has_answered() -> None:
    silenced = after(*STEPPING, Mute(A, 1, 0))
    assert statuses(after(Drop(A, 1), roster=silenced.roster)) == {2: "connected active"}
    assert unchanged(silenced, Drop(A, 2), Drop(C, 1))
    assert unchanged(after(*STEPPING), Drop(A, 1)), "it was never muted"
    assert unchanged(after(Confirm(str(A), 1), roster=silenced.roster), Drop(A, 1))


# Going.


def test_the_end_of_a_connection_makes_its_consumer_silent_and_proof_drops_it() -> None:
    joined = after(join(A), join(B))
    assert statuses(after(ConnectionEnded(A, 0, False), roster=joined.roster)) == {
        1: "disconnected active",
        2: "connected waiting",
    }
    assert statuses(after(ConnectionEnded(A, 0, True), roster=joined.roster)) == {2: "connected active"}


def test_the_end_of_an_earlier_connection_changes_nothing() -> None:
    returned = after(join(A), back(A))
    for is_proved in (False, True):
        assert unchanged(returned, ConnectionEnded(A, 0, is_proved), ConnectionEnded(C, 0, is_proved))


# Fenced groups.


def test_in_a_fenced_group_the_end_that_a_program_makes_itself_is_its_end_and_no_other_is() -> None:
    fenced = after(join(A, is_fenced=True), join(B, is_fenced=True))
    own, other = ConnectionEnded(A, 0, False, is_own=True), ConnectionEnded(A, 0, False)
    assert statuses(after(own, roster=fenced.roster)) == {2: "connected active"}
    assert after(own, roster=fenced.roster).roster.group.epoch == 2
    assert statuses(after(other, roster=fenced.roster)) == {1: "disconnected active", 2: "connected waiting"}
    plain = after(join(A), join(B))
    assert statuses(after(own, roster=plain.roster)) == {1: "disconnected active", 2: "connected waiting"}


def test_the_own_end_of_an_earlier_connection_changes_nothing() -> None:
    returned = after(join(A, is_fenced=True), back(A, is_fenced=True))
    assert unchanged(returned, ConnectionEnded(A, 0, False, is_own=True))


def test_the_consumers_of_a_group_are_all_fenced_or_none_is() -> None:
    for is_fenced in (True, False):
        group = after(join(A, is_fenced=is_fenced))
        assert group.roster.group.is_fenced == is_fenced
        found = after(join(B, is_fenced=not is_fenced), back(A, is_fenced=not is_fenced), roster=group.roster)
        assert found.replies == (Refused("fenced_conflict"), Refused("not_found"))
        assert found.roster == group.roster


def test_a_group_that_became_empty_may_be_fenced_from_then_on() -> None:
    found = after(join(A), Unregister(str(A)), join(B, is_fenced=True))
    assert found.roster.group.is_fenced
    assert statuses(found) == {2: "connected active"}


def test_one_that_was_fenced_stays_so_when_it_is_empty() -> None:
    """Its last consumer may still believe: nobody may follow that relies on being the only one."""
    empty = after(join(A, is_fenced=True), ConnectionEnded(A, 0, False, is_own=True))
    found = after(join(B), roster=empty.roster)
    assert found.replies == (Refused("fenced_conflict"),)
    assert found.roster == empty.roster
    assert statuses(after(join(B, is_fenced=True), roster=empty.roster)) == {2: "connected active"}


def test_a_forgotten_consumer_is_buried_and_one_that_came_back_is_not() -> None:
    forgotten = after(join(A), join(B), ConnectionEnded(A, 0, False), DisconnectedTimeout(str(A), 1))
    assert statuses(after(Bury(A, 1), roster=forgotten.roster)) == {2: "connected active"}
    returned = after(back(A), Unregister(str(B)), roster=forgotten.roster)
    assert statuses(returned) == {1: "connected deactivating"}
    assert unchanged(returned, Bury(A, 1), Bury(C, 1))
    gone_again = after(ConnectionEnded(A, 1, False), DisconnectedTimeout(str(A), 2), roster=returned.roster)
    assert statuses(gone_again) == {1: "forgotten deactivating"}
    assert unchanged(gone_again, Bury(A, 1)), "it was forgotten for another silence"


def test_an_operator_must_force_the_end_of_one_that_may_still_believe() -> None:
    silent = after(join(A), join(B), join(C), ConnectionEnded(A, 0, False), ConnectionEnded(B, 0, False))
    asked = after(DropSilent(is_forced=False), roster=silent.roster)
    assert asked.replies == (StillBelieving((A,)),)
    assert asked.roster == silent.roster
    assert statuses(after(DropSilent(is_forced=True), roster=silent.roster)) == {3: "connected active"}
    waiting = after(join(A), join(B), ConnectionEnded(B, 0, False))
    assert statuses(after(DropSilent(is_forced=False), roster=waiting.roster)) == {1: "connected active"}


# What people see.


def test_what_happened_names_the_command_its_consumer_and_the_orders_that_follow() -> None:
    first, _, third = after(join(A), join(B), Unregister(str(A)), at_s=1.5).transitions
    assert (first.what, first.who, first.told) == ("register", "consumer 1", (("active", "consumer 1", 1),))
    assert (third.what, third.who, third.told) == ("unregister", "consumer 1", (("active", "consumer 2", 2),))
    assert third.at == "2026-01-01T00:00:01.500+00:00"


def test_what_changes_nothing_did_not_happen() -> None:
    joined = after(join(A))
    again = after(ConnectionDisconnected(str(C)), ConnectionEnded(A, 7, True), Answered(A, 1), roster=joined.roster)
    assert again.transitions == ()


def test_a_group_is_vacant_from_the_loss_of_its_active_consumer_until_the_next_one_has_confirmed() -> None:
    begun = after(join(A), join(B), Answered(A, 1))
    assert begun.handed_over_s is None, "the first one follows nobody"
    lost = after(ConnectionEnded(A, 0, True), roster=begun.roster, at_s=10.0)
    assert lost.roster.vacant_since == START + timedelta(seconds=10)
    found = after(Mute(B, 2, 0), Answered(B, 2), roster=lost.roster, at_s=13.0)
    assert found.replies[-1] == Ok()
    assert found.handed_over_s == 3.0
    assert found.roster.vacant_since is None
    assert after(Unregister(str(B)), roster=found.roster).roster.vacant_since is None, "an empty group is not vacant"


def test_a_silence_counts_as_vacant_if_its_consumer_confirms_again() -> None:
    lost = after(join(A), Answered(A, 1), ConnectionEnded(A, 0, False))
    assert lost.roster.vacant_since == START
    returned = after(back(A), roster=lost.roster, at_s=4.0)
    assert returned.roster.vacant_since == START


def test_several_requests_are_carried_out_one_after_another() -> None:
    one_by_one = EMPTY
    for request in (*STEPPING, Confirm(str(A), 1), Answered(B, 2)):
        one_by_one = requests.step(one_by_one, request, START).roster
    whole = after(*STEPPING, Confirm(str(A), 1), Answered(B, 2))
    assert whole.roster == one_by_one
    assert len(whole.replies) == 5
    assert whole.handed_over_s == 0.0


def test_a_consumer_that_is_granted_again_by_its_own_confirmation_has_not_answered_that_order() -> None:
    """The one that it gave way to has left meanwhile. The group stayed vacant for ever: nobody sent the new order."""
    stepping = after(join(A, partition=1), Answered(A, 1), join(B, partition=1), Unregister(str(B)))
    assert statuses(stepping) == {1: "connected deactivating"}
    confirmed = after(Confirm(str(A), 1), roster=stepping.roster)
    assert statuses(confirmed) == {1: "connected active"}
    assert confirmed.roster.group.epoch == 2
    assert not answered(confirmed)
