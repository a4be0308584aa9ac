"""What a consumer believes of itself, and what it answers, with times as numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.frames import (
    ActiveFrame,
    BeatFrame,
    ConfirmFrame,
    ErrorFrame,
    GroupFromClient,
    GroupFromNode,
    JoinedFrame,
    LeaveFrame,
    StepDownFrame,
)
from headgate.core.groups import belief as machine
from headgate.core.groups.belief import (
    BeatDue,
    Belief,
    Event,
    GiveUpConnection,
    GoodbyeSent,
    Heard,
    LinkLost,
    ReportError,
    Say,
    Standing,
    TimePassed,
    WorkFinished,
)

LEASE_S = 10.0
BELIEVED_S = 9.0  # From the sending of a beat that came back.


class GivenUp(Exception):
    """The connection is of no more use."""


class Life:
    """One consumer, and what it says."""

    def __init__(self) -> None:
        self.belief = Belief()

    @property
    def standing(self) -> Standing:
        return self.belief.standing

    def holds(self, consumer: str, epoch: int, now_s: float) -> bool:
        return self.belief.holds(consumer, epoch, now_s)

    def step(self, event: Event) -> list[GroupFromClient]:
        done = machine.step(self.belief, event)
        self.belief = done.belief
        for effect in done.effects:
            if isinstance(effect, GiveUpConnection):
                raise GivenUp(effect.reason)
        return [effect.frame for effect in done.effects if isinstance(effect, Say)]

    def receive(self, frame: GroupFromNode, now_s: float) -> list[GroupFromClient]:
        return self.step(Heard(frame, now_s))

    def beat(self, now_s: float) -> BeatFrame:
        (beat,) = self.step(BeatDue(now_s))
        assert isinstance(beat, BeatFrame)
        return beat

    def check(self, now_s: float) -> None:
        assert self.step(TimePassed(now_s)) == []

    def done(self, consumer: str, epoch: int, now_s: float) -> list[GroupFromClient]:
        return self.step(WorkFinished(consumer, epoch, now_s))

    def left(self) -> None:
        assert self.step(GoodbyeSent()) == []

    def disconnected(self) -> None:
        assert self.step(LinkLost()) == []


def member(id: str = "c1", incarnation: int = 1, now_s: float = 0.0, lease_s: float = LEASE_S) -> Life:
    """One that has joined, and whose first beat has come back."""
    belief = Life()
    assert belief.receive(JoinedFrame(id, incarnation, lease_s, []), now_s) == []
    assert belief.receive(belief.beat(now_s), now_s) == []
    return belief


def holder(epoch: int = 5, now_s: float = 0.0, lease_s: float = LEASE_S) -> Life:
    """One that was told active."""
    belief = member(now_s=now_s, lease_s=lease_s)
    assert belief.receive(ActiveFrame("c1", 1, epoch), now_s) == [ConfirmFrame("c1", epoch, "active")]
    assert belief.holds("c1", epoch, now_s)
    return belief


# How long it believes.


def test_it_believes_until_the_lease_after_the_sending_of_the_last_beat_that_came_back() -> None:
    belief = holder()
    assert belief.holds("c1", 5, 8.9)
    assert not belief.holds("c1", 5, BELIEVED_S)
    beat = belief.beat(2.0)
    belief.receive(beat, 6.0)
    assert belief.holds("c1", 5, 10.9)
    assert not belief.holds("c1", 5, 2.0 + BELIEVED_S)


@pytest.mark.parametrize(("lease_s", "believed_s", "beat_s"), [(2.0, 1.5, 0.4), (10.0, 9.0, 2.0), (60.0, 59.0, 2.0)])
def test_margin_and_beats_follow_the_lease(lease_s: float, believed_s: float, beat_s: float) -> None:
    belief = holder(lease_s=lease_s)
    assert belief.belief.beat_s == beat_s
    assert belief.holds("c1", 5, believed_s - 0.01)
    assert not belief.holds("c1", 5, believed_s)


def test_echoes_that_are_read_after_a_pause_bring_nothing_back() -> None:
    belief = holder()
    beats = [belief.beat(at_s) for at_s in (2.0, 4.0, 6.0)]
    for beat in beats:
        with pytest.raises(GivenUp):
            belief.receive(beat, 12.0)  # The last of them would reach until 15.0.
    assert belief.standing is Standing.OVER
    assert not belief.holds("c1", 5, 12.0)


def test_an_echo_of_an_old_beat_does_not_shorten_the_belief() -> None:
    belief = holder()
    early, late = belief.beat(1.0), belief.beat(3.0)
    belief.receive(late, 3.1)
    belief.receive(early, 3.2)
    assert belief.holds("c1", 5, 11.9)
    assert not belief.holds("c1", 5, 12.0)


def test_an_echo_counts_once_and_one_of_a_beat_that_was_never_sent_not_at_all() -> None:
    belief = holder()
    for n in (0, 1, 2, 77):
        belief.receive(BeatFrame(n), 5.0)
    assert not belief.holds("c1", 5, BELIEVED_S)


def test_a_belief_that_ended_never_returns() -> None:
    belief = holder()
    beat = belief.beat(8.0)
    belief.check(9.5)
    with pytest.raises(GivenUp):
        belief.receive(beat, 9.6)
    with pytest.raises(GivenUp):
        belief.receive(ActiveFrame("c1", 1, 6), 9.7)
    assert not belief.holds("c1", 5, 9.7)
    assert not belief.holds("c1", 6, 9.7)


def test_a_lease_that_is_no_number_is_never_believed() -> None:
    belief = Life()
    belief.receive(JoinedFrame("c1", 1, math.nan, []), 0.0)
    with pytest.raises(GivenUp):
        belief.beat(0.0)


def test_one_that_waits_and_hears_nothing_gives_the_connection_up() -> None:
    belief = Life()
    belief.receive(JoinedFrame("c1", 1, LEASE_S, []), 100.0)
    for at_s in (100.0, 102.0, 108.9):
        belief.beat(at_s)
    with pytest.raises(GivenUp):
        belief.beat(109.0)
    belief.disconnected()
    assert belief.standing is Standing.WAITING  # And keeps its place.
    assert belief.receive(JoinedFrame("c1", 2, LEASE_S, []), 110.0) == []


# Being told.


def test_one_that_is_told_before_a_beat_came_back_begins_with_the_first() -> None:
    belief = Life()
    belief.receive(JoinedFrame("c1", 1, LEASE_S, []), 0.0)
    beat = belief.beat(0.0)
    for _ in range(2):
        assert belief.receive(ActiveFrame("c1", 1, 5), 0.1) == [ConfirmFrame("c1", 5, "active")]
        assert not belief.holds("c1", 5, 0.1)
    belief.receive(beat, 0.2)
    assert belief.holds("c1", 5, 0.2)


def test_one_that_is_told_and_loses_its_connection_before_a_beat_came_back_leaves() -> None:
    """The node may have forgotten it meanwhile: an echo on the next connection would say nothing about this epoch."""
    belief = Life()
    belief.receive(JoinedFrame("c1", 1, LEASE_S, []), 0.0)
    belief.receive(ActiveFrame("c1", 1, 5), 0.1)
    belief.disconnected()
    assert belief.receive(JoinedFrame("c1", 2, LEASE_S, []), 0.5) == [LeaveFrame("c1")]


def test_one_that_is_told_when_nothing_came_back_for_long_answers_and_is_over() -> None:
    belief = member()
    assert belief.receive(ActiveFrame("c1", 1, 5), BELIEVED_S) == [ConfirmFrame("c1", 5, "active")]
    assert belief.standing is Standing.OVER


def test_an_echo_that_is_too_old_begins_nothing() -> None:
    belief = Life()
    belief.receive(JoinedFrame("c1", 1, LEASE_S, []), 0.0)
    beat = belief.beat(0.0)
    belief.receive(ActiveFrame("c1", 1, 5), 9.5)
    belief.receive(beat, 9.5)
    assert belief.standing is Standing.ACTIVATING
    belief.receive(belief.beat(8.0), 9.6)  # Sent in time, if late.
    assert belief.holds("c1", 5, 9.6)


@pytest.mark.parametrize(
    "order",
    [
        ActiveFrame("c2", 1, 6),
        ActiveFrame("c1", 0, 6),
        ActiveFrame("c1", 2, 6),
        ActiveFrame("c1", 1, 4),
        StepDownFrame("c2", 1, 5),
        StepDownFrame("c1", 0, 5),
        StepDownFrame("c1", 2, 5),
        StepDownFrame("c1", 1, 4),
    ],
    ids=repr,
)
def test_an_order_of_another_consumer_or_incarnation_or_of_the_past_is_ignored(
    order: ActiveFrame | StepDownFrame,
) -> None:
    belief = holder()
    assert belief.receive(order, 1.0) == []
    assert belief.holds("c1", 5, 1.0)
    assert belief.standing is Standing.HOLDING


def test_the_same_order_is_answered_as_often_as_it_comes() -> None:
    belief = holder()
    assert belief.receive(ActiveFrame("c1", 1, 5), 1.0) == [ConfirmFrame("c1", 5, "active")]
    assert belief.receive(StepDownFrame("c1", 1, 5), 1.0) == []
    assert belief.receive(StepDownFrame("c1", 1, 5), 1.0) == []
    assert belief.done("c1", 5, 2.0) == [ConfirmFrame("c1", 5, "stepped_down")]
    assert belief.receive(StepDownFrame("c1", 1, 5), 3.0) == [ConfirmFrame("c1", 5, "stepped_down")]
    assert belief.done("c1", 5, 3.0) == []


def test_what_was_given_back_does_not_begin_again() -> None:
    belief = holder()
    belief.receive(StepDownFrame("c1", 1, 5), 1.0)
    assert belief.receive(ActiveFrame("c1", 1, 5), 1.0) == []
    assert belief.standing is Standing.STEPPING
    belief.done("c1", 5, 1.0)
    assert belief.receive(ActiveFrame("c1", 1, 5), 1.0) == []
    assert not belief.holds("c1", 5, 1.0)
    assert belief.receive(ActiveFrame("c1", 1, 6, 3), 1.0) == [ConfirmFrame("c1", 6, "active")]
    assert belief.holds("c1", 6, 1.0)
    assert belief.belief.partition == 3


def test_a_higher_epoch_ends_the_one_before() -> None:
    belief = holder()
    assert belief.receive(ActiveFrame("c1", 1, 6), 1.0) == [ConfirmFrame("c1", 6, "active")]
    assert not belief.holds("c1", 5, 1.0)
    assert belief.holds("c1", 6, 1.0)
    assert belief.receive(StepDownFrame("c1", 1, 7), 1.0) == [ConfirmFrame("c1", 7, "stepped_down")]
    assert belief.standing is Standing.WAITING


def test_a_step_down_from_what_is_not_held_is_confirmed_at_once() -> None:
    assert member().receive(StepDownFrame("c1", 1, 5), 1.0) == [ConfirmFrame("c1", 5, "stepped_down")]
    told = Life()
    told.receive(JoinedFrame("c1", 1, LEASE_S, []), 0.0)
    beat = told.beat(0.0)
    told.receive(ActiveFrame("c1", 1, 5), 0.0)
    assert told.receive(StepDownFrame("c1", 1, 5), 0.0) == [ConfirmFrame("c1", 5, "stepped_down")]
    told.receive(beat, 0.1)
    assert not told.holds("c1", 5, 0.1)


# Being done.


def test_one_that_is_done_without_being_asked_leaves() -> None:
    belief = holder()
    assert belief.done("c1", 5, 1.0) == [LeaveFrame("c1")]
    for _ in range(2):
        assert not belief.holds("c1", 5, 1.0)
        assert belief.receive(ActiveFrame("c1", 1, 6), 1.0) == []
        assert belief.receive(StepDownFrame("c1", 1, 6), 1.0) == []
        belief.left()
        assert belief.belief.consumer is None


def test_one_whose_goodbye_could_not_be_sent_says_it_again() -> None:
    belief = holder()
    assert belief.done("c1", 5, 1.0) == [LeaveFrame("c1")]
    belief.disconnected()
    assert not belief.holds("c1", 5, 1.5)
    assert belief.receive(JoinedFrame("c1", 2, LEASE_S, []), 2.0) == [LeaveFrame("c1")]
    belief.left()
    belief.disconnected()
    assert belief.belief.consumer is None
    assert belief.receive(JoinedFrame("c2", 0, LEASE_S, []), 3.0) == []


def test_one_that_is_done_while_its_connection_is_away_says_so_when_it_is_back() -> None:
    asked = holder()
    asked.receive(StepDownFrame("c1", 1, 5), 1.0)
    asked.disconnected()
    assert asked.done("c1", 5, 2.0) == []
    assert asked.receive(JoinedFrame("c1", 2, LEASE_S, []), 100.0) == [ConfirmFrame("c1", 5, "stepped_down")]
    asked.disconnected()
    assert asked.receive(JoinedFrame("c1", 3, LEASE_S, []), 101.0) == []
    not_asked = holder()
    not_asked.disconnected()
    assert not_asked.done("c1", 5, 2.0) == []
    assert not_asked.receive(JoinedFrame("c1", 2, LEASE_S, []), 3.0) == [LeaveFrame("c1")]


def test_one_that_is_done_too_late_confirms_nothing() -> None:
    belief = holder()
    belief.receive(StepDownFrame("c1", 1, 5), 1.0)
    assert belief.done("c1", 5, BELIEVED_S) == []
    assert belief.standing is Standing.OVER


def test_being_done_with_another_epoch_changes_nothing() -> None:
    belief = holder()
    assert belief.done("c1", 4, 1.0) == belief.done("c2", 5, 1.0) == []
    assert belief.holds("c1", 5, 1.0)


# Coming back.


def test_a_belief_outlives_its_connection_but_not_its_time() -> None:
    belief = holder()
    unanswered = belief.beat(5.0)
    belief.disconnected()
    assert belief.holds("c1", 5, 8.0)
    assert belief.receive(JoinedFrame("c1", 2, LEASE_S, []), 8.0) == []
    belief.receive(unanswered, 8.0)  # It was sent on another connection.
    assert not belief.holds("c1", 5, BELIEVED_S)
    belief.receive(belief.beat(8.0), 8.1)
    assert belief.holds("c1", 5, 16.9)
    assert belief.receive(StepDownFrame("c1", 1, 5), 8.2) == []
    assert belief.standing is Standing.HOLDING  # That order was for the incarnation before.
    belief.receive(StepDownFrame("c1", 2, 5), 8.2)
    assert belief.standing is Standing.STEPPING


def test_one_that_comes_back_as_another_has_lost_its_epoch() -> None:
    belief = holder()
    belief.disconnected()
    assert belief.receive(JoinedFrame("c2", 1, LEASE_S, []), 1.0) == []
    assert not belief.holds("c1", 5, 1.0)
    assert not belief.holds("c2", 5, 1.0)
    belief.receive(belief.beat(1.0), 1.0)
    assert belief.receive(ActiveFrame("c2", 1, 6), 1.0) == [ConfirmFrame("c2", 6, "active")]


def test_an_incarnation_that_is_not_higher_is_of_no_use() -> None:
    belief = holder()
    belief.disconnected()
    with pytest.raises(GivenUp):
        belief.receive(JoinedFrame("c1", 1, LEASE_S, []), 1.0)
    assert belief.holds("c1", 5, 1.0)


def test_one_whose_belief_ended_comes_back_to_leave() -> None:
    belief = holder()
    belief.disconnected()
    assert belief.receive(JoinedFrame("c1", 2, LEASE_S, []), BELIEVED_S) == [LeaveFrame("c1")]
    over = holder()
    over.disconnected()
    over.check(BELIEVED_S)
    assert over.receive(JoinedFrame("c9", 1, LEASE_S, []), 20.0) == []  # Nobody knows it any more: it has left already.
    assert over.belief.consumer == "c9"


# Errors.


def test_an_error_frame_is_reported_and_a_second_joined_ends_the_connection() -> None:
    error = ErrorFrame("forbidden", "text")
    done = machine.step(member().belief, Heard(error, 0.0))
    assert done.effects == (ReportError(error),)
    with pytest.raises(GivenUp):
        member().receive(JoinedFrame("c1", 2, LEASE_S, []), 0.0)


# Whatever happens.

moves = st.lists(
    st.tuples(st.sampled_from(["wait", "beat", "echo", "active", "step_down", "done", "cut"]), st.integers(0, 6)),
    max_size=60,
)


@given(moves)
def test_nobody_believes_beyond_a_beat_that_came_back_and_no_epoch_is_believed_twice(
    moves: list[tuple[str, int]],
) -> None:
    belief = Life()
    now_s = 0.0
    incarnation = 0
    sent: dict[int, float] = {}
    echoed_s = -math.inf
    believed: int | None = None
    ended: set[int] = set()
    for move, number in [("cut", 0), *moves]:
        try:
            match move:
                case "wait":
                    now_s += number
                case "beat":
                    beat = belief.beat(now_s)
                    sent[beat.n] = now_s
                case "echo" if sent:
                    n = sorted(sent)[number % len(sent)]
                    echoed_s = max(echoed_s, sent[n])
                    belief.receive(BeatFrame(n), now_s)
                case "active":
                    belief.receive(ActiveFrame("c1", incarnation, number), now_s)
                case "step_down":
                    belief.receive(StepDownFrame("c1", incarnation, number), now_s)
                case "done":
                    belief.done("c1", belief.belief.epoch, now_s)
                case "cut":
                    raise GivenUp
        except GivenUp:
            belief.disconnected()
            incarnation += 1
            sent.clear()
            said = belief.receive(JoinedFrame("c1", incarnation, LEASE_S, []), now_s)
            assert (belief.standing is Standing.LEAVING) == (LeaveFrame("c1") in said)
        if belief.standing is Standing.LEAVING:
            return  # From here on it is another consumer.
        belief.check(now_s)
        holds = belief.holds("c1", belief.belief.epoch, now_s)
        if believed is not None and not (holds and belief.belief.epoch == believed):
            ended.add(believed)
        believed = belief.belief.epoch if holds else None
        if holds:
            assert now_s < echoed_s + BELIEVED_S
            assert belief.belief.epoch not in ended
