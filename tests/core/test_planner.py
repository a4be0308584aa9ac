"""Placement: who gets which free stream, who gets nothing, and what the planner wishes for streams that run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.planner import Candidate, Free, Placed, orders, place, plan

A, B, C = (UUID(int=n) for n in range(1, 4))
ONE, TWO, THREE, FOUR = (UUID(int=n) for n in range(11, 15))


def node(id: UUID, streams: int = 0, *, is_eligible: bool = True) -> Candidate:
    return Candidate(id, streams, is_eligible)


def free(stream: UUID, *unable: UUID, lately: frozenset[UUID] | set[UUID] = frozenset()) -> Free:
    return Free(stream, frozenset(unable), frozenset(lately))


def test_equal_nodes_take_turns_in_the_order_of_joining() -> None:
    placed = place([free(ONE), free(TWO), free(THREE), free(FOUR)], [node(B), node(A), node(C)])
    assert placed == {ONE: B, TWO: A, THREE: C, FOUR: B}


def test_the_node_with_the_fewest_streams_comes_first() -> None:
    assert place([free(ONE)], [node(A, 2), node(B, 1), node(C, 3)]) == {ONE: B}


def test_a_node_that_has_just_joined_is_filled_up_before_the_others_get_more() -> None:
    placed = place([free(ONE), free(TWO), free(THREE)], [node(A, 2), node(B)])
    assert placed == {ONE: B, TWO: B, THREE: A}


def test_a_node_that_is_draining_gets_nothing_new() -> None:
    assert place([free(ONE), free(TWO)], [node(A, 0, is_eligible=False), node(B, 9)]) == {ONE: B, TWO: B}


def test_where_nobody_is_eligible_every_stream_waits() -> None:
    assert place([free(ONE)], [node(A, is_eligible=False)]) == {}


def test_where_there_are_no_nodes_every_stream_waits() -> None:
    assert place([free(ONE)], []) == {}


def test_where_nothing_is_free_nothing_is_placed() -> None:
    assert place([], [node(A)]) == {}


def test_a_node_that_was_unable_lately_is_passed_over_for_this_stream_only() -> None:
    placed = place([free(ONE, A, lately={A}), free(TWO)], [node(A), node(B)])
    assert placed == {ONE: B, TWO: A}


def test_a_node_that_is_passed_over_keeps_its_turn() -> None:
    """Two are passed over; the streams after it go to them as if nothing had been."""
    placed = place([free(ONE, A, B, lately={A, B}), free(TWO), free(THREE), free(FOUR)], [node(A), node(B), node(C)])
    assert placed == {ONE: C, TWO: A, THREE: B, FOUR: A}


def test_a_stream_whose_eligible_nodes_were_all_unable_lately_waits_and_holds_nobody_up() -> None:
    placed = place([free(ONE, A, lately={A}), free(TWO)], [node(A), node(B, is_eligible=False)])
    assert placed == {TWO: A}


def test_a_node_that_was_unable_long_ago_may_try_again_if_another_is_able() -> None:
    assert place([free(ONE, A)], [node(A), node(B, 1)]) == {ONE: A}


def test_a_stream_that_nobody_is_able_to_run_waits_however_long_ago_they_said_so() -> None:
    assert place([free(ONE, A, B), free(TWO)], [node(A), node(B)]) == {TWO: A}


def test_a_node_that_joins_may_try_what_nobody_was_able_to_run() -> None:
    assert place([free(ONE, A, B, lately={A, B})], [node(A), node(B), node(C, 9)]) == {ONE: C}


def test_who_is_gone_does_not_count_among_the_able() -> None:
    assert place([free(ONE, A, C)], [node(A)]) == {}


def test_a_node_that_is_draining_counts_among_the_able() -> None:
    """It may be back soon, and it is the proof that somebody can run the stream."""
    assert place([free(ONE, A)], [node(A), node(B, is_eligible=False)]) == {ONE: A}


# Whatever the tick has read.

nodes = st.lists(
    st.builds(Candidate, st.sampled_from([UUID(int=n) for n in range(8)]), st.integers(0, 5), st.booleans()),
    unique_by=lambda one: one.node,
    max_size=6,
)
some = st.frozensets(st.sampled_from([UUID(int=n) for n in range(8)]), max_size=5)
streams = st.lists(
    st.builds(
        lambda n, unable, lately: Free(UUID(int=100 + n), unable | lately, lately), st.integers(0, 30), some, some
    ),
    unique_by=lambda one: one.stream,
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(streams, nodes)
def test_a_stream_is_placed_where_it_may_run_or_waits_for_a_reason(
    frees: list[Free], candidates: list[Candidate]
) -> None:
    placed = place(frees, candidates)
    eligible = {one.node for one in candidates if one.is_eligible}
    everyone = {one.node for one in candidates}
    assert placed == place(frees, candidates), "the same for every node that computes it"
    assert set(placed) <= {one.stream for one in frees}
    for one in frees:
        may = set() if everyone <= one.unable else eligible - one.unable_lately
        assert (one.stream in placed) == bool(may)
        assert placed.get(one.stream) in may | {None}


@settings(max_examples=300, deadline=None)
@given(streams, nodes)
def test_a_stream_is_placed_on_the_least_loaded_of_those_that_may_have_it(
    frees: list[Free], candidates: list[Candidate]
) -> None:
    loads = {one.node: one.load for one in candidates if one.is_eligible}
    for one in frees:
        placed = place(frees, candidates).get(one.stream)
        if placed is not None:
            assert loads[placed] == min(loads[other] for other in loads if other not in one.unable_lately)
            loads[placed] += 1


@pytest.mark.parametrize("nodes", [1, 2, 3, 7])
@pytest.mark.parametrize("streams", [1, 6, 7, 100, 1001])
def test_the_loads_of_equal_nodes_differ_by_at_most_one(nodes: int, streams: int) -> None:
    members = [UUID(int=n) for n in range(nodes)]
    placed = place([free(UUID(int=100 + n)) for n in range(streams)], [node(id) for id in members])
    loads = [list(placed.values()).count(id) for id in members]
    assert sum(loads) == streams
    assert max(loads) - min(loads) <= 1


def test_a_new_node_among_loaded_ones_levels_them_as_far_as_the_free_streams_go() -> None:
    placed = place([free(UUID(int=100 + n)) for n in range(10)], [node(A, 6), node(B, 8), node(C)])
    counts = [list(placed.values()).count(id) for id in (A, B, C)]
    assert counts == [2, 0, 8]


# Wishes for streams that run.

MEMBERS = [UUID(int=n) for n in range(1, 6)]
ALL = 1000  # As many moves at a time as there are.


def streams_on(*counts: int, weight: float = 1.0) -> list[Placed]:
    """So many streams on the first node, so many on the second, and so on."""
    owners = [MEMBERS[number] for number, count in enumerate(counts) for _ in range(count)]
    return [Placed(UUID(int=100 + number), owner, weight) for number, owner in enumerate(owners)]


def some_nodes(count: int, *, draining: Sequence[UUID] = ()) -> list[Candidate]:
    return [node(id, is_eligible=id not in draining) for id in MEMBERS[:count]]


def moved(placed: Sequence[Placed], wishes: Mapping[UUID, UUID | None]) -> list[Placed]:
    """The streams once every wish has been fulfilled. One that an operator pinned stays pinned."""
    after = []
    for one in placed:
        one = replace(one, preferred=wishes.get(one.stream, one.preferred))
        target = one.preferred or one.owner
        after.append(replace(one, owner=target, preferred=target if one.is_pinned else None))
    return after


def under_way(placed: Sequence[Placed]) -> int:
    return sum(one.preferred not in (None, one.owner) for one in placed)


def fewest_moves(counts: list[int]) -> int:
    """Whoever must give, gives the least it can: the fullest ones keep one more, if there is no even split."""
    share, left = divmod(sum(counts), len(counts))
    return sum(max(0, count - share - (number < left)) for number, count in enumerate(sorted(counts, reverse=True)))


def test_a_node_that_joins_is_wished_its_share_and_the_rest_stays() -> None:
    wishes = plan(streams_on(4, 4, 0), some_nodes(3), ALL)
    assert Counter(wishes.values()) == {MEMBERS[2]: 2}


def test_an_even_spread_is_left_alone() -> None:
    assert plan(streams_on(3, 4, 3), some_nodes(3), ALL) == {}
    assert plan([], some_nodes(3), ALL) == {}
    assert plan(streams_on(9), some_nodes(1), ALL) == {}


def test_one_heavy_stream_moves_rather_than_many_light_ones() -> None:
    heavy = Placed(UUID(int=99), MEMBERS[0], 5.0)
    assert plan([heavy, *streams_on(5, 0)], some_nodes(2), ALL) == {heavy.stream: MEMBERS[1]}


def test_a_stream_that_outweighs_the_rest_stays_and_the_rest_makes_room() -> None:
    heavy = Placed(UUID(int=99), MEMBERS[0], 9.0)
    wishes = plan([heavy, *streams_on(3, 2)], some_nodes(2), ALL)
    assert wishes == dict.fromkeys([one.stream for one in streams_on(3)], MEMBERS[1])


def test_what_a_wish_has_made_even_is_not_wished_again() -> None:
    placed = streams_on(4, 0)
    wished = [replace(one, preferred=MEMBERS[1]) for one in placed[:2]] + placed[2:]
    assert plan(wished, some_nodes(2), ALL) == {}


def test_a_wish_for_a_node_that_is_draining_or_gone_is_dropped() -> None:
    one = replace(streams_on(1)[0], preferred=MEMBERS[1])
    assert plan([one], some_nodes(2, draining=MEMBERS[1:2]), ALL) == {one.stream: None}
    assert plan([one], some_nodes(1), ALL) == {one.stream: None}


def test_a_wish_for_a_node_that_has_said_it_is_unable_is_dropped() -> None:
    """It would never be fulfilled, and would count as a move under way for good."""
    one = replace(streams_on(1)[0], preferred=MEMBERS[1], unable=frozenset(MEMBERS[1:2]))
    assert plan([one], some_nodes(2), ALL) == {one.stream: None}


def test_a_pinned_stream_whose_node_is_unable_counts_where_it_is() -> None:
    first, *others = streams_on(3, 1)
    pinned = replace(first, preferred=MEMBERS[1], is_pinned=True, unable=frozenset(MEMBERS[1:2]))
    wishes = plan([pinned, *others], some_nodes(2), 1)
    assert list(wishes.values()) == [MEMBERS[1]]
    assert pinned.stream not in wishes


def test_a_holder_is_told_to_step_down_for_a_wish_that_can_be_fulfilled_and_only_once() -> None:
    one = replace(streams_on(1)[0], preferred=MEMBERS[1])
    assert orders([one], some_nodes(2)) == [one.stream]
    assert orders([replace(one, is_stepping=True)], some_nodes(2)) == []
    assert orders([one], some_nodes(2, draining=MEMBERS[1:2])) == []
    assert orders([replace(one, unable=frozenset(MEMBERS[1:2]))], some_nodes(2)) == []


counted = st.lists(st.integers(0, 12), min_size=1, max_size=5)


@settings(max_examples=300, deadline=None)
@given(counted)
def test_equal_streams_are_spread_evenly_by_the_fewest_moves(counts: list[int]) -> None:
    placed, candidates = streams_on(*counts), some_nodes(len(counts))
    wishes = plan(placed, candidates, ALL)
    loads = Counter(dict.fromkeys(MEMBERS[: len(counts)], 0))
    loads.update(one.owner for one in moved(placed, wishes))
    assert max(loads.values()) - min(loads.values()) <= 1
    assert len(wishes) == fewest_moves(counts)
    assert all(wishes[one.stream] != one.owner for one in placed if one.stream in wishes)


@settings(max_examples=200, deadline=None)
@given(counted, st.integers(1, 5))
def test_a_few_moves_at_a_time_get_there_with_no_more_moves(counts: list[int], most: int) -> None:
    placed, candidates, moves = streams_on(*counts), some_nodes(len(counts)), 0
    while wishes := plan(placed, candidates, most):
        assert len(wishes) <= most
        placed, moves = moved(placed, wishes), moves + len(wishes)
    assert moves == fewest_moves(counts)


members = st.sampled_from(MEMBERS)
placements = st.lists(
    st.builds(
        Placed,
        st.integers(100, 140).map(lambda n: UUID(int=n)),
        members,
        st.floats(1.0, 20.0) | st.integers(1, 4).map(float),
        st.none() | members,
        unable=st.frozensets(members, max_size=2),
    ).map(lambda one: replace(one, unable=one.unable - {one.owner})),
    unique_by=lambda one: one.stream,
    max_size=20,
)
draining_ones = st.lists(members, unique=True, max_size=3)


def pinned_some(placed: Sequence[Placed], pins: Sequence[bool]) -> list[Placed]:
    return [
        replace(one, is_pinned=pin and one.preferred is not None)
        for one, pin in zip(placed, [*pins, *[False] * len(placed)], strict=False)
    ]


whatever = st.builds(pinned_some, placements, st.lists(st.booleans(), max_size=20))


@settings(max_examples=300, deadline=None)
@given(whatever, draining_ones, st.integers(0, 8))
def test_whatever_there_is_a_wish_is_one_that_can_be_fulfilled(
    placed: list[Placed], draining: list[UUID], most: int
) -> None:
    candidates = some_nodes(5, draining=draining)
    wishes = plan(placed, candidates, most)
    assert wishes == plan(list(reversed(placed)), candidates, most), "the same for every node that computes it"
    for one in placed:
        if one.is_pinned:
            assert one.stream not in wishes
        elif (wish := wishes.get(one.stream)) is not None:
            assert wish not in {one.owner, *draining, *one.unable}


@settings(max_examples=300, deadline=None)
@given(whatever, draining_ones, st.integers(0, 8))
def test_so_many_moves_at_most_are_under_way(placed: list[Placed], draining: list[UUID], most: int) -> None:
    """Unless an operator, or an earlier plan, has wished for more."""
    wishes = plan(placed, some_nodes(5, draining=draining), most)
    after = [replace(one, preferred=wishes.get(one.stream, one.preferred)) for one in placed]
    new = sum(node is not None for node in wishes.values())
    dropped_or_kept = under_way([one for one in after if wishes.get(one.stream) is None and one.preferred])
    waits = [one for one in after if one.is_pinned and one.preferred in {*draining, *one.unable}]
    assert new <= max(0, most - dropped_or_kept + under_way(waits))


@settings(max_examples=300, deadline=None)
@given(whatever, draining_ones, st.integers(1, 8))
def test_planning_comes_to_rest(placed: list[Placed], draining: list[UUID], most: int) -> None:
    """Whatever streams weigh: every move narrows a gap, so none is ever taken back."""
    candidates = some_nodes(5, draining=draining)
    placed = moved([one for one in placed if not one.is_pinned], {})
    rounds = 0
    while wishes := plan(placed, candidates, most):
        placed, rounds = moved(placed, wishes), rounds + 1
        assert rounds <= 20 * len(placed)
    assert plan(placed, candidates, most) == {}


@settings(max_examples=200, deadline=None)
@given(placements, st.data())
def test_figures_that_waver_a_little_move_nothing(placed: list[Placed], data: st.DataObject) -> None:
    """An even spread of equal streams stays, though each weighs a few hundredths more or less from look to look."""
    even = [replace(one, owner=MEMBERS[n % 5], weight=1.0, preferred=None) for n, one in enumerate(placed)]
    wavering = [replace(one, weight=data.draw(st.floats(0.98, 1.02))) for one in even]
    assert plan(wavering, some_nodes(5), ALL) == {}
