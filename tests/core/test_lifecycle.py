"""The life of a worker: every rule by name, and every order of events in a small world."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest

from headgate.core import backoff, lifecycle, streams
from headgate.core.lifecycle import (
    CANCEL_S,
    GIVE_WAY,
    PROOF_S,
    STOP_S,
    TRIAL_S,
    Abandon,
    Acquired,
    AcquireDenied,
    AcquireStream,
    Acquiring,
    BackingOff,
    CameBack,
    Cancel,
    Checked,
    CheckVersion,
    Committed,
    Drain,
    Draining,
    Ended,
    Failed,
    Failure,
    Idle,
    Launch,
    Opened,
    Opening,
    OwnershipLost,
    Prove,
    Quarantined,
    RejectVersion,
    ReleaseStream,
    Report,
    Running,
    Step,
    Tick,
    Trial,
    Want,
    Wanted,
    Worker,
    due_s,
    status,
    step,
)
from headgate.core.lifecycle import holding as holdings
from headgate.core.lifecycle.holding import Declined, Holding
from headgate.errors import Cause

CONFIG = Failure(Cause.CONFIG, "no such topic")
AUTH = Failure(Cause.AUTH, "wrong password")
NETWORK = Failure(Cause.NETWORK, "connection refused")
RATE_LIMIT = Failure(Cause.RATE_LIMIT, "too many requests")
BAD_RECORD = Failure(Cause.BAD_RECORD, "not a number")
BUG = Failure(Cause.BUG, "KeyError: 'id'")
AWAY = Failure(Cause.NETWORK, "connection refused", awaits="the sink")
NEW = Worker()
FIRST = Wanted(1, None, 0)
# Enough to meet every kind of interleaving, in seconds.
WALK = int(os.environ.get("HEADGATE_TEST_WALK_STATES", "20000"))


def after(*events: lifecycle.Event, worker: Worker = NEW) -> Step:
    """The last step of these events."""
    done = Step(worker)
    for event in events:
        done = step(done.worker, event)
    return done


def wanted(published: int = 1, running: int | None = None, restarts: int = 0, *, rejected: bool = False) -> Wanted:
    return Wanted(published, running, restarts, rejected)


def acquiring(want: Wanted | None = None) -> Worker:
    return after(Want(want or wanted(), 0.0)).worker


def opening(want: Wanted | None = None) -> Worker:
    return after(Acquired(1, 0.0), worker=acquiring(want)).worker


def running(want: Wanted | None = None) -> Worker:
    """Run 1 is running since 0."""
    return after(Opened(1, 0.0), worker=opening(want)).worker


def elsewhere() -> Worker:
    return after(AcquireDenied(1, 0.0), worker=acquiring()).worker


def draining() -> Worker:
    """A restart at 0."""
    return after(Want(wanted(restarts=1), 0.0), worker=running()).worker


def backing_off(want: Wanted | None = None) -> Worker:
    return after(Failed(1, 0.0, NETWORK), worker=running(want)).worker


def quarantined(want: Wanted | None = None) -> Worker:
    return after(Failed(1, 0.0, CONFIG), worker=opening(want)).worker


def finished() -> Worker:
    return after(Ended(1, 0.0, finished=True), worker=running(wanted(1, 1))).worker


def trying(*, resets_position: bool = False) -> Worker:
    """Version 1 has proved itself and version 2 is on trial since 0, opening as run 2."""
    done = after(
        Want(wanted(2, 1), 0.0),
        Checked(2, 0.0),
        Ended(1, 0.0),
        Acquired(2, 0.0, resets_position),
        worker=running(wanted(1, 1)),
    )
    assert done.effects == (Launch(2, 2),)
    return done.worker


def on_trial() -> Worker:
    return after(Opened(2, 0.0), worker=trying()).worker


EVERYWHERE = {
    "idle": Worker(),
    "acquiring": acquiring(),
    "elsewhere": elsewhere(),
    "opening": opening(),
    "running": running(),
    "draining": draining(),
    "backing off": backing_off(),
    "quarantined": quarantined(),
    "finished": finished(),
    "on trial": on_trial(),
}
everywhere = pytest.mark.parametrize("worker", EVERYWHERE.values(), ids=EVERYWHERE.keys())
reasons_of_its_own = pytest.mark.parametrize("failure", [CONFIG, AUTH, BUG, BAD_RECORD], ids=lambda f: f.cause)
from_outside = pytest.mark.parametrize("failure", [NETWORK, RATE_LIMIT], ids=lambda f: f.cause)


# Start, stop, restart, reload.


def test_a_start_acquires_the_stream_launches_the_run_and_says_when_it_runs() -> None:
    start = step(Worker(), Want(wanted(), 5.0))
    assert start.effects == (AcquireStream(1, 1),)
    granted = step(start.worker, Acquired(1, 6.0))
    assert granted.effects == (Launch(1, 1),)
    opened = step(granted.worker, Opened(1, 7.0))
    assert opened.effects == (Report("running"),)
    assert opened.worker.phase == Running(1, 1, None, 7.0, proved=False)


@everywhere
def test_wanting_the_same_again_changes_nothing(worker: Worker) -> None:
    assert step(worker, Want(worker.wanted, 99.0)) == Step(worker)


@everywhere
def test_a_tick_before_its_time_changes_nothing(worker: Worker) -> None:
    assert step(worker, Tick(-1.0)) == Step(worker)


def test_a_restart_drains_and_runs_again_under_a_new_grant() -> None:
    restart = step(running(), Want(wanted(restarts=1), 3.0))
    assert restart.effects == (Drain(1),)
    again = step(restart.worker, Ended(1, 4.0))
    assert again.effects == (AcquireStream(2, 1),)
    assert step(again.worker, Acquired(2, 4.0)).effects == (Launch(2, 1),)


def test_a_restart_before_the_grant_waits_for_the_answer_and_asks_again() -> None:
    restart = step(acquiring(), Want(wanted(restarts=1), 3.0))
    assert restart.effects == ()
    assert step(restart.worker, Acquired(1, 4.0)).effects == (AcquireStream(2, 1),)


def test_a_stop_of_nothing_is_a_stop() -> None:
    assert after(Want(None, 0.0)) == Step(Worker())
    stopped = step(elsewhere(), Want(None, 0.0))
    assert stopped == Step(replace(elsewhere(), phase=Idle("stopped"), wanted=None))


@pytest.mark.parametrize("worker", [opening(), running(), on_trial()], ids=["opening", "running", "on trial"])
def test_a_stop_drains_the_run_and_gives_the_stream_back(worker: Worker) -> None:
    run = worker.runs
    stop = step(worker, Want(None, 1.0))
    assert stop.effects == (Drain(run),)
    stopped = step(stop.worker, Ended(run, 2.0))
    assert stopped.worker.phase == Idle("stopped")
    assert stopped.effects == (ReleaseStream(), Report("stopped"))


def test_a_stop_while_acquiring_gives_back_what_is_granted() -> None:
    stop = step(acquiring(), Want(None, 1.0))
    assert stop.effects == ()
    stopped = step(stop.worker, Acquired(1, 2.0))
    assert stopped.worker.phase == Idle("stopped")
    assert ReleaseStream() in stopped.effects


def test_a_stop_while_acquiring_has_nothing_to_give_back_if_denied() -> None:
    assert after(Want(None, 1.0), AcquireDenied(1, 2.0), worker=acquiring()) == Step(
        replace(acquiring(), phase=Idle("elsewhere"), wanted=None)
    )


def test_a_stop_while_acquiring_gives_back_what_a_failed_restart_still_holds() -> None:
    stopped = after(Want(None, 1.0), Failed(1, 2.0, NETWORK), worker=acquiring())
    assert stopped.worker.phase == Idle("stopped")
    assert ReleaseStream() in stopped.effects


@pytest.mark.parametrize("worker", [backing_off(), quarantined()], ids=["backing off", "quarantined"])
def test_a_stop_after_a_failure_gives_the_stream_back_at_once(worker: Worker) -> None:
    stopped = step(worker, Want(None, 1.0))
    assert stopped.worker.phase == Idle("stopped")
    assert stopped.effects == (ReleaseStream(),)


def test_a_stop_during_a_restart_wins_and_keeps_the_deadline() -> None:
    stop = step(draining(), Want(None, 5.0))
    assert stop.effects == ()
    assert stop.worker.phase == Draining(1, 1, None, None, CANCEL_S, STOP_S)
    assert step(stop.worker, Ended(1, 6.0)).worker.phase == Idle("stopped")


def test_a_start_during_a_stop_goes_on_after_it() -> None:
    worker = after(Want(None, 0.0), Want(wanted(), 1.0), worker=running()).worker
    assert step(worker, Ended(1, 2.0)).effects == (AcquireStream(2, 1),)


def test_a_start_during_a_stop_rests_if_the_stream_went_to_another() -> None:
    denied = after(Want(None, 0.0), Want(wanted(), 1.0), AcquireDenied(1, 2.0), worker=acquiring())
    assert denied.worker.phase == Idle("elsewhere")
    assert denied.effects == ()


def test_a_run_that_fails_while_it_drains_has_ended() -> None:
    assert after(Want(None, 0.0), Failed(1, 1.0, BUG), worker=running()).worker.phase == Idle("stopped")
    assert step(draining(), Failed(1, 1.0, CONFIG)).effects == (AcquireStream(2, 1),)


def test_a_run_that_does_not_drain_is_cancelled_then_abandoned() -> None:
    worker = after(Want(None, 0.0), worker=running()).worker
    assert due_s(worker) == CANCEL_S
    cancelled = step(worker, Tick(CANCEL_S))
    assert cancelled.effects == (Cancel(1),)
    assert due_s(cancelled.worker) == STOP_S
    assert step(cancelled.worker, Tick(STOP_S - 0.1)) == Step(cancelled.worker)
    abandoned = step(cancelled.worker, Tick(STOP_S))
    assert abandoned.worker.phase == Idle("stopped")
    assert abandoned.effects == (Abandon(1), Report("abandoned"))
    assert due_s(abandoned.worker) is None


def test_a_restart_of_a_run_that_does_not_drain_goes_on_without_it() -> None:
    abandoned = after(Tick(CANCEL_S), Tick(STOP_S), worker=draining())
    assert abandoned.effects == (Abandon(1), Report("abandoned"), AcquireStream(2, 1))
    assert step(abandoned.worker, Ended(1, 11.0)) == Step(abandoned.worker)


def test_a_worker_whose_stream_is_not_ours_rests_and_waits_for_nothing() -> None:
    assert elsewhere().phase == Idle("elsewhere")
    assert due_s(elsewhere()) is None
    assert step(elsewhere(), Tick(1e6)) == Step(elsewhere())


@pytest.mark.parametrize("want", [wanted(restarts=1), None], ids=["restart", "stop"])
def test_a_denial_ends_a_worker_whatever_was_to_come_after_it(want: Wanted | None) -> None:
    """A restart, too: whoever gets the stream begins with what is wanted then."""
    denied = after(Want(want, 1.0), AcquireDenied(1, 2.0), worker=acquiring())
    assert denied == Step(replace(denied.worker, phase=Idle("elsewhere")))


def test_a_grant_that_nobody_waits_for_any_more_is_given_back() -> None:
    lost = after(Want(None, 0.0), OwnershipLost(1.0), worker=acquiring()).worker
    assert lost.phase == Idle("elsewhere")
    assert step(lost, Acquired(1, 2.0)) == Step(lost, (ReleaseStream(),))
    waiting = quarantined()
    assert step(waiting, Acquired(1, 2.0)) == Step(waiting, (ReleaseStream(),))


# Facts.


@everywhere
def test_facts_of_another_run_are_dropped(worker: Worker) -> None:
    for fact in stale_facts(0, 1.0):
        assert step(worker, fact) == Step(worker)
    assert step(worker, Acquired(0, 1.0)).worker == worker


@pytest.mark.parametrize("worker", [opening(), running(), on_trial()], ids=["opening", "running", "on trial"])
def test_a_run_that_lost_its_stream_is_cancelled_and_its_worker_rests(worker: Worker) -> None:
    lost = step(worker, OwnershipLost(1.0))
    assert lost.effects == (Cancel(worker.runs), Report("lost"))
    assert lost.worker.phase == Idle("elsewhere")
    assert due_s(lost.worker) is None
    assert step(lost.worker, Ended(worker.runs, 2.0)) == Step(lost.worker)


@pytest.mark.parametrize("worker", [acquiring(), backing_off()], ids=["acquiring", "backing off"])
def test_a_loss_between_two_runs_ends_the_worker_and_there_is_nothing_to_cancel(worker: Worker) -> None:
    assert step(worker, OwnershipLost(1.0)) == Step(replace(worker, phase=Idle("elsewhere")))


def test_a_loss_while_draining_ends_the_draining() -> None:
    for worker in (after(Want(None, 0.0), worker=running()).worker, draining()):
        lost = step(worker, OwnershipLost(1.0))
        assert lost.worker.phase == Idle("elsewhere")
        assert lost.effects == (Cancel(1),)


@pytest.mark.parametrize("name", ["idle", "elsewhere", "quarantined", "finished"])
def test_a_loss_changes_nothing_where_nothing_is_to_run(name: str) -> None:
    assert step(EVERYWHERE[name], OwnershipLost(1.0)) == Step(EVERYWHERE[name])


def test_a_source_that_has_ended_stays_ended_until_a_restart() -> None:
    ended = step(running(wanted(1, 1)), Ended(1, 1.0, finished=True))
    assert ended.worker.phase == Idle("finished")
    assert ended.effects == (ReleaseStream("finished"), Report("finished"))
    assert due_s(ended.worker) is None
    assert step(ended.worker, Want(wanted(1, 1, restarts=1), 2.0)).effects == (AcquireStream(2, 1),)


def test_a_source_that_has_ended_proves_its_version() -> None:
    ended = step(running(), Ended(1, 1.0, finished=True))
    assert ended.effects == (Prove(1), ReleaseStream("finished"), Report("finished"))
    told = step(ended.worker, Want(wanted(1, 1), 2.0))
    assert told.worker.phase == Idle("finished")
    assert told.effects == ()


def test_a_new_version_of_a_source_that_has_ended_is_tried_at_once() -> None:
    """The old one would only end again, and the new one never have its turn."""
    publish = step(finished(), Want(wanted(2, 1), 2.0))
    assert publish.worker.phase == Acquiring(2, 2, Trial(1, 2.0))


def test_a_source_that_ends_during_a_check_gives_way_to_the_new_version() -> None:
    ended = after(Want(wanted(2, 1), 1.0), Ended(1, 2.0, finished=True), worker=running(wanted(1, 1)))
    assert ended.worker.phase == Acquiring(2, 2, Trial(1, 2.0))
    assert ended.effects == (AcquireStream(2, 2),)


def test_a_source_that_ends_while_it_is_stopped_was_stopped() -> None:
    """Nobody waits for its end any more; the next start finds out again that there is nothing left."""
    stopped = after(Want(None, 1.0), Ended(1, 2.0, finished=True), worker=running(wanted(1, 1)))
    assert stopped.effects == (ReleaseStream("stopped"), Report("stopped"))


def test_a_stream_that_is_given_back_says_why() -> None:
    assert giving_back(after(Want(None, 0.0), Ended(1, 1.0), worker=running())) == "stopped"
    assert giving_back(after(Ended(1, 1.0, finished=True), worker=running())) == "finished"
    assert giving_back(after(Failed(1, 1.0, CONFIG), worker=running())) == "unable"
    assert giving_back(after(Failed(2, 1.0, CONFIG), worker=trying(resets_position=True))) == "unable"
    assert giving_back(after(Want(wanted(rejected=True), 1.0), Ended(1, 2.0), worker=running())) == "unable"


def giving_back(done: Step) -> str:
    """The outcome with which this step gives the stream back."""
    (outcome,) = [effect.outcome for effect in done.effects if isinstance(effect, ReleaseStream)]
    return outcome


def test_a_run_that_ends_without_a_reason_is_a_bug() -> None:
    ended = step(running(), Ended(1, 1.0))
    assert isinstance(ended.worker.phase, BackingOff)
    assert ended.worker.phase.failure.cause == Cause.BUG


# Failures.


@pytest.mark.parametrize("failure", [CONFIG, AUTH], ids=lambda f: f.cause)
@pytest.mark.parametrize("worker", [acquiring(), opening(), running()], ids=["acquiring", "opening", "running"])
def test_config_and_auth_failures_are_quarantined(worker: Worker, failure: Failure) -> None:
    failed = step(worker, Failed(1, 1.0, failure))
    assert failed.worker.phase == Quarantined(1, failure)
    assert failed.effects == (Report("quarantined", failure), ReleaseStream("unable"))
    assert due_s(failed.worker) is None


def test_only_a_publish_or_a_restart_wakes_what_was_quarantined() -> None:
    worker = quarantined()
    assert step(worker, Tick(1e6)) == Step(worker)
    assert step(worker, Want(wanted(1, 1), 1.0)).effects == ()
    assert step(worker, Want(wanted(restarts=1), 1.0)).effects == (AcquireStream(2, 1),)
    assert step(worker, Want(wanted(2), 1.0)).effects == (AcquireStream(2, 2),)


def test_waits_grow_with_each_failure_in_a_row_and_a_commit_ends_the_row() -> None:
    worker, now_s, waits = running(wanted(1, 1)), 0.0, []
    for run in range(1, 5):
        failed = step(worker, Failed(run, now_s, NETWORK))
        assert failed.effects == (Report("failed", NETWORK),)
        due = due_s(failed.worker)
        assert due is not None
        waits.append(due - now_s)
        now_s = due
        worker = after(Tick(due), Acquired(run + 1, due), Opened(run + 1, due), worker=failed.worker).worker
    assert waits == [backoff.wait_s(attempt, 0.0) for attempt in (1, 2, 3, 4)]
    worker = step(worker, Committed(5)).worker
    assert due_s(step(worker, Failed(5, now_s, NETWORK)).worker) == now_s + backoff.wait_s(1, 0.0)


def test_jitter_spreads_the_waits() -> None:
    failed = step(running(), Failed(1, 0.0, NETWORK, jitter=0.5))
    assert due_s(failed.worker) == backoff.wait_s(1, 0.5)


def test_a_run_that_was_well_for_long_fails_for_the_first_time() -> None:
    worker = replace(running(wanted(1, 1)), attempt=7)
    assert step(worker, Failed(1, PROOF_S - 1.0, NETWORK)).worker.attempt == 8
    assert step(worker, Failed(1, PROOF_S, NETWORK)).worker.attempt == 1


@from_outside
def test_failures_from_outside_are_tried_for_ever(failure: Failure) -> None:
    worker, now_s = running(), 0.0
    for run in range(1, 100):
        worker = step(worker, Failed(run, now_s, failure)).worker
        due = due_s(worker)
        assert due is not None
        now_s = due
        worker = after(Tick(due), Acquired(run + 1, due), worker=worker).worker


@pytest.mark.parametrize("failure", [BUG, BAD_RECORD], ids=lambda f: f.cause)
def test_bugs_and_bad_records_are_tried_until_the_budget_is_spent(failure: Failure) -> None:
    worker, now_s = running(), 0.0
    for run in range(1, backoff.BUDGET + 1):
        worker = step(worker, Failed(run, now_s, failure)).worker
        assert isinstance(worker.phase, BackingOff)
        now_s += 50.0
        worker = after(Tick(1e6), Acquired(run + 1, now_s), worker=worker).worker
    failed = step(worker, Failed(backoff.BUDGET + 1, now_s, failure))
    assert failed.worker.phase == Quarantined(1, failure)
    assert failed.effects == (Report("quarantined", failure), ReleaseStream("unable"))
    again = step(failed.worker, Want(wanted(restarts=1), now_s)).worker
    assert again.failures == ()


def test_failures_outside_the_window_do_not_count() -> None:
    worker, now_s = running(), 0.0
    for run in range(1, 3 * backoff.BUDGET):
        worker = step(worker, Failed(run, now_s, BUG)).worker
        assert isinstance(worker.phase, BackingOff)
        now_s += backoff.WINDOW_S / backoff.BUDGET
        worker = after(Tick(1e6), Acquired(run + 1, now_s), worker=worker).worker


# What was awaited comes back.


def away(failures: int = 8, *, want: Wanted | None = None) -> Worker:
    """The sink has been away for so many tries, the last of them begun at 1000 and failed at 1001."""
    worker = running(want or wanted(1, 1))
    for run in range(1, failures + 1):
        last = run == failures
        worker = step(worker, Failed(run, 1001.0 if last else 0.0, AWAY, 0.5, 1000.0 if last else 0.0)).worker
        if not last:
            worker = after(Tick(1e6), Acquired(run + 1, 0.0), worker=worker).worker
    return worker


def back(at_s: float = 1002.0, now_s: float = 1002.5, **changes: object) -> CameBack:
    return replace(CameBack("the sink", at_s, now_s, 1.0, 0.5), **changes)  # type: ignore[arg-type]


def test_a_stream_tries_within_a_moment_once_what_it_waits_for_is_back() -> None:
    waiting = away()
    due = due_s(waiting)
    assert due is not None
    assert due > 1001.0 + 30.0
    told = step(waiting, back())
    assert told.effects == ()
    assert due_s(told.worker) == 1002.5 + 0.5
    assert step(told.worker, Tick(1003.0)).effects == (AcquireStream(9, 1),)


def test_the_first_return_makes_up_for_all_failures_before_it() -> None:
    worker = after(back(), Tick(1003.0), Acquired(9, 1003.0), worker=away()).worker
    failed = step(worker, Failed(9, 1003.0, AWAY, 0.0, 1003.0)).worker
    assert due_s(failed) == 1003.0 + backoff.wait_s(2, 0.0)


def test_a_return_never_makes_a_wait_longer() -> None:
    waiting = away(1)
    due = due_s(waiting)
    assert due is not None
    told = step(waiting, back(1001.1, 1001.1, spread_s=600.0))
    assert due_s(told.worker) == due


@pytest.mark.parametrize("event", [back(1000.0), back(999.0), back(target="the source")], ids=["same", "old", "other"])
def test_a_return_before_the_last_try_began_or_of_something_else_is_no_news(event: CameBack) -> None:
    assert step(away(), event) == Step(away())


def test_the_same_return_is_news_once() -> None:
    told = step(away(), back()).worker
    assert step(told, back(now_s=1002.6)) == Step(told)


@everywhere
def test_a_return_changes_nothing_where_nobody_waits_for_it(worker: Worker) -> None:
    assert step(worker, back()) == Step(worker)


def test_a_run_that_failed_has_met_what_is_outside_as_it_is_then() -> None:
    """It was begun long before an earlier return, which is no news to it."""
    failed = step(running(wanted(1, 1)), Failed(1, 50.0, AWAY, 0.0, 0.0)).worker
    assert step(failed, back(20.0, 50.0)) == Step(failed)
    opened = step(opening(wanted(1, 1)), Failed(1, 50.0, AWAY, 0.0, 0.0)).worker
    assert step(opened, back(20.0, 50.0)) != Step(opened)


def test_something_that_comes_back_again_and_again_without_helping_is_tried_ever_more_seldom() -> None:
    """A server that answers whoever asks, and fails the stream: the waits grow as if nobody had asked."""
    worker, now_s, waits = away(), 1002.0, []
    for run in range(9, 19):
        worker = step(worker, back(now_s, now_s, spread_s=0.1, jitter=0.0)).worker
        due = due_s(worker)
        assert due is not None
        waits.append(due - now_s)
        worker = after(Tick(due), Acquired(run, due), Failed(run, due, AWAY, 0.9999, due), worker=worker).worker
        now_s = due + 0.001
    assert waits[0] == 0.0
    assert waits[1:] == sorted(waits[1:])
    assert waits[-1] > backoff.LONGEST_S / 2 - 1.0


def test_what_is_known_to_be_away_is_tried_seldom_until_it_is_back() -> None:
    worker, now_s = running(wanted(1, 1)), 0.0
    for run in range(1, 9):
        worker = step(worker, Failed(run, now_s, AWAY, 0.0, now_s, is_watched=True)).worker
        due = due_s(worker)
        assert due == now_s + backoff.wait_s(run, 0.0, is_watched=True)
        if run < 8:
            now_s = due
            worker = after(Tick(now_s), Acquired(run + 1, now_s), worker=worker).worker
    assert due_s(step(worker, back(now_s + 1.0, now_s + 1.0)).worker) == now_s + 1.5


def test_but_not_while_another_version_could_go_on_or_waits_for_its_turn() -> None:
    watched = Failed(2, 1.0, AWAY, 0.0, 0.0, is_watched=True)
    assert due_s(step(on_trial(), watched).worker) == 1.0 + backoff.wait_s(1, 0.0)
    newer = after(Want(wanted(2, 1), 0.0), Checked(2, 0.0, NETWORK), worker=running(wanted(1, 1))).worker
    assert due_s(step(newer, replace(watched, run=1)).worker) == 1.0 + backoff.wait_s(1, 0.0)


def test_what_works_again_forgets_how_often_things_came_back() -> None:
    worker = after(back(), Tick(1003.0), Acquired(9, 1003.0), Opened(9, 1003.0), worker=away()).worker
    assert worker.returns == 1
    assert step(worker, Committed(9)).worker.returns == 0
    assert step(worker, Tick(1003.0 + PROOF_S)).worker.returns == 0
    assert step(worker, Want(wanted(1, 1, restarts=1), 1004.0)).worker.returns == 0


# A failure is over.


def test_a_run_after_a_failure_is_reported_with_its_first_commit() -> None:
    opened = after(Tick(1e6), Acquired(9, 2000.0), Opened(9, 2000.0), worker=away())
    assert opened.effects == ()
    assert status(opened.worker) == ("RUNNING", "running")
    assert step(opened.worker, Committed(9)).effects == (Report("running"),)


def test_or_when_it_has_run_for_a_while() -> None:
    opened = after(Tick(1e6), Acquired(9, 2000.0), Opened(9, 2000.0), worker=away()).worker
    assert due_s(opened) == 2000.0 + PROOF_S
    well = step(opened, Tick(2000.0 + PROOF_S))
    assert well.effects == (Report("running"),)
    assert (well.worker.attempt, due_s(well.worker)) == (0, None)


def test_runs_that_open_and_fail_in_turn_are_never_reported_as_running() -> None:
    worker, told = away(1), []
    for run in range(2, 30):
        done = Step(worker)
        for event in (Tick(1e6), Acquired(run, 0.0), Opened(run, 0.0), Failed(run, 1.0, AWAY)):
            done = step(done.worker, event)
            told += [effect.type for effect in done.effects if isinstance(effect, Report)]
        worker = done.worker
    assert set(told) == {"failed"}


def test_a_version_that_is_tried_after_a_failure_is_reported_and_proved_together() -> None:
    worker = after(Failed(1, 0.0, AWAY), Tick(1e6), Acquired(2, 1.0), Opened(2, 1.0), worker=opening()).worker
    assert step(worker, Committed(2)).effects == (Report("running"), Prove(1))


# The old version stays until the new one has proved itself.


def test_a_first_version_is_proved_by_its_first_commit_and_not_by_opening() -> None:
    worker = running()
    assert worker.phase == Running(1, 1, None, 0.0, proved=False)
    proved = step(worker, Committed(1))
    assert proved.effects == (Prove(1),)
    assert step(proved.worker, Committed(1)) == Step(proved.worker)


def test_a_silent_source_proves_a_version_by_running() -> None:
    assert due_s(running()) == PROOF_S
    proved = step(running(), Tick(PROOF_S))
    assert proved.effects == (Prove(1),)
    assert due_s(proved.worker) is None


def test_a_version_that_is_known_to_work_needs_no_proof() -> None:
    assert running(wanted(1, 1)).phase == Running(1, 1, None, 0.0, proved=True)
    assert due_s(running(wanted(1, 1))) is None


def test_a_new_version_is_checked_then_swapped_in_then_proved_by_a_commit() -> None:
    publish = step(running(wanted(1, 1)), Want(wanted(2, 1), 1.0))
    assert publish.effects == (CheckVersion(2),)
    swap = step(publish.worker, Checked(2, 2.0))
    assert swap.effects == (Drain(1),)
    drained = step(swap.worker, Ended(1, 3.0))
    assert drained.effects == (AcquireStream(2, 2),)
    trial = after(Acquired(2, 4.0), Opened(2, 5.0), worker=drained.worker)
    assert trial.worker.phase == Running(2, 2, Trial(1, 2.0), 5.0, proved=False)
    assert status(trial.worker) == ("RUNNING", "on trial")
    proved = step(trial.worker, Committed(2))
    assert proved.effects == (Prove(2),)
    assert proved.worker.phase == Running(2, 2, None, 5.0, proved=True)


def test_a_silent_trial_proves_itself_by_running() -> None:
    assert due_s(on_trial()) == PROOF_S
    assert step(on_trial(), Tick(PROOF_S)).effects == (Prove(2),)


def test_a_publish_before_the_first_version_has_proved_itself_replaces_it() -> None:
    publish = step(running(), Want(wanted(2), 1.0))
    assert publish.effects == (Drain(1),)
    assert step(publish.worker, Ended(1, 2.0)).worker.phase == Acquiring(2, 2, None)


def test_a_publish_while_the_first_version_asks_for_the_stream_replaces_it() -> None:
    granted = after(Want(wanted(2), 1.0), Acquired(1, 2.0), worker=acquiring())
    assert granted.effects == (AcquireStream(2, 2),)


def test_a_node_that_starts_between_publish_and_proof_begins_with_the_old_version() -> None:
    worker = running(wanted(2, 1))
    assert worker.phase == Running(1, 1, None, 0.0, proved=True, checking=2)


@reasons_of_its_own
def test_a_check_that_fails_for_a_reason_of_its_own_rejects_and_disturbs_nothing(failure: Failure) -> None:
    checked = after(Want(wanted(2, 1), 1.0), Checked(2, 2.0, failure), worker=running(wanted(1, 1)))
    assert checked.effects == (RejectVersion(2, failure),)
    assert checked.worker.phase == running(wanted(1, 1)).phase
    assert due_s(checked.worker) is None


@from_outside
def test_a_check_that_fails_from_outside_is_tried_again_ever_later(failure: Failure) -> None:
    worker, now_s, waits = step(running(wanted(1, 1)), Want(wanted(2, 1), 0.0)).worker, 0.0, []
    for _ in range(3):
        failed = step(worker, Checked(2, now_s, failure))
        assert failed.effects == (Report("check_failed", failure),)
        assert isinstance(failed.worker.phase, Running)
        due = due_s(failed.worker)
        assert due is not None
        waits.append(due - now_s)
        again = step(failed.worker, Tick(due))
        assert again.effects == (CheckVersion(2),)
        worker, now_s = again.worker, due
    assert waits == [backoff.wait_s(n, 0.0) for n in (1, 2, 3)]


def test_a_check_of_a_version_that_was_replaced_says_nothing() -> None:
    publish = after(Want(wanted(2, 1), 1.0), Want(wanted(3, 1), 2.0), worker=running(wanted(1, 1)))
    assert publish.effects == (CheckVersion(3),)
    assert step(publish.worker, Checked(2, 3.0)) == Step(publish.worker)
    assert step(publish.worker, Checked(3, 3.0)).effects == (Drain(1),)


@reasons_of_its_own
@pytest.mark.parametrize("worker", [trying(), on_trial()], ids=["opening", "running"])
def test_a_trial_that_fails_for_a_reason_of_its_own_is_rejected_and_the_old_one_goes_on(
    worker: Worker, failure: Failure
) -> None:
    failed = step(worker, Failed(2, 1.0, failure))
    assert failed.effects == (RejectVersion(2, failure), AcquireStream(3, 1))
    back = after(Acquired(3, 2.0), Opened(3, 3.0), worker=failed.worker)
    assert back.worker.phase == Running(3, 1, None, 3.0, proved=True)
    assert back.effects == (Report("running"),)
    assert due_s(back.worker) is None


def test_a_rejected_version_is_tried_again_only_after_a_mark_or_another_publish() -> None:
    back = after(
        Failed(2, 1.0, CONFIG),
        Acquired(3, 2.0),
        Opened(3, 3.0),
        Want(wanted(2, 1, rejected=True), 4.0),
        worker=on_trial(),
    ).worker
    assert step(back, Tick(1e6)) == Step(back)
    assert step(back, Want(wanted(3, 1), 5.0)).effects == (CheckVersion(3),)
    restart = after(Want(wanted(2, 1, restarts=1), 5.0), Ended(3, 6.0), Acquired(4, 6.0), Opened(4, 6.0), worker=back)
    assert restart.effects == (Report("running"), CheckVersion(2))


def test_a_rejection_holds_although_the_registry_has_not_written_it_down_yet() -> None:
    back = after(Failed(2, 1.0, CONFIG), Acquired(3, 2.0), Opened(3, 3.0), worker=on_trial()).worker
    assert step(back, Want(wanted(2, 1), 4.0)) == Step(back)


def test_a_proof_holds_although_the_registry_has_not_written_it_down_yet() -> None:
    proved = step(on_trial(), Committed(2)).worker
    publish = step(proved, Want(wanted(3, 1), 1.0))
    assert publish.effects == (CheckVersion(3),)
    restart = after(Want(wanted(2, 1, restarts=1), 1.0), Ended(2, 2.0), worker=proved)
    assert restart.effects == (AcquireStream(3, 2),)


def test_a_trial_of_a_version_that_the_registry_calls_proved_is_over() -> None:
    """It was proved, then stopped and started before the registry had written the proof down."""
    told = step(on_trial(), Want(wanted(2, 2), 1.0))
    assert told.worker.phase == Running(2, 2, None, 0.0, proved=True)
    assert told.effects == ()
    opened = after(Want(wanted(2, 2), 1.0), Opened(2, 2.0), worker=trying())
    assert opened.worker.phase == Running(2, 2, None, 2.0, proved=True)


def test_a_trial_leads_back_to_what_the_registry_calls_proved() -> None:
    trial = after(Want(wanted(3, 1), 0.0), Checked(3, 0.0), worker=running(wanted(1, 1))).worker
    told = after(Want(wanted(3, 2), 1.0), Ended(1, 2.0), Failed(2, 3.0, CONFIG), worker=trial)
    assert told.effects == (RejectVersion(3, CONFIG), AcquireStream(3, 2))


def test_a_trial_that_is_replaced_rejects_only_itself() -> None:
    trial = after(Want(wanted(2, 1), 0.0), Checked(2, 0.0), Ended(1, 0.0), worker=running(wanted(1, 1))).worker
    failed = after(Want(wanted(3, 1), 1.0), Failed(2, 2.0, CONFIG), worker=trial)
    assert failed.effects == (RejectVersion(2, CONFIG), AcquireStream(3, 1))
    assert after(Acquired(3, 3.0), Opened(3, 3.0), worker=failed.worker).effects == (Report("running"), CheckVersion(3))


def test_a_publish_during_a_trial_goes_back_to_what_has_proved_itself() -> None:
    publish = step(on_trial(), Want(wanted(3, 1), 1.0))
    assert publish.effects == (Drain(2),)
    back = after(Ended(2, 2.0), Acquired(3, 2.0), Opened(3, 2.0), worker=publish.worker)
    assert back.worker.phase == Running(3, 1, None, 2.0, proved=True, checking=3)


def test_a_publish_while_a_trial_asks_for_the_stream_goes_back_to_what_has_proved_itself() -> None:
    trial = after(Want(wanted(2, 1), 0.0), Checked(2, 0.0), Ended(1, 0.0), worker=running(wanted(1, 1))).worker
    assert after(Want(wanted(3, 1), 1.0), Acquired(2, 2.0), worker=trial).effects == (AcquireStream(3, 1),)


@from_outside
def test_a_trial_that_fails_from_outside_is_tried_again(failure: Failure) -> None:
    failed = step(on_trial(), Failed(2, 1.0, failure))
    assert failed.effects == (Report("failed", failure),)
    assert failed.worker.phase == BackingOff(2, Trial(1, 0.0), 1.0 + backoff.wait_s(1, 0.0), failure, 1.0)
    assert step(failed.worker, Tick(9.0)).worker.phase == Acquiring(3, 2, Trial(1, 0.0))


@from_outside
def test_after_a_long_trial_the_old_one_goes_on_and_the_new_one_is_checked_again_later(failure: Failure) -> None:
    failed = step(on_trial(), Failed(2, TRIAL_S, failure))
    assert failed.effects == (Report("failed", failure), AcquireStream(3, 1))
    back = after(Acquired(3, TRIAL_S), Opened(3, TRIAL_S), worker=failed.worker)
    assert back.worker.phase == Running(3, 1, None, TRIAL_S, proved=True)
    due = due_s(back.worker)
    assert due == TRIAL_S + backoff.LONGEST_S + backoff.wait_s(1, 0.0)
    assert step(back.worker, Tick(due)).effects == (CheckVersion(2),)


def test_a_trial_that_does_not_open_gives_way_too() -> None:
    assert due_s(trying()) == TRIAL_S
    late = step(trying(), Tick(TRIAL_S))
    assert late.effects == (Drain(2),)
    assert step(late.worker, Ended(2, TRIAL_S)).worker.phase == Acquiring(3, 1, None)


@reasons_of_its_own
def test_a_trial_of_another_source_has_no_way_back(failure: Failure) -> None:
    failed = step(trying(resets_position=True), Failed(2, 1.0, failure))
    assert failed.worker.phase == Quarantined(2, failure)
    assert failed.effects == (RejectVersion(2, failure), Report("quarantined", failure), ReleaseStream("unable"))


def test_a_trial_of_another_source_does_not_give_way() -> None:
    worker = trying(resets_position=True)
    assert due_s(worker) is None
    assert step(worker, Tick(TRIAL_S)) == Step(worker)
    failed = step(worker, Failed(2, TRIAL_S, NETWORK))
    assert isinstance(failed.worker.phase, BackingOff)
    assert failed.worker.phase.version == 2


@pytest.mark.parametrize(
    "worker", [backing_off(wanted(1, 1)), quarantined(wanted(1, 1))], ids=["failing", "quarantined"]
)
def test_a_publish_that_may_cure_a_failing_version_is_tried_at_once(worker: Worker) -> None:
    publish = step(worker, Want(wanted(2, 1), 9.0))
    assert publish.worker.phase == Acquiring(2, 2, Trial(1, 9.0))
    assert publish.worker.attempt == 0


@pytest.mark.parametrize(
    "worker",
    [acquiring(wanted(1, 1)), opening(wanted(1, 1)), running(wanted(1, 1))],
    ids=["acquiring", "opening", "running"],
)
def test_a_publish_just_before_the_old_version_fails_is_not_forgotten(worker: Worker) -> None:
    failed = after(Want(wanted(2, 1), 1.0), Failed(1, 2.0, AUTH), worker=worker)
    assert failed.effects == (Report("failed", AUTH), AcquireStream(2, 2))
    assert failed.worker.phase == Acquiring(2, 2, Trial(1, 2.0))
    failed = after(Want(wanted(2, 1), 1.0), Failed(1, 2.0, NETWORK), Tick(9.0), worker=worker)
    assert failed.worker.phase == Acquiring(2, 2, Trial(1, 9.0))


def test_a_version_whose_check_fails_does_not_profit_from_a_short_failure_of_the_old_one() -> None:
    worker = after(
        Want(wanted(2, 1), 0.0), Checked(2, 0.0, NETWORK), Failed(1, 1.0, NETWORK), worker=running(wanted(1, 1))
    ).worker
    run, now_s = 1, 1.0
    for _ in range(GIVE_WAY - 1):
        now_s += 100.0
        worker = step(worker, Tick(now_s)).worker
        run += 1
        assert worker.phase == Acquiring(run, 1, None)
        worker = step(worker, Failed(run, now_s, NETWORK)).worker
    assert step(worker, Tick(now_s + 100.0)).worker.phase == Acquiring(run + 1, 2, Trial(1, now_s + 100.0))


def test_a_rejected_version_with_nothing_older_is_quarantined_and_the_stream_given_back() -> None:
    worker = after(Want(wanted(rejected=True), 1.0), worker=running()).worker
    drained = step(worker, Ended(1, 2.0))
    assert isinstance(drained.worker.phase, Quarantined)
    assert ReleaseStream("unable") in drained.effects


# What people see.


@pytest.mark.parametrize(
    ("worker", "seen"),
    [
        (Worker(), ("INIT", "not started")),
        (acquiring(), ("STARTING", "acquiring")),
        (elsewhere(), ("STOPPED", "elsewhere")),
        (opening(), ("STARTING", "opening")),
        (running(), ("RUNNING", "not proved yet")),
        (running(wanted(1, 1)), ("RUNNING", "running")),
        (on_trial(), ("RUNNING", "on trial")),
        (draining(), ("RUNNING", "restarting")),
        (after(Want(None, 0.0), worker=running()).worker, ("RUNNING", "stopping")),
        (backing_off(), ("ERROR", "backing off")),
        (quarantined(), ("ERROR", "quarantined")),
        (finished(), ("STOPPED", "finished")),
        (after(Want(None, 0.0), Ended(1, 1.0), worker=running()).worker, ("STOPPED", "stopped")),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_every_state_has_a_status_and_says_which(worker: Worker, seen: tuple[str, str]) -> None:
    assert status(worker) == seen


# Every order of events in a small world.
#
# The world is a registry with up to three versions, one stream row (the real machine of `core.streams`), a tick that
# may grant the row to this node whenever it is free, a manager that has a worker for as long as its grant, a queue of
# commands on their way to the row, at most one live run, and another node that may get the stream at any moment.
# Version 3 reads another source. Whatever the worker asks for is answered in every way, in every order. States are
# compared with their times, runs and epochs taken relative to now, so the walk ends by itself.

NODE, OTHER, RUN, STREAM = (UUID(int=n) for n in range(1, 5))
ROW = streams.Stream(STREAM)
ELSEWHERE = Idle("elsewhere")
VERSIONS = 3
READS_ANOTHER = 3


@dataclass(frozen=True, slots=True)
class Sent:
    """A command on its way to the row."""

    command: AcquireStream | streams.Release | streams.Revoke
    runs: int = 0  # How many runs its worker had begun.
    epoch: int | None = None  # What its worker believed to hold.
    is_last: bool = False  # Whether the manager forgets the worker when this is answered.
    is_ours: bool = True  # Of the worker that is here now, and not of one that was forgotten.


@dataclass(frozen=True, slots=True)
class World:
    """One worker, if there is one, and everything around it."""

    worker: Worker | None = None
    now_s: float = 1000.0
    registry: Wanted = FIRST
    enabled: bool = False
    writes: tuple[Prove | RejectVersion, ...] = ()  # Decisions on their way to the registry.
    row: streams.Stream = ROW
    unable: str | None = None  # The wish for which this node could not run it.
    queue: tuple[Sent, ...] = ()
    holding: Holding = field(default_factory=Holding)  # What the manager knows to hold.
    run: int | None = None  # The run that is alive.
    is_open: bool = False
    checks: frozenset[int] = frozenset()
    launched: frozenset[int] = frozenset()

    @property
    def epoch(self) -> int | None:
        return self.holding.epoch

    @property
    def wanted_key(self) -> str:
        return f"{self.registry.published}/{self.registry.restarts}"

    @property
    def is_grantable(self) -> bool:
        """Whether the tick may grant it to this node. Whether it is enabled may change before anyone looks."""
        return self.row.owner is None and self.row.rests != self.wanted_key and self.unable != self.wanted_key

    @property
    def is_offered(self) -> bool:
        return self.row.owner == NODE and self.row.run is None


class Worlds:
    """What can happen next, with the invariants asserted at each step."""

    def say(self, world: World, event: lifecycle.Event) -> World:
        """Tell the worker, and perform what it asks for. One that rests elsewhere is forgotten."""
        if world.worker is None:
            return world
        done = step(world.worker, event)
        world = replace(world, worker=done.worker)
        if isinstance(event, Want):
            assert step(done.worker, event) == Step(done.worker), "wanting twice is wanting once"
        for effect in done.effects:
            world = self.perform(world, done.worker, effect, event)
        return forgotten(world) if done.worker.phase == ELSEWHERE else world

    def perform(self, world: World, worker: Worker, effect: lifecycle.Effect, event: lifecycle.Event) -> World:
        match effect:
            case AcquireStream():
                assert world.run is None, "a stream is asked for only when nothing runs on it"
                return replace(world, queue=(*world.queue, Sent(effect, worker.runs)))
            case Launch(run=run, version=version):
                assert world.run is None, "two runs at a time"
                assert isinstance(event, Acquired), "launched without a grant"
                assert event.run == run, "launched under the grant of another run"
                assert version == world.row.version, "launched another version than was granted"
                assert (world.row.owner, world.row.epoch) == (NODE, world.epoch), "launched under another epoch"
                return replace(world, run=run, is_open=False, launched=world.launched | {version})
            case Drain(run=run):
                assert run == world.run
                return world
            case Cancel(run=run):
                assert world.run in (None, run)
                return world
            case Abandon():
                # The next run's grant is not meant; without a next run, whatever is ours is.
                command = holdings.revocation(NODE, worker.phase, world.epoch)
                sent = Sent(command, worker.runs, is_last=True)
                left = holdings.abandoned(world.holding)
                assert (left.epoch, left.settled) == (None, False)
                return replace(world, run=None, holding=left, queue=(*world.queue, sent))
            case ReleaseStream(outcome=outcome):
                assert world.run is None, "given back while it runs"
                assert isinstance(worker.phase, Idle | Quarantined), "given back and still at it"
                assert outcome != "unable" or isinstance(worker.phase, Quarantined), "unable without a failure"
                assert (outcome == "finished") == (worker.phase == Idle("finished")), "ended by nothing"
                held = replace(world.holding, wanted_key=world.wanted_key)
                given_back = holdings.release(held, NODE, worker.phase, outcome, is_draining=False)
                assert isinstance(given_back, streams.Release) == (world.epoch is not None)
                sent = Sent(given_back, worker.runs, world.epoch, is_last=True)
                return replace(world, queue=(*world.queue, sent))
            case CheckVersion(version=version):
                return replace(world, checks=world.checks | {version})
            case Prove(version=version):
                assert version in world.launched, "proved without having run"
                assert isinstance(event, Committed | Tick | Ended), "proved by nothing"
                return replace(world, writes=(*world.writes, effect))
            case RejectVersion(version=version):
                assert worker.wanted is not None
                assert version != worker.wanted.running, "rejected what has proved itself"
                return replace(world, writes=(*world.writes, effect))
            case Report():
                return world

    def check(self, world: World) -> None:
        """What is true of every state."""
        if world.worker is None:
            assert world.run is None, "a run that nobody knows of"
            assert world.epoch is None
            assert not any(sent.is_ours for sent in world.queue)
            return
        worker, wanted = world.worker, world.worker.wanted
        due = due_s(worker)
        assert due is None or math.isfinite(due)
        assert due is None or step(worker, Tick(due)).worker != worker, "a tick that is due changes something"
        assert step(worker, Tick(-1.0)) == Step(worker), "a tick that is not due changes nothing"
        status(worker)
        for stale in (0, worker.runs + 1):
            for fact in stale_facts(stale, world.now_s):
                assert step(worker, fact) == Step(worker), "a fact of another run is dropped"
            late = step(worker, Acquired(stale, world.now_s))
            assert late.worker == worker
            assert late.effects in ((), (ReleaseStream(),))
        lost = step(worker, OwnershipLost(world.now_s))
        assert isinstance(lost.worker.phase, Idle | Quarantined), "at work on a stream that is not ours"
        match worker.phase:
            case Idle(reason="finished") | Acquiring() | Opening() | Running() | BackingOff():
                assert wanted is not None
            case Idle(reason=reason):
                assert reason == "stopped"
                assert wanted is None
            case Quarantined(version=version):
                assert wanted is not None
                assert wanted.rejected or version == wanted.target, "quarantined while a newer version waits"
        match worker.phase:
            case Opening(run=run) | Running(run=run):
                assert run == world.run
            case Draining(run=run):
                assert world.run in (None, run)
            case _:
                assert world.run is None, "a run that nobody knows of"
        match worker.phase:
            case Idle() | Quarantined():
                assert any(sent.is_last for sent in world.queue), "it ends, and the stream stays with us"
        match worker.phase:
            case Running(trial=Trial(fallback=fallback)) | Opening(trial=Trial(fallback=fallback)):
                assert wanted is not None
                assert fallback == wanted.running, "the way back leads to what has proved itself"

    # What can happen.

    def nexts(self, world: World) -> Iterator[World]:
        yield from self.people(world)
        yield from self.store(world)
        yield from self.nodes(world)
        yield from self.run_goes_on(world)
        for version in world.checks:
            for failure in (None, CONFIG, NETWORK):
                yield self.checked(world, version, failure)
        due = None if world.worker is None else due_s(world.worker)
        if due is not None:
            yield self.tick(world, due)
        if world.worker is not None and isinstance(world.worker.phase, BackingOff):
            yield self.come_back(world, world.worker)

    def come_back(self, world: World, worker: Worker) -> World:
        """What a stream waits for has come back: it may wait a shorter time, and nothing else changes."""
        event = CameBack(AWAY.awaits, world.now_s, world.now_s, 1.0, 0.5)
        told = step(worker, event)
        assert told.effects == ()
        before, now = due_s(worker), due_s(told.worker)
        assert before is not None
        assert now is not None
        assert now <= before
        assert step(told.worker, event) == Step(told.worker), "a return is news once"
        return self.say(world, event)

    def people(self, world: World) -> Iterator[World]:
        yield self.tell(replace(world, enabled=not world.enabled))
        if world.registry.published < VERSIONS:
            newer = replace(world.registry, published=world.registry.published + 1, rejected=False)
            yield self.tell(replace(world, registry=newer))
        yield self.marked(world)
        if world.writes:
            yield self.written(world)

    def tell(self, world: World) -> World:
        return self.say(world, Want(world.registry if world.enabled else None, world.now_s))

    def marked(self, world: World) -> World:
        return self.tell(
            replace(world, registry=replace(world.registry, restarts=world.registry.restarts + 1, rejected=False))
        )

    def written(self, world: World) -> World:
        """The registry has written a decision down, and tells."""
        write, *later = world.writes
        registry = world.registry
        if isinstance(write, Prove):
            registry = replace(registry, running=max(write.version, registry.running or 0))
        elif write.version == registry.published:
            registry = replace(registry, rejected=True)
        return self.tell(replace(world, writes=tuple(later), registry=registry))

    def nodes(self, world: World) -> Iterator[World]:
        """The tick grants, this node takes what it was granted, and another node comes and goes."""
        if world.is_grantable:
            yield self.granted(world)
        if self.can_take(world):
            yield self.taken(world)
        if world.row.owner is None:
            yield replace(world, row=of_other(world.row))
        if world.row.owner == OTHER:
            yield replace(world, row=free(world.row))
        if world.epoch is not None and world.epoch == world.row.epoch:
            stolen = replace(world, row=of_other(free(world.row)))
            assert world.worker is not None
            phase = world.worker.phase
            is_noticed = holdings.is_lost(world.holding, phase, world.epoch, "owned_by_other")
            is_asking = isinstance(phase, Acquiring) or (isinstance(phase, Draining) and phase.is_acquiring)
            assert is_noticed != (is_asking or isinstance(phase, BackingOff)), "a checkpoint tells while something runs"
            assert not holdings.is_lost(world.holding, phase, world.epoch, "already_inactive"), "our own release"
            assert not holdings.is_lost(world.holding, phase, world.epoch - 1, "stale"), "an older grant's"
            lost = holdings.lost(world.holding)
            yield self.say(replace(stolen, holding=lost, run=None), OwnershipLost(world.now_s))
            if world.run is None:
                yield stolen  # Nobody is told; the next command finds out.

    def granted(self, world: World) -> World:
        return replace(world, row=streams.step(world.row, streams.Grant(NODE)).stream)

    def can_take(self, world: World) -> bool:
        is_declining = any(isinstance(sent.command, streams.Release) for sent in world.queue)
        return world.is_offered and world.worker is None and not is_declining

    def taken(self, world: World) -> World:
        """The manager begins with a new worker; or declines, if nothing is wanted."""
        if world.enabled:
            granted = holdings.granted(world.row.epoch, world.row.settled)
            return self.tell(replace(world, worker=NEW, holding=granted))
        declined = holdings.decline(NODE, Declined(world.row.epoch))
        return replace(world, queue=(*world.queue, Sent(declined, is_ours=False)))

    def store(self, world: World) -> Iterator[World]:
        if not world.queue:
            return
        yield self.answered(world)
        sent, *later = world.queue
        if not isinstance(sent.command, AcquireStream):
            row = streams.step(world.row, sent.command).stream
            if row != world.row:
                yield self.marked_unable(replace(world, row=row), sent)  # The answer is lost; it is sent again.
            if sent.is_ours and world.worker is not None and world.worker.runs != sent.runs:
                yield replace(world, queue=tuple(later))  # The database was away, and another run has begun.
        elif sent.is_ours:
            refused = replace(world, queue=tuple(later))
            for failure in (AWAY, CONFIG):
                yield self.say(refused, Failed(sent.command.run, world.now_s, failure, 0.5, world.now_s - 1.0))
            unheard = replace(refused, row=self.acquired(world.row, sent.command).stream)
            yield self.say(unheard, Failed(sent.command.run, world.now_s, NETWORK))

    def acquired(self, row: streams.Stream, command: AcquireStream) -> streams.Step:
        source = "another" if command.version >= READS_ANOTHER else "one"
        return streams.step(row, streams.Acquire(NODE, RUN, command.version, source, "sink"))

    def answered(self, world: World) -> World:
        """The first command reaches the row, and its answer the manager."""
        sent, *later = world.queue
        world = replace(world, queue=tuple(later))
        if isinstance(sent.command, AcquireStream):
            return self.acquisition_answered(world, sent, sent.command)
        done = streams.step(world.row, sent.command)
        world = self.marked_unable(replace(world, row=done.stream), sent)
        if holdings.is_to_revoke(Worker(), 0, done.reply) and sent.is_last:  # `is_last` says that no run follows.
            # It may still be ours, if an acquisition was committed and its answer lost.
            return replace(world, queue=(replace(sent, command=streams.Revoke(NODE)), *later))
        if not sent.is_ours or world.worker is None:
            return world
        assert world.worker is not None
        world = replace(world, holding=holdings.released(world.holding, sent.epoch))
        return forgotten(world) if sent.is_last and holdings.is_over(world.worker, sent.runs) else world

    def acquisition_answered(self, world: World, sent: Sent, command: AcquireStream) -> World:
        done = self.acquired(world.row, command)
        if not sent.is_ours:
            return self.answered_too_late(world, command, done)
        match done.reply:
            case streams.Granted(resets_position=anew):
                acquired = holdings.acquired(world.holding, done.stream.epoch, done.stream.progress)
                world = replace(world, row=done.stream, holding=acquired)
                return self.say(world, Acquired(command.run, world.now_s, anew))
            case streams.IdentityChanged():
                return self.say(world, Failed(command.run, world.now_s, CONFIG))
            case _:
                return self.say(world, AcquireDenied(command.run, world.now_s))

    def answered_too_late(self, world: World, command: AcquireStream, done: streams.Step) -> World:
        """The worker that asked has been forgotten. If it is granted the stream all the same, it gives it back."""
        late = step(elsewhere(), Acquired(command.run, world.now_s))
        if not isinstance(done.reply, streams.Granted) or ReleaseStream() not in late.effects:
            return replace(world, row=done.stream)
        release = streams.Release(NODE, done.stream.epoch, 0, None)
        return replace(world, row=done.stream, queue=(*world.queue, Sent(release, is_ours=False)))

    def marked_unable(self, world: World, sent: Sent) -> World:
        if isinstance(sent.command, streams.Release) and sent.command.outcome == "unable" and world.row.owner is None:
            return replace(world, unable=sent.command.wanted_key)
        return world

    def run_goes_on(self, world: World) -> Iterator[World]:
        run = world.run
        if run is None:
            return
        if not world.is_open:
            yield self.say(replace(world, is_open=True), Opened(run, world.now_s))
        else:
            yield self.say(world, Committed(run))
        over = replace(world, run=None)
        yield self.say(over, Ended(run, world.now_s, finished=True))
        yield self.say(over, Ended(run, world.now_s))
        for failure in (AWAY, CONFIG, BUG):
            yield self.say(over, Failed(run, world.now_s, failure, 0.5, world.now_s - 1.0))
        much_later = replace(over, now_s=world.now_s + TRIAL_S)
        yield self.say(much_later, Failed(run, much_later.now_s, NETWORK))

    def checked(self, world: World, version: int, failure: Failure | None) -> World:
        return self.say(replace(world, checks=world.checks - {version}), Checked(version, world.now_s, failure))

    def tick(self, world: World, due: float) -> World:
        now_s = max(world.now_s, due)
        return self.say(replace(world, now_s=now_s), Tick(now_s))

    # What happens if all goes well.

    def good(self, world: World) -> World | None:
        """The one next world in which nothing goes wrong; None at rest."""
        if world.row.owner == OTHER:
            return replace(world, row=free(world.row))
        if world.queue:
            return self.answered(world)
        if world.worker is None:
            return self.begun(world)
        phase = world.worker.phase
        if world.run is not None and isinstance(phase, Draining):
            return self.say(replace(world, run=None), Ended(world.run, world.now_s))
        if world.run is not None and not world.is_open:
            return self.say(replace(world, is_open=True), Opened(world.run, world.now_s))
        if world.run is not None and isinstance(phase, Running) and not phase.proved:
            return self.say(world, Committed(world.run))
        if world.checks:
            return self.checked(world, min(world.checks), None)
        if world.writes:
            return self.written(world)
        due = due_s(world.worker)
        return None if due is None else self.tick(world, due)

    def begun(self, world: World) -> World | None:
        """The stream is granted, and taken or declined."""
        if self.can_take(world):
            return self.taken(world)
        if world.writes:
            return self.written(world)
        return self.granted(world) if world.is_grantable and world.enabled else None

    def silent(self, world: World) -> World | None:
        """The next world if nobody answers until the worker has nothing more to wait for."""
        due = None if world.worker is None else due_s(world.worker)
        if due is not None:
            return self.tick(world, due)
        if world.queue:
            return self.answered(world)
        return self.taken(world) if self.can_take(world) else None


def free(row: streams.Stream) -> streams.Stream:
    return row if row.owner is None else streams.step(row, streams.Revoke(row.owner)).stream


def of_other(row: streams.Stream) -> streams.Stream:
    """Another node runs version 1, if that one may be run at all any more."""
    granted = streams.step(row, streams.Grant(OTHER)).stream
    return streams.step(granted, streams.Acquire(OTHER, RUN, 1, "one", "sink")).stream


def forgotten(world: World) -> World:
    """The manager lets go of its worker. What is under way for it arrives nowhere."""
    assert world.run is None, "forgotten while it runs"
    queue = tuple(replace(sent, is_ours=False) for sent in world.queue)
    return replace(world, worker=None, holding=Holding(), is_open=False, checks=frozenset(), queue=queue)


def stale_facts(run: int, now_s: float) -> list[lifecycle.Event]:
    return [
        AcquireDenied(run, now_s),
        Opened(run, now_s),
        Committed(run),
        Ended(run, now_s),
        Ended(run, now_s, finished=True),
        Failed(run, now_s, CONFIG),
        Checked(99, now_s),
    ]


def alike(world: World) -> tuple[object, ...]:
    """What makes two worlds the same: all but absolute time, run, epoch and restarts, and how often things failed."""
    now_s, worker = world.now_s, world.worker or NEW

    def run(number: int | None) -> int | None:
        return None if number is None else worker.runs - number

    def epoch(number: int | None) -> int | None:
        return None if number is None else min(world.row.epoch - number, 3)

    def since(moment: float) -> int:
        return sum(now_s - moment >= limit for limit in (0.001, PROOF_S, TRIAL_S))

    def trial(value: Trial | None) -> object:
        return None if value is None else (value.fallback, since(value.since_s), value.resets_position)

    def sent(one: Sent) -> tuple[object, ...]:
        command = one.command
        of_command = run(getattr(command, "run", None)), getattr(command, "version", None)
        of_release = getattr(command, "outcome", None), getattr(command, "wanted_key", None) == world.wanted_key
        whose = run(one.runs) if one.is_ours else None, one.is_last, one.is_ours
        return type(command), *of_command, *of_release, epoch(getattr(command, "epoch", None)), *whose

    phase: tuple[object, ...]
    match worker.phase:
        case Idle(reason=reason):
            phase = ("idle", reason)
        case Acquiring() as p:
            phase = ("acquiring", run(p.run), p.version, trial(p.trial))
        case Opening() as p:
            phase = ("opening", run(p.run), p.version, trial(p.trial))
        case Running() as p:
            phase = ("running", run(p.run), p.version, trial(p.trial), since(p.since_s), p.proved, p.checking)
        case Draining() as p:
            phase = ("draining", run(p.run), p.version, p.then, trial(p.trial), p.cancelled)
        case BackingOff() as p:
            phase = ("backing off", p.version, trial(p.trial), p.failure, p.tried_at_s < now_s, p.until_s > now_s)
        case Quarantined() as p:
            phase = ("quarantined", p.version, p.failure)
    wanted = worker.wanted and (worker.wanted.published, worker.wanted.running, worker.wanted.rejected)
    return (
        world.worker is None,
        phase,
        wanted,
        worker.attempt > 0,
        min(worker.returns, 2),
        worker.trials > 0,
        worker.try_at_s > now_s,
        (world.registry.published, world.registry.running, world.registry.rejected, world.enabled),
        world.writes,
        (world.row.owner, world.row.run is None, world.row.version, world.row.source_identity, epoch(world.epoch)),
        (world.row.rests == world.wanted_key, world.unable == world.wanted_key),
        tuple(map(sent, world.queue)),
        run(world.run),
        world.is_open,
        world.checks,
    )


@pytest.fixture(scope="module")
def walked() -> list[World]:
    """Every world that can be reached, up to likeness; the invariants have held in each."""
    worlds, start = Worlds(), World()
    seen, found = {alike(start)}, [start]
    frontier = [start]
    while frontier and len(found) < WALK:
        later: list[World] = []
        for world in frontier:
            for following in worlds.nexts(world):
                key = alike(following)
                if key not in seen:
                    seen.add(key)
                    worlds.check(following)
                    later.append(following)
        found += later
        frontier = later
    return found


def follow(world: World, on: Callable[[World], World | None], known: set[object]) -> World | None:
    """Go on until nothing more happens; None if that is known to end well."""
    trail: list[object] = []
    for _ in range(80):
        key = alike(world)
        if key in known:
            break
        trail.append(key)
        following = on(world)
        if following is None:
            known.update(trail)
            return world
        world = following
    else:
        pytest.fail(f"comes to no end: {world}")
    known.update(trail)
    return None


def test_every_order_of_events_keeps_the_invariants(walked: list[World]) -> None:
    phases = {type(world.worker.phase) for world in walked if world.worker is not None}
    assert phases == {Idle, Acquiring, Opening, Running, Draining, BackingOff, Quarantined}
    assert any(world.unable == world.wanted_key for world in walked)
    assert any(world.row.rests == world.wanted_key for world in walked)
    assert len(walked) > 10_000


def test_from_every_state_a_stop_ends_with_the_stream_given_back_and_the_worker_forgotten(walked: list[World]) -> None:
    worlds = Worlds()
    known: dict[str, set[object]] = {"good": set(), "silent": set()}
    for world in walked:
        stopped = worlds.tell(replace(world, enabled=False))
        for name, on in (("good", worlds.good), ("silent", worlds.silent)):
            end = follow(stopped, on, known[name])
            if end is not None:
                assert end.worker is None, "a worker without a grant"
                assert end.row.owner != NODE, "the stream is ours and nobody knows"
                assert end.epoch is None
                assert end.run is None


def test_from_every_state_the_published_version_comes_to_run_if_all_goes_well(walked: list[World]) -> None:
    """Unless its source has come to an end; and if it was quarantined, once somebody asks for another try."""
    worlds = Worlds()
    known: set[object] = set()
    for world in walked:
        wanted = world if world.enabled else worlds.tell(replace(world, enabled=True))
        end = follow(wanted, worlds.good, known)
        if end is not None and end.unable == end.wanted_key and end.worker is None:
            assert end.row.owner is None
            end = follow(worlds.marked(end), worlds.good, known)
        if end is None or (end.worker is None and end.row.rests == end.wanted_key):
            continue
        assert end.worker is not None, "nobody runs it"
        phase = end.worker.phase
        assert isinstance(phase, Running)
        assert phase.proved
        assert end.worker.wanted is not None
        assert phase.version == end.worker.wanted.target == end.registry.running
        assert end.registry.rejected or phase.version == end.registry.published
