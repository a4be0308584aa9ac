"""Who may act and who is dead, each decided on one clock."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.lease import (
    BEAT_S,
    LATE_S,
    LEASE_S,
    MARGIN_S,
    OBSERVE_S,
    QUIET_S,
    SILENT_S,
    Expired,
    NodeBeat,
    Observer,
    Quiet,
    Reachable,
    Sighting,
    Trust,
    addresses,
    beat_answered,
    beat_refused,
    is_gone,
    is_heard,
    next_look_s,
    observed,
    quiet,
    unanswered,
)

NODE, OTHER = UUID(int=1), UUID(int=2)
NEW = Trust(NODE)
NOBODY = Observer({})


def row(beat: int, node: UUID = NODE, lease_s: float = LEASE_S) -> NodeBeat:
    return NodeBeat(node, beat, lease_s)


def look(observer: Observer, at_s: float, *rows: NodeBeat, took_s: float = 0.0) -> tuple[Observer, list[Expired]]:
    return observed(observer, rows, at_s, at_s + took_s)


# May I act?


def test_a_node_that_was_never_answered_does_not_trust_itself() -> None:
    assert NEW.until_s == float("-inf")
    assert NEW.left_s(0.0) == 0.0


def test_trust_counts_from_the_sending_of_the_beat_and_ends_a_margin_before_the_lease() -> None:
    trust = beat_answered(NEW, 10.0)
    assert trust.until_s == 10.0 + LEASE_S - MARGIN_S
    assert trust.left_s(11.5) == 2.5
    assert trust.left_s(14.0) == 0.0
    assert trust.left_s(99.0) == 0.0


def test_lease_and_margin_are_the_nodes_own() -> None:
    assert beat_answered(Trust(NODE, lease_s=30.0, margin_s=3.0), 10.0).until_s == 37.0


def test_a_later_beat_extends_trust() -> None:
    assert beat_answered(beat_answered(NEW, 10.0), 11.0).until_s == 15.0


def test_an_answer_that_arrives_late_or_twice_extends_nothing() -> None:
    trust = beat_answered(NEW, 11.0)
    assert beat_answered(trust, 10.0) == trust
    assert beat_answered(trust, 11.0) == trust


def test_an_answer_that_was_under_way_for_the_whole_lease_gives_no_trust() -> None:
    assert beat_answered(NEW, 10.0).left_s(10.0 + LEASE_S) == 0.0


def test_trust_that_ran_out_returns_with_the_next_answer() -> None:
    trust = beat_answered(NEW, 10.0)
    assert trust.left_s(20.0) == 0.0
    assert beat_answered(trust, 20.0).left_s(20.0) == LEASE_S - MARGIN_S


def test_a_refused_beat_ends_trust_for_good() -> None:
    ended = beat_refused(beat_answered(NEW, 10.0))
    assert ended.left_s(10.0) == 0.0
    assert beat_answered(ended, 11.0) == ended
    assert beat_refused(ended) == ended


# Is that one dead?


def test_a_node_is_expired_when_its_beat_was_seen_unchanged_for_its_lease() -> None:
    observer, expired = look(NOBODY, 0.0, row(7))
    assert observer == Observer({NODE: Sighting(7, 0.0)})
    assert expired == []
    observer, expired = look(observer, 4.9, row(7))
    assert expired == []
    assert look(observer, 5.0, row(7))[1] == [Expired(NODE, 7)]


def test_the_lease_that_counts_is_the_observed_nodes() -> None:
    observer, _ = look(NOBODY, 0.0, row(7, lease_s=30.0), row(1, OTHER))
    assert look(observer, 29.0, row(7, lease_s=30.0), row(1, OTHER))[1] == [Expired(OTHER, 1)]


def test_a_changed_beat_begins_the_count_anew() -> None:
    observer, _ = look(NOBODY, 0.0, row(7))
    observer, _ = look(observer, 4.0, row(8))
    assert look(observer, 8.9, row(8))[1] == []
    assert look(observer, 9.0, row(8))[1] == [Expired(NODE, 8)]


def test_a_count_begins_at_the_answer_and_ends_at_the_question() -> None:
    """A row may have been read at any moment between the two."""
    observer, _ = look(NOBODY, 0.0, row(7), took_s=1.0)
    assert look(observer, 5.9, row(7), took_s=2.0)[1] == []
    assert look(observer, 6.0, row(7))[1] == [Expired(NODE, 7)]


def test_a_failed_answer_begins_all_counts_anew() -> None:
    observer, _ = look(NOBODY, 0.0, row(7), row(1, OTHER))
    observer, expired = look(unanswered(observer), 5.0, row(7), row(1, OTHER))
    assert expired == []
    assert look(observer, 9.9, row(7), row(1, OTHER))[1] == []
    assert look(observer, 10.0, row(7), row(1, OTHER))[1] == [Expired(NODE, 7), Expired(OTHER, 1)]


def test_a_late_answer_begins_all_counts_anew() -> None:
    observer, _ = look(NOBODY, 0.0, row(7))
    observer, expired = look(observer, 6.0, row(7), took_s=LATE_S + 0.1)
    assert expired == []
    assert observer == Observer({NODE: Sighting(7, 8.1)})


def test_an_answer_that_is_just_in_time_is_proof() -> None:
    observer, _ = look(NOBODY, 0.0, row(7))
    assert look(observer, 6.0, row(7), took_s=LATE_S)[1] == [Expired(NODE, 7)]


def test_a_node_that_is_gone_is_forgotten() -> None:
    observer, _ = look(NOBODY, 0.0, row(7), row(1, OTHER))
    observer, _ = look(observer, 1.0, row(2, OTHER))
    assert observer == Observer({OTHER: Sighting(2, 1.0, has_risen=True)}, frozenset({OTHER}))


def test_a_node_is_heard_once_its_beat_has_risen_before_our_eyes_and_until_it_is_silent() -> None:
    """The row of one that was killed just before we began to look is there, and says nothing."""
    observer, _ = look(NOBODY, 0.0, row(7), row(1, OTHER))
    assert [is_heard(observer, node, 0.1) for node in (NODE, OTHER)] == [False, False]
    observer, _ = look(observer, 1.0, row(7), row(2, OTHER))
    assert [is_heard(observer, node, 1.1) for node in (NODE, OTHER)] == [False, True]
    assert not is_heard(observer, OTHER, 1.0 + SILENT_S + 0.1)


def test_who_was_heard_before_the_database_went_away_is_heard_when_it_is_back() -> None:
    observer, _ = look(NOBODY, 0.0, row(1))
    observer, _ = look(observer, 1.0, row(2))
    observer, _ = look(unanswered(observer), 9.0, row(2))
    assert is_heard(observer, NODE, 9.1)
    observer, _ = look(observer, 10.0)
    observer, _ = look(observer, 11.0, row(3))
    assert not is_heard(observer, NODE, 11.1)


def test_a_restart_of_the_database_expires_nobody() -> None:
    observer, _ = look(NOBODY, 0.0, row(7))
    for _ in range(60):
        observer = unanswered(observer)
    observer, expired = look(observer, 30.0, row(7))
    assert expired == []
    assert look(observer, 31.0, row(8))[1] == []


# Is it gone already?


def locked(beat: int, **changes: bool) -> NodeBeat:
    return replace(NodeBeat(NODE, beat, LEASE_S, has_lock=True), **changes)


def watch(*beats: tuple[float, NodeBeat]) -> tuple[Observer, list[Quiet]]:
    """What an observer knows after these looks, and whom it takes for quiet at the last one."""
    observer, late = NOBODY, []
    for at_s, one in beats:
        observer, _ = look(observer, at_s, one)
        late = quiet(observer, [one], at_s)
    return observer, late


def test_a_node_whose_beat_has_risen_before_our_eyes_and_then_stood_still_is_quiet() -> None:
    assert watch((0.0, locked(1)), (1.0, locked(2)), (1.0 + QUIET_S, locked(2)))[1] == [Quiet(NODE, 2)]
    assert watch((0.0, locked(1)), (1.0, locked(2)), (0.9 + QUIET_S, locked(2)))[1] == []


def test_a_node_that_never_beat_before_our_eyes_is_not_quiet() -> None:
    """It may be on its way back to a database that was away."""
    assert watch((0.0, locked(1)), (4.0, locked(1)))[1] == []


def test_after_a_failed_answer_a_beat_has_to_rise_again() -> None:
    observer, _ = watch((0.0, locked(1)), (1.0, locked(2)))
    observer, _ = look(unanswered(observer), 3.0, locked(2))
    observer, _ = look(observer, 3.0 + 2 * QUIET_S, locked(2))
    assert quiet(observer, [locked(2)], 3.0 + 2 * QUIET_S) == []
    observer, _ = look(observer, 6.0, locked(3))
    observer, _ = look(observer, 6.0 + QUIET_S, locked(3))
    assert quiet(observer, [locked(3)], 6.0 + QUIET_S) == [Quiet(NODE, 3)]


def test_a_count_for_quiet_begins_at_the_answer_and_ends_at_the_question() -> None:
    observer, _ = look(NOBODY, 0.0, locked(1))
    observer, _ = look(observer, 1.0, locked(2), took_s=0.5)
    observer, _ = look(observer, 1.4 + QUIET_S, locked(2), took_s=1.0)
    assert quiet(observer, [locked(2)], 1.4 + QUIET_S) == []
    assert quiet(observer, [locked(2)], 1.5 + QUIET_S) == [Quiet(NODE, 2)]


def test_one_that_has_no_lock_or_was_ended_is_left_to_its_lease() -> None:
    for one in (locked(2, has_lock=False), locked(2, is_ended=True)):
        assert watch((0.0, locked(1)), (1.0, one), (4.0, one))[1] == []


@pytest.mark.parametrize(
    ("row", "is_free", "gone"),
    [
        (locked(2), True, True),
        (locked(2), False, False),
        (locked(3), True, False),
        (locked(2, has_lock=False), True, False),
        (locked(2, is_ended=True), True, False),
        (None, True, False),
    ],
)
def test_both_signs_have_to_hold_in_the_ending_transaction(row: NodeBeat | None, is_free: bool, gone: bool) -> None:
    assert is_gone(row, Quiet(NODE, 2), is_free) == gone


def test_the_next_look_comes_when_a_beat_would_be_quiet_and_never_later_than_usual() -> None:
    assert next_look_s(NOBODY, 0.0) == OBSERVE_S
    observer, _ = watch((0.0, locked(1)), (1.0, locked(2)))
    assert next_look_s(observer, 1.0) == OBSERVE_S
    assert next_look_s(observer, 2.0) == pytest.approx(QUIET_S - 1.0)
    assert next_look_s(observer, 3.0) == OBSERVE_S


# Both, with two clocks.

rates = st.floats(min_value=0.9, max_value=1.1)
delays = st.one_of(st.just(0.0), st.floats(min_value=0.0, max_value=3.0))


@dataclass
class Race:
    """One node, one observer and the row between them, in true time; each side sees its own clock only."""

    node_rate: float
    observer_rate: float
    delays: Iterator[float]
    trust: Trust = NEW
    observer: Observer = NOBODY
    beat: int = 0
    events: list[tuple[float, int, str, tuple[float, ...]]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def later(self, at_s: float, what: str, *values: float) -> None:
        heapq.heappush(self.events, (at_s, next(self.numbers), what, values))

    def delay(self) -> float:
        return next(self.delays, 0.0)

    def run(self, pauses: list[float]) -> tuple[float, Trust]:
        """The true time at which the node is ended, and its trust then. It beats until its pauses are used up."""
        at_s = 0.0
        for pause in pauses:
            self.later(at_s + self.delay(), "beat", at_s * self.node_rate)
            at_s += BEAT_S / self.node_rate + pause
        self.later(0.0, "ask")
        while True:
            now_s, _, what, values = heapq.heappop(self.events)
            match what:
                case "beat":
                    self.beat += 1
                    # An answer that arrives at once is the worst case: nothing else makes the node trust itself more.
                    self.trust = beat_answered(self.trust, values[0])
                case "ask":
                    self.later(now_s + self.delay() / 2, "read", now_s)
                case "read":
                    self.later(now_s + self.delay() / 2, "see", values[0], float(self.beat))
                case "see":
                    asked_at_s, beat = values
                    rate = self.observer_rate
                    beats = [row(int(beat))]
                    self.observer, expired = observed(self.observer, beats, asked_at_s * rate, now_s * rate)
                    if expired and expired[0].beat == self.beat:
                        return now_s, self.trust
                    self.later(max(now_s, asked_at_s + OBSERVE_S / rate), "ask")


@settings(max_examples=500, deadline=None)
@given(
    node_rate=rates,
    observer_rate=rates,
    pauses=st.lists(delays, min_size=1, max_size=8),
    waits=st.lists(delays, max_size=60),
)
def test_a_node_never_trusts_itself_when_an_observer_expires_it(
    node_rate: float, observer_rate: float, pauses: list[float], waits: list[float]
) -> None:
    """Whatever the delays, and with clocks that differ by up to a fifth."""
    ended_at_s, trust = Race(node_rate, observer_rate, iter(waits)).run(pauses)
    assert trust.left_s(ended_at_s * node_rate) == 0.0
    assert trust.until_s <= ended_at_s * node_rate


# Where programs can go.


def test_programs_are_sent_to_nodes_that_live_and_do_not_drain_each_once_and_here_last() -> None:
    nodes = [
        Reachable(NODE, "http://me", False),
        Reachable(UUID(int=2), "http://two", False),
        Reachable(UUID(int=3), "http://drains", True),
        Reachable(UUID(int=4), "http://dead", False),
        Reachable(UUID(int=5), None, False),
        Reachable(UUID(int=6), "http://two", False),  # The same process, before it was killed and started again.
        Reachable(UUID(int=7), "http://me", False),
    ]
    assert addresses(nodes, NODE, [UUID(int=4)]) == ["http://two", "http://me"]
    assert addresses(nodes, UUID(int=9), []) == ["http://dead", "http://two", "http://me"]
