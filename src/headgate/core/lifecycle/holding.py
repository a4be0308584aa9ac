"""What a node holds of one stream: its grant, and where the stream stands.

The worker (`states`) decides what runs; the holding decides what the registry is told about it. A grant has an epoch.
While the epoch is known the stream can be checkpointed and released; without it, because the stream was lost, abandoned
or never answered for, only a revocation of whatever is still ours is safe.

Three answers need judgement, since an answer may be lost and its command carried out all the same:

- A *checkpoint* that is fenced means that the stream is lost, with two exceptions. Our own release may have been faster
  (`already_inactive`). And between two runs the fence may be that of a newer grant of ours whose answer was lost: the
  next acquisition tells.
- A *release* that is stale may be that of an older grant: whatever is still ours is revoked, unless the worker has
  begun another run meanwhile, whose grant must stay.
- A *revocation* after a run that did not end names the run's epoch if another run follows, whose grant must stay.
  If nothing follows it names none, and takes what a lost answer may have left with us.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from uuid import UUID

from headgate.core.lifecycle.states import Acquiring, BackingOff, Draining, Idle, Phase, Quarantined, Wanted, Worker
from headgate.core.streams import Checkpoint, Fenced, Outcome, Progress, Release, Reply, Revoke, Why


@dataclass(frozen=True, slots=True)
class Holding:
    """What this node has of a stream, as far as it knows."""

    is_pushed: bool = False  # A program pushes it; else the tick has granted it.
    epoch: int | None = None  # Of our grant; None: not ours.
    last_epoch: int | None = None  # Of the newest grant that we had.
    progress: Progress = field(default_factory=Progress)
    saved: Progress = field(default_factory=Progress)  # What the registry has of it.
    settled: bool = False  # `progress` is known to be what the sink has.
    is_given_back: bool = False  # Its session is done with it, or it was told to step down.
    is_opened: bool = False  # At least once.
    wanted_key: str = ""  # Of what is wanted, as the registry last said.

    @property
    def is_unsaved(self) -> bool:
        """Whether the registry is behind."""
        return self.epoch is not None and self.progress.commits > self.saved.commits


# What is wanted.


def granted(epoch: int, settled: bool) -> Holding:
    """The tick has granted the stream to this node."""
    return Holding(epoch=epoch, last_epoch=epoch, settled=settled)


def is_meant(holding: Holding, epoch: int) -> bool:
    """Whether an order to step down that names this epoch is about what we hold, and not about an older grant."""
    return (holding.last_epoch or 0) <= epoch


def wanted_of(holding: Holding, wanted: Wanted | None) -> Wanted | None:
    """What the worker is told: nothing is wanted of a stream that is given back."""
    return None if holding.is_given_back else wanted


# What the run does.


def acquired(holding: Holding, epoch: int, progress: Progress) -> Holding:
    """A run's epoch was granted."""
    return replace(holding, epoch=epoch, last_epoch=epoch, progress=progress, saved=progress)


def opened(holding: Holding, progress: Progress) -> Holding:
    """The sink has said where the stream stands."""
    return replace(holding, progress=progress, is_opened=True)


def reached(holding: Holding, progress: Progress) -> Holding:
    """A batch became durable."""
    return replace(holding, progress=progress)


def ended(holding: Holding, progress: Progress | None, settled: bool) -> Holding:
    """A run has ended, and says how far it came and whether it knows what became of its last write."""
    if progress is not None and progress.commits >= holding.progress.commits:
        holding = replace(holding, progress=progress)
    return replace(holding, settled=settled)


# What the registry is told.


def checkpoint(holding: Holding, node: UUID) -> Checkpoint | None:
    """What to save; None: the registry knows it already, or the stream is not ours."""
    if holding.epoch is None or not holding.is_unsaved:
        return None
    progress = holding.progress
    return Checkpoint(node, holding.epoch, progress.commits, progress.position, progress.totals)


def saved(holding: Holding, progress: Progress) -> Holding:
    """The registry has this. An answer that was overtaken changes nothing."""
    return replace(holding, saved=progress) if progress.commits > holding.saved.commits else holding


def is_lost(holding: Holding, phase: Phase, epoch: int, why: Why) -> bool:
    """Whether a fenced checkpoint under this epoch means that the stream is not ours any more."""
    is_between = isinstance(phase, BackingOff) or _acquires(phase) is not None
    return holding.epoch == epoch and why != "already_inactive" and not is_between


def is_awaited(phase: Phase, run: int) -> bool:
    """Whether the worker still waits for this run's acquisition. If not, it must not be asked for any more."""
    return _acquires(phase) == run


def _acquires(phase: Phase) -> int | None:
    """The run whose acquisition has yet to be answered, if there is one."""
    match phase:
        case Acquiring(run=run) | Draining(run=run, is_acquiring=True):
            return run
        case _:
            return None


def lost(holding: Holding) -> Holding:
    """The grant has ended without our doing."""
    return replace(holding, epoch=None)


def abandoned(holding: Holding) -> Holding:
    """The run is left to itself, in whatever write it is."""
    return replace(holding, epoch=None, settled=False)


def revocation(node: UUID, phase: Phase, epoch: int | None) -> Revoke:
    """Take the stream from a run that was abandoned under this epoch."""
    return Revoke(node, None if is_left(phase) else epoch)


def is_left(phase: Phase) -> bool:
    """Whether nothing follows an abandoned run here: another grant begins with a new worker."""
    return isinstance(phase, Idle)


def release(holding: Holding, node: UUID, phase: Phase, outcome: Outcome, *, is_draining: bool) -> Release | Revoke:
    """Give the stream back. It goes on elsewhere at once if this node drains or was told to step down."""
    if holding.epoch is None:
        return Revoke(node)
    goes_on = not holding.is_pushed and outcome == "stopped" and (is_draining or holding.is_given_back)
    return Release(
        node,
        holding.epoch,
        holding.progress.commits,
        holding.progress.position,
        outcome,
        holding.wanted_key,
        phase.failure.message if isinstance(phase, Quarantined) else "",
        goes_on,
        holding.settled,
        holding.progress.totals,
    )


def is_to_revoke(worker: Worker, runs: int, reply: Reply | None) -> bool:
    """Whether a release was that of an older grant, so that a newer one may still be ours. If the worker has begun
    another run since it had this many, the newer grant is that run's, and stays."""
    return worker.runs == runs and isinstance(reply, Fenced) and reply.why == "stale"


def released(holding: Holding, epoch: int | None) -> Holding:
    """The release under this epoch was answered. A newer grant stays."""
    return replace(holding, epoch=None) if holding.epoch == epoch else holding


def is_over(worker: Worker, runs: int) -> bool:
    """Whether the worker is done, now that the command it gave when it had made `runs` runs is answered."""
    return worker.runs == runs and isinstance(worker.phase, Idle | Quarantined)


# Grants that are declined.


@dataclass(frozen=True, slots=True)
class Declined:
    """A grant that this node does not take up."""

    epoch: int
    steps_down: bool = False  # Another node is to have it.
    is_draining: bool = False
    is_unlisted: bool = False  # It should run, and the registry file of this node does not name it.
    wanted_key: str = ""


def decline(node: UUID, offer: Declined) -> Release:
    """Give back a grant that no run came of."""
    given_back = Release(node, offer.epoch, 0, None, hands_over=offer.steps_down or offer.is_draining)
    if not offer.is_unlisted:
        return given_back
    reason = "the registry file of this node does not name the datasource"
    return replace(given_back, outcome="unable", wanted_key=offer.wanted_key, reason=reason)
