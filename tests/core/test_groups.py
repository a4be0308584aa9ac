"""Groups: one active consumer, whoever comes, goes, or falls silent."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate.core.groups.machine import (
    Able,
    Activity,
    Command,
    Confirm,
    ConnectionDisconnected,
    ConnectionDown,
    ConnectionReconnected,
    Connectivity,
    Consumer,
    DisconnectedTimeout,
    Effect,
    Evaluate,
    Group,
    Ok,
    Prefer,
    Purge,
    Refused,
    Register,
    StartDeadline,
    Step,
    TellActive,
    TellStepDown,
    Unregister,
    settle,
    step,
    wanted,
)


def after(*commands: Command, group: Group | None = None) -> tuple[Group | None, list[Effect]]:
    effects: list[Effect] = []
    for command in commands:
        found = step(group, command)
        group, effects = found.group, [*effects, *found.effects]
    return group, effects


def statuses(group: Group | None) -> list[tuple[str, str]]:
    return [] if group is None else [(c.connectivity, c.activity) for c in group.consumers]


def ids(group: Group | None) -> str:
    return "".join(c.id for c in group.consumers) if group else ""


def group_of(*members: tuple[str, Connectivity, Activity], partition: int | None = None, **more: object) -> Group:
    """Consumers a, b, …, each on a connection of its own; whoever was told active has an epoch of its own."""
    told = [name for name, _, activity in members if activity != "waiting"]
    consumers = tuple(
        Consumer(name, f"of {name}", "", connectivity, activity, told.index(name) + 1 if name in told else 0)
        for name, connectivity, activity in members
    )
    return replace(Group(partition, consumers, epoch=len(told)), **more)


A, B, C = Register("a", "one"), Register("b", "two"), Register("c", "three")
A1, B1, C1 = Register("a", "one", 1), Register("b", "two", 1), Register("c", "three", 1)
SILENT, BACK = ConnectionDisconnected("one"), ConnectionReconnected("one")
FORGOTTEN = (SILENT, DisconnectedTimeout("one", 1))


# Coming and going.


def test_the_first_to_register_is_active_and_told_so() -> None:
    found = step(None, Register("a", "one", owner="billing"))
    assert found.reply == Ok(is_active=True)
    assert found.effects == (TellActive("a", 1),)
    assert found.group == Group(None, (Consumer("a", "one", "billing", activity="active", epoch=1),), epoch=1)
    assert found.group.active == found.group.consumers[0]


def test_the_next_to_register_waits() -> None:
    group, _ = after(A)
    assert step(group, B).reply == Ok(is_active=False)


def test_in_a_simple_group_the_first_is_active_until_it_leaves() -> None:
    group, effects = after(A, B, Unregister("a"))
    assert effects == [TellActive("a", 1), TellActive("b", 2)]
    assert statuses(group) == [("connected", "active")]
    assert after(Unregister("b"), group=group) == (None, [])


def test_one_that_waits_leaves_without_a_trace() -> None:
    group, effects = after(A, B, C, Unregister("b"))
    assert effects == [TellActive("a", 1)]
    assert ids(group) == "ac"


def test_one_that_leaves_while_it_steps_down_makes_way_for_the_next() -> None:
    assert after(A1, B1, Unregister("a"))[1][-1] == TellActive("b", 2)


def test_one_that_is_there_already_is_refused_and_changes_nothing() -> None:
    group, _ = after(A, B)
    assert step(group, Register("b", "another")) == Step(group, Refused("already_registered"))


def test_another_partition_is_refused_and_changes_nothing() -> None:
    group, _ = after(A1)
    for other in (Register("b", "two", 2), Register("b", "two")):
        assert step(group, other) == Step(group, Refused("partition_index_conflict"))


def test_one_that_is_not_fenced_as_the_others_are_is_refused_and_changes_nothing() -> None:
    for is_fenced in (True, False):
        group, _ = after(Register("a", "one", is_fenced=is_fenced))
        other = Register("b", "two", is_fenced=not is_fenced)
        assert step(group, other) == Step(group, Refused("fenced_conflict"))


def test_one_that_is_not_there_cannot_leave() -> None:
    group, _ = after(A)
    assert step(group, Unregister("b")) == Step(group, Refused("not_found"))


@pytest.mark.parametrize(
    "command",
    [
        Unregister("a"),
        Confirm("a", 1),
        ConnectionDown("one"),
        SILENT,
        DisconnectedTimeout("one"),
        BACK,
        Purge(frozenset({"one"})),
        Evaluate(),
        Able(frozenset({"a"})),
        Prefer("a"),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_group_that_does_not_exist_is_not_found(command: Command) -> None:
    assert step(None, command) == Step(None, Refused("not_found"))


def test_a_group_that_begins_with_the_numbers_of_the_one_before_goes_on_from_there() -> None:
    """Nothing is left of an empty group here; whoever keeps its epoch has epochs that only rise."""
    found = step(Group(epoch=7, incarnation=3), A)
    assert found.effects == (TellActive("a", 8),)
    assert after(SILENT, group=found.group)[1] == [StartDeadline("one", 4)]


def test_a_connection_that_is_down_takes_all_its_consumers_with_it() -> None:
    group, _ = after(A, Register("b", "one"), C)
    group, effects = after(ConnectionDown("one"), group=group)
    assert ids(group) == "c"
    assert effects == [TellActive("c", 2)]
    assert after(ConnectionDown("three"), group=group) == (None, [])


def test_a_connection_that_has_no_consumers_here_is_nothing_to_the_group() -> None:
    group, _ = after(A, B)
    for command in (ConnectionDown("x"), ConnectionDisconnected("x"), ConnectionReconnected("x")):
        assert step(group, command) == Step(group)


def test_one_that_is_silent_may_be_found_dead() -> None:
    assert after(A, B, SILENT, ConnectionDown("one"))[1][-1] == TellActive("b", 2)


# The rule.


def test_nobody_holds_and_the_wanted_one_is_granted() -> None:
    group = group_of(("a", "connected", "waiting"), ("b", "connected", "waiting"), partition=1, epoch=4)
    found, effects = settle(group)
    assert effects == [TellActive("b", 5)]
    assert (found.epoch, found.consumers[1].epoch, found.active) == (5, 5, found.consumers[1])


def test_nobody_holds_and_nobody_is_eligible() -> None:
    for group in (group_of(("a", "disconnected", "waiting")), group_of(("a", "forgotten", "active"))):
        assert settle(group) == (group, [])


def test_the_wanted_one_is_active_and_any_other_active_one_steps_down() -> None:
    """No history leads to two of them; if one did, it would be mended."""
    group = group_of(("a", "connected", "active"), ("b", "connected", "active"), ("c", "connected", "waiting"))
    found, effects = settle(group)
    assert effects == [TellStepDown("b", 2)]
    assert [c.activity for c in found.consumers] == ["active", "deactivating", "waiting"]


def test_the_wanted_one_is_active_and_all_is_well() -> None:
    group = group_of(("a", "connected", "waiting"), ("b", "connected", "active"), partition=1)
    assert settle(group) == (group, [])


@pytest.mark.parametrize("activity", ["active", "deactivating"])
def test_a_silent_holder_is_waited_for(activity: Activity) -> None:
    group = group_of(("a", "disconnected", activity), ("b", "connected", "waiting"))
    assert settle(group) == (group, [])


def test_nobody_steps_down_while_a_silent_holder_keeps_the_next_one_waiting() -> None:
    group = group_of(
        ("a", "disconnected", "deactivating"),
        ("b", "connected", "active"),
        ("c", "connected", "waiting"),
        partition=5,
    )
    assert settle(group) == (group, [])


def test_the_active_one_steps_down_when_another_is_wanted() -> None:
    group = group_of(("a", "connected", "active"), ("b", "connected", "waiting"), partition=1)
    assert settle(group)[1] == [TellStepDown("a", 1)]


def test_one_that_steps_down_is_told_once() -> None:
    group = group_of(("a", "connected", "deactivating"), ("b", "connected", "waiting"))
    assert settle(group) == (group, [])


def test_the_rule_comes_to_rest_at_once() -> None:
    group, _ = after(A1, B1, C1)
    assert group is not None
    assert settle(settle(group)[0]) == (group, [])


# Partitions.


def test_a_partition_is_handed_over_only_after_the_active_one_has_confirmed() -> None:
    group, effects = after(A1, B1)
    assert effects == [TellActive("a", 1), TellStepDown("a", 1)]
    assert after(Confirm("a", 1), group=group)[1] == [TellActive("b", 2)]


@pytest.mark.parametrize(
    ("partition", "members", "who"),
    [(p, n, "abcd"[p % n]) for p in (0, 1, 2, 5, 7) for n in (1, 2, 3, 4)],
)
def test_a_partition_belongs_to_its_number_modulo_the_count(partition: int, members: int, who: str) -> None:
    waiting: list[tuple[str, Connectivity, Activity]] = [(name, "connected", "waiting") for name in "abcd"[:members]]
    found = wanted(group_of(*waiting, partition=partition))
    assert found is not None
    assert found.id == who


def test_one_that_is_chosen_again_while_it_steps_down_is_told_again() -> None:
    """Partition 3: of two it is the second's, of three the first's. The first has been told otherwise by then."""
    three = [Register(name, name, 3) for name in "abc"]
    assert after(*three, Confirm("a", 1))[1] == [TellActive("a", 1), TellStepDown("a", 1), TellActive("a", 2)]


def test_a_short_silence_moves_nothing() -> None:
    group, _ = after(A1, B1, Confirm("a", 1), C1)
    found, effects = after(SILENT, BACK, group=group)
    assert effects == [StartDeadline("one", 1)]
    assert statuses(found) == statuses(group)


def test_where_the_chosen_one_is_silent_the_active_one_stays() -> None:
    group = group_of(("a", "connected", "active"), ("b", "disconnected", "waiting"), partition=1)
    assert wanted(group) == group.consumers[0]


def test_where_the_chosen_one_is_silent_and_nobody_is_active_the_eligible_are_counted() -> None:
    group = group_of(
        ("a", "connected", "waiting"), ("b", "disconnected", "waiting"), ("c", "connected", "waiting"), partition=1
    )
    assert wanted(group) == group.consumers[2]


def test_the_forgotten_do_not_count() -> None:
    group = group_of(
        ("a", "forgotten", "waiting"), ("b", "connected", "waiting"), ("c", "connected", "waiting"), partition=1
    )
    assert wanted(group) == group.consumers[2]


# Confirmations.


def test_a_confirmation_of_another_consumer_or_epoch_is_ignored_and_counted() -> None:
    group, _ = after(A1, B1)
    for stale in (Confirm("b", 1), Confirm("a", 2), Confirm("a", 0), Confirm("nobody", 1)):
        found = step(group, stale)
        assert found.reply == Refused("stale")
        assert found.group is not None
        assert (found.group.ignored, found.effects) == (1, ())


def test_a_confirmation_that_nobody_asked_for_is_ignored() -> None:
    group, _ = after(A, B)
    assert step(group, Confirm("a", 1)).reply == Refused("stale")


def test_a_confirmation_that_arrives_twice_counts_once() -> None:
    group, effects = after(A1, B1, Confirm("a", 1), Confirm("a", 1))
    assert effects[2:] == [TellActive("b", 2)]
    assert group is not None
    assert group.ignored == 1


def test_a_confirmation_of_the_step_down_before_does_not_confirm_this_one() -> None:
    """The first is active a second time, and steps down again: what it said the first time is late."""
    group, _ = after(A1, B1, Confirm("a", 1), Unregister("b"), Register("b", "two", 1))
    assert statuses(group) == [("connected", "deactivating"), ("connected", "waiting")]
    found = step(group, Confirm("a", 1))
    assert (found.reply, found.effects) == (Refused("stale"), ())
    assert step(group, Confirm("a", 3)).effects == (TellActive("b", 4),)


def test_one_that_was_unregistered_and_is_back_is_not_held_to_what_it_said_before() -> None:
    group, _ = after(A1, B1, Unregister("a"), A1)
    assert step(group, Confirm("a", 1)).reply == Refused("stale")


def test_a_confirmation_counts_though_its_sender_is_silent_by_now() -> None:
    group, effects = after(A1, B1, SILENT, Confirm("a", 1))
    assert effects[-1] == TellActive("b", 2)
    assert statuses(group) == [("disconnected", "waiting"), ("connected", "active")]


def test_a_confirmation_counts_though_its_sender_is_forgotten_by_now() -> None:
    group, effects = after(A1, B1, *FORGOTTEN, Confirm("a", 1))
    assert statuses(group) == [("forgotten", "waiting"), ("connected", "active")]
    assert effects[-1] == TellActive("b", 2)
    assert after(BACK, group=group)[1] == []


# Silence.


def test_a_silent_active_one_blocks_its_group_until_it_is_forgotten_and_steps_down_when_it_returns() -> None:
    group, effects = after(A, B, SILENT)
    assert effects[1:] == [StartDeadline("one", 1)]
    group, effects = after(DisconnectedTimeout("one", 1), group=group)
    assert effects == [TellActive("b", 2)]
    group, effects = after(BACK, group=group)
    assert effects == [TellStepDown("a", 1)]
    assert statuses(group) == [("connected", "deactivating"), ("connected", "active")]


def test_a_silent_active_one_that_is_back_in_time_goes_on() -> None:
    group, effects = after(A, B, SILENT, BACK)
    assert effects == [TellActive("a", 1), StartDeadline("one", 1)]
    assert statuses(group) == [("connected", "active"), ("connected", "waiting")]


def test_a_silent_one_that_was_told_to_step_down_holds_until_it_is_forgotten() -> None:
    group, effects = after(A1, B1, SILENT)
    assert (statuses(group)[0], effects[2:]) == (("disconnected", "deactivating"), [StartDeadline("one", 1)])
    group, effects = after(DisconnectedTimeout("one", 1), group=group)
    assert (statuses(group)[0], effects) == (("forgotten", "deactivating"), [TellActive("b", 2)])
    group, effects = after(BACK, group=group)
    assert (statuses(group), effects) == ([("connected", "deactivating"), ("connected", "active")], [])
    assert statuses(after(Confirm("a", 1), group=group)[0]) == [("connected", "waiting"), ("connected", "active")]


def test_one_connection_has_one_deadline_for_all_its_consumers() -> None:
    group, effects = after(A, Register("b", "one"), C, SILENT)
    assert effects[1:] == [StartDeadline("one", 1)]
    assert statuses(after(DisconnectedTimeout("one", 1), group=group)[0])[:2] == [
        ("forgotten", "active"),
        ("forgotten", "waiting"),
    ]


def test_a_connection_that_is_silent_already_begins_no_second_deadline() -> None:
    group, _ = after(A, B, SILENT)
    assert step(group, SILENT) == Step(group)


def test_a_deadline_of_an_earlier_silence_forgets_nobody() -> None:
    group, _ = after(A, SILENT, BACK, SILENT)
    assert statuses(after(DisconnectedTimeout("one", 1), group=group)[0]) == [("disconnected", "active")]
    assert statuses(after(DisconnectedTimeout("one", 2), group=group)[0]) == [("forgotten", "active")]


def test_a_deadline_forgets_nobody_who_is_back() -> None:
    group, _ = after(A, SILENT, BACK)
    assert step(group, DisconnectedTimeout("one", 1)) == Step(group)
    assert step(group, DisconnectedTimeout("one")) == Step(group)


def test_a_deadline_of_one_who_has_left_is_not_that_of_the_next_on_its_connection() -> None:
    """The connection had been silent once, and its deadline is late: the newcomer's silence has a number of its own."""
    group, effects = after(A, B, SILENT, BACK, Unregister("a"), Register("c", "one"), SILENT)
    assert effects[-1] == StartDeadline("one", 2)
    assert step(group, DisconnectedTimeout("one", 1)) == Step(group)


def test_a_deadline_without_a_number_is_that_of_the_last_silence() -> None:
    assert statuses(after(A, SILENT, DisconnectedTimeout("one"))[0]) == [("forgotten", "active")]


# One that was forgotten returns.


def test_one_that_waited_returns_to_its_place() -> None:
    group, effects = after(A, B, C, ConnectionDisconnected("two"), DisconnectedTimeout("two", 1))
    found, more = after(ConnectionReconnected("two"), group=group)
    assert (ids(found), statuses(found)[1]) == ("abc", ("connected", "waiting"))
    assert (effects[1:], more) == ([StartDeadline("two", 1)], [])


def test_one_that_was_active_and_is_still_alone_is_told_anew_after_it_has_confirmed() -> None:
    group, effects = after(A, *FORGOTTEN, BACK)
    assert effects[-1] == TellStepDown("a", 1)
    assert after(Confirm("a", 1), group=group)[1] == [TellActive("a", 2)]


def test_one_that_returns_and_falls_silent_again_holds_again() -> None:
    group, _ = after(A, B, *FORGOTTEN, BACK, SILENT)
    assert statuses(group) == [("disconnected", "deactivating"), ("connected", "active")]
    blocked, effects = after(Unregister("b"), C, group=group)
    assert effects == []
    assert after(DisconnectedTimeout("one", 2), group=blocked)[1] == [TellActive("c", 3)]


def test_the_active_one_steps_down_too_if_the_one_that_returns_is_wanted() -> None:
    first = [Register("a", "one", 0), Register("b", "two", 0)]
    group, effects = after(*first, *FORGOTTEN, BACK)
    assert effects[-2:] == [TellStepDown("a", 1), TellStepDown("b", 2)]
    group, effects = after(Confirm("a", 1), group=group)
    assert (statuses(group), effects) == ([("connected", "waiting"), ("connected", "deactivating")], [])
    assert after(Confirm("b", 2), group=group)[1] == [TellActive("a", 3)]


# Operators and planners.


def test_an_evaluation_drops_the_dead_the_silent_and_the_forgotten() -> None:
    group = group_of(
        ("a", "connected", "active"),
        ("b", "disconnected", "waiting"),
        ("c", "forgotten", "waiting"),
        ("d", "connected", "waiting"),
    )
    found, effects = after(Evaluate(frozenset({"of a"})), group=group)
    assert (ids(found), effects) == ("d", [TellActive("d", 2)])


def test_an_evaluation_ends_the_wait_for_a_silent_one() -> None:
    assert after(A, B, SILENT, Evaluate())[1][-1] == TellActive("b", 2)


def test_an_evaluation_changes_nothing_where_everybody_is_there() -> None:
    group, _ = after(A1, B1, C1)
    assert step(group, Evaluate()) == Step(group)


def test_an_evaluation_may_leave_nobody() -> None:
    assert after(A, SILENT, Evaluate())[0] is None


def test_a_purge_drops_whoever_hangs_on_these_connections_and_nobody_else() -> None:
    group, effects = after(A, B, C, *FORGOTTEN, ConnectionDisconnected("three"), Purge(frozenset({"one", "x"})))
    assert (ids(group), statuses(group)) == ("bc", [("connected", "active"), ("disconnected", "waiting")])
    assert effects[-1] == StartDeadline("three", 2)
    assert after(Purge(frozenset({"two", "three"})), group=group) == (None, [])


def test_one_that_is_not_able_is_not_chosen() -> None:
    group, effects = after(A, B, C, Able(frozenset({"a", "c"})), Unregister("a"))
    assert effects[-1] == TellActive("c", 2)
    assert group is not None
    assert [c.is_eligible for c in group.consumers] == [False, True]


def test_an_active_one_that_becomes_unable_steps_down_and_the_next_follows() -> None:
    group, effects = after(A, B, Able(frozenset({"b"})))
    assert effects[-1] == TellStepDown("a", 1)
    assert after(Confirm("a", 1), group=group)[1] == [TellActive("b", 2)]


def test_where_nobody_is_able_nobody_is_active_until_somebody_is() -> None:
    group, effects = after(A, B, Able(frozenset()), Confirm("a", 1))
    assert effects[1:] == [TellStepDown("a", 1)]
    assert after(Able(frozenset({"b"})), group=group)[1] == [TellActive("b", 2)]


def test_an_unable_one_keeps_its_number_in_the_group_of_a_partition() -> None:
    group, _ = after(A1, B1, C1, Confirm("a", 1), Able(frozenset({"a", "c"})))
    assert after(Confirm("b", 2), group=group)[1] == [TellActive("c", 3)]


def sticky(*commands: Command) -> tuple[Group | None, list[Effect]]:
    return after(*commands, group=Group(is_sticky=True))


def test_the_preferred_one_is_wanted() -> None:
    group, effects = sticky(A, B, Prefer("b"))
    assert effects == [TellActive("a", 1), TellStepDown("a", 1)]
    assert after(Confirm("a", 1), group=group)[1] == [TellActive("b", 2)]


def test_no_wish_means_keep() -> None:
    group, _ = sticky(A, B, Prefer("b"), Confirm("a", 1))
    assert after(Prefer(None, "a"), group=group)[1] == []


@pytest.mark.parametrize("hinders", [ConnectionDisconnected("two"), Able(frozenset({"a"})), Unregister("b")])
def test_where_the_preferred_one_is_not_eligible_the_active_one_stays(hinders: Command) -> None:
    _, effects = sticky(A, B, hinders, Prefer("b", "a"))
    assert [effect for effect in effects if not isinstance(effect, StartDeadline)] == [TellActive("a", 1)]


def test_where_neither_is_there_the_fallback_is_wanted() -> None:
    assert sticky(A, B, C, Prefer("a", "c"), Unregister("a"))[1][-1] == TellActive("c", 2)


def test_where_the_fallback_is_not_eligible_either_the_first_is() -> None:
    group, _ = sticky(A, B, C, Prefer("a", "x"))
    assert after(Unregister("a"), group=group)[1] == [TellActive("b", 2)]
    assert after(ConnectionDown("one"), Unregister("b"), group=group)[1] == [TellActive("b", 2), TellActive("c", 3)]


def test_a_wish_is_nothing_to_a_group_that_is_not_sticky() -> None:
    group, effects = after(A, B, Prefer("b", "b"))
    assert effects == [TellActive("a", 1)]
    assert group is not None
    assert (group.preferred, group.fallback) == ("b", "b")


# Who holds.


@pytest.mark.parametrize(
    ("connectivity", "activity", "holds"),
    [
        ("connected", "active", True),
        ("connected", "deactivating", True),
        ("connected", "waiting", False),
        ("disconnected", "active", True),
        ("disconnected", "deactivating", True),
        ("disconnected", "waiting", False),
        ("forgotten", "active", False),
        ("forgotten", "deactivating", False),
        ("forgotten", "waiting", False),
    ],
)
def test_whoever_may_still_believe_holds(connectivity: Connectivity, activity: Activity, holds: bool) -> None:
    consumer = Consumer("a", "one", connectivity=connectivity, activity=activity)
    assert consumer.is_holder is holds
    assert consumer.is_eligible is (connectivity == "connected")
    assert not replace(consumer, is_able=False).is_eligible
    assert Group(consumers=(consumer,)).active == (consumer if holds and activity == "active" else None)
