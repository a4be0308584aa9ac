"""The plan of a storm, and what is said of memory at its end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tests.storm.plan import ALONE_AT_S, KINDS, STEADY, Fault, plan
from tests.storm.verdict import JUDGED_AFTER_S, STEADY_AFTER_S, check_memory

GIVEN: dict[str, Any] = {
    "seconds": 1000.0,
    "gap_s": 2.0,
    "lease_s": 5.0,
    "standby": "sync",
    "named": [kind.name for kind in KINDS],
    "datasources": ["insert-00", "hooks-01"],
    "programs": ["push-02/0"],
}


def faults(seed: int = 1, **changes: Any) -> list[Fault]:
    return list(plan(seed, **{**GIVEN, **changes}))


def test_the_same_seed_is_the_same_plan_and_another_is_another() -> None:
    assert faults(1) == faults(1)
    assert faults(1) != faults(2)


def test_a_plan_has_every_kind_of_fault_in_proportion_and_ends_in_time() -> None:
    found = faults()
    deck = sum(kind.weight for kind in KINDS)
    assert {fault.kind for fault in found[:deck]} == {kind.name for kind in KINDS}
    assert all(before.at_s <= after.at_s < 1000.0 for before, after in pairwise(found))


def test_the_steady_node_is_neither_killed_nor_stopped() -> None:
    assert {fault.kind for fault in faults() if fault.target == STEADY} == {"cut-short", "cut-long", "drain"}


def test_the_steady_node_has_been_alone_with_all_streams_before_its_memory_is_judged() -> None:
    def together(found: list[Fault]) -> list[float]:
        kills = [fault for fault in found if fault.kind == "kill" and fault.at_s < STEADY_AFTER_S]
        pairs = [(one, other) for one, other in pairwise(kills) if one.target != other.target]
        return [one.at_s for one, other in pairs if other.at_s + 10.0 < one.at_s + one.hold_s]

    for seed in range(10):
        found = faults(seed, seconds=JUDGED_AFTER_S)
        assert all(before.at_s <= after.at_s for before, after in pairwise(found))
        assert set(ALONE_AT_S) <= set(together(found))
        assert not set(ALONE_AT_S) & {fault.at_s for fault in faults(seed)}, "a short storm is not judged"


def test_without_a_standby_nothing_is_promoted_and_without_programs_none_is_killed() -> None:
    kinds = {fault.kind for fault in faults(standby="none", programs=[])}
    assert not kinds & {"promotion", "old-primary-returns", "standby-pause", "program-kill"}


def test_pauses_are_shorter_or_longer_than_the_lease_as_they_say() -> None:
    short = [fault.hold_s for fault in faults() if fault.kind in ("freeze-short", "cut-short")]
    long = [fault.hold_s for fault in faults() if fault.kind in ("freeze-long", "cut-long")]
    assert max(short) < 5.0 < min(long)


def test_memory_that_grows_is_seen_in_a_storm_that_is_long_enough() -> None:
    steady = [(float(at_s), 100_000) for at_s in range(0, 1201, 10)]
    grown = [(at_s, size + 10 * int(at_s)) for at_s, size in steady]
    assert check_memory(steady, 1200.0)[1] is None
    assert "grew" in str(check_memory(grown, 1200.0)[1])
    assert check_memory(grown, 1100.0)[1] is None
