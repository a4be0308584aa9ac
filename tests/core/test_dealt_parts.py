"""Which step is next for a datasource whose number of streams changes, and who gets which position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate.core.parts import (
    Dealt,
    DealtStream,
    Keep,
    Next,
    Share,
    Stop,
    TakeBack,
    deal,
    edited,
    next_step,
    parts_of,
    restored,
    with_new,
)
from headgate.errors import Refused

# The next step.

SETTLED, GONE = DealtStream(0), DealtStream(0, is_settled=False)
RUNS = DealtStream(0, is_owned=True, is_running=True, is_settled=False)
STARTS = DealtStream(0, is_owned=True, is_settled=False)


def found(*members: DealtStream, wanted: int = 5, dealing: bool = False, dealt: int | None = None) -> Dealt:
    """A datasource with these streams."""
    numbered = tuple(replace(one, index=index) for index, one in enumerate(members))
    return Dealt(wanted, len(members) if dealt is None else dealt, dealing, numbered)


@pytest.mark.parametrize(
    ("members", "before", "dealing"),
    [
        ((SETTLED, SETTLED), Share(5), Share(5)),
        ((RUNS, RUNS), Stop(), Keep()),
        ((RUNS, SETTLED), Stop(), Keep()),
        ((STARTS, RUNS), Keep(), Keep()),
        ((STARTS, SETTLED), Keep(), Keep()),
        ((GONE, RUNS), Keep(), TakeBack()),
        ((GONE, STARTS), Keep(), TakeBack()),
        ((GONE, SETTLED), Keep(), TakeBack()),
        ((GONE, GONE), Keep(), TakeBack()),
    ],
    ids=lambda value: "+".join(_name(one) for one in value) if isinstance(value, tuple) else type(value).__name__,
)
def test_the_next_step_towards_another_number_of_streams(
    members: tuple[DealtStream, ...], before: Next, dealing: Next
) -> None:
    assert next_step(found(*members)) == before
    assert next_step(found(*members, dealing=True)) == dealing


def _name(one: DealtStream) -> str:
    return {SETTLED: "settled", GONE: "gone", RUNS: "runs", STARTS: "starts"}[replace(one, index=0)]


def test_where_all_is_as_wanted_there_is_nothing_to_do_but_to_take_a_stop_back() -> None:
    for members in ((SETTLED, SETTLED), (RUNS, GONE)):
        assert next_step(found(*members, wanted=2)) == Keep()
        assert next_step(found(*members, wanted=2, dealing=True)) == TakeBack()


def test_streams_that_read_different_sources_are_not_dealt() -> None:
    old, new = replace(SETTLED, source_identity="old"), replace(SETTLED, source_identity="new")
    assert next_step(found(new, old)) == Keep()
    assert next_step(found(new, replace(RUNS, source_identity="old"))) == Keep()
    assert next_step(found(new, old, dealing=True)) == TakeBack()
    assert next_step(found(new, SETTLED)) == Share(5), "one that has never run reads nothing else"
    assert next_step(found(new, new)) == Share(5)
    elsewhere = replace(new, source_mark="m"), replace(old, source_mark="m")
    assert next_step(found(*elsewhere)) == Share(5), "the same data under two names"
    assert next_step(found(elsewhere[0], replace(old, source_mark="n"))) == Keep()
    assert next_step(found(elsewhere[0], old)) == Keep()


def test_streams_that_are_not_in_use_do_not_matter_unless_somebody_has_one() -> None:
    assert next_step(found(SETTLED, GONE, dealt=1)) == Share(5)
    assert next_step(found(SETTLED, replace(SETTLED, source_identity="x"), dealt=1)) == Share(5)
    assert next_step(found(SETTLED, STARTS, dealt=1)) == Stop()
    assert next_step(found(SETTLED, STARTS, dealt=1, dealing=True)) == Keep(), "it is declined soon"


class Nodes(RuleBasedStateMachine):
    """Nodes grant, run, stop and die as they like: a deal happens only when all are settled, and happens in the end."""

    streams: list[DealtStream]

    @initialize(n=st.integers(1, 3), wanted=st.integers(1, 3))
    def begin(self, n: int, wanted: int) -> None:
        self.streams, self.dealt, self.wanted, self.dealing = [DealtStream(i) for i in range(n)], n, wanted, False

    @rule(wanted=st.integers(1, 3))
    def publish(self, wanted: int) -> None:
        self.wanted = wanted

    @rule(data=st.data())
    def grant(self, data: Any) -> None:
        one = data.draw(st.sampled_from(self.streams[: self.dealt]))
        if not one.is_owned and not self.dealing:
            self._put(replace(one, is_owned=True))

    @rule(data=st.data())
    def run(self, data: Any) -> None:
        one = data.draw(st.sampled_from(self.streams))
        if one.is_owned and not self.dealing:
            self._put(replace(one, is_running=True, is_settled=False))

    @rule(data=st.data())
    def let_go(self, data: Any) -> None:
        one = data.draw(st.sampled_from(self.streams))
        if one.is_owned:
            self._put(DealtStream(one.index, is_settled=one.is_settled or one.is_running))

    @rule(data=st.data())
    def die(self, data: Any) -> None:
        one = data.draw(st.sampled_from(self.streams))
        if one.is_owned:
            self._put(DealtStream(one.index, is_settled=one.is_settled))

    @rule()
    def tick(self) -> None:
        self._tick()

    def _tick(self) -> None:
        match next_step(Dealt(self.wanted, self.dealt, self.dealing, tuple(self.streams))):
            case Stop():
                assert not self.dealing
                self.dealing = True
            case TakeBack():
                assert self.dealing
                self.dealing = False
            case Share(n=n):
                assert not any(one.is_owned for one in self.streams), "dealt under somebody's hands"
                assert all(one.is_settled for one in self.streams[: self.dealt]), "dealt what was not known"
                more = [DealtStream(index) for index in range(len(self.streams), n)]
                self.streams = [DealtStream(one.index) for one in self.streams] + more
                self.dealt, self.dealing = n, False
            case Keep():
                pass

    @precondition(lambda self: hasattr(self, "streams"))
    @invariant()
    def comes_about_once_nobody_dies(self) -> None:
        saved = self.streams, self.dealt, self.dealing
        for _ in range(6):
            for one in list(self.streams):
                if self.dealing and one.is_owned:
                    self._put(DealtStream(one.index, is_settled=one.is_settled or one.is_running))
                elif one.index >= self.dealt:
                    self._put(DealtStream(one.index, is_settled=one.is_settled))
                elif not self.dealing:
                    self._put(replace(one, is_owned=True, is_running=True, is_settled=False))
            self._tick()
        assert self.dealt == self.wanted
        self.streams, self.dealt, self.dealing = saved

    def _put(self, one: DealtStream) -> None:
        self.streams = [one if other.index == one.index else other for other in self.streams]


TestNodes = Nodes.TestCase
TestNodes.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


# Who reads what.


@given(parts=st.lists(st.text(min_size=1), unique=True), n=st.integers(1, 12))
def test_each_part_is_read_by_one_stream(parts: list[str], n: int) -> None:
    shares = [parts_of(index, n, parts) for index in range(n)]
    assert sorted(part for share in shares for part in share) == sorted(parts)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_new_parts_come_at_the_end_in_whatever_order_they_are_listed() -> None:
    assert with_new(["a", "b"], ["c", "b", "a", "d"]) == ["a", "b", "c", "d"]
    assert with_new([], ["b", "a"]) == ["b", "a"]


class Log:
    """Parts with records 0, 1, 2, … each, read by streams that keep a map, and what came out of them."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.came: list[tuple[str, int]] = []
        self.positions: list[Any] = [None]

    def read(self, index: int, part: str, count: int) -> None:
        mine = dict(self.positions[index] or {})
        for _ in range(count):
            mine[part] = mine.get(part, -1) + 1
            self.came.append((part, mine[part]))
            self.positions[index] = mine


STEPS = st.one_of(
    st.tuples(st.just("deal"), st.integers(1, 9)),
    st.tuples(st.just("grow"), st.integers(1, 4)),
    st.tuples(st.just("read"), st.integers(0, 1000)),
)


@settings(max_examples=300, deadline=None)
@given(steps=st.lists(STEPS, max_size=40))
def test_over_any_sequence_of_numbers_nothing_is_lost_and_nothing_comes_twice(
    steps: Sequence[tuple[str, int]],
) -> None:
    log = Log()
    for what, number in steps:
        n = len(log.positions)
        if what == "deal":
            log.positions = deal(log.positions, log.parts, number)
            assert len(log.positions) == number
        elif what == "grow":
            log.parts = with_new(log.parts, [f"p{len(log.parts) + more}" for more in range(number)])
        elif mine := parts_of(number % n, n, log.parts):
            log.read(number % n, mine[number % len(mine)], 1 + number % 3)
        assert len(set(log.came)) == len(log.came), "came twice"
    for part in log.parts:
        mine = [index for name, index in log.came if name == part]
        assert mine == list(range(len(mine))), "a gap"
        kept = [position[part] for position in log.positions if position and part in position]
        assert kept == ([mine[-1]] if mine else [])


@pytest.mark.parametrize("plain", [7, "b/3", {"file": "a", "byte": 9}, [1, 2]])
def test_the_plain_position_of_an_unnamed_part_stays_with_the_first_stream(plain: Any) -> None:
    for parts in ([], ["a", "b"]):  # The names of a source that was read before are still there.
        assert deal([plain], parts, 3) == [plain, None, None]
        assert deal([plain, None, None], parts, 1) == [plain]


def test_what_another_stream_kept_of_a_part_does_not_outrank_its_reader() -> None:
    assert deal([{"a": 1, "b": 99}, {"b": 2}], ["a", "b"], 1) == [{"a": 1, "b": 2}]
    assert deal([{"a": 1}, {"b": 2, "a": 99}], ["a", "b"], 1) == [{"a": 1, "b": 2}]
    assert deal([{"a": 1, "b": 5}, None], ["a", "b"], 2) == [{"a": 1}, {"b": 5}]


def test_streams_that_have_read_nothing_are_dealt_nothing() -> None:
    assert deal([None], ["a", "b"], 3) == [None, None, None]
    assert deal([None, {}], [], 1) == [None]


# Edits.

PARTS = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("present", "given", "after"),
    [
        ({"a": 1, "c": 3}, {"c": 9}, {"a": 1, "c": 9}),
        ({"a": 1}, {"c": 9}, {"a": 1, "c": 9}),
        ({"a": 1, "c": 3}, {"c": None}, {"a": 1}),
        ({"a": 1}, {"a": None}, None),
        ({"a": 1}, None, None),
        (None, {"a": 4}, {"a": 4}),
        (None, 7, 7),
        (5, 7, 7),
        ({"file": "x"}, {"file": "y"}, {"file": "y"}),
    ],
)
def test_an_edit_changes_the_parts_that_it_names(present: Any, given: Any, after: Any) -> None:
    assert edited(present, given, PARTS, 0, 2) == after


@pytest.mark.parametrize(
    ("given", "text"), [({"b": 1}, "read by stream 1"), ({"x": 1}, "no part 'x'"), (7, "is a map"), ("a", "is a map")]
)
def test_an_edit_of_what_the_stream_does_not_read_is_refused(given: Any, text: str) -> None:
    with pytest.raises(Refused, match=text):
        edited({"a": 1}, given, PARTS, 0, 2)


def test_without_named_parts_an_edit_takes_the_place_of_all() -> None:
    assert edited({"a": 1}, {"b": 2}, [], 0, 2) == {"b": 2}


# Going back.


@pytest.mark.parametrize(
    ("present", "kept", "after"),
    [
        ({"a": 5, "c": 6}, {"a": 1, "c": 2}, {"a": 1, "c": 2}),
        ({"a": 5, "c": 6}, {"a": 1, "b": 2}, {"a": 1, "c": 6}),
        ({"a": 5}, {"b": 2}, {"a": 5}),
        (None, {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 3}),
        (None, {"b": 2}, None),
        ({"a": 5}, None, None),
        (7, 3, 3),
    ],
)
def test_after_a_deal_a_stream_goes_back_with_the_parts_that_are_still_its_own(
    present: Any, kept: Any, after: Any
) -> None:
    assert restored(present, kept, ["a", "b", "c"], 0, 2) == after
