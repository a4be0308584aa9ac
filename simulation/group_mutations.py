"""Planted bugs in groups: in who is told what, in what a request changes, in deadlines, in echoes, and in beliefs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from msgspec import structs

from headgate.core.groups import belief, deadlines, delivery, machine, requests
from headgate.core.groups.deadlines import Silent
from headgate.core.groups.delivery import Link, Order
from headgate.core.groups.machine import Confirm, Consumer, Group
from headgate.core.groups.requests import Answered, ConnectionEnded, Join, Rejoin
from headgate.core.groups.roster import Roster
from simulation.fences import Resource
from simulation.mutations import Mutation, instead

# The machine.


def _on_settle(name: str, holds: Callable[[Consumer], bool]) -> Mutation:
    """A bug in the one rule: somebody who may still believe is not waited for."""

    def mutate(settle: Any) -> Any:
        def planted(group: Group) -> Any:
            ignored = {c.id for c in group.consumers if c.is_holder and not holds(c)}
            others = [structs.replace(c, activity="waiting") if c.id in ignored else c for c in group.consumers]
            found, effects = settle(structs.replace(group, consumers=tuple(others)))
            told = {c.id for c in found.consumers if c.activity != "waiting"}
            before = {c.id: c for c in group.consumers}
            kept = [before[c.id] if c.id in ignored - told else c for c in found.consumers]
            return structs.replace(found, consumers=tuple(kept)), effects

        return planted

    return Mutation(name, "groups", machine, "settle", mutate)


MACHINE = (
    _on_settle("another_is_told_before_the_active_one_has_stepped_down", lambda c: c.activity == "active"),
    _on_settle("a_silent_consumer_is_not_waited_for", lambda c: c.connectivity == "connected"),
)


# Requests.


def _on_request(name: str, change: Callable[[Roster, Any], Any], *kinds: type, exposed_by: str = "groups") -> Mutation:
    """A bug in what a request means: it counts, although its consumer is past what it is about."""

    def mutate(step: Any) -> Any:
        def planted(roster: Roster, request: Any, now: Any) -> Any:
            return step(roster, change(roster, request) if isinstance(request, kinds) else request, now)

        return planted

    return Mutation(name, exposed_by, requests, "step", mutate)


def _newest(roster: Roster, request: ConnectionEnded) -> ConnectionEnded:
    found = roster.find(request.consumer)
    return request if found is None else structs.replace(request, incarnation=found.incarnation)


def _always_answered(step: Any) -> Any:
    """An answer is taken for that to the last order, whichever it names."""

    def planted(roster: Roster, request: Any, now: Any) -> Any:
        found = roster.find(request.consumer) if isinstance(request, Answered) else None
        if found is not None and found.activity == "deactivating":
            return step(roster, Confirm(found.id, found.epoch), now)
        return step(roster, request, now)

    return planted


REQUESTS = (
    _on_request("the_end_of_an_older_connection_counts", _newest, ConnectionEnded),
    _on_request(
        "the_end_of_a_connection_is_proof", lambda roster, one: structs.replace(one, is_proved=True), ConnectionEnded
    ),
    _on_request(
        "its_own_end_is_the_end_of_a_program_in_any_group",
        lambda roster, one: structs.replace(one, is_proved=one.is_proved or one.is_own),
        ConnectionEnded,
    ),
    _on_request(
        "some_of_a_group_are_fenced",
        lambda roster, one: structs.replace(one, is_fenced=roster.group.is_fenced) if roster.group.consumers else one,
        Join,
        Rejoin,
        exposed_by="fenced",
    ),
    Mutation("an_answer_counts_for_any_order", "groups", requests, "step", _always_answered),
)


# Deadlines and echoes.


def _hasty(observed: Any) -> Any:
    def planted(seen: Mapping[Any, float], silent: Iterable[Silent], now_s: float) -> Any:
        return observed(seen, [replace(one, lease_s=one.lease_s / 2) for one in silent], now_s)

    return planted


def _without_trust(observed: Any) -> Any:
    def planted(seen: Mapping[Any, float], silent: Iterable[Silent], now_s: float) -> Any:
        return observed(seen, [replace(one, trust_s=-one.lease_s * 0.6) for one in silent], now_s)

    return planted


def _sent_once(due_orders: Any) -> Any:
    def planted(sent: Any, orders: Iterable[Order], here: Any, now_s: float) -> Any:
        remembered, due = due_orders(sent, orders, here, now_s)
        return remembered, [(what, one) for what, one in due if one.key not in sent]

    return planted


DELIVERY = (
    Mutation("a_deadline_is_half_a_lease", "groups", deadlines, "observed", _hasty),
    Mutation("the_trust_of_a_dead_node_is_not_waited_for", "groups", deadlines, "observed", _without_trust),
    Mutation("an_order_is_sent_only_once", "groups", delivery, "due_orders", _sent_once),
    instead(
        "beats_of_a_muted_consumer_are_echoed",
        "groups",
        Link,
        "may_echo",
        lambda self, trust_left_s: not self.is_over and trust_left_s > 0.0,
    ),
    instead("a_closed_socket_is_silence", "groups", Link, "is_silent", lambda self, now_s: bool(self.consumers)),
)


# Beliefs.


def _as_before(one: belief.Belief, now_s: float) -> belief.Belief:
    """A belief whose time has passed waits for another echo."""
    return one


def _goes_on(disconnected: Any) -> Any:
    """One that was told active and never heard an echo goes on by another connection."""
    return lambda one: replace(one, is_connected=False, sent=())


BELIEF = (
    instead("a_belief_that_has_ended_returns", "groups", belief, "_checked", _as_before),
    instead("belief_has_no_margin", "groups", belief, "MARGIN_S", -0.5),
    Mutation("a_turn_goes_on_after_a_lost_connection", "groups", belief, "_disconnected", _goes_on),
)

# Fences.


def _reads_first(begin: Any) -> Any:
    """What is there is read, and the epoch is raised a little later."""

    def planted(self: Resource, epoch: int) -> int | None:
        if epoch >= self.epoch:
            self._world.loop.after(0.5, begin, self, epoch)
        return self.value

    return planted


FENCES = (Mutation("a_program_reads_before_it_raises_the_epoch", "fenced", Resource, "_begin", _reads_first),)

GROUPS = (*FENCES, *MACHINE, *REQUESTS, *DELIVERY, *BELIEF)
