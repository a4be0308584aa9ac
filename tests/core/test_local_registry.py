"""The local registry: which session is told what, by name and by an exhaustive walk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import get_args
from uuid import UUID

import pytest

from headgate.core.push.local_registry import (
    NOT_READY_RETRY_MS,
    OWNED_RETRY_MS,
    AcceptSession,
    Ask,
    AskGlobal,
    Asking,
    Effect,
    Entry,
    Event,
    GlobalDenied,
    GlobalGranted,
    GlobalReleased,
    HeldBySession,
    RejectSession,
    Relinquish,
    RelinquishGlobal,
    Relinquishing,
    SessionClosed,
    Step,
    Taken,
    Updated,
    step,
)
from headgate.core.push.notifier import RETRY_MS, Id, Reason

MINE, THEIRS = UUID(int=1), UUID(int=2)
ASKING = Asking(MINE, "orders:eu")
ORPHAN = replace(ASKING, is_orphan=True)
HELD = HeldBySession(MINE, "orders:eu", epoch=2, last_acked=5, last_seen=8)
LEAVING = Relinquishing(MINE, "orders:eu", epoch=2, last_acked=5)
ENTRIES: dict[str, Entry | None] = {
    "nothing": None,
    "asking": ASKING,
    "orphan": ORPHAN,
    "held": HELD,
    "leaving": LEAVING,
}


def each_entry(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("entry", [ENTRIES[name] for name in names], ids=names)


def each_entry_but(*names: str) -> pytest.MarkDecorator:
    return each_entry(*(name for name in ENTRIES if name not in names))


def ask(session: UUID = MINE) -> Ask:
    return Ask(session, "orders:eu")


def after(*events: Event, entry: Entry | None = None) -> Step:
    """The last step of these events."""
    done = Step(entry)
    for event in events:
        done = step(done.entry, event)
    return done


def effects(*events: Event, entry: Entry | None = None) -> list[Effect]:
    """All effects of these events, in order."""
    found: list[Effect] = []
    for event in events:
        done = step(entry, event)
        entry = done.entry
        found += done.effects
    return found


# Asking.


def test_a_stream_that_nobody_here_has_is_asked_for_globally() -> None:
    assert step(None, ask()) == Step(ASKING, (AskGlobal(),))


def test_a_new_stream_is_accepted_with_nothing_yet() -> None:
    granted = step(ASKING, GlobalGranted(1, None))
    assert granted == Step(HeldBySession(MINE, "orders:eu", 1, None, None), (AcceptSession(MINE, 1, None),))


@pytest.mark.parametrize("position", [0, 7])
def test_an_inactive_stream_is_accepted_where_it_stands(position: int) -> None:
    granted = step(ASKING, GlobalGranted(4, position))
    assert granted == Step(HeldBySession(MINE, "orders:eu", 4, position, position), (AcceptSession(MINE, 4, position),))


@pytest.mark.parametrize("reason", get_args(Reason))
def test_a_stream_that_is_not_to_be_had_is_rejected_with_the_reason_and_a_hint(reason: Reason) -> None:
    retry_after_ms = OWNED_RETRY_MS if reason == "owned" else NOT_READY_RETRY_MS
    assert step(ASKING, GlobalDenied(reason)) == Step(None, (RejectSession(MINE, reason, retry_after_ms),))


def test_a_session_that_asks_again_while_the_answer_is_under_way_is_answered_once() -> None:
    assert effects(ask(), ask(), GlobalGranted(1, None)) == [AskGlobal(), AcceptSession(MINE, 1, None)]


def test_a_session_that_asks_for_what_it_has_is_answered_the_same_again() -> None:
    """Its node may repeat a request whose answer it has not seen. What is durable is what it goes on from."""
    assert step(HELD, ask()) == Step(HELD, (AcceptSession(MINE, 2, 5),))


def test_another_session_is_rejected_without_a_round_trip_while_one_has_the_stream() -> None:
    assert step(HELD, ask(THEIRS)) == Step(HELD, (RejectSession(THEIRS, "owned", OWNED_RETRY_MS),))


@each_entry("asking", "orphan", "leaving")
def test_another_session_is_told_to_come_back_soon_while_nothing_is_settled(entry: Entry) -> None:
    assert step(entry, ask(THEIRS)) == Step(entry, (RejectSession(THEIRS, "busy", RETRY_MS),))


@each_entry("orphan", "leaving")
def test_the_same_session_waits_as_well_for_what_is_being_given_back(entry: Entry) -> None:
    assert step(entry, ask()) == Step(entry, (RejectSession(MINE, "busy", RETRY_MS),))


@each_entry_but("asking", "orphan")
def test_a_denial_that_nobody_waits_for_changes_nothing(entry: Entry | None) -> None:
    assert step(entry, GlobalDenied("owned")) == Step(entry)


# A session closes.


def test_a_session_that_closes_leaves_its_question_behind() -> None:
    assert step(ASKING, SessionClosed(MINE)) == Step(ORPHAN)


def test_a_grant_for_a_session_that_has_been_closed_is_given_back_at_once() -> None:
    given_back = Relinquishing(MINE, "orders:eu", 3, 7)
    assert step(ORPHAN, GlobalGranted(3, 7)) == Step(given_back, (RelinquishGlobal(3, 7),))


def test_a_denial_for_a_session_that_has_been_closed_is_told_to_nobody() -> None:
    assert step(ORPHAN, GlobalDenied("owned")) == Step(None)


def test_a_session_that_closes_gives_back_what_is_acknowledged_and_no_more() -> None:
    assert step(HELD, SessionClosed(MINE)) == Step(LEAVING, (RelinquishGlobal(2, 5),))


@each_entry("nothing", "orphan", "leaving")
def test_a_session_that_closes_twice_closes_once(entry: Entry | None) -> None:
    assert step(entry, SessionClosed(MINE)) == Step(entry)


@each_entry_but()
def test_the_end_of_another_session_changes_nothing(entry: Entry | None) -> None:
    assert step(entry, SessionClosed(THEIRS)) == Step(entry)


def test_an_answer_that_arrives_after_the_client_came_back_is_not_the_new_sessions() -> None:
    """Until the grant of the old session is given back, the new one is told to wait; then it may ask for itself."""
    events = (ask(), SessionClosed(MINE), ask(THEIRS), GlobalGranted(3, 7), ask(THEIRS), GlobalReleased(3), ask(THEIRS))
    assert effects(*events) == [
        AskGlobal(),
        RejectSession(THEIRS, "busy", RETRY_MS),
        RelinquishGlobal(3, 7),
        RejectSession(THEIRS, "busy", RETRY_MS),
        AskGlobal(),
    ]


def test_an_answer_that_arrives_after_trust_was_lost_is_given_back() -> None:
    """Without trust the sessions are closed; the incarnation, if it goes on, has promised the stream to nobody."""
    assert effects(ask(), Taken(9), SessionClosed(MINE), GlobalGranted(3, 7)) == [AskGlobal(), RelinquishGlobal(3, 7)]


def test_a_new_incarnation_gives_back_what_nobody_waits_for() -> None:
    assert step(None, GlobalGranted(3, 7)) == Step(None, (RelinquishGlobal(3, 7),))


# Granted again.


def test_a_new_run_goes_on_under_its_epoch() -> None:
    assert step(HELD, GlobalGranted(3, 5)).entry == replace(HELD, epoch=3)


def test_a_grant_to_a_stream_that_is_given_back_is_given_back_as_well() -> None:
    done = step(LEAVING, GlobalGranted(3, 5))
    assert done == Step(replace(LEAVING, epoch=3), (RelinquishGlobal(3, 5),))
    assert step(done.entry, GlobalReleased(2)) == Step(done.entry), "the older answer says nothing about it"


@pytest.mark.parametrize("epoch", [1, 2])
@each_entry("held", "leaving")
def test_a_grant_that_is_late_or_doubled_changes_nothing(entry: Entry, epoch: int) -> None:
    assert step(entry, GlobalGranted(epoch, 3)) == Step(entry)


# Updates.


def test_a_barrier_moves_the_stream_forward() -> None:
    assert step(HELD, Updated(MINE, 2, 8, 9)) == Step(replace(HELD, last_acked=8, last_seen=9))


@pytest.mark.parametrize(
    "update", [Updated(THEIRS, 2, 8, 9), Updated(MINE, 1, 8, 9)], ids=["another session", "an older grant"]
)
def test_an_update_of_somebody_else_changes_nothing(update: Updated) -> None:
    assert step(HELD, update) == Step(HELD)


@each_entry_but("held")
def test_an_update_is_nothing_to_a_stream_that_no_session_has(entry: Entry | None) -> None:
    assert step(entry, Updated(MINE, 2, 8, 9)) == Step(entry)


def test_a_session_that_closes_gives_back_what_the_last_barrier_reached() -> None:
    assert effects(Updated(MINE, 2, 8, 9), SessionClosed(MINE), entry=HELD) == [RelinquishGlobal(2, 8)]


# Relinquish.


def test_a_session_gives_its_stream_back() -> None:
    assert step(HELD, Relinquish(MINE, 2, 8)) == Step(replace(LEAVING, last_acked=8), (RelinquishGlobal(2, 8),))


@pytest.mark.parametrize(
    "relinquish",
    [Relinquish(THEIRS, 2, 8), Relinquish(MINE, 1, 8), Relinquish(MINE, 3, 8)],
    ids=["another session", "an older grant", "a grant from nowhere"],
)
def test_nobody_gives_back_what_is_not_theirs(relinquish: Relinquish) -> None:
    assert step(HELD, relinquish) == Step(HELD)


def test_a_relinquish_that_is_doubled_is_sent_on_once() -> None:
    assert effects(Relinquish(MINE, 2, 8), Relinquish(MINE, 2, 8), SessionClosed(MINE), entry=HELD) == [
        RelinquishGlobal(2, 8)
    ]


@each_entry("nothing", "asking", "orphan")
def test_a_relinquish_that_is_late_does_not_touch_the_next_question(entry: Entry | None) -> None:
    assert step(entry, Relinquish(MINE, 2, 8)).entry == entry


def test_the_answer_frees_the_stream_for_the_next_session() -> None:
    assert step(LEAVING, GlobalReleased(2)) == Step(None)
    assert after(GlobalReleased(2), ask(THEIRS), entry=LEAVING).effects == (AskGlobal(),)


def test_while_there_is_no_answer_the_stream_is_not_free() -> None:
    silence = (Relinquish(MINE, 2, 5), SessionClosed(MINE), ask(THEIRS), GlobalDenied("busy"), GlobalGranted(2, 5))
    assert after(*silence, entry=LEAVING).entry == LEAVING


@each_entry("held", "leaving")
def test_an_answer_to_an_older_relinquish_changes_nothing(entry: Entry) -> None:
    assert step(entry, GlobalReleased(1)) == Step(entry)


@each_entry("nothing", "asking", "orphan")
def test_an_answer_that_is_doubled_or_late_changes_nothing(entry: Entry | None) -> None:
    assert step(entry, GlobalReleased(2)) == Step(entry)


# Taken.


@pytest.mark.parametrize("epoch", [2, 3])
@each_entry("held", "leaving")
def test_a_stream_that_was_taken_from_us_is_gone(entry: Entry, epoch: int) -> None:
    assert step(entry, Taken(epoch)) == Step(None)


@each_entry("held", "leaving")
def test_the_end_of_an_older_grant_changes_nothing(entry: Entry) -> None:
    assert step(entry, Taken(1)) == Step(entry)


@each_entry("asking", "orphan")
def test_what_was_taken_before_does_not_answer_the_question_that_is_open(entry: Entry) -> None:
    assert step(entry, Taken(2)) == Step(entry)


# Every order of events over small values.

IDS: tuple[Id, ...] = (None, 0, 1, 2, 3)
EPOCHS = (1, 2, 3)
SESSIONS = (MINE, THEIRS)


@dataclass(frozen=True, slots=True)
class Seen:
    """An entry, and which sessions are over: those say nothing any more."""

    entry: Entry | None = None
    over: frozenset[UUID] = frozenset()


def from_sessions() -> Iterator[tuple[UUID, Event]]:
    for session in SESSIONS:
        yield session, ask(session)
        yield session, SessionClosed(session)
        for epoch in EPOCHS:
            for position in IDS:
                yield session, Relinquish(session, epoch, position)
                for last_seen in IDS:
                    if rank(last_seen) >= rank(position):
                        yield session, Updated(session, epoch, position, last_seen)


def from_the_global_registry() -> Iterator[Event]:
    yield GlobalDenied("owned")
    for epoch in EPOCHS:
        for position in IDS:
            yield GlobalGranted(epoch, position)
        yield GlobalReleased(epoch)
        yield Taken(epoch)


def rank(position: Id) -> int:
    return -1 if position is None else position


def epoch_of(entry: Entry | None) -> int:
    return 0 if entry is None or isinstance(entry, Asking) else entry.epoch


def follow(seen: Seen, event: Event) -> Seen:
    """Take one step, with everything asserted that is true of every step."""
    before, done = seen.entry, step(seen.entry, event)
    entry = done.entry
    over = seen.over | {event.session} if isinstance(event, SessionClosed) else seen.over
    checks_the_grant(before, event, done)
    checks_the_answers(before, event, done, over)
    if isinstance(entry, HeldBySession):
        assert entry.session not in over, "held by a session that is gone"
    if isinstance(entry, Asking):
        assert entry.is_orphan == (entry.session in over)
    if isinstance(before, HeldBySession) and isinstance(entry, HeldBySession | Relinquishing):
        assert entry.session == before.session, "from one session to another without being given back"
        assert rank(entry.last_acked) >= rank(before.last_acked), "acknowledged, and not any more"
    return Seen(entry, over)


def checks_the_grant(before: Entry | None, event: Event, done: Step) -> None:
    """No grant is left behind: a session has it, or it is given back."""
    given_back = [one for one in done.effects if isinstance(one, RelinquishGlobal)]
    had, has = epoch_of(before), epoch_of(done.entry)
    assert len(given_back) <= 1
    assert has == 0 or has >= had, "back to an older grant"
    if isinstance(event, GlobalGranted):
        assert max([has, *(one.epoch for one in given_back)]) >= event.epoch, "a grant that nobody knows of"
    if isinstance(done.entry, Relinquishing):
        is_new = not isinstance(before, Relinquishing) or has > had
        assert given_back == ([RelinquishGlobal(has, done.entry.last_acked)] if is_new else [])
    if had and not has:
        assert isinstance(event, GlobalReleased | Taken)
        assert event.epoch >= had
    if isinstance(before, Asking) and done.entry is None:
        assert isinstance(event, GlobalDenied), "a question that was forgotten"


def checks_the_answers(before: Entry | None, event: Event, done: Step, over: frozenset[UUID]) -> None:
    """Whoever asked is told, and nobody else; the row is asked for once."""
    told = [one for one in done.effects if isinstance(one, AcceptSession | RejectSession)]
    assert not [one for one in told if one.session in over], "told to a session that is gone"
    for one in told:
        if isinstance(one, AcceptSession):
            assert isinstance(done.entry, HeldBySession)
            assert one == AcceptSession(done.entry.session, done.entry.epoch, done.entry.last_acked)
        else:
            assert not (isinstance(done.entry, HeldBySession) and done.entry.session == one.session), (
                "rejected its owner"
            )
    if isinstance(event, Ask):
        is_under_way = isinstance(before, Asking) and before.session == event.session
        assert [one.session for one in told] == ([] if before is None or is_under_way else [event.session])
    elif isinstance(event, GlobalGranted | GlobalDenied) and isinstance(before, Asking) and not before.is_orphan:
        assert [one.session for one in told] == [before.session]
    else:
        assert not told
    assert (AskGlobal() in done.effects) == (isinstance(event, Ask) and before is None)


def is_possible(entry: Entry | None, event: Event) -> bool:
    """Whether a session says that now: it gives back what it has reached, which only rises."""
    if isinstance(event, Relinquish) and isinstance(entry, HeldBySession) and event.session == entry.session:
        return rank(event.position) >= rank(entry.last_acked)
    return True


def test_a_barrier_that_completes_after_a_later_one_takes_nothing_back() -> None:
    assert step(HELD, Updated(MINE, 2, 4, 8)) == Step(HELD)


def test_a_stream_that_only_its_session_knows_of_is_given_back_all_the_same() -> None:
    assert step(None, Relinquish(MINE, 2, 5)) == Step(None, (RelinquishGlobal(2, 5),))


@pytest.fixture(scope="module")
def walked() -> set[Seen]:
    """Every entry that can be reached; what is true of every step has held in each."""
    sessions, answers = list(from_sessions()), list(from_the_global_registry())
    seen, frontier = {Seen()}, [Seen()]
    while frontier:
        one = frontier.pop()
        said = [event for session, event in sessions if session not in one.over]
        for event in said + answers:
            if is_possible(one.entry, event):
                following = follow(one, event)
                if following not in seen:
                    seen.add(following)
                    frontier.append(following)
    return seen


def test_every_order_of_events_keeps_the_rules(walked: set[Seen]) -> None:
    assert {type(one.entry) for one in walked} == {*get_args(Entry), type(None)}
    assert {one.over for one in walked} == {
        frozenset(),
        frozenset({MINE}),
        frozenset({THEIRS}),
        frozenset({MINE, THEIRS}),
    }


def test_from_every_state_the_end_of_all_sessions_leaves_nothing_behind(walked: set[Seen]) -> None:
    for one in walked:
        entry = after(SessionClosed(MINE), SessionClosed(THEIRS), entry=one.entry).entry
        if isinstance(entry, Asking):
            entry = step(entry, GlobalGranted(3, 2)).entry
        if entry is not None:
            assert isinstance(entry, Relinquishing)
            entry = step(entry, GlobalReleased(entry.epoch)).entry
        assert entry is None, one


def test_from_every_state_another_session_comes_to_have_the_stream(walked: set[Seen]) -> None:
    """Whoever has it closes, the global registry answers, and the next one asks."""
    newcomer = UUID(int=3)
    for one in walked:
        entry = after(
            SessionClosed(MINE), SessionClosed(THEIRS), GlobalDenied("owned"), Taken(3), entry=one.entry
        ).entry
        assert after(ask(newcomer), GlobalGranted(4, 3), entry=entry).effects == (AcceptSession(newcomer, 4, 3),)
