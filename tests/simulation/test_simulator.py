"""The guarantees hold under seeded faults, and the checkers can see when they do not."""

from __future__ import annotations

import pytest

from simulation import run_seed, seeds_of
from simulation.__main__ import main
from simulation.group_mutations import GROUPS
from simulation.mutations import CORE, Mutation
from simulation.push_mutations import PUSH
from simulation.scenarios import KINDS, kind_of
from simulation.shell_mutations import SHELL
from simulation.worker_mutations import WORKERS
from tests.simulation.seen_by import SEEN_BY

SEEDS = 100  # `make sim` runs thousands.
A_LOT = 25
MOST_TRIES = 120  # Of the kind of run that exposes a planted bug.


@pytest.mark.parametrize("first", range(1, SEEDS, A_LOT))
def test_every_guarantee_holds(first: int) -> None:
    for seed in range(first, first + A_LOT):
        report = run_seed(seed)
        assert report.violation is None, report.story()


def test_the_seeds_are_of_every_kind_and_reach_every_fault() -> None:
    assert {kind_of(seed).name for seed in range(1, SEEDS + 1)} == {*(kind.name for kind in KINDS), "crowd"}
    happened = set()
    for kind in KINDS:
        for seed in seeds_of(kind.name, 1, 2):
            happened |= set(run_seed(seed).counts)
    assert {"grants", "takeovers", "push grants", "fenced attempts"} <= happened
    wanted = {name.replace("_", " ") for kind in KINDS for name in kind.faults}
    assert {f"fault: {name}" for name in wanted} <= happened


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_a_seed_is_always_the_same_run(kind: str) -> None:
    seed = next(seeds_of(kind, 1, 1))
    assert list(run_seed(seed).trace.lines()) == list(run_seed(seed).trace.lines())


def test_the_bound_on_a_takeover_is_put_to_the_test() -> None:
    """It is checked only where nothing else excuses being late: that must be so often enough."""
    checked = sum(run_seed(seed).counts["takeovers in time"] for seed in seeds_of("crash", 1, 10))
    assert checked >= 5


@pytest.mark.parametrize("mutation", [*CORE, *PUSH, *SHELL, *WORKERS, *GROUPS], ids=lambda mutation: mutation.name)
def test_a_planted_bug_is_found(mutation: Mutation) -> None:
    with mutation.planted():
        for seed in (SEEN_BY.get(mutation.name, 1), *seeds_of(mutation.exposed_by, 1, MOST_TRIES)):
            report = run_seed(seed)
            if report.violation is not None:
                print(f"found by seed {seed}: {report.violation}")
                assert f"seed {seed}" in report.story()
                return
    pytest.fail(f"{MOST_TRIES} seeds of {mutation.exposed_by} do not show it")


def test_a_violation_is_told_with_its_seed_and_story(capsys: pytest.CaptureFixture[str]) -> None:
    mutation = CORE[0]
    with mutation.planted():
        seed = next(s for s in seeds_of(mutation.exposed_by, 1, MOST_TRIES) if run_seed(s).violation is not None)
        assert main(["--seed", str(seed), "--trace"]) == 1
    printed = capsys.readouterr().out
    assert f"seed {seed} ({mutation.exposed_by}) violates" in printed
    assert "The last events of" in printed


def test_the_command_says_what_it_has_seen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--only", "crash"]) == 0
    printed = capsys.readouterr().out
    assert "3 seeds" in printed
    assert "fault: kill" in printed
    assert "every guarantee held" in printed
