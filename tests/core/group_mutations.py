"""Planted bugs of the group machine: each breaks one decision, and something has to find it.

`exposed_by` is the cheapest that does: the scenarios with a broker's answers (`vectors`), or else the setting of an
exhaustive walk or of long histories. A mutation that none of them finds says that a scenario, a move of the world or a
rule is missing; one that is harmless does not belong here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from headgate.core.groups import machine as groups
from headgate.core.groups.machine import (
    Able,
    Command,
    Confirm,
    ConnectionDown,
    ConnectionReconnected,
    Consumer,
    DisconnectedTimeout,
    Effect,
    Evaluate,
    Group,
    Ok,
    Prefer,
    Purge,
    Register,
    StartDeadline,
    Step,
    TellActive,
    TellStepDown,
    Unregister,
)
from simulation.mutations import Mutation, instead

Settled = tuple[Group, list[Effect]]


def each(group: Group, change: Callable[[Consumer], Consumer]) -> Group:
    return replace(group, consumers=tuple(map(change, group.consumers)))


def _before(name: str, exposed_by: str, kind: type, change: Callable[[Group, Any], tuple[Group, Any]]) -> Mutation:
    """Commands of one kind see another group, or are another command."""

    def mutate(step: Callable[[Group | None, Command], Step]) -> Callable[[Group | None, Command], Step]:
        def planted(group: Group | None, command: Command) -> Step:
            if group is None or not isinstance(command, kind):
                return step(group, command)
            return step(*change(group, command))

        return planted

    return Mutation(name, exposed_by, groups, "step", mutate)


def _after(name: str, exposed_by: str, kind: type, change: Callable[[Group, Step], Step]) -> Mutation:
    """After commands of one kind, what is left is something else."""

    def mutate(step: Callable[[Group | None, Command], Step]) -> Callable[[Group | None, Command], Step]:
        def planted(group: Group | None, command: Command) -> Step:
            found = step(group, command)
            return change(group or Group(), found) if isinstance(command, kind) else found

        return planted

    return Mutation(name, exposed_by, groups, "step", mutate)


def _not_settled(name: str, exposed_by: str, kind: type) -> Mutation:
    """After commands of one kind, the rule does not run."""

    def mutate(step: Callable[[Group | None, Command], Step]) -> Callable[[Group | None, Command], Step]:
        def planted(group: Group | None, command: Command) -> Step:
            if not isinstance(command, kind):
                return step(group, command)
            settle = groups.settle
            groups.settle = lambda group: (group, [])
            try:
                return step(group, command)
            finally:
                groups.settle = settle

        return planted

    return Mutation(name, exposed_by, groups, "step", mutate)


# The rule.


def _only(keeps: Callable[[Consumer], bool]) -> property:
    return property(keeps)


def _grants_beside(settle: Callable[[Group], Settled]) -> Callable[[Group], Settled]:
    """A silent holder is not waited for."""

    def planted(group: Group) -> Settled:
        target = groups.wanted(group)
        holders = [c for c in group.consumers if c.is_holder]
        if target is not None and holders and all(c.connectivity == "disconnected" for c in holders):
            return groups._grant(group, target)
        return settle(group)

    return planted


def _hasty(settle: Callable[[Group], Settled]) -> Callable[[Group], Settled]:
    """The active one steps down, though another holder is silent and nobody can follow it yet."""

    def planted(group: Group) -> Settled:
        target = groups.wanted(group)
        holders = [c for c in group.consumers if c.is_holder]
        if holders and (target is None or target.activity != "active"):
            return groups._step_down(group, holders)
        return settle(group)

    return planted


def _does_not_wait(settle: Callable[[Group], Settled]) -> Callable[[Group], Settled]:
    """The next one is granted together with the order to step down."""

    def planted(group: Group) -> Settled:
        target = groups.wanted(group)
        found, effects = settle(group)
        if target is not None and any(isinstance(effect, TellStepDown) for effect in effects):
            granted, more = groups._grant(found, target)
            return granted, [*effects, *more]
        return found, effects

    return planted


def _steps_down_the_wanted(settle: Callable[[Group], Settled]) -> Callable[[Group], Settled]:
    def planted(group: Group) -> Settled:
        holders = [c for c in group.consumers if c.is_holder]
        return groups._step_down(group, holders) if len(group.consumers) > 1 and holders else settle(group)

    return planted


def _repeats_orders(settle: Callable[[Group], Settled]) -> Callable[[Group], Settled]:
    def planted(group: Group) -> Settled:
        found, effects = settle(group)
        again = [TellActive(c.id, c.epoch) for c in found.consumers if c.activity == "active" and c.is_eligible]
        return found, effects or again

    return planted


def _same_epoch(group: Group, target: Consumer) -> Settled:
    epoch = max(group.epoch, 1)
    granted = each(group, lambda c: replace(c, activity="active", epoch=epoch) if c.id == target.id else c)
    return replace(granted, epoch=epoch), [TellActive(target.id, epoch)]


def _own_epoch(group: Group, target: Consumer) -> Settled:
    """Each consumer counts for itself."""
    epoch = target.epoch + 1
    granted = each(group, lambda c: replace(c, activity="active", epoch=epoch) if c.id == target.id else c)
    return replace(granted, epoch=epoch), [TellActive(target.id, epoch)]


def _former_epoch(grant: Callable[[Group, Consumer], Settled]) -> Callable[[Group, Consumer], Settled]:
    return lambda group, target: (grant(group, target)[0], [TellActive(target.id, group.epoch)])


RULE = (
    Mutation("a_silent_holder_is_not_waited_for", "vectors", groups, "settle", _grants_beside),
    Mutation("the_next_one_does_not_wait_for_the_step_down", "vectors", groups, "settle", _does_not_wait),
    Mutation("the_wanted_one_steps_down", "vectors", groups, "settle", _steps_down_the_wanted),
    Mutation("orders_are_repeated", "vectors", groups, "settle", _repeats_orders),
    Mutation("one_steps_down_whom_nobody_can_follow_yet", "returned", groups, "settle", _hasty),
    instead("a_grant_keeps_the_epoch", "simple", groups, "_grant", _same_epoch),
    instead("each_consumer_has_its_own_epochs", "simple", groups, "_grant", _own_epoch),
    Mutation("a_grant_is_told_under_the_epoch_before", "simple", groups, "_grant", _former_epoch),
    instead(
        "one_that_steps_down_does_not_hold",
        "vectors",
        Consumer,
        "is_holder",
        _only(lambda c: c.connectivity != "forgotten" and c.activity == "active"),
    ),
    instead(
        "a_silent_one_does_not_hold",
        "vectors",
        Consumer,
        "is_holder",
        _only(lambda c: c.connectivity == "connected" and c.activity != "waiting"),
    ),
    instead(
        "a_silent_one_that_steps_down_does_not_hold",
        "vectors",
        Consumer,
        "is_holder",
        _only(lambda c: (c.connectivity, c.activity) != ("disconnected", "deactivating") and _holds(c)),
    ),
    instead("a_forgotten_one_holds", "vectors", Consumer, "is_holder", _only(lambda c: c.activity != "waiting")),
    instead(
        "a_silent_one_is_eligible", "vectors", Consumer, "is_eligible", _only(lambda c: c.connectivity != "forgotten")
    ),
    instead(
        "one_that_is_not_able_is_eligible",
        "sticky",
        Consumer,
        "is_eligible",
        _only(lambda c: c.connectivity == "connected"),
    ),
    _not_settled("the_rule_does_not_run_after_a_confirmation", "vectors", Confirm),
    _not_settled("the_rule_does_not_run_after_one_has_left", "vectors", Unregister),
    _not_settled("the_rule_does_not_run_after_one_was_forgotten", "vectors", DisconnectedTimeout),
    _not_settled("the_rule_does_not_run_after_a_return", "vectors", ConnectionReconnected),
    _not_settled("the_rule_does_not_run_after_an_evaluation", "vectors", Evaluate),
    _not_settled("the_rule_does_not_run_after_a_wish", "sticky", Prefer),
    _not_settled("the_rule_does_not_run_when_one_becomes_unable", "sticky", Able),
)


def _holds(c: Consumer) -> bool:
    return c.connectivity != "forgotten" and c.activity != "waiting"


# Who is wanted.


def _in_another_group(change: Callable[[Group], Group]) -> Callable[[Any], Any]:
    """Who is wanted is decided by another group than this one."""

    def mutate(wanted: Callable[[Group], Consumer | None]) -> Callable[[Group], Consumer | None]:
        def planted(group: Group) -> Consumer | None:
            found = wanted(change(group))
            return next((c for c in group.consumers if found is not None and c.id == found.id), None)

        return planted

    return mutate


def _all_counted(wanted: Callable[[Group], Consumer | None]) -> Callable[[Group], Consumer | None]:
    """The forgotten ones count."""

    def planted(group: Group) -> Consumer | None:
        if group.partition is None or group.is_sticky or not group.consumers:
            return wanted(group)
        chosen = group.consumers[group.partition % len(group.consumers)]
        return chosen if chosen.is_eligible else wanted(group)

    return planted


def _without_the_silent(group: Group) -> Group:
    return replace(group, consumers=tuple(c for c in group.consumers if c.connectivity == "connected"))


def _nobody_active(group: Group) -> Group:
    return each(group, lambda c: replace(c, activity="waiting"))


def _always_the_first(wanted: Callable[[Group], Consumer | None]) -> Callable[[Group], Consumer | None]:
    """In a simple group the active one has to make way."""
    return lambda group: wanted(_nobody_active(group) if group.partition is None and not group.is_sticky else group)


def _returned_goes_last(group: Group, step: Step) -> Step:
    if step.group is None:
        return step
    silent = {c.id for c in group.consumers if c.connectivity != "connected"}
    members = sorted(step.group.consumers, key=lambda c: c.id in silent and c.connectivity == "connected")
    return replace(step, group=replace(step.group, consumers=tuple(members)))


def _active_goes_first(group: Group, step: Step) -> Step:
    if step.group is None or step.group.partition is not None:
        return step
    members = sorted(step.group.consumers, key=lambda c: c.activity != "active")
    return replace(step, group=replace(step.group, consumers=tuple(members)))


def _newcomer_goes_first(group: Group, step: Step) -> Step:
    if step.group is None or len(step.group.consumers) == len(group.consumers):
        return step
    *others, newcomer = step.group.consumers
    return replace(step, group=replace(step.group, consumers=(newcomer, *others)))


WANTED = (
    Mutation("the_forgotten_count", "one message", groups, "wanted", _all_counted),
    Mutation("the_silent_do_not_count", "vectors", groups, "wanted", _in_another_group(_without_the_silent)),
    Mutation("in_a_simple_group_the_first_is_always_wanted", "vectors", groups, "wanted", _always_the_first),
    Mutation(
        "no_wish_does_not_mean_keep",
        "sticky",
        groups,
        "wanted",
        _in_another_group(lambda group: _nobody_active(group) if group.is_sticky else group),
    ),
    Mutation(
        "nobody_is_preferred",
        "histories, sticky",
        groups,
        "wanted",
        _in_another_group(lambda group: replace(group, preferred=None)),
    ),
    Mutation(
        "the_fallback_is_not_asked",
        "sticky",
        groups,
        "wanted",
        _in_another_group(lambda group: replace(group, fallback=None)),
    ),
    Mutation(
        "the_fallback_comes_before_the_active_one",
        "sticky",
        groups,
        "wanted",
        _in_another_group(lambda group: replace(group, preferred=group.preferred or group.fallback)),
    ),
    _after("one_that_returns_goes_last", "vectors", ConnectionReconnected, _returned_goes_last),
    _after("the_active_one_goes_first", "vectors", ConnectionReconnected, _active_goes_first),
    _after("a_newcomer_goes_first", "vectors", Register, _newcomer_goes_first),
)


# Commands.


def _any_epoch(group: Group, command: Confirm) -> tuple[Group, Command]:
    own = next((c.epoch for c in group.consumers if c.id == command.consumer), command.epoch)
    return group, replace(command, epoch=own)


def _anybody(group: Group, command: Confirm) -> tuple[Group, Command]:
    """A confirmation is that of whoever is stepping down, as in the broker."""
    stepping = next((c for c in group.consumers if c.activity == "deactivating"), None)
    return group, command if stepping is None else Confirm(stepping.id, stepping.epoch)


def _not_counted(group: Group, step: Step) -> Step:
    return step if step.group is None else replace(step, group=replace(step.group, ignored=group.ignored))


def _any_loss(group: Group, command: DisconnectedTimeout) -> tuple[Group, Command]:
    return group, replace(command, incarnation=None)


def _all_silent(group: Group, command: DisconnectedTimeout) -> tuple[Group, Command]:
    return each(group, lambda c: replace(c, connectivity="disconnected")), command


def _loses_its_step_down(group: Group, connection: str) -> Group:
    def change(c: Consumer) -> Consumer:
        return replace(c, activity="waiting") if (c.connection, c.activity) == (connection, "deactivating") else c

    return each(group, change)


def _returns_as(activity: groups.Activity) -> Callable[[Group, ConnectionReconnected], tuple[Group, Command]]:
    """Whoever was forgotten while it was active is something else when it returns."""

    def change(group: Group, command: ConnectionReconnected) -> tuple[Group, Command]:
        def welcome(c: Consumer) -> Consumer:
            held = c.connectivity == "forgotten" and c.activity == "active" and c.connection == command.connection
            return replace(c, connectivity="connected", activity=activity) if held else c

        return each(group, welcome), command

    return change


def _numbers_of_its_own(disconnected: Callable[[Group, str], Step]) -> Callable[[Group, str], Step]:
    """A loss is numbered by the consumers that are lost, and a newcomer begins at 0."""

    def planted(group: Group, connection: str) -> Step:
        lost = [c.incarnation for c in group.consumers if c.connection == connection and c.connectivity == "connected"]
        found = disconnected(replace(group, incarnation=max(lost, default=0)), connection)
        return (
            found if found.group is None else replace(found, group=replace(found.group, incarnation=group.incarnation))
        )

    return planted


def _no_deadline(disconnected: Callable[[Group, str], Step]) -> Callable[[Group, str], Step]:
    def planted(group: Group, connection: str) -> Step:
        found = disconnected(group, connection)
        return replace(found, effects=tuple(e for e in found.effects if not isinstance(e, StartDeadline)))

    return planted


def _one_at_a_time(group: Group, command: ConnectionDown) -> tuple[Group, Command]:
    """Only the first consumer of a connection leaves with it."""
    first = next((c.id for c in group.consumers if c.connection == command.connection), None)
    return group, command if first is None else Unregister(first)


def _whole_connection(group: Group, command: Unregister) -> tuple[Group, Command]:
    found = next((c for c in group.consumers if c.id == command.consumer), None)
    return group, command if found is None else ConnectionDown(found.connection)


def _keeps_where(connectivity: groups.Connectivity) -> Callable[[Group, Evaluate], tuple[Group, Command]]:
    """An evaluation keeps those of one connectivity."""

    def change(group: Group, command: Evaluate) -> tuple[Group, Command]:
        gone = frozenset(c.connection for c in group.consumers if c.connectivity not in (connectivity, "connected"))
        return group, Purge(gone | command.dead)

    return change


def _all_but_the_active(group: Group, command: Evaluate) -> tuple[Group, Command]:
    idle = {c.connection for c in group.consumers if c.activity == "waiting"}
    return group, Evaluate(command.dead | idle)


def _twice(register: Callable[[Group, Register], Step]) -> Callable[[Group, Register], Step]:
    def planted(group: Group, command: Register) -> Step:
        if groups._find(group, command.consumer) is None:
            return register(group, command)
        again = Consumer(command.consumer, command.connection, command.owner)
        return groups._settled(replace(group, consumers=(*group.consumers, again)))

    return planted


def _empty(group: Group, step: Step) -> Step:
    return replace(step, group=step.group or replace(group, consumers=()))


COMMANDS = (
    _before("a_confirmation_of_any_epoch_is_taken", "partition", Confirm, _any_epoch),
    _before("a_confirmation_of_anybody_is_taken", "shared connection", Confirm, _anybody),
    _after("a_stale_confirmation_is_not_counted", "partition", Confirm, _not_counted),
    _before("a_deadline_of_an_earlier_silence_counts", "simple", DisconnectedTimeout, _any_loss),
    _before("a_deadline_forgets_the_connected", "vectors", DisconnectedTimeout, _all_silent),
    Mutation("a_newcomers_losses_begin_at_0", "back in time", groups, "_disconnected", _numbers_of_its_own),
    Mutation("a_silence_begins_no_deadline", "vectors", groups, "_disconnected", _no_deadline),
    Mutation(
        "a_silence_ends_a_step_down",
        "vectors",
        groups,
        "_disconnected",
        lambda original: lambda group, connection: original(_loses_its_step_down(group, connection), connection),
    ),
    _before(
        "forgetting_ends_a_step_down",
        "vectors",
        DisconnectedTimeout,
        lambda group, command: (_loses_its_step_down(group, command.connection), command),
    ),
    _before("one_that_was_forgotten_returns_active", "vectors", ConnectionReconnected, _returns_as("active")),
    _before("one_that_was_forgotten_returns_waiting", "vectors", ConnectionReconnected, _returns_as("waiting")),
    _before("one_that_was_forgotten_is_not_told", "vectors", ConnectionReconnected, _returns_as("deactivating")),
    _before("a_connection_takes_one_consumer_with_it", "vectors", ConnectionDown, _one_at_a_time),
    _before("one_that_leaves_takes_its_connection_with_it", "vectors", Unregister, _whole_connection),
    _before("an_evaluation_drops_those_that_wait", "vectors", Evaluate, _all_but_the_active),
    _before("an_evaluation_keeps_the_silent", "vectors", Evaluate, _keeps_where("disconnected")),
    _before("an_evaluation_keeps_the_forgotten", "one message", Evaluate, _keeps_where("forgotten")),
    _before("an_evaluation_keeps_the_dead", "vectors", Evaluate, lambda group, command: (group, Evaluate(frozenset()))),
    _before(
        "a_purge_is_an_evaluation",
        "histories, partition",
        Purge,
        lambda group, command: (group, Evaluate(command.connections)),
    ),
    _before(
        "a_group_has_two_partitions",
        "sticky",
        Register,
        lambda group, command: (group, replace(command, partition=group.partition)),
    ),
    _before(
        "some_of_a_group_are_fenced",
        "histories, fenced",
        Register,
        lambda group, command: (group, replace(command, is_fenced=group.is_fenced)),
    ),
    Mutation("a_consumer_is_there_twice", "sticky", groups, "_register", _twice),
    _after(
        "a_newcomer_is_not_told_that_it_is_active",
        "vectors",
        Register,
        lambda group, step: replace(step, reply=Ok(False)) if isinstance(step.reply, Ok) else step,
    ),
    _after("an_empty_group_stays", "vectors", Unregister, _empty),
)

ALL = (*RULE, *WANTED, *COMMANDS)
