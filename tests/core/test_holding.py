"""What a node tells the registry about a stream: every answer in every phase."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from headgate.core.lifecycle import (
    Acquiring,
    BackingOff,
    Draining,
    Failure,
    Idle,
    Opening,
    Phase,
    Quarantined,
    Running,
    Wanted,
    Worker,
    holding,
)
from headgate.core.lifecycle.holding import Declined, Holding
from headgate.core.streams import Busy, Checkpoint, Done, Fenced, Outcome, Progress, Release, Reply, Revoke, Why
from headgate.errors import Cause

ME = UUID(int=1)
WANTED = Wanted(published=1, running=1, restarts=0)
FAILURE = Failure(Cause.CONFIG, "no such table")
AT_7, AT_8 = Progress(0, 7, "g"), Progress(0, 8, "h")
HELD = Holding(epoch=5, last_epoch=5, progress=AT_8, saved=AT_7, wanted_key="1/0")
ASKING = Draining(1, 1, None, None, 8.0, 10.0, is_acquiring=True)  # To end, and not granted yet.
PHASES: list[Phase] = [
    ASKING,
    Idle("stopped"),
    Acquiring(1, 1),
    Opening(1, 1, None),
    Running(1, 1, None, 0.0, proved=True),
    Draining(1, 1, None, None, 8.0, 10.0),
    BackingOff(1, None, 1.0, FAILURE),
    Quarantined(1, FAILURE),
]
each_phase = pytest.mark.parametrize("phase", PHASES, ids=lambda phase: type(phase).__name__)


# Checkpoints.


def test_what_the_registry_does_not_know_yet_is_saved_under_the_grant() -> None:
    assert holding.checkpoint(HELD, ME) == Checkpoint(ME, 5, 8, "h")
    assert holding.checkpoint(replace(HELD, saved=AT_8), ME) is None
    assert holding.checkpoint(replace(HELD, epoch=None), ME) is None, "not ours"


def test_an_answer_that_was_overtaken_does_not_take_back_what_is_saved() -> None:
    assert holding.saved(HELD, AT_8).saved == AT_8
    assert holding.saved(replace(HELD, saved=AT_8), AT_7).saved == AT_8


@each_phase
@pytest.mark.parametrize("why", ["stale", "owned_by_other", "already_inactive"])
@pytest.mark.parametrize("epoch", [4, 5])
def test_a_fence_ends_a_run_unless_it_may_be_our_own(phase: Phase, why: Why, epoch: int) -> None:
    is_asking = isinstance(phase, Acquiring) or phase == ASKING
    is_ours_perhaps = why == "already_inactive" or is_asking or isinstance(phase, BackingOff)
    assert holding.is_lost(HELD, phase, epoch, why) == (epoch == 5 and not is_ours_perhaps)
    assert not holding.is_lost(replace(HELD, epoch=None), phase, epoch, why), "lost already"


# Releases.


@each_phase
@pytest.mark.parametrize("outcome", ["stopped", "finished", "unable"])
@pytest.mark.parametrize("is_draining", [False, True])
@pytest.mark.parametrize("is_given_back", [False, True])
@pytest.mark.parametrize("is_pushed", [False, True])
def test_a_stream_is_handed_over_if_it_stopped_for_another_node(
    phase: Phase, outcome: Outcome, is_draining: bool, is_given_back: bool, is_pushed: bool
) -> None:
    held = replace(HELD, is_given_back=is_given_back, is_pushed=is_pushed, settled=True)
    hands_over = not is_pushed and outcome == "stopped" and (is_draining or is_given_back)
    reason = "no such table" if isinstance(phase, Quarantined) else ""
    expected = Release(ME, 5, 8, "h", outcome, "1/0", reason, hands_over, is_settled=True)
    assert holding.release(held, ME, phase, outcome, is_draining=is_draining) == expected


@each_phase
def test_without_a_known_epoch_whatever_is_ours_is_revoked(phase: Phase) -> None:
    for held in (Holding(), holding.lost(HELD), holding.abandoned(HELD)):
        assert holding.release(held, ME, phase, "stopped", is_draining=False) == Revoke(ME)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Done(), False),
        (Busy(None), False),
        (None, False),
        (Fenced("stale"), True),
        (Fenced("already_inactive"), False),
        (Fenced("owned_by_other"), False),
    ],
)
def test_only_a_stale_release_may_leave_something_with_us(reply: Reply | None, expected: bool) -> None:
    assert holding.is_to_revoke(Worker(runs=3), 3, reply) == expected
    assert not holding.is_to_revoke(Worker(runs=4), 3, reply), "the grant of the run that has begun meanwhile stays"


@each_phase
def test_an_acquisition_is_sent_only_while_its_worker_waits_for_it(phase: Phase) -> None:
    """An older one that was held up would take the stream from the run that has it by then."""
    assert holding.is_awaited(phase, 1) == (isinstance(phase, Acquiring) or phase == ASKING)
    assert not holding.is_awaited(phase, 2)


def test_the_answer_to_an_old_release_leaves_a_newer_grant() -> None:
    assert holding.released(HELD, 5).epoch is None
    assert holding.released(HELD, 4).epoch == 5
    assert holding.released(HELD, None).epoch == 5


@each_phase
def test_a_worker_is_forgotten_only_if_it_is_done_and_began_no_other_run(phase: Phase) -> None:
    is_done = isinstance(phase, Idle | Quarantined)
    assert holding.is_over(Worker(phase, runs=3), 3) == is_done
    assert not holding.is_over(Worker(phase, runs=4), 3)


# Runs that did not end.


@each_phase
def test_a_revocation_spares_the_next_run_and_only_that(phase: Phase) -> None:
    assert holding.revocation(ME, phase, 5) == Revoke(ME, None if isinstance(phase, Idle) else 5)


def test_an_abandoned_run_may_still_write_so_the_stream_is_not_settled() -> None:
    left = holding.abandoned(replace(HELD, settled=True))
    assert (left.epoch, left.settled, left.last_epoch) == (None, False, 5)


def test_a_run_that_ended_says_how_far_it_came_and_whether_it_knows() -> None:
    assert holding.ended(HELD, Progress(0, 9, "i"), settled=True) == replace(
        HELD, progress=Progress(0, 9, "i"), settled=True
    )
    assert holding.ended(HELD, AT_7, settled=False).progress == AT_8, "what was committed counts"
    assert holding.ended(HELD, None, settled=True).progress == AT_8, "the sink was never opened"


# Orders and offers.


def test_nothing_is_wanted_of_a_stream_that_is_given_back() -> None:
    assert holding.wanted_of(HELD, WANTED) is WANTED
    assert holding.wanted_of(replace(HELD, is_given_back=True), WANTED) is None


@pytest.mark.parametrize(("epoch", "expected"), [(4, False), (5, True), (6, True)])
def test_an_order_to_step_down_from_an_older_grant_is_not_meant(epoch: int, expected: bool) -> None:
    assert holding.is_meant(HELD, epoch) == expected
    assert holding.is_meant(holding.lost(HELD), epoch) == expected, "the last grant counts, not the present one"


def test_a_grant_begins_with_its_epoch_and_a_run_with_what_the_registry_has() -> None:
    held = holding.granted(4, settled=True)
    assert held == Holding(epoch=4, last_epoch=4, settled=True)
    run = holding.acquired(held, 5, AT_7)
    assert run == Holding(epoch=5, last_epoch=5, progress=AT_7, saved=AT_7, settled=True)
    assert not run.is_unsaved
    opened = holding.opened(run, AT_8)
    assert (opened.progress, opened.is_opened, opened.is_unsaved) == (AT_8, True, True)
    assert holding.reached(opened, Progress(0, 9, "i")).progress.commits == 9


@pytest.mark.parametrize("steps_down", [False, True])
@pytest.mark.parametrize("is_draining", [False, True])
def test_a_grant_that_is_declined_says_whether_another_node_is_to_have_it(steps_down: bool, is_draining: bool) -> None:
    declined = holding.decline(ME, Declined(5, steps_down, is_draining))
    assert declined == Release(ME, 5, 0, None, hands_over=steps_down or is_draining)


def test_a_node_whose_file_does_not_name_the_datasource_is_unable() -> None:
    declined = holding.decline(ME, Declined(5, is_unlisted=True, wanted_key="1/0"))
    assert (declined.outcome, declined.wanted_key) == ("unable", "1/0")
    assert declined.reason == "the registry file of this node does not name the datasource"
