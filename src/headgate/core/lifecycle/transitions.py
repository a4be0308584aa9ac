"""The transitions of a worker: what each event makes of each state. `core.lifecycle.states` tells the theory."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from headgate.core import backoff
from headgate.core.lifecycle.states import (
    CANCEL_S,
    GIVE_WAY,
    HOPELESS,
    OF_RECORDS,
    OUTSIDE,
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
    Effect,
    Ended,
    Event,
    Failed,
    Failure,
    Idle,
    Launch,
    NoneWritten,
    Opened,
    Opening,
    OwnershipLost,
    Phase,
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
)
from headgate.errors import Cause


def step(worker: Worker, event: Event) -> Step:
    """Take in one event."""
    match event:
        case Want():
            return _want(worker, event)
        case Acquired():
            return _acquired(worker, event)
        case AcquireDenied():
            return _denied(worker, event)
        case Opened():
            return _opened(worker, event)
        case Committed():
            return _committed(worker, event)
        case NoneWritten():
            return _none_written(worker, event)
        case Ended():
            return _ended(worker, event)
        case Failed():
            return _failed(worker, event)
        case CameBack():
            return _came_back(worker, event)
        case OwnershipLost():
            return _lost(worker, event)
        case Checked():
            return _checked(worker, event)
        case Tick():
            return _tick(worker, event.now_s)
        case _:
            assert_never(event)


# What should run.


def _want(worker: Worker, event: Want) -> Step:
    """Bring what runs in line with what is wanted. Wanting the same thing twice changes nothing."""
    before, wanted = worker.wanted, _known(worker.wanted, event.wanted)
    if before == wanted:
        return Step(worker)
    worker = replace(worker, wanted=wanted, phase=_settled(worker.phase, wanted))
    if wanted is None:
        return _stop(worker, event.now_s)
    is_restart = before is None or before.restarts != wanted.restarts
    if is_restart or before is None or before.published != wanted.published:
        worker = replace(worker, attempt=0, returns=0, failures=(), trials=0, try_at_s=0.0)
    phase = worker.phase
    if isinstance(phase, Draining):
        if not is_restart and phase.then in (wanted.target, wanted.running):
            return Step(worker)
        return Step(replace(worker, phase=replace(phase, then=_first(wanted), trial=None)))
    if isinstance(phase, Idle) and before is not None and not is_restart and before.target == wanted.target:
        return Step(worker)  # Its source has ended; only a new version or a restart begins again.
    if is_restart and isinstance(phase, Acquiring | Opening | Running):
        return _restart(worker, _first(wanted), event.now_s)
    return _pursue(worker, event.now_s, fresh=is_restart or before is None or before.published != wanted.published)


def _known(before: Wanted | None, wanted: Wanted | None) -> Wanted | None:
    """What is wanted, and what we decided meanwhile: the registry may not have written our decisions down yet."""
    if before is None or wanted is None:
        return wanted
    if before.running is not None:
        wanted = replace(wanted, running=max(before.running, wanted.running or 0))
    if before.rejected and (before.published, before.restarts) == (wanted.published, wanted.restarts):
        wanted = replace(wanted, rejected=True)
    return wanted


def _settled(phase: Phase, wanted: Wanted | None) -> Phase:
    """A trial ends when the registry says that its version has proved itself, and leads back to what has."""
    if wanted is None or not isinstance(phase, Acquiring | Opening | Running | Draining | BackingOff):
        return phase
    if phase.trial is None or wanted.running is None or wanted.running == phase.trial.fallback:
        return phase
    if wanted.running != (phase.then if isinstance(phase, Draining) else phase.version):
        return replace(phase, trial=replace(phase.trial, fallback=wanted.running))
    return replace(phase, trial=None, proved=True) if isinstance(phase, Running) else replace(phase, trial=None)


def _first(wanted: Wanted) -> int | None:
    """The version to begin with: the one that has proved itself, if there is one."""
    return wanted.running if wanted.running is not None else wanted.target


def _pursue(worker: Worker, now_s: float, *, fresh: bool) -> Step:
    """Move towards the wanted version from wherever we are."""
    wanted = worker.wanted
    assert wanted is not None
    match worker.phase:
        case Idle(reason="finished"):
            return _try(worker, wanted.target, now_s)  # The old one would only end again.
        case Idle():
            return _acquire(worker, _first(wanted))
        case Acquiring() | Draining():
            return Step(worker)  # Comes back here when it is answered, or has drained.
        case Opening(version=version, trial=trial) | Running(version=version, trial=trial):
            if _is_outdated(worker, version, trial):
                return _restart(worker, _first(wanted), now_s)
            return _check(worker, now_s)
        case BackingOff() | Quarantined():
            if not fresh:
                return Step(worker)
            # Nothing runs that the new version could disturb: try it at once.
            return _try(worker, wanted.target, now_s)
        case _:
            assert_never(worker.phase)


def _try(worker: Worker, version: int | None, now_s: float) -> Step:
    """Run this version, as a trial if an older one could go on in its place."""
    wanted = worker.wanted
    assert wanted is not None
    fallback = wanted.running
    is_trial = fallback is not None and version != fallback
    trial = Trial(fallback, now_s, is_stuck=worker.is_stuck) if is_trial and fallback is not None else None
    return _acquire(worker, version, trial)


def _check(worker: Worker, now_s: float) -> Step:
    """Check the published version while another runs, if it is new and its time has come."""
    phase, wanted = worker.phase, worker.wanted
    if not isinstance(phase, Running) or wanted is None or wanted.target is None:
        return Step(worker)
    if wanted.target == phase.version or phase.checking == wanted.target or now_s < worker.try_at_s:
        return Step(worker)
    checking = replace(phase, checking=wanted.target)
    return Step(replace(worker, phase=checking), (CheckVersion(wanted.target),))


def _stop(worker: Worker, now_s: float) -> Step:
    match worker.phase:
        case Idle():
            return Step(replace(worker, phase=Idle("stopped")))
        case BackingOff() | Quarantined():
            return Step(replace(worker, phase=Idle("stopped")), (ReleaseStream(),))
        case Acquiring() | Opening() | Running():
            return _restart(worker, None, now_s)
        case Draining() as phase:
            return Step(replace(worker, phase=replace(phase, then=None, trial=None)))
        case _:
            assert_never(worker.phase)


def _restart(worker: Worker, then: int | None, now_s: float, trial: Trial | None = None) -> Step:
    """End the run that is under way; go on with `then`."""
    phase = worker.phase
    assert isinstance(phase, Acquiring | Opening | Running)
    is_acquiring = isinstance(phase, Acquiring)
    cancel_at_s, abandon_at_s = now_s + CANCEL_S, now_s + STOP_S
    draining = Draining(phase.run, phase.version, then, trial, cancel_at_s, abandon_at_s, is_acquiring=is_acquiring)
    # An acquisition cannot be called back; its answer ends the draining.
    effects: tuple[Effect, ...] = () if is_acquiring else (Drain(phase.run),)
    return Step(replace(worker, phase=draining), effects)


def _acquire(worker: Worker, version: int | None, trial: Trial | None = None) -> Step:
    if version is None:  # Rejected, and nothing older could go on.
        failure = Failure(Cause.CONFIG, "the published version was rejected and no older one has proved itself")
        number = worker.wanted.published if worker.wanted else 0
        effects = (Report("quarantined", failure), ReleaseStream("unable"))
        return Step(replace(worker, phase=Quarantined(number, failure)), effects)
    run = worker.runs + 1
    return Step(replace(worker, runs=run, phase=Acquiring(run, version, trial)), (AcquireStream(run, version),))


# What happens.


def _acquired(worker: Worker, event: Acquired) -> Step:
    match worker.phase:
        case Acquiring(run=run, version=version, trial=trial) if run == event.run:
            if _is_outdated(worker, version, trial):
                assert worker.wanted is not None
                return _acquire(worker, _first(worker.wanted))
            if trial is not None:
                trial = replace(trial, resets_position=trial.resets_position or event.resets_position)
            return Step(replace(worker, phase=Opening(run, version, trial)), (Launch(run, version),))
        case Draining(run=run) if run == event.run:
            return _drained(worker, event.now_s)
        case Idle() | Quarantined():
            return Step(worker, (ReleaseStream(),))  # Nobody waits for it any more: give it back at once.
        case _:
            return Step(worker)


def _is_outdated(worker: Worker, version: int, trial: Trial | None) -> bool:
    """Whether another version was published while this one asked for the stream."""
    wanted = worker.wanted
    return wanted is not None and version != wanted.target and (trial is not None or version != wanted.running)


def _denied(worker: Worker, event: AcquireDenied) -> Step:
    match worker.phase:
        case Acquiring(run=run) | Draining(run=run) if run == event.run:
            return Step(replace(worker, phase=Idle("elsewhere")))
        case _:
            return Step(worker)


def _opened(worker: Worker, event: Opened) -> Step:
    match worker.phase:
        case Opening(run=run, version=version, trial=trial) if run == event.run:
            proved = worker.wanted is not None and worker.wanted.running == version
            worker = replace(worker, phase=Running(run, version, trial, event.now_s, proved))
            checked = _check(worker, event.now_s)
            told = () if worker.attempt else (Report("running"),)  # Else when the failure is over.
            return Step(checked.worker, (*told, *checked.effects))
        case _:
            return Step(worker)


def _committed(worker: Worker, event: Committed) -> Step:
    match worker.phase:
        case Running(run=run) if run == event.run:
            return _works(replace(worker, is_stuck=False))
        case _:
            return Step(worker)


def _works(worker: Worker) -> Step:
    """What failed before is over, and the version has proved itself."""
    told = (Report("running"),) if worker.attempt else ()
    proved = _prove(replace(worker, attempt=0, returns=0))
    return Step(proved.worker, (*told, *proved.effects))


def _none_written(worker: Worker, event: NoneWritten) -> Step:
    """It is not silent, and it proves nothing: the time that silence needs begins again."""
    match worker.phase:
        case Running(run=run, proved=False) as phase if run == event.run:
            return Step(replace(worker, phase=replace(phase, since_s=event.now_s)))
        case _:
            return Step(worker)


def _prove(worker: Worker) -> Step:
    phase = worker.phase
    assert isinstance(phase, Running)
    if phase.proved:
        return Step(worker)
    proved = replace(phase, proved=True, trial=None)
    return Step(replace(_with_proof(worker, phase.version), phase=proved, trials=0), (Prove(phase.version),))


def _with_proof(worker: Worker, version: int) -> Worker:
    """This version is the one to go back to from now on, whenever the registry writes it down."""
    assert worker.wanted is not None
    return replace(worker, wanted=replace(worker.wanted, running=version))


def _ended(worker: Worker, event: Ended) -> Step:
    match worker.phase:
        case Draining(run=run) if run == event.run:
            return _drained(worker, event.now_s)
        case Opening(run=run, version=version) | Running(run=run, version=version) if (
            run == event.run and event.finished
        ):
            return _finished(worker, version, event.now_s)
        case Opening(run=run) | Running(run=run) if run == event.run:
            # A run that ends without being asked to, and without saying why, is a bug of ours.
            return _failed(worker, Failed(run, event.now_s, Failure(Cause.BUG, "the run ended without a reason")))
        case _:
            return Step(worker)


def _finished(worker: Worker, version: int, now_s: float) -> Step:
    """The source will never have more: rest, unless a newer version waits for its turn."""
    wanted = worker.wanted
    assert wanted is not None
    proof: tuple[Effect, ...] = () if version == wanted.running else (Prove(version),)
    worker = replace(_with_proof(worker, version), attempt=0, returns=0)
    if version != wanted.target and wanted.target is not None:
        again = _try(worker, wanted.target, now_s)
        return Step(again.worker, (*proof, *again.effects))
    return Step(replace(worker, phase=Idle("finished")), (*proof, ReleaseStream("finished"), Report("finished")))


def _drained(worker: Worker, now_s: float) -> Step:
    """The run has ended as asked: go on, or give the stream back."""
    phase = worker.phase
    assert isinstance(phase, Draining)
    if phase.then is None:
        if worker.wanted is None:
            return Step(replace(worker, phase=Idle("stopped")), (ReleaseStream(), Report("stopped")))
        return _acquire(worker, None)
    return _acquire(worker, phase.then, phase.trial)


def _failed(worker: Worker, event: Failed) -> Step:
    match worker.phase:
        case Draining(run=run) if run == event.run:
            return _drained(worker, event.now_s)  # It was ending anyway; its position is whatever was committed.
        case Acquiring(run=run, version=version, trial=trial) if run == event.run:
            return _fail(worker, event, version, trial)
        case Opening(run=run, version=version, trial=trial) if run == event.run:
            return _fail(worker, event, version, trial)
        case Running(run=run, version=version, trial=trial) if run == event.run:
            return _fail(worker, event, version, trial)
        case _:
            return Step(worker)


def _fail(worker: Worker, event: Failed, version: int, trial: Trial | None) -> Step:
    cause = event.failure.cause
    if trial is not None and trial.is_stuck and cause in OF_RECORDS:
        trial = None  # The old one would only fail at records, too.
    if trial is not None and cause not in OUTSIDE:
        return _reject(worker, event, version, trial)
    if trial is None and cause in OF_RECORDS:
        worker = replace(worker, is_stuck=True)
    phase, wanted = worker.phase, worker.wanted
    was_well = isinstance(phase, Running) and event.now_s - phase.since_s >= PROOF_S
    attempt, returns = (1, 0) if was_well else (worker.attempt + 1, worker.returns)
    failures = worker.failures if cause in OUTSIDE else backoff.spend(worker.failures, event.now_s)
    worker = replace(worker, attempt=attempt, returns=returns, failures=failures)
    if trial is not None and event.now_s - trial.since_s >= TRIAL_S and not trial.resets_position:
        back = _fall_back(worker, event.now_s, trial, event.jitter)
        return Step(back.worker, (Report("failed", event.failure), *back.effects))
    if cause in HOPELESS or backoff.is_spent(failures):
        if trial is None and wanted is not None and wanted.target not in (None, version):
            # A newer version waits for its turn. Nothing is left that it could disturb.
            again = _try(replace(worker, attempt=0, returns=0, failures=()), wanted.target, event.now_s)
            return Step(again.worker, (Report("failed", event.failure), *again.effects))
        quarantined = Quarantined(version, event.failure)
        return Step(replace(worker, phase=quarantined), (Report("quarantined", event.failure), ReleaseStream("unable")))
    has_other = trial is not None or (wanted is not None and wanted.target not in (None, version))
    is_watched = event.is_watched and not has_other
    until_s = event.now_s + backoff.wait_s(attempt, event.jitter, is_watched=is_watched)
    # One that ran has met what is outside as it is now, whenever it was begun.
    tried_at_s = event.now_s if event.tried_at_s is None or isinstance(phase, Running) else event.tried_at_s
    backing_off = BackingOff(version, trial, until_s, event.failure, tried_at_s)
    return Step(replace(worker, phase=backing_off), (Report("failed", event.failure),))


def _came_back(worker: Worker, event: CameBack) -> Step:
    """Do not wait to the end for what is there again, unless the last try was begun after its return."""
    match worker.phase:
        case BackingOff(failure=Failure(awaits=target)) as phase if (
            target == event.target and phase.tried_at_s < event.at_s
        ):
            returns = worker.returns + 1
            wait_s = event.spread_s * event.jitter if returns == 1 else backoff.wait_s(returns, event.jitter)
            sooner = replace(phase, until_s=min(phase.until_s, event.now_s + wait_s), tried_at_s=event.at_s)
            return Step(replace(worker, phase=sooner, returns=returns, attempt=min(worker.attempt, returns)))
        case _:
            return Step(worker)


def _reject(worker: Worker, event: Failed, version: int, trial: Trial) -> Step:
    """The trial failed and the fault is its own: the old version goes on, unless there is no way back."""
    wanted = worker.wanted
    assert wanted is not None
    # Another version may have been published meanwhile; that one has not been tried.
    is_rejected = wanted.rejected or version == wanted.published
    worker = replace(worker, wanted=replace(wanted, rejected=is_rejected), attempt=0, returns=0)
    rejected = RejectVersion(version, event.failure)
    if trial.resets_position:
        quarantined = Quarantined(version, event.failure)
        effects = (rejected, Report("quarantined", event.failure), ReleaseStream("unable"))
        return Step(replace(worker, phase=quarantined), effects)
    again = _acquire(worker, trial.fallback)
    return Step(again.worker, (rejected, *again.effects))


def _fall_back(worker: Worker, now_s: float, trial: Trial, jitter: float) -> Step:
    """The trial could not prove itself in time, which is not its fault: the old version runs until the next try."""
    return _acquire(_postponed(worker, now_s, jitter), trial.fallback)


def _postponed(worker: Worker, now_s: float, jitter: float) -> Worker:
    """The published version is tried again, but not soon: each try interrupts the one that works."""
    trials = worker.trials + 1
    try_at_s = now_s + backoff.LONGEST_S + backoff.wait_s(trials, jitter)
    return replace(worker, trials=trials, try_at_s=try_at_s, attempt=0, returns=0)


def _lost(worker: Worker, event: OwnershipLost) -> Step:
    """Whatever ran may no longer run. Its task is cancelled."""
    gone = replace(worker, phase=Idle("elsewhere"))
    match worker.phase:
        case Opening(run=run) | Running(run=run):
            return Step(gone, (Cancel(run), Report("lost")))
        case Draining(run=run):
            return Step(gone, (Cancel(run),))
        case Acquiring() | BackingOff():
            return Step(gone)
        case Idle() | Quarantined():
            return Step(worker)
        case _:
            assert_never(worker.phase)


def _checked(worker: Worker, event: Checked) -> Step:
    phase, wanted = worker.phase, worker.wanted
    if not isinstance(phase, Running) or phase.checking != event.version or wanted is None:
        return Step(worker)
    worker = replace(worker, phase=replace(phase, checking=None))
    if event.version != wanted.target:
        return _check(worker, event.now_s)
    if event.failure is None:
        return _restart(worker, event.version, event.now_s, Trial(phase.version, event.now_s))
    if event.failure.cause not in OUTSIDE:
        worker = replace(worker, wanted=replace(wanted, rejected=True))
        return Step(worker, (RejectVersion(event.version, event.failure),))
    trials = worker.trials + 1
    worker = replace(worker, trials=trials, try_at_s=event.now_s + backoff.wait_s(trials, event.jitter))
    return Step(worker, (Report("check_failed", event.failure),))


# Time.


def due_s(worker: Worker) -> float | None:
    """When the next `Tick` is needed; None if only an event can change anything."""
    match worker.phase:
        case Idle() | Acquiring() | Quarantined():
            return None
        case BackingOff(until_s=until_s):
            return until_s
        case Opening(trial=trial):
            return None if trial is None or trial.resets_position else trial.since_s + TRIAL_S
        case Draining() as phase:
            return phase.abandon_at_s if phase.cancelled else phase.cancel_at_s
        case Running() as phase:
            moments = [] if phase.proved and not worker.attempt else [phase.since_s + PROOF_S]
            if phase.checking is None and worker.wanted is not None and worker.wanted.target != phase.version:
                moments.append(worker.try_at_s)
            return min(moments, default=None)
        case _:
            assert_never(worker.phase)


def _tick(worker: Worker, now_s: float) -> Step:
    due = due_s(worker)
    if due is None or now_s < due:
        return Step(worker)
    match worker.phase:
        case BackingOff(version=version, trial=trial):
            return _again(worker, version, trial, now_s)
        case Opening(trial=Trial() as trial):
            return _restart(_postponed(worker, now_s, jitter=0.0), trial.fallback, now_s)
        case Draining(cancelled=False) as phase:
            return Step(replace(worker, phase=replace(phase, cancelled=True)), (Cancel(phase.run),))
        case Draining() as phase:
            return _abandon(worker, phase, now_s)
        case Running() as phase if (worker.attempt or not phase.proved) and now_s >= phase.since_s + PROOF_S:
            return _works(worker)
        case _:
            return _check(worker, now_s)


def _again(worker: Worker, version: int, trial: Trial | None, now_s: float) -> Step:
    """Try again, or else the newer version that waits: at once, but with patience if its check fails too."""
    wanted = worker.wanted
    assert wanted is not None
    if trial is not None or wanted.target in (None, version):
        return _acquire(worker, version, trial)
    if now_s < worker.try_at_s or (worker.trials > 0 and worker.attempt < GIVE_WAY):
        return _acquire(worker, version)
    return _try(worker, wanted.target, now_s)


def _abandon(worker: Worker, phase: Draining, now_s: float) -> Step:
    """Stop wins: the stream is taken from the run, whatever the run still does."""
    abandoned = (Abandon(phase.run), Report("abandoned"))
    if worker.wanted is None:
        return Step(replace(worker, phase=Idle("stopped")), abandoned)
    again = _acquire(worker, phase.then, phase.trial)
    return Step(again.worker, (*abandoned, *again.effects))
