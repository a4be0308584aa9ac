"""Planted bugs around the group machine: in the belief of a consumer, in requests, in delivery and in deadlines.

Each breaks one decision. `exposed_by` names the scenarios that have to find it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from msgspec import structs

from headgate.core.frames import ConfirmFrame, JoinedFrame
from headgate.core.groups import belief, deadlines, delivery, requests
from headgate.core.groups.belief import Belief, Say, Standing, WorkFinished
from headgate.core.groups.delivery import Link
from headgate.core.groups.machine import ConnectionDown, ConnectionReconnected, Evaluate, Ok, Purge
from headgate.core.groups.roster import Roster
from simulation.mutations import Mutation, instead


def _given(change: Callable[..., tuple[Any, ...]]) -> Callable[[Any], Any]:
    """The decision is made about something else."""
    return lambda original: lambda *given: original(*change(*given))


def _then(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The decision is made, and then something else."""
    return lambda original: lambda *given: change(original(*given))


# What a consumer believes.


def _counted_from_the_echo(echoed: Callable[..., Belief]) -> Callable[..., Belief]:
    """The lease is counted from the arrival of the echo."""

    def planted(was: Belief, n: int, now_s: float) -> Belief:
        found = echoed(was, n, now_s)
        return found if found is was else replace(found, until_s=belief._end_s(was, now_s))

    return planted


def _any_echo(was: Belief, n: int, now_s: float) -> tuple[Belief, int, float]:
    """A beat that was never sent, or on another connection, counts as sent now."""
    return (was if n in dict(was.sent) else replace(was, sent=(*was.sent, (n, now_s)))), n, now_s


def _in_any_order(echoed: Callable[..., Belief]) -> Callable[..., Belief]:
    """Beats that were sent before the echoed one are not forgotten, and the last echo to arrive counts."""

    def planted(was: Belief, n: int, now_s: float) -> Belief:
        sent = dict(was.sent)
        found = echoed(was, n, now_s)
        return replace(found, sent=was.sent, until_s=belief._end_s(was, sent[n])) if n in sent else found

    return planted


def _keeps_what_was_never_begun(was: Belief) -> Belief:
    return replace(was, is_connected=False, sent=())


def _confirms_before_it_is_done(was: Belief, order: Any) -> belief.Step:
    confirm = Say(ConfirmFrame(order.consumer, order.epoch, "stepped_down"))
    return belief.Step(replace(was, epoch=order.epoch, standing=Standing.STEPPING), (confirm,))


def _stays_when_nobody_asked(finished: Callable[..., belief.Step]) -> Callable[..., belief.Step]:
    def planted(was: Belief, event: WorkFinished) -> belief.Step:
        asked = was.standing is Standing.HOLDING
        return finished(replace(was, standing=Standing.STEPPING) if asked else was, event)

    return planted


def _forgets_what_it_owes(done: belief.Step) -> belief.Step:
    return replace(done, belief=replace(done.belief, owed=None))


def _goes_on_after_its_end(was: Belief, frame: JoinedFrame, now_s: float) -> tuple[Belief, JoinedFrame, float]:
    over = was.standing is Standing.OVER and was.consumer == frame.consumer
    return (replace(was, standing=Standing.HOLDING) if over else was), frame, now_s


def _takes_any_incarnation(was: Belief, frame: JoinedFrame, now_s: float) -> tuple[Belief, JoinedFrame, float]:
    return replace(was, incarnation=-1), frame, now_s


def _begins_without_an_echo(done: belief.Step) -> belief.Step:
    if done.belief.standing is not Standing.ACTIVATING:
        return done
    return replace(done, belief=replace(done.belief, standing=Standing.HOLDING, until_s=math.inf))


def _begins_again(was: Belief, order: Any, now_s: float) -> tuple[Belief, Any, float]:
    return replace(was, epoch=min(was.epoch, order.epoch - 1)), order, now_s


BELIEF = (
    instead("a_belief_does_not_end_by_itself", "belief", belief, "_checked", lambda was, now_s: was),
    instead("a_belief_has_no_margin", "belief", belief, "_end_s", lambda was, sent_s: sent_s + was.lease_s),
    Mutation("a_lease_is_counted_from_the_echo", "belief", belief, "_echoed", _counted_from_the_echo),
    Mutation("an_echo_of_nothing_counts", "belief", belief, "_echoed", _given(_any_echo)),
    Mutation("an_old_echo_shortens_the_belief", "belief", belief, "_echoed", _in_any_order),
    instead(
        "an_order_for_another_incarnation_is_obeyed",
        "belief",
        belief,
        "_is_current",
        lambda was, order: order.consumer == was.consumer and order.epoch >= was.epoch,
    ),
    instead(
        "an_order_of_the_past_is_obeyed",
        "belief",
        belief,
        "_is_current",
        lambda was, order: (order.consumer, order.incarnation) == (was.consumer, was.incarnation),
    ),
    Mutation("one_begins_before_a_beat_was_echoed", "belief", belief, "_activate", _then(_begins_without_an_echo)),
    Mutation("what_was_given_back_begins_again", "belief", belief, "_activate", _given(_begins_again)),
    instead(
        "a_step_down_is_confirmed_before_the_work_ends", "belief", belief, "_step_down", _confirms_before_it_is_done
    ),
    Mutation("one_that_is_done_unasked_stays", "belief", belief, "_finished", _stays_when_nobody_asked),
    Mutation("a_step_down_while_away_is_never_confirmed", "belief", belief, "_finished", _then(_forgets_what_it_owes)),
    instead("one_that_never_began_keeps_its_epoch", "belief", belief, "_disconnected", _keeps_what_was_never_begun),
    Mutation("one_that_is_over_goes_on", "belief", belief, "_joined", _given(_goes_on_after_its_end)),
    Mutation("an_older_incarnation_is_taken", "belief", belief, "_joined", _given(_takes_any_incarnation)),
)


# Requests.


def _about_now(roster: Roster, request: Any, *now: Any) -> tuple[Any, ...]:
    """Whatever a request names, it means the consumer as it is."""
    found = roster.find(request.consumer)
    names = {"epoch", "incarnation"} & set(type(request).__slots__)
    current = request if found is None else structs.replace(request, **{name: getattr(found, name) for name in names})
    return roster, current, *now


def _drops_anyone(roster: Roster, request: Any, now: Any) -> requests.Step:
    return requests._command(roster, ConnectionDown(str(request.consumer)), now)


def _mutes_anyone(roster: Roster, request: Any) -> requests.Step:
    id = str(request.consumer)
    if id not in roster.seats:
        return requests.Step(roster, Ok())
    return requests.Step(requests._seated(roster, id, structs.replace(roster.seats[id], muted=True)), Ok())


def _buries_anyone(roster: Roster, request: Any, now: Any) -> requests.Step:
    return requests._command(roster, Purge(frozenset({str(request.consumer)})), now)


def _unheard(roster: Roster, request: Any, now: Any) -> requests.Step:
    found = roster.find(request.consumer)
    stale = found is None or not found.is_holder or found.epoch != request.epoch
    return _real_answered(roster, request, now) if stale else requests.Step(roster, Ok())


_real_answered = requests._answered


def _not_lost(roster: Roster, request: Any, now: Any) -> requests.Step:
    """A return that nobody saw coming is no loss."""
    if roster.find(request.consumer) is None or request.name != roster.name:
        return _real_rejoin(roster, request, now)
    id = str(request.consumer)
    moved = requests._seated(roster, id, structs.replace(roster.seats[id], node=request.node, trust_s=request.trust_s))
    back = requests._command(moved, ConnectionReconnected(id), now)
    return structs.replace(back, reply=requests._place(back.roster, request.consumer))


_real_rejoin = requests._rejoin


def _any_group(roster: Roster, request: Any, now: Any) -> tuple[Any, ...]:
    return roster, structs.replace(request, stream=roster.stream, name=roster.name), now


def _back_is_an_answer(done: requests.Step) -> requests.Step:
    seats = {id: structs.replace(seat, muted=False) for id, seat in done.roster.seats.items()}
    return structs.replace(done, roster=structs.replace(done.roster, seats=seats))


def _counts_for_nobody(roster: Roster, request: Any, now: Any) -> requests.Step:
    found = _real_answered(roster, request, now)
    ignored = structs.replace(found.roster.group, ignored=roster.group.ignored)
    return structs.replace(found, roster=structs.replace(found.roster, group=ignored))


def _answers_the_next_order(roster: Roster, request: Any, now: Any) -> requests.Step:
    found = roster.find(request.consumer)
    if found is None or found.activity != "deactivating" or found.epoch != request.epoch:
        return _real_answered(roster, request, now)
    heard = structs.replace(roster.seats[found.id], answered=True, muted=False)
    return requests.Step(requests._seated(roster, found.id, heard), Ok())


def _last_lease(done: requests.Step, request: Any) -> requests.Step:
    return structs.replace(done, roster=structs.replace(done.roster, lease_s=request.lease_s))


REQUESTS = (
    Mutation("a_mute_that_is_late_counts", "requests", requests, "_mute", _given(_about_now)),
    instead("one_that_has_answered_is_muted", "requests", requests, "_mute", _mutes_anyone),
    Mutation("a_drop_of_an_earlier_order_counts", "requests", requests, "_drop", _given(_about_now)),
    instead("one_that_has_answered_is_dropped", "requests", requests, "_drop", _drops_anyone),
    Mutation("the_end_of_an_earlier_connection_counts", "requests", requests, "_ended", _given(_about_now)),
    Mutation(
        "every_end_is_proof",
        "requests",
        requests,
        "_ended",
        _given(lambda roster, request, now: (roster, structs.replace(request, is_proved=True), now)),
    ),
    Mutation(
        "its_own_end_is_the_end_of_a_program_in_any_group",
        "requests",
        requests,
        "_ended",
        _given(lambda roster, request, now: (roster, structs.replace(request, is_proved=request.is_own), now)),
    ),
    Mutation(
        "any_end_is_the_end_of_a_program_that_is_fenced",
        "requests",
        requests,
        "_ended",
        _given(lambda roster, request, now: (roster, structs.replace(request, is_own=True), now)),
    ),
    Mutation(
        "its_own_end_is_waited_for",
        "requests",
        requests,
        "_ended",
        _given(lambda roster, request, now: (roster, structs.replace(request, is_own=False), now)),
    ),
    Mutation(
        "a_return_may_be_fenced_or_not",
        "requests",
        requests,
        "_rejoin",
        _given(lambda roster, request, now: (roster, structs.replace(request, is_fenced=roster.group.is_fenced), now)),
    ),
    Mutation(
        "an_empty_group_forgets_that_it_was_fenced",
        "requests",
        requests,
        "_join",
        _given(
            lambda roster, request, now: (
                roster
                if roster.group.consumers
                else structs.replace(roster, group=structs.replace(roster.group, is_fenced=False)),
                request,
                now,
            )
        ),
    ),
    Mutation("a_burial_of_an_earlier_silence_counts", "requests", requests, "_bury", _given(_about_now)),
    instead("one_that_has_come_back_is_buried", "requests", requests, "_bury", _buries_anyone),
    instead("an_answer_is_not_heard", "requests", requests, "_answered", _unheard),
    Mutation("an_answer_to_any_epoch_counts", "requests", requests, "_answered", _given(_about_now)),
    instead("an_answer_of_nobody_is_not_counted", "requests", requests, "_answered", _counts_for_nobody),
    instead("an_answer_answers_the_next_order", "requests", requests, "_answered", _answers_the_next_order),
    instead("a_return_that_nobody_saw_is_no_loss", "requests", requests, "_rejoin", _not_lost),
    Mutation("one_comes_back_to_another_group", "requests", requests, "_rejoin", _given(_any_group)),
    Mutation("coming_back_is_an_answer", "requests", requests, "_rejoin", _then(_back_is_an_answer)),
    Mutation(
        "the_last_one_decides_the_lease",
        "requests",
        requests,
        "_join",
        lambda join: lambda roster, request, now: _last_lease(join(roster, request, now), request),
    ),
    Mutation(
        "epochs_of_removed_groups_are_given_again",
        "requests",
        requests,
        "_join",
        _given(lambda roster, request, now: (structs.replace(roster, epoch_floor=0), request, now)),
    ),
    instead(
        "an_operator_drops_one_that_may_believe",
        "requests",
        requests,
        "_drop_silent",
        lambda roster, is_forced, now: requests._command(roster, Evaluate(), now),
    ),
    instead("a_group_is_never_vacant", "requests", requests, "_vacant_since", lambda roster, after, now: None),
)


# Delivery and deadlines.


def _same_for_all(due_orders: Callable[..., Any]) -> Callable[..., Any]:
    """An order for another connection is sent here too."""
    return lambda sent, orders, here, now_s, unread=(): due_orders(
        sent, orders, {o.consumer: o.incarnation for o in orders}, now_s
    )


def _from_the_last_sending(due_orders: Callable[..., Any]) -> Callable[..., Any]:
    """An order that is sent again has all the time in the world."""
    return lambda sent, orders, here, now_s, unread=(): due_orders(
        {key: (last_s, last_s) for key, (_, last_s) in sent.items()}, orders, here, now_s
    )


def _never_again(due_orders: Callable[..., Any]) -> Callable[..., Any]:
    return lambda sent, orders, here, now_s, unread=(): due_orders(
        {key: (first_s, math.inf) for key, (first_s, _) in sent.items()}, orders, here, now_s
    )


DELIVERY = (
    instead(
        "one_that_does_not_answer_is_echoed",
        "delivery",
        Link,
        "may_echo",
        lambda link, trust_left_s: not link.is_over and trust_left_s > 0.0,
    ),
    instead(
        "a_node_without_trust_echoes",
        "delivery",
        Link,
        "may_echo",
        lambda link, trust_left_s: not link.muted and not link.is_over,
    ),
    instead("the_end_of_a_connection_is_proof", "delivery", Link, "is_silent", lambda link, now_s: True),
    instead("the_end_of_a_connection_is_never_proof", "delivery", Link, "is_silent", lambda link, now_s: False),
    Mutation("an_order_for_another_connection_is_sent", "delivery", delivery, "due_orders", _same_for_all),
    Mutation("an_order_may_go_unanswered_for_ever", "delivery", delivery, "due_orders", _from_the_last_sending),
    Mutation("an_order_is_sent_once", "delivery", delivery, "due_orders", _never_again),
    instead("one_that_is_elsewhere_stays", "delivery", delivery, "replaced", lambda connected, rows: []),
    Mutation(
        "one_that_is_adrift_is_left_alone",
        "delivery",
        delivery,
        "adrift",
        _given(lambda seen, connected, rows, now_s: ({}, connected, rows, now_s)),
    ),
    Mutation(
        "a_dead_node_is_not_waited_for",
        "delivery",
        deadlines,
        "_deadlines",
        _given(lambda one: (replace(one, trust_s=0.0),)),
    ),
    Mutation(
        "a_deadline_of_an_earlier_silence_runs_on",
        "delivery",
        deadlines,
        "_deadlines",
        _then(lambda found: [(what, 0, within_s) for what, _, within_s in found]),
    ),
    Mutation(
        "one_that_does_not_answer_is_never_dropped",
        "delivery",
        deadlines,
        "_deadlines",
        _given(lambda one: (replace(one, muted=False),)),
    ),
)

ALL = (*BELIEF, *REQUESTS, *DELIVERY)
