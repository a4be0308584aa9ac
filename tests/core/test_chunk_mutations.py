"""Whatever is broken in chunks is found."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

from headgate.core.chunks.locks import State
from headgate.core.chunks.offsets import FIRST_ROWS
from headgate.errors import Refused
from simulation.mutations import Mutation
from tests.core import test_chunk_outcome as outcomes
from tests.core import test_chunks as tests
from tests.core.chunk_mutations import ALL
from tests.core.chunk_walk import walk, walk_plans
from tests.core.chunk_world import KINDS


def by_rules() -> None:
    """The plain tests, those that need nothing."""
    for name, test in vars(tests).items():
        is_plain = name.startswith("test_") and not hasattr(test, "hypothesis")
        is_long = name.startswith(("test_no_interleaving", "test_no_plan", "test_each_row"))
        if is_plain and not is_long and not inspect.signature(test).parameters:
            test()
    for epoch in (1, 3):
        tests.test_what_is_said_under_another_epoch_changes_nothing(epoch)
    for state in State:
        tests.test_what_the_ledger_has_is_done_whatever_was_thought_of_it(state)
    for kind in KINDS:
        tests.test_a_dump_from_a_point_has_what_comes_after_it_and_nothing_else(kind)
    for ranges in tests.NOT_COVERED.values():
        tests.test_what_is_not_covered_is_seen(ranges)


def by_sizes() -> None:
    tests.follow([(FIRST_ROWS, 0.1), (8 * FIRST_ROWS, 0.0), (3, 99.0), (1, 9.0), (9_000_000, 0.2), (100, 2.0)])
    tests.follow([(FIRST_ROWS, 2.0), (FIRST_ROWS, 1.1), (FIRST_ROWS, 4.9)])
    tests.follow([(100, 99.0)] * 4)
    tests.follow([(10**7, 0.1)] * 4)
    tests.follow([(20_000, 0.1), (20_000, 9.0)], fixed=20_000)
    for rows_per_s in (25, 1000, 20_000, 4_000_000):
        for ahead in (0, 3):
            tests.converge(rows_per_s, ahead)
    tests.test_a_small_last_chunk_does_not_change_the_size_because_it_was_quick()


def by_outcomes() -> None:
    """What becomes of tables and dumps."""
    for name, test in vars(outcomes).items():
        if name.startswith("test_"):
            test()


EXPOSE: dict[str, Callable[[], object]] = {
    "rules": by_rules,
    "sizes": by_sizes,
    "outcomes": by_outcomes,
    "walk": lambda: walk(1, under_way=1),
    "plans": lambda: walk_plans(3),
    "worlds": lambda: tests.live_in(range(50)),
    "resume": lambda: tests.resume_everywhere(KINDS[0], 1),
}


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_a_planted_bug_is_found(mutation: Mutation) -> None:
    with mutation.planted(), pytest.raises((AssertionError, Refused, pytest.fail.Exception)):
        EXPOSE[mutation.exposed_by]()


@pytest.mark.parametrize("expose", EXPOSE.values(), ids=list(EXPOSE))
def test_nothing_is_found_where_nothing_is_planted(expose: Callable[[], object]) -> None:
    expose()


def test_each_planted_bug_has_a_name_of_its_own() -> None:
    assert len({mutation.name for mutation in ALL}) == len(ALL)
