"""Groups: one active consumer, whoever comes, goes, or falls silent."""

from __future__ import annotations

from headgate.core.groups import (
    Command,
    Confirm,
    ConnectionDisconnected,
    ConnectionReconnected,
    DisconnectedTimeout,
    Effect,
    Group,
    Refused,
    Register,
    StartDeadline,
    TellActive,
    TellStepDown,
    Unregister,
    step,
)


def after(*commands: Command, group: Group | None = None) -> tuple[Group | None, list[Effect]]:
    effects: list[Effect] = []
    for command in commands:
        found = step(group, command)
        group, effects = found.group, [*effects, *found.effects]
    return group, effects


def statuses(group: Group | None) -> list[tuple[str, str]]:
    return [] if group is None else [(c.connectivity, c.activity) for c in group.consumers]


A, B = Register("a", "one"), Register("b", "two")
A1, B1 = Register("a", "one", 1), Register("b", "two", 1)


def test_in_a_simple_group_the_first_is_active_until_it_leaves() -> None:
    group, effects = after(A, B, Unregister("a"))
    assert effects == [TellActive("a", 1), TellActive("b", 2)]
    assert statuses(group) == [("connected", "active")]
    assert after(Unregister("b"), group=group) == (None, [])


def test_a_partition_is_handed_over_only_after_the_active_one_has_confirmed() -> None:
    group, effects = after(A1, B1)
    assert effects == [TellActive("a", 1), TellStepDown("a", 1)]
    assert after(Confirm("a", 1), group=group)[1] == [TellActive("b", 2)]


def test_a_confirmation_of_another_consumer_or_epoch_is_ignored_and_counted() -> None:
    group, _ = after(A1, B1)
    for stale in (Confirm("b", 1), Confirm("a", 2), Confirm("nobody", 1)):
        found = step(group, stale)
        assert found.reply == Refused("stale")
        assert found.group is not None
        assert (found.group.ignored, found.effects) == (1, ())


def test_a_silent_active_one_blocks_its_group_until_it_is_forgotten_and_steps_down_when_it_returns() -> None:
    group, effects = after(A, B, ConnectionDisconnected("one"))
    assert effects[1:] == [StartDeadline("one", 1)]
    group, effects = after(DisconnectedTimeout("one", 1), group=group)
    assert effects == [TellActive("b", 2)]
    group, effects = after(ConnectionReconnected("one"), group=group)
    assert effects == [TellStepDown("a", 1)]
    assert statuses(group) == [("connected", "deactivating"), ("connected", "active")]


def test_a_deadline_of_an_earlier_silence_forgets_nobody() -> None:
    group, _ = after(A, ConnectionDisconnected("one"), ConnectionReconnected("one"), ConnectionDisconnected("one"))
    assert statuses(after(DisconnectedTimeout("one", 1), group=group)[0]) == [("disconnected", "active")]


def test_another_partition_is_refused_and_changes_nothing() -> None:
    group, _ = after(A1)
    found = step(group, Register("b", "two", 2))
    assert (found.group, found.reply) == (group, Refused("partition_index_conflict"))
