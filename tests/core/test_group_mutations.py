"""Whatever is broken in the group machine, or in what is decided around it, is found."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from simulation.mutations import Mutation
from tests.core import group_mutations, group_shell_mutations, test_belief, test_group_delivery, test_group_requests
from tests.core.group_world import Setting
from tests.core.test_group_vectors import VECTORS, run
from tests.core.test_groups_walk import CHOICES, HISTORIES, WALKS, live_through, walk

ALL = (*group_mutations.ALL, *group_shell_mutations.ALL)
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


def by_scenarios(module: ModuleType) -> None:
    """Every test of a module; whatever goes wrong in one of them has found the bug."""
    for name, scenario in vars(module).items():
        for case in cases(scenario) if name.startswith("test_") else ():
            try:
                scenario(**case)
            except (Exception, pytest.fail.Exception) as error:
                raise AssertionError(f"{name}: {error}") from error


def cases(scenario: Any) -> list[dict[str, Any]]:
    """What a test is run with: the cases of its `parametrize`, if it has one."""
    for mark in getattr(scenario, "pytestmark", []):
        names, values = mark.args
        if isinstance(names, str):
            return [{names: value} for value in values]
        return [dict(zip(names, value, strict=True)) for value in values]
    return [{}]


EXPOSE: dict[str, Callable[[], None]] = {
    "vectors": by_vectors,
    "belief": partial(by_scenarios, test_belief),
    "requests": partial(by_scenarios, test_group_requests),
    "delivery": partial(by_scenarios, test_group_delivery),
    **{setting.name: partial(by_walk, setting) for setting in WALKS},
    **{setting.name: partial(by_histories, setting) for setting in HISTORIES},
}


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_a_planted_bug_is_found(mutation: Mutation) -> None:
    with mutation.planted(), pytest.raises(AssertionError):
        EXPOSE[mutation.exposed_by]()


@pytest.mark.parametrize(
    "module", [test_belief, test_group_requests, test_group_delivery], ids=lambda one: one.__name__
)
def test_the_scenarios_find_nothing_where_nothing_is_planted(module: ModuleType) -> None:
    by_scenarios(module)


def test_each_planted_bug_has_a_name_of_its_own() -> None:
    assert len({mutation.name for mutation in ALL}) == len(ALL)
