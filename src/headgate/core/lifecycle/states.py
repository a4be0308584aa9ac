"""The life of one stream's worker on one node.

What should run is told by one command, `Want`, as often as anyone likes: start, stop, restart, reload and publish are
all another `Want`, so each is idempotent by construction. What happens is told by facts, and every fact names the run
it belongs to; a fact of an older run is dropped.

    Idle ─▶ Acquiring ─▶ Opening ─▶ Running ─▶ Draining ─▶ Idle
               │            │          │          └─▶ Acquiring (restart, swap)
               ▼            ▼          ▼
             Idle        BackingOff ◀──┘──▶ Quarantined

A worker begins when a node has been granted the stream, and ends with the grant: denied or lost, it rests, and another
node, or this one, begins with a new worker. **Acquiring** asks for a run's epoch. **Opening** and **Running** are one
run under one epoch. **Draining** ends a run: it finishes the write under way; at `cancel_at_s` it is cancelled, at
`abandon_at_s` the stream is revoked and the run is left to itself, so a stop wins whatever the connector does.
**BackingOff** waits to try again. **Quarantined** waits for somebody: a publish, a changed secret or a restart.

**The old version stays until the new one has proved itself.** `published` is what the author asked for, `running` what
has proved itself. While `running` runs, a new version is first checked; then it is swapped in as a *trial*. A trial
has proved itself with its first commit, or after `PROOF_S` of silence. If it fails and the fault is its own, it is
rejected and the old version goes on. If the network fails, it is tried again, and after `TRIAL_S` the old version runs
until the next try. A trial that reads another source (`resets_position`) has no way back.

A version is judged by its own records: where the old one is *stuck* at records that it cannot handle, the new one is
not rejected for records. Batches of which nothing could be written prove nothing, and are no silence either.

Config and auth failures, and too many dead letters, are not retried until somebody changes something. Network and
rate-limit failures are retried forever, with growing pauses. Bugs and bad records are retried until their budget is
spent.

A stream that waits because something is away does not wait to the end of its pause once that has come back
(`core.awaited`): it tries again within a moment, as if it had not failed often. If it fails all the same, and so each
time that this comes back, the pauses grow as ever. While it is known to be away there is little use in trying, and the
pauses are longer; but not where another version could go on, or waits for its turn.

A run after a failure is reported only when the failure is over: with its first commit, or when it has run for
`PROOF_S`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, assert_never

from headgate.core.streams import Outcome
from headgate.errors import Cause

STOP_S = 10.0  # A stop is over by then, whatever the connector does.
CANCEL_S = 8.0  # Leaves a cancelled connector two seconds to let go by itself.
PROOF_S = 30.0  # A silent source proves a version by running this long.
TRIAL_S = 120.0  # An unproved version gives way to the old one after this long.
GIVE_WAY = 5  # Failures in a row of the old version, before one whose check fails too is tried in its place.

HOPELESS = frozenset({Cause.CONFIG, Cause.AUTH, Cause.TOO_MANY_DEAD_LETTERS})
OF_RECORDS = frozenset({Cause.BAD_RECORD, Cause.TOO_MANY_DEAD_LETTERS})
OUTSIDE = frozenset({Cause.NETWORK, Cause.RATE_LIMIT})


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the registry says should run."""

    published: int  # The version that the author asked for.
    running: int | None  # The version that has proved itself, if any has.
    restarts: int  # Rises when somebody asks for a restart or changes a secret.
    rejected: bool = False  # The published version has been tried and rejected.

    @property
    def target(self) -> int | None:
        """The version to end up with."""
        return self.running if self.rejected else self.published


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run, or a check, failed."""

    cause: Cause
    message: str
    awaits: str = ""  # The target that has to come back (`core.awaited`), by its key; empty: none is known.


@dataclass(frozen=True, slots=True)
class Trial:
    """A version that has yet to prove itself while an older one could go on."""

    fallback: int
    since_s: float
    resets_position: bool = False
    is_stuck: bool = False  # The old one was, when this one began.


# States.


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing runs: nothing should, the source has ended, or the stream is somebody else's (`elsewhere`)."""

    reason: str = "init"


@dataclass(frozen=True, slots=True)
class Acquiring:
    """Asked for the stream, or asked to regrant it."""

    run: int
    version: int
    trial: Trial | None = None


@dataclass(frozen=True, slots=True)
class Opening:
    """Granted; sink and source are being opened."""

    run: int
    version: int
    trial: Trial | None


@dataclass(frozen=True, slots=True)
class Running:
    """Records may move."""

    run: int
    version: int
    trial: Trial | None
    since_s: float
    proved: bool
    checking: int | None = None  # The version that is being checked while this one runs.


@dataclass(frozen=True, slots=True)
class Draining:
    """The run is ending; `then` is the version to go on with, or None to stop."""

    run: int
    version: int
    then: int | None
    trial: Trial | None
    cancel_at_s: float
    abandon_at_s: float
    cancelled: bool = False
    is_acquiring: bool = False  # It has not begun: its acquisition has yet to be answered.


@dataclass(frozen=True, slots=True)
class BackingOff:
    """The run failed and will be tried again."""

    version: int
    trial: Trial | None
    until_s: float
    failure: Failure
    tried_at_s: float = 0.0  # When the try that failed was begun; or the return that it has heard of since.


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The run failed and trying again cannot help."""

    version: int
    failure: Failure


Phase: TypeAlias = Idle | Acquiring | Opening | Running | Draining | BackingOff | Quarantined


@dataclass(frozen=True, slots=True)
class Worker:
    """The whole state: where it is, and what it must remember wherever it is."""

    phase: Phase = Idle()
    wanted: Wanted | None = None
    runs: int = 0  # The number of the last run.
    attempt: int = 0  # Failures in a row.
    returns: int = 0  # Of what it waited for, since it last worked.
    failures: tuple[float, ...] = ()  # In the budget's window.
    trials: int = 0  # Failed tries of the published version in a row.
    try_at_s: float = 0.0  # No check of the published version before this.
    is_stuck: bool = False  # The proved version last failed at records, and has written none since.


# Commands.


@dataclass(frozen=True, slots=True)
class Want:
    """What should run now; None: nothing."""

    wanted: Wanted | None
    now_s: float


# Facts.


@dataclass(frozen=True, slots=True)
class Acquired:
    """The stream is ours, for this run."""

    run: int
    now_s: float
    resets_position: bool = False


@dataclass(frozen=True, slots=True)
class AcquireDenied:
    """The stream is not ours."""

    run: int
    now_s: float


@dataclass(frozen=True, slots=True)
class Opened:
    """Sink and source are open."""

    run: int
    now_s: float


@dataclass(frozen=True, slots=True)
class Committed:
    """A batch became durable."""

    run: int


@dataclass(frozen=True, slots=True)
class NoneWritten:
    """A batch became durable of which no record could be handled."""

    run: int
    now_s: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The run ended in good order; `finished` if its source will never have more."""

    run: int
    now_s: float
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """The run failed. `jitter` in [0, 1) spreads the retries."""

    run: int
    now_s: float
    failure: Failure
    jitter: float = 0.0
    tried_at_s: float | None = None  # When it was begun; None: just now.
    is_watched: bool = False  # What it waits for is known to be away, and its return will be told.


@dataclass(frozen=True, slots=True)
class CameBack:
    """What streams wait for has come back at this time. They try again within `spread_s`."""

    target: str
    at_s: float
    now_s: float
    spread_s: float
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class OwnershipLost:
    """The stream is not ours any more: the run was fenced, or the node's incarnation ended."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Checked:
    """The published version was checked while another ran."""

    version: int
    now_s: float
    failure: Failure | None = None
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    now_s: float


Event: TypeAlias = (
    Want
    | Acquired
    | AcquireDenied
    | Opened
    | Committed
    | NoneWritten
    | Ended
    | Failed
    | CameBack
    | OwnershipLost
    | Checked
    | Tick
)


# Effects.


@dataclass(frozen=True, slots=True)
class AcquireStream:
    """Claim or regrant the stream for this run."""

    run: int
    version: int


@dataclass(frozen=True, slots=True)
class Launch:
    """Open sink and source and move records."""

    run: int
    version: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Finish the write under way, then end."""

    run: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """End now."""

    run: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """Revoke the stream and leave the run to itself."""

    run: int


@dataclass(frozen=True, slots=True)
class ReleaseStream:
    """Give the stream back with its last position, and say why."""

    outcome: Outcome = "stopped"


@dataclass(frozen=True, slots=True)
class CheckVersion:
    """Check this version while another runs."""

    version: int


@dataclass(frozen=True, slots=True)
class Prove:
    """Write down that this version has proved itself."""

    version: int


@dataclass(frozen=True, slots=True)
class RejectVersion:
    """Write down that this version was tried and why it failed."""

    version: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Report:
    """Record a failure, or that one is over, for people."""

    type: str
    failure: Failure | None = None


Effect: TypeAlias = (
    AcquireStream | Launch | Drain | Cancel | Abandon | ReleaseStream | CheckVersion | Prove | RejectVersion | Report
)


@dataclass(frozen=True, slots=True)
class Step:
    """The new state, and what to do."""

    worker: Worker
    effects: tuple[Effect, ...] = ()


# What people see.


def status(worker: Worker) -> tuple[str, str]:
    """`worker_status`, one of five, and a detail that says which of the finer states it is."""
    match worker.phase:
        case Idle(reason="init"):
            return "INIT", "not started"
        case Idle(reason=reason):
            return "STOPPED", reason
        case Acquiring():
            return "STARTING", "acquiring"
        case Opening():
            return "STARTING", "opening"
        case Running(trial=trial, proved=proved):
            if trial is not None:
                return "RUNNING", "on trial"
            return "RUNNING", "running" if proved else "not proved yet"
        case Draining(then=then):
            return ("RUNNING", "restarting") if then is not None else ("RUNNING", "stopping")
        case BackingOff():
            return "ERROR", "backing off"
        case Quarantined():
            return "ERROR", "quarantined"
        case _:
            assert_never(worker.phase)
