"""Placement: who gets which free stream, and who gets nothing."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.planner import Candidate, Free, place

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
