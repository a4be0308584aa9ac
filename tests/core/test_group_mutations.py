"""Whatever is broken in the group machine is found."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from simulation.mutations import Mutation
from tests.core.group_mutations import ALL
from tests.core.group_world import Setting
from tests.core.test_group_vectors import VECTORS, run
from tests.core.test_groups_walk import CHOICES, HISTORIES, WALKS, live_through, walk

STATES = 2000  # Of the walk, in each setting.


def by_vectors() -> None:
    for vector in VECTORS:
        run(vector)


def by_walk(setting: Setting) -> None:
    walk(setting, STATES)


def by_histories(setting: Setting) -> None:
    @settings(
        max_examples=200,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(choices=CHOICES)
    def live(choices: list[int]) -> None:
        live_through(setting, choices)

    live()


EXPOSE: dict[str, Callable[[], None]] = {
    "vectors": by_vectors,
    **{setting.name: partial(by_walk, setting) for setting in WALKS},
    **{setting.name: partial(by_histories, setting) for setting in HISTORIES},
}


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_a_planted_bug_is_found(mutation: Mutation) -> None:
    with mutation.planted(), pytest.raises(AssertionError):
        EXPOSE[mutation.exposed_by]()


def test_each_planted_bug_has_a_name_of_its_own() -> None:
    assert len({mutation.name for mutation in ALL}) == len(ALL)
