"""The notifier: every way through a push session's states, by name and by an exhaustive walk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import get_args

import pytest

from headgate.core.push.notifier import (
    FULL_RETRY_MS,
    MOST_STREAMS,
    RETRY_MS,
    Accepted,
    Active,
    AskLocal,
    BarrierCompleted,
    ConnectionLost,
    Effect,
    EndOfStream,
    Event,
    Fail,
    GiveCredits,
    Id,
    Notify,
    PendingClose,
    PendingNotify,
    PendingRelinquish,
    Phase,
    Reason,
    Received,
    Regranted,
    Rejected,
    RelinquishAnswered,
    RelinquishLocal,
    Step,
    StreamLost,
    Take,
    TakenBack,
    TellAccepted,
    TellAcked,
    TellClosed,
    TellRejected,
    TellRestart,
    step,
)
from headgate.core.streams import Why

ASKED = PendingNotify()
NOTIFY = Notify("host-7")
CANCELLED = PendingNotify(is_cancelled=True)
NEW = Active(epoch=1, last_acked=None, last_seen=None)
ACTIVE = Active(epoch=2, last_acked=5, last_seen=8, last_sent=8)
CLOSING = PendingClose(epoch=2, last_acked=5, last_seen=8, after=3)
LEAVING = PendingRelinquish(epoch=2, position=8, tells_client=True)
CUT_OFF = PendingRelinquish(epoch=2, position=5, tells_client=False)
TAKEN_BACK = TakenBack()
PHASES: dict[str, Phase | None] = {
    "nothing": None,
    "asked": ASKED,
    "cancelled": CANCELLED,
    "active": ACTIVE,
    "closing": CLOSING,
    "leaving": LEAVING,
    "cut off": CUT_OFF,
    "taken back": TAKEN_BACK,
}


def each_phase(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("phase", [PHASES[name] for name in names], ids=names)


def each_phase_but(*names: str) -> pytest.MarkDecorator:
    return each_phase(*(name for name in PHASES if name not in names))


def after(*events: Event, phase: Phase | None = None) -> Step:
    """The last step of these events."""
    done = Step(phase)
    for event in events:
        done = step(done.phase, event)
    return done


def effects(*events: Event, phase: Phase | None = None) -> list[Effect]:
    """All effects of these events, in order."""
    found: list[Effect] = []
    for event in events:
        done = step(phase, event)
        phase = done.phase
        found += done.effects
    return found


def fails(done: Step, phase: Phase | None) -> str:
    """The code with which the session is ended; the stream stays where it is until the session's end is told."""
    assert done.phase == phase
    (fail,) = done.effects
    assert isinstance(fail, Fail)
    return fail.code


# Notify.


def test_a_notify_asks_the_local_registry() -> None:
    assert step(None, NOTIFY) == Step(ASKED, (AskLocal(),))


def test_a_new_stream_is_accepted_with_nothing_yet() -> None:
    assert step(ASKED, Accepted(1, None)) == Step(Active(1, None, None), (TellAccepted(1, None),))


@pytest.mark.parametrize("position", [0, 7])
def test_an_inactive_stream_is_accepted_where_it_stands(position: int) -> None:
    assert step(ASKED, Accepted(4, position)) == Step(Active(4, position, position), (TellAccepted(4, position),))


@pytest.mark.parametrize("reason", get_args(Reason))
def test_a_stream_that_is_not_to_be_had_is_refused_with_the_reason_and_a_hint(reason: Reason) -> None:
    assert step(ASKED, Rejected(reason, 700)) == Step(None, (TellRejected(reason, 700),))


@each_phase_but("nothing", "taken back")
def test_a_notify_for_a_stream_that_the_session_has_in_any_state_is_refused_at_once(phase: Phase) -> None:
    assert step(phase, NOTIFY) == Step(phase, (TellRejected("busy", RETRY_MS),))


@pytest.mark.parametrize("label", ["", "a b", "a/b", "a\\b", "x\0", "x" * 201])
@each_phase_but()
def test_a_name_that_is_no_stream_s_is_refused_whatever_the_session_has(phase: Phase | None, label: str) -> None:
    assert step(phase, Notify(label)) == Step(phase, (TellRejected("bad_stream", 0),))


@pytest.mark.parametrize(("held", "answer"), [(MOST_STREAMS - 1, AskLocal()), (MOST_STREAMS, None)])
@pytest.mark.parametrize("phase", [None, TAKEN_BACK], ids=["nothing", "taken back"])
def test_a_session_has_10_000_streams_and_one_more_is_too_many(
    phase: Phase | None, held: int, answer: AskLocal | None
) -> None:
    done = step(phase, Notify("one-more", held))
    if answer is not None:
        assert done == Step(ASKED, (answer,))
    else:
        assert done == Step(phase, (TellRejected("too_many", FULL_RETRY_MS),))


def test_what_was_sent_before_a_stream_was_taken_back_is_nobody_s_fault_and_costs_no_credits() -> None:
    taken = after(StreamLost(2, "stopped"), phase=ACTIVE)
    assert taken == Step(TAKEN_BACK, (TellRestart("stopped"),))
    assert step(taken.phase, Received((7, 8, 3))) == Step(TAKEN_BACK, (GiveCredits(3),))
    assert step(taken.phase, EndOfStream(4)) == Step(TAKEN_BACK)
    assert step(taken.phase, NOTIFY) == Step(ASKED, (AskLocal(),))
    assert step(taken.phase, ConnectionLost()) == Step(None)


def test_a_stream_that_was_refused_may_be_asked_for_again() -> None:
    assert after(NOTIFY, Rejected("owned"), NOTIFY) == Step(ASKED, (AskLocal(),))


@each_phase("active", "closing", "leaving", "cut off")
def test_the_same_answer_twice_is_one(phase: Phase) -> None:
    assert step(phase, Accepted(2, 5)) == Step(phase)


@each_phase_but("asked", "cancelled")
def test_a_refusal_that_nobody_waits_for_changes_nothing(phase: Phase | None) -> None:
    assert step(phase, Rejected("owned")) == Step(phase)


# An answer and the end of a session.


def test_a_session_that_closes_cancels_its_request_and_does_not_forget_it() -> None:
    assert step(ASKED, ConnectionLost()) == Step(CANCELLED)


def test_a_grant_for_a_session_that_has_been_closed_is_given_back_at_once() -> None:
    given_back = PendingRelinquish(3, 7, tells_client=False)
    assert step(CANCELLED, Accepted(3, 7)) == Step(given_back, (RelinquishLocal(3, 7),))


def test_a_grant_of_a_new_stream_for_a_closed_session_is_given_back_with_nothing_yet() -> None:
    assert step(CANCELLED, Accepted(1, None)).effects == (RelinquishLocal(1, None),)


def test_a_refusal_for_a_session_that_has_been_closed_is_told_to_nobody() -> None:
    assert step(CANCELLED, Rejected("owned", 2000)) == Step(None)


def test_a_grant_that_nobody_waits_for_is_given_back() -> None:
    """The answer was late or doubled: the request had been refused, or the stream has been given back since."""
    assert step(None, Accepted(3, 7)) == Step(None, (RelinquishLocal(3, 7),))


def test_an_answer_that_arrives_after_the_client_came_back_is_not_the_new_sessions() -> None:
    """A session that is opened again is another one; the old one gives back what it had asked for."""
    old, new = after(NOTIFY, ConnectionLost()).phase, after(NOTIFY).phase
    assert step(old, Accepted(3, 7)).effects == (RelinquishLocal(3, 7),)
    assert step(new, Rejected("busy", RETRY_MS)) == Step(None, (TellRejected("busy", RETRY_MS),))


def test_an_answer_that_arrives_after_trust_was_lost_is_given_back_and_told_to_nobody() -> None:
    """Without trust the node closes its sockets; a request that is under way cannot be taken back."""
    assert effects(NOTIFY, StreamLost(9, "no trust"), ConnectionLost(), Accepted(3, 7)) == [
        AskLocal(),
        RelinquishLocal(3, 7),
    ]


# Records.


def test_the_first_id_may_be_0() -> None:
    assert step(NEW, Received([0])) == Step(Active(1, None, 0, 0), (Take(skipped=0),))


def test_ids_may_have_gaps() -> None:
    assert step(NEW, Received([3, 10, 999])) == Step(Active(1, None, 999, 999), (Take(skipped=0),))


def test_ids_go_on_rising_from_one_message_to_the_next() -> None:
    assert after(Received([0, 1]), Received([2]), phase=NEW) == Step(Active(1, None, 2, 2), (Take(skipped=0),))


def test_what_was_seen_already_is_skipped() -> None:
    """The client has not heard of all that is durable, and sends it again."""
    reopened = Active(epoch=3, last_acked=5, last_seen=5)
    assert step(reopened, Received([4, 5, 6])) == Step(Active(3, 5, 6, 6), (Take(skipped=2),))


def test_what_was_seen_already_is_skipped_at_id_0() -> None:
    reopened = Active(epoch=3, last_acked=0, last_seen=0)
    assert step(reopened, Received([0])) == Step(Active(3, 0, 0, 0), (Take(skipped=1),))


def test_a_message_with_nothing_but_old_records_takes_last_seen_back_by_nothing() -> None:
    reopened = Active(epoch=3, last_acked=5, last_seen=5)
    assert step(reopened, Received([2, 3])) == Step(Active(3, 5, 5, 3), (Take(skipped=2),))


@pytest.mark.parametrize("ids", [[8], [7], [9, 9], [9, 10, 10], [10, 9], [0]])
def test_ids_that_repeat_or_go_backwards_end_the_session_and_none_is_taken(ids: list[int]) -> None:
    assert fails(step(ACTIVE, Received(ids)), ACTIVE) == "backwards"


def test_a_client_whose_ids_go_backwards_is_told_so_and_nothing_that_it_sent_is_repeated() -> None:
    told = "an id is not above the one before it; ids must rise"
    assert step(ACTIVE, Received([9, 7])).effects == (Fail("backwards", told),)


def test_an_id_repeated_while_old_records_are_sent_again_ends_the_session() -> None:
    """What the session sends must rise, even where it is skipped."""
    reopened = Active(epoch=3, last_acked=5, last_seen=5, last_sent=2)
    assert fails(step(reopened, Received([2])), reopened) == "backwards"


def test_the_id_0_repeated_ends_the_session() -> None:
    sent = after(Received([0]), phase=NEW).phase
    assert fails(step(sent, Received([0])), sent) == "backwards"


def test_a_message_without_records_changes_nothing() -> None:
    assert step(ACTIVE, Received([])) == Step(ACTIVE)
    assert step(NEW, Received([])) == Step(NEW)


@each_phase_but("active", "taken back")
def test_records_for_a_stream_that_is_not_granted_end_the_session(phase: Phase | None) -> None:
    assert fails(step(phase, Received([9])), phase) == "not_granted"


# Barriers.


def test_a_barrier_tells_the_client_how_far_its_records_are_durable() -> None:
    assert step(ACTIVE, BarrierCompleted(4, 2, 7)) == Step(replace(ACTIVE, last_acked=7), (TellAcked(7),))


def test_the_first_record_of_a_stream_is_acknowledged_at_id_0() -> None:
    seen = Active(1, None, 0, 0)
    assert step(seen, BarrierCompleted(1, 1, 0)) == Step(Active(1, 0, 0, 0), (TellAcked(0),))


@pytest.mark.parametrize(("phase", "position"), [(ACTIVE, 5), (NEW, None), (Active(1, 0, 2), 0)])
def test_a_barrier_that_brings_nothing_new_tells_nothing(phase: Active, position: Id) -> None:
    assert step(phase, BarrierCompleted(4, phase.epoch, position)) == Step(phase)


@pytest.mark.parametrize("position", [4, 0, None])
def test_a_barrier_that_completes_out_of_order_takes_nothing_back(position: Id) -> None:
    assert step(ACTIVE, BarrierCompleted(4, 2, position)) == Step(ACTIVE)
    assert step(CLOSING, BarrierCompleted(4, 2, position)) == Step(CLOSING)


def test_what_the_run_before_has_committed_counts() -> None:
    regranted = after(Regranted(3), phase=ACTIVE).phase
    assert step(regranted, BarrierCompleted(4, 2, 8)).effects == (TellAcked(8),)


def test_a_barrier_of_a_grant_that_the_session_has_not_heard_of_is_not_its_own() -> None:
    assert step(ACTIVE, BarrierCompleted(4, 3, 8)) == Step(ACTIVE)


@each_phase_but("active", "closing")
def test_a_barrier_is_nothing_to_a_stream_that_takes_no_records(phase: Phase | None) -> None:
    assert step(phase, BarrierCompleted(9, 2, 9)) == Step(phase)


# The end of a stream.


def test_an_end_of_stream_waits_for_a_barrier() -> None:
    assert step(ACTIVE, EndOfStream(barrier=3)) == Step(CLOSING)


def test_a_barrier_that_began_after_the_end_closes_the_stream() -> None:
    done = step(CLOSING, BarrierCompleted(4, 2, 8))
    assert done == Step(LEAVING, (TellAcked(8), RelinquishLocal(2, 8)))


@pytest.mark.parametrize("barrier", [2, 3])
def test_a_barrier_that_was_under_way_at_the_end_does_not_close_the_stream(barrier: int) -> None:
    """It may have left records behind; that it reached the last one is no proof that nothing else is open."""
    done = step(CLOSING, BarrierCompleted(barrier, 2, 8))
    assert done == Step(replace(CLOSING, last_acked=8), (TellAcked(8),))
    assert step(done.phase, BarrierCompleted(4, 2, 8)) == Step(LEAVING, (RelinquishLocal(2, 8),))


def test_a_barrier_before_the_end_does_not_close_the_stream() -> None:
    """Everything is durable when the end comes, and a barrier is still needed."""
    done = after(BarrierCompleted(3, 2, 8), EndOfStream(barrier=3), phase=ACTIVE)
    assert done == Step(replace(CLOSING, last_acked=8))
    assert step(done.phase, BarrierCompleted(4, 2, 8)).effects == (RelinquishLocal(2, 8),)


def test_a_barrier_that_does_not_reach_the_last_record_does_not_close_the_stream() -> None:
    done = step(CLOSING, BarrierCompleted(4, 2, 7))
    assert done == Step(replace(CLOSING, last_acked=7), (TellAcked(7),))
    assert step(done.phase, BarrierCompleted(5, 2, 8)).effects == (TellAcked(8), RelinquishLocal(2, 8))


def test_an_empty_stream_is_closed_with_nothing_yet() -> None:
    done = after(EndOfStream(0), BarrierCompleted(1, 1, None), phase=NEW)
    assert done == Step(PendingRelinquish(1, None, tells_client=True), (RelinquishLocal(1, None),))
    assert step(done.phase, RelinquishAnswered(1)).effects == (TellClosed(None),)


def test_a_stream_with_the_record_0_alone_is_closed_at_0() -> None:
    events = (Received([0]), EndOfStream(0), BarrierCompleted(1, 1, 0), RelinquishAnswered(1))
    assert effects(*events, phase=NEW) == [Take(0), TellAcked(0), RelinquishLocal(1, 0), TellClosed(0)]


def test_an_empty_barrier_does_not_close_a_stream_that_has_the_record_0() -> None:
    events = (Received([0]), EndOfStream(0), BarrierCompleted(1, 1, None))
    assert after(*events, phase=NEW) == Step(PendingClose(1, None, 0, after=0))


def test_a_notify_before_the_end_is_acknowledged_is_refused_and_after_it_asks_again() -> None:
    events = (EndOfStream(3), NOTIFY, BarrierCompleted(4, 2, 8), NOTIFY, RelinquishAnswered(2), NOTIFY)
    assert effects(*events, phase=ACTIVE) == [
        TellRejected("busy", RETRY_MS),
        TellAcked(8),
        RelinquishLocal(2, 8),
        TellRejected("busy", RETRY_MS),
        TellClosed(8),
        AskLocal(),
    ]


@each_phase("closing", "leaving", "cut off")
def test_a_second_end_ends_the_session(phase: Phase) -> None:
    assert fails(step(phase, EndOfStream(9)), phase) == "unexpected"


@each_phase("nothing", "asked", "cancelled")
def test_the_end_of_a_stream_that_is_not_granted_ends_the_session(phase: Phase | None) -> None:
    assert fails(step(phase, EndOfStream(9)), phase) == "not_granted"


# Relinquish.


def test_a_stream_is_closed_when_the_registry_has_taken_it_back() -> None:
    assert step(LEAVING, RelinquishAnswered(2)) == Step(None, (TellClosed(8),))


def test_a_stream_that_was_given_back_by_a_relinquish_whose_answer_was_lost_is_closed() -> None:
    assert step(LEAVING, RelinquishAnswered(2, "already_inactive")) == Step(None, (TellClosed(8),))


@pytest.mark.parametrize("why", ["stale", "owned_by_other"])
def test_a_stream_that_was_not_ours_to_give_has_no_known_end(why: Why) -> None:
    assert step(LEAVING, RelinquishAnswered(2, why)) == Step(TAKEN_BACK, (TellRestart(why),))


@pytest.mark.parametrize("why", [None, *get_args(Why)])
def test_the_answer_for_a_closed_session_is_told_to_nobody_whatever_it_is(why: Why | None) -> None:
    assert step(CUT_OFF, RelinquishAnswered(2, why)) == Step(None)


def test_while_there_is_no_answer_the_stream_stays_where_it_is() -> None:
    """Whoever performs the effect sends it again; the session waits, whatever else it hears."""
    silence = (NOTIFY, BarrierCompleted(9, 2, 9), Accepted(2, 8), Rejected("busy"), Regranted(2))
    assert after(*silence, phase=LEAVING).phase == LEAVING


@pytest.mark.parametrize("epoch", [1, 3])
@each_phase("leaving", "cut off")
def test_an_answer_to_another_relinquish_is_not_the_answer_to_this_one(phase: Phase, epoch: int) -> None:
    assert step(phase, RelinquishAnswered(epoch)) == Step(phase)


@each_phase("nothing", "asked", "cancelled", "active", "closing")
@pytest.mark.parametrize("why", [None, *get_args(Why)])
def test_an_answer_that_is_doubled_or_late_changes_nothing(phase: Phase | None, why: Why | None) -> None:
    assert step(phase, RelinquishAnswered(2, why)) == Step(phase)


# The connection is lost.


@each_phase("active", "closing")
def test_a_session_that_ends_gives_back_what_is_acknowledged_and_no_more(phase: Active | PendingClose) -> None:
    assert step(phase, ConnectionLost()) == Step(CUT_OFF, (RelinquishLocal(2, 5),))


def test_a_session_that_ends_while_it_gives_back_sends_nothing_twice() -> None:
    assert step(LEAVING, ConnectionLost()) == Step(replace(LEAVING, tells_client=False))


@each_phase("nothing", "cancelled", "cut off")
def test_a_session_that_ends_twice_ends_once(phase: Phase | None) -> None:
    assert step(phase, ConnectionLost()) == Step(phase)


def test_a_connection_lost_between_a_flush_and_its_commit_gives_back_what_was_acknowledged_before() -> None:
    """The commit is told to nobody any more; the row has it, and the relinquish does not take it back."""
    events = (ConnectionLost(), BarrierCompleted(4, 2, 8), RelinquishAnswered(2))
    assert effects(*events, phase=ACTIVE) == [RelinquishLocal(2, 5)]


def test_a_commit_that_fails_after_the_connection_was_lost_leaves_nothing_behind() -> None:
    """The row was fenced: the stream is somebody else's, and there is nothing to give back."""
    assert effects(ConnectionLost(), StreamLost(2, "fenced"), RelinquishAnswered(2, "stale"), phase=ACTIVE) == [
        RelinquishLocal(2, 5)
    ]
    assert after(ConnectionLost(), StreamLost(2, "fenced"), phase=ACTIVE) == Step(None)


# Regranted.


def test_a_new_run_goes_on_under_its_epoch() -> None:
    assert step(ACTIVE, Regranted(3)) == Step(replace(ACTIVE, epoch=3))
    assert step(CLOSING, Regranted(3)) == Step(replace(CLOSING, epoch=3))


@each_phase("leaving", "cut off")
def test_a_grant_to_a_stream_that_is_given_back_is_given_back_as_well(phase: PendingRelinquish) -> None:
    done = step(phase, Regranted(3))
    assert done == Step(replace(phase, epoch=3), (RelinquishLocal(3, phase.position),))
    assert step(done.phase, RelinquishAnswered(2, "stale")).phase == done.phase


@pytest.mark.parametrize("epoch", [1, 2])
@each_phase_but("nothing", "asked", "cancelled")
def test_a_regrant_that_is_late_or_doubled_changes_nothing(phase: Phase, epoch: int) -> None:
    assert step(phase, Regranted(epoch)) == Step(phase)


@each_phase("nothing", "asked", "cancelled")
def test_a_regrant_is_nothing_to_a_session_that_has_not_been_granted_the_stream(phase: Phase | None) -> None:
    """Its node gives it back, or tells it with the answer."""
    assert step(phase, Regranted(3)) == Step(phase)


# Lost.


@pytest.mark.parametrize("epoch", [2, 3])
@each_phase("active", "closing", "leaving")
def test_a_stream_that_was_taken_from_us_is_asked_for_again(phase: Phase, epoch: int) -> None:
    assert step(phase, StreamLost(epoch, "expired")) == Step(TAKEN_BACK, (TellRestart("expired"),))


def test_a_stream_taken_from_a_session_that_has_been_closed_is_gone() -> None:
    assert step(CUT_OFF, StreamLost(2, "expired")) == Step(None)


@each_phase("active", "closing", "leaving", "cut off")
def test_the_loss_of_an_older_grant_changes_nothing(phase: Phase) -> None:
    assert step(phase, StreamLost(1, "expired")) == Step(phase)


@each_phase("nothing", "asked", "cancelled")
def test_nothing_is_lost_where_nothing_was_granted(phase: Phase | None) -> None:
    assert step(phase, StreamLost(2, "expired")) == Step(phase)


# Every order of events over small values.

IDS: tuple[Id, ...] = (None, 0, 1, 2, 3)
EPOCHS = (1, 2, 3)
BARRIERS = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Seen:
    """A state, and what has happened on the way that the state alone does not tell."""

    phase: Phase | None = None
    is_over: bool = False  # The connection is lost: the client says nothing any more.
    end: tuple[Id, int] | None = None  # At the end of the stream: the last record seen, and the last barrier begun.
    is_closed_by_barrier: bool = False  # One that began after the end has reached the last record.


def from_the_client() -> Iterator[Event]:
    yield NOTIFY
    for ids in ((), (0,), (1,), (2,), (3,), (0, 2), (1, 3), (2, 2), (3, 1)):
        yield Received(ids)
    for barrier in BARRIERS:
        yield EndOfStream(barrier)


def from_the_node() -> Iterator[Event]:
    yield ConnectionLost()
    yield Rejected("owned")
    for epoch in EPOCHS:
        for position in IDS:
            yield Accepted(epoch, position)
            for barrier in BARRIERS:
                yield BarrierCompleted(barrier, epoch, position)
        yield Regranted(epoch)
        for why in (None, *get_args(Why)):
            yield RelinquishAnswered(epoch, why)
        yield StreamLost(epoch, "taken")


def follow(seen: Seen, event: Event) -> Seen:
    """Take one step, with everything asserted that is true of every step."""
    before, done = seen.phase, step(seen.phase, event)
    phase, does = done.phase, done.effects
    checks_the_grant(before, event, done)
    checks_the_position(before, event, done)
    is_over = seen.is_over or isinstance(event, ConnectionLost)
    if is_over:
        assert not [one for one in does if not isinstance(one, RelinquishLocal)], "told to a client that is gone"
        assert not isinstance(phase, Active | PendingClose)
        assert phase != PendingNotify(is_cancelled=False)
    for one in does:
        if isinstance(one, TellAcked):
            assert isinstance(event, BarrierCompleted)
            assert event.position == one.position, "acknowledged what no barrier reported"
        if isinstance(one, TellClosed):
            assert seen.is_closed_by_barrier, "closed without a barrier that began after the end"
            assert seen.end is not None
            assert seen.end[0] == one.position, "closed before the last record was durable"
            assert isinstance(event, RelinquishAnswered)
            assert event.nack in (None, "already_inactive")
    if isinstance(phase, PendingRelinquish) and phase.tells_client:
        end = seen.end
        assert end is not None
        is_proof = isinstance(event, BarrierCompleted) and event.barrier > end[1] and event.position == end[0]
        assert seen.is_closed_by_barrier or is_proof
        return Seen(phase, is_over, end, is_closed_by_barrier=True)
    if isinstance(phase, PendingClose):
        is_end = isinstance(before, Active) and isinstance(event, EndOfStream)
        return Seen(phase, is_over, (before.last_seen, event.barrier) if is_end else seen.end)
    return Seen(phase, is_over)


def epoch_of(phase: Phase | None) -> int:
    return 0 if phase is None or isinstance(phase, PendingNotify | TakenBack) else phase.epoch


def acked_of(phase: Phase | None) -> Id:
    match phase:
        case Active(last_acked=position) | PendingClose(last_acked=position) | PendingRelinquish(position=position):
            return position
        case _:
            return None


def rank(position: Id) -> int:
    return -1 if position is None else position


def checks_the_grant(before: Phase | None, event: Event, done: Step) -> None:
    """No grant is left behind: somebody knows of it, or it is given back."""
    given_back = [one.epoch for one in done.effects if isinstance(one, RelinquishLocal)]
    assert len(given_back) <= 1
    if isinstance(event, Accepted):
        known = max([epoch_of(done.phase), *given_back])
        assert known >= event.epoch, "a grant that nobody knows of"
    had, has = epoch_of(before), epoch_of(done.phase)
    assert has == 0 or has >= had, "back to an older grant"
    if isinstance(done.phase, PendingRelinquish) and (not isinstance(before, PendingRelinquish) or has > had):
        assert given_back == [has], "being given back, and nobody was asked to"
    if had and not has:
        match event:
            case StreamLost(epoch=epoch):
                assert epoch >= had
            case RelinquishAnswered(epoch=epoch):
                assert isinstance(before, PendingRelinquish), "answered before it was asked"
                assert epoch == had
            case _:
                pytest.fail(f"{event} made it forget {before}")


def checks_the_position(before: Phase | None, event: Event, done: Step) -> None:
    """What is acknowledged only rises, and is what is given back."""
    if epoch_of(before) and epoch_of(done.phase):
        assert rank(acked_of(done.phase)) >= rank(acked_of(before)), "acknowledged, and not any more"
    for one in done.effects:
        if isinstance(one, RelinquishLocal):
            is_new = isinstance(event, Accepted) and epoch_of(before) == 0
            told = event.position if is_new else acked_of(done.phase)
            assert one.position == told, "given back with more or less than is acknowledged"
        if isinstance(one, Take):
            assert isinstance(event, Received)
            assert isinstance(before, Active)
            assert isinstance(done.phase, Active)
            taken = event.ids[one.skipped :]
            assert all(id > rank(before.last_seen) for id in taken), "handed over twice"
            assert all(id <= rank(before.last_seen) for id in event.ids[: one.skipped]), "skipped and never seen"
            assert done.phase.last_seen == max([rank(before.last_seen), *taken])


def is_possible(seen: Seen, event: Event) -> bool:
    """Whether a node says that to a session in this state: what a barrier reports has been handed over."""
    phase = seen.phase
    match event:
        case BarrierCompleted(position=position) if isinstance(phase, Active | PendingClose):
            return rank(position) <= rank(phase.last_seen)
        case _:
            return True


def test_a_newer_grant_than_the_one_it_knows_is_taken_up_or_given_back_as_well() -> None:
    assert step(Active(2, 5, 8), Accepted(3, 5)).phase == Active(3, 5, 8)
    again = step(PendingRelinquish(2, 8, True), Accepted(3, 8))
    assert again == Step(PendingRelinquish(3, 8, True), (RelinquishLocal(3, 8),))


@pytest.fixture(scope="module")
def walked() -> set[Seen]:
    """Every state that can be reached; what is true of every step has held in each."""
    client, node = list(from_the_client()), list(from_the_node())
    seen, frontier = {Seen()}, [Seen()]
    while frontier:
        one = frontier.pop()
        for event in node if one.is_over else client + node:
            if is_possible(one, event):
                following = follow(one, event)
                if following not in seen:
                    seen.add(following)
                    frontier.append(following)
    return seen


def test_every_order_of_events_keeps_the_rules(walked: set[Seen]) -> None:
    assert {type(one.phase) for one in walked} == {*get_args(Phase), type(None)}
    assert len(walked) > 200


def test_a_session_that_is_over_has_nothing_in_hand_but_what_it_gives_back(walked: set[Seen]) -> None:
    over = {type(one.phase) for one in walked if one.is_over}
    assert over == {type(None), PendingNotify, PendingRelinquish}


def test_from_every_state_the_end_of_the_session_leaves_nothing_behind(walked: set[Seen]) -> None:
    for one in walked:
        done = step(one.phase, ConnectionLost())
        if isinstance(done.phase, PendingNotify):
            done = step(done.phase, Accepted(3, 2))
        if done.phase is not None:
            assert isinstance(done.phase, PendingRelinquish)
            done = step(done.phase, RelinquishAnswered(done.phase.epoch))
        assert done == Step(None), one


def test_from_every_state_a_stream_can_be_closed(walked: set[Seen]) -> None:
    """The client says that there is no more, one barrier begins after it, and the registry answers."""
    for one in walked:
        phase = one.phase
        if one.is_over or phase is None:
            continue
        if isinstance(phase, TakenBack):
            phase = step(phase, NOTIFY).phase
        if isinstance(phase, PendingNotify):
            phase = step(phase, Accepted(3, 2)).phase
        if isinstance(phase, Active):
            phase = step(phase, EndOfStream(2)).phase
        if isinstance(phase, PendingClose):
            phase = step(phase, BarrierCompleted(3, phase.epoch, phase.last_seen)).phase
        assert isinstance(phase, PendingRelinquish)
        told = step(phase, RelinquishAnswered(phase.epoch)).effects
        assert told == (TellClosed(phase.position),), one
