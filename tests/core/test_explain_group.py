"""What is said of a group: in one word, and in sentences."""

from __future__ import annotations

import pytest

from headgate.core.groups.explain import (
    STATUSES,
    Outside,
    SeenConsumer,
    SeenNode,
    Status,
    Workers,
    explain_outside,
    explain_workers,
    outside_status,
    workers_status,
)

ACTIVE = SeenConsumer("a", "connected", "active", 7, 130.0, "alpha")
WAITING = SeenConsumer("b", for_s=9.0, node="beta")
TOLD = SeenConsumer("a", "connected", "active", 7, 1.0, "alpha", answered=False)
MUTED = SeenConsumer("a", "connected", "active", 7, 12.0, "alpha", answered=False, muted=True, waits_s=8.4)
STEPPING = SeenConsumer("a", "connected", "deactivating", 7, 2.0, "alpha", answered=False)
MUTED_STEPPING = SeenConsumer(
    "a", "connected", "deactivating", 7, 2.0, "alpha", answered=False, muted=True, waits_s=3.0
)
AWAY = SeenConsumer("a", "disconnected", "active", 7, 4.0, "alpha", waits_s=6.0)
AWAY_STEPPING = SeenConsumer("a", "disconnected", "deactivating", 7, 4.0, None, waits_s=6.0)
FORGOTTEN = SeenConsumer("a", "forgotten", "active", 7, 60.0, None, waits_s=540.0)
SILENT = SeenConsumer("b", "disconnected", for_s=3.0, waits_s=7.0)


# Programs outside.

OUTSIDE: list[tuple[tuple[SeenConsumer, ...], Status, str]] = [
    ((ACTIVE, WAITING), "active", "a on alpha is active under epoch 7, for 2 min."),
    ((TOLD, WAITING), "starting", "a on alpha was told 1 s ago to be active under epoch 7, and has not answered yet."),
    (
        (MUTED, WAITING),
        "blocked",
        "a on alpha did not answer when it was told to be active under epoch 7. Its beats are not echoed, and it is "
        "dropped in 8 s unless it answers.",
    ),
    (
        (STEPPING, WAITING),
        "handing over",
        "a on alpha was told 2 s ago to step down from epoch 7, and has not confirmed. Until then nobody else is told "
        "to be active.",
    ),
    (
        (MUTED_STEPPING, WAITING),
        "blocked",
        "a on alpha did not answer when it was told to step down from epoch 7. Its beats are not echoed, and it is "
        "dropped in 3 s unless it answers.",
    ),
    (
        (AWAY, WAITING),
        "blocked",
        "a is active under epoch 7 and has been out of touch for 4 s. It may still believe so, and is waited for "
        "6 s more.",
    ),
    (
        (AWAY_STEPPING, WAITING),
        "blocked",
        "a was told to step down from epoch 7 and has been out of touch for 4 s. It may still be at work, and is "
        "waited for 6 s more.",
    ),
    ((SILENT,), "vacant", "Nobody is active, and nobody can be: all its consumers are out of touch."),
    ((), "vacant", "Nobody is in it."),
]


@pytest.mark.parametrize(("members", "status", "line"), OUTSIDE)
def test_who_holds_a_group_and_why_nobody_else_does(
    members: tuple[SeenConsumer, ...], status: Status, line: str
) -> None:
    group = Outside(members, wanted=WAITING if WAITING in members else None)
    assert outside_status(group) == status
    assert explain_outside(group)[0] == line


def test_one_that_returned_steps_down_while_the_present_one_stays() -> None:
    group = Outside((STEPPING, SeenConsumer("b", "connected", "active", 8, 30.0, "beta")), wanted=None)
    assert outside_status(group) == "active"
    assert explain_outside(group)[1] == "b on beta is active under epoch 8, for 30 s."


def test_who_is_next_is_said_only_while_somebody_holds() -> None:
    assert explain_outside(Outside((STEPPING, WAITING), wanted=WAITING))[1:] == ["b is next."]
    assert explain_outside(Outside((ACTIVE, WAITING), wanted=ACTIVE))[1:] == []
    assert explain_outside(Outside((WAITING,), wanted=WAITING)) == ["Nobody is active; b is about to be told."]


def test_those_who_are_out_of_touch_are_named_with_their_deadlines() -> None:
    lines = explain_outside(Outside((FORGOTTEN, SILENT, SeenConsumer("c", "connected", "active", 8, 5.0))))
    assert lines == [
        "c is active under epoch 8, for 5 s.",
        "a is forgotten: its lease has ended. It can still come back within 9 min, and steps down from epoch 7 first.",
        "b waits, and is out of touch: it is forgotten in 7 s.",
    ]


def test_a_partition_and_what_was_ignored_are_said_last() -> None:
    lines = explain_outside(Outside((ACTIVE,), partition=3, ignored=2))
    assert lines[1:] == [
        "Its partition is 3: the order of registration decides whose it is.",
        "2 confirmations were ignored: they named another consumer or an old epoch.",
    ]
    assert "1 confirmation was ignored: it named" in explain_outside(Outside((ACTIVE,), ignored=1))[1]


def test_a_deadline_that_has_passed_is_a_second_away() -> None:
    late = SeenConsumer("a", "disconnected", "active", 7, 11.0, waits_s=0.0)
    assert explain_outside(Outside((late,)))[0].endswith("waited for 1 s more.")


# Streams that nodes run.

ALPHA, BETA = SeenNode("alpha"), SeenNode("beta")
DRAINING = SeenNode("beta", is_draining=True)
GONE_QUIET = SeenNode("alpha", is_silent=True, silent_s=3.0, lease_s=5.0)
UNABLE = SeenNode("gamma", unable="no folder")


def workers(*nodes: SeenNode, **rest: object) -> Workers:
    return Workers("orders:0", nodes, 12, **rest)  # type: ignore[arg-type]


def test_a_stream_that_runs_names_its_owner() -> None:
    group = workers(ALPHA, BETA, owner=ALPHA, for_s=60.0)
    assert workers_status(group) == "active"
    assert explain_workers(group) == ["alpha has it under epoch 12, for 60 s."]


def test_a_stream_that_was_granted_and_has_not_begun_is_starting() -> None:
    group = workers(ALPHA, owner=ALPHA, is_begun=False, for_s=1.0)
    assert workers_status(group) == "starting"
    assert explain_workers(group) == ["alpha has it under epoch 12, for 1 s, and has not begun."]


def test_a_move_says_who_wished_it_and_until_when_its_holder_is_waited_for() -> None:
    group = workers(
        ALPHA, BETA, owner=ALPHA, preferred=BETA, is_pinned=True, is_stepping=True, takes_in_s=14.0, for_s=9.0
    )
    assert workers_status(group) == "handing over"
    assert explain_workers(group) == [
        "alpha has it under epoch 12, for 9 s.",
        "alpha was told to step down and has not yet. This node would take the stream from it in 14 s.",
        "An operator wants it on beta. To leave it to the planner: headgate streams move orders:0 --anywhere",
    ]
    planned = explain_workers(workers(ALPHA, BETA, owner=ALPHA, preferred=BETA))
    assert planned[-1] == "The planner wants it on beta."


def test_a_wish_that_has_come_true_is_said_if_it_was_an_operators() -> None:
    pinned = explain_workers(workers(ALPHA, owner=ALPHA, preferred=ALPHA, is_pinned=True))
    assert pinned[1].startswith("An operator wants it on alpha, where it is. ")
    assert len(explain_workers(workers(ALPHA, owner=ALPHA, preferred=ALPHA))) == 1


def test_a_wish_that_cannot_come_true_says_why() -> None:
    lines = explain_workers(workers(ALPHA, DRAINING, owner=ALPHA, preferred=DRAINING, is_pinned=True))
    assert lines[2:] == ["It does not move as long as beta is draining.", "beta gets nothing new: draining."]


def test_a_silent_owner_blocks_until_its_lease_ends() -> None:
    group = workers(GONE_QUIET, BETA, owner=GONE_QUIET)
    assert workers_status(group) == "blocked"
    lines = explain_workers(group)
    assert lines[1] == "alpha has been silent for 3 s: its lease ends in 2 s."
    assert lines[2] == "alpha gets nothing new: silent for 3 s."


@pytest.mark.parametrize(
    ("nodes", "line"),
    [
        ((), "No node has it: none is running."),
        ((ALPHA, DRAINING), "No node has it. It is about to be granted to one of: alpha."),
        ((UNABLE,), "No node has it: all are unable. A publish, a changed secret or a restart tries it again."),
        ((UNABLE, DRAINING), "No node has it, and none can take it now."),
    ],
)
def test_a_free_stream_says_why_nobody_takes_it(nodes: tuple[SeenNode, ...], line: str) -> None:
    assert workers_status(workers(*nodes)) == "vacant"
    assert explain_workers(workers(*nodes))[0] == line


def test_a_stream_that_should_not_run_is_stopped() -> None:
    group = workers(ALPHA, UNABLE, stopped="its datasource is stopped", is_modulo=True)
    assert workers_status(group) == "stopped"
    assert explain_workers(group) == [
        "No node has it, and none should: its datasource is stopped.",
        "It is placed by its number (assignment: modulo).",
        "gamma is unable: no folder.",
    ]


def test_every_word_has_its_place_among_the_others() -> None:
    assert {status for _, status, _ in OUTSIDE} | {"stopped"} == set(STATUSES)
