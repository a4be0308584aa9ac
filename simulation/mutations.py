"""Planted bugs: each breaks one decision, and the checkers have to find it.

A mutation is a name, the kind of run that exposes it, and how to plant it. Those of rows and leases are here and wrap
the public functions of the core; `push_mutations` has those of the push protocol, `shell_mutations` those of the loops
around the core. A mutation that no seed exposes says that a fault or a checker is missing; one that is harmless does
not belong here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from headgate.core import lease, patience, planner, streams
from headgate.core.lease import Expired, NodeBeat, Observer, Quiet, Trust
from headgate.core.planner import Candidate
from headgate.core.streams import (
    Acquire,
    Checkpoint,
    Command,
    Done,
    Edit,
    Fenced,
    Grant,
    Release,
    Revoke,
    Stream,
    TakeOver,
)


@dataclass(frozen=True, slots=True)
class Mutation:
    """One planted bug."""

    name: str
    exposed_by: str  # The kind of run whose faults reach it.
    where: object  # A module or a class.
    function: str
    mutate: Callable[[Any], Any]  # From what is there to what is planted.

    @contextmanager
    def planted(self) -> Iterator[None]:
        """While this lasts, the bug is there."""
        original = getattr(self.where, self.function)
        setattr(self.where, self.function, self.mutate(original))
        try:
            yield
        finally:
            setattr(self.where, self.function, original)


def instead(name: str, exposed_by: str, where: object, function: str, planted: Any) -> Mutation:
    """A bug that takes the place of a function, or of a setting."""
    return Mutation(name, exposed_by, where, function, lambda original: planted)


def _of_rows(name: str, exposed_by: str, change: Callable[[Stream, Any], tuple[Stream, Any]], *kinds: type) -> Mutation:
    """A bug in the stepping of a row: commands of these kinds see another row, or are another command."""

    def mutate(step: Callable[[Stream, Command], streams.Step]) -> Callable[[Stream, Command], streams.Step]:
        def planted(stream: Stream, command: Command) -> streams.Step:
            if not isinstance(command, kinds):
                return step(stream, command)
            changed, other = change(stream, command)
            found = step(changed, other)
            return streams.Step(stream, found.reply) if found.stream is changed else found

        return planted

    return Mutation(name, exposed_by, streams, "step", mutate)


def _after_rows(
    name: str, exposed_by: str, change: Callable[[Stream, Any, streams.Step], streams.Step], *kinds: type
) -> Mutation:
    """A bug in the stepping of a row: what is saved after commands of these kinds is something else."""

    def mutate(step: Callable[[Stream, Command], streams.Step]) -> Callable[[Stream, Command], streams.Step]:
        def planted(stream: Stream, command: Command) -> streams.Step:
            found = step(stream, command)
            return change(stream, command, found) if isinstance(command, kinds) else found

        return planted

    return Mutation(name, exposed_by, streams, "step", mutate)


# The rows.


def _any_epoch(stream: Stream, command: Checkpoint | Release) -> tuple[Stream, Command]:
    return stream, replace(command, epoch=stream.epoch)


def _any_earlier_run(stream: Stream, command: Checkpoint | Release) -> tuple[Stream, Command]:
    is_own = stream.owner == command.owner and command.epoch < stream.epoch
    return stream, replace(command, epoch=stream.epoch) if is_own else command


def _any_owner(stream: Stream, command: Acquire) -> tuple[Stream, Command]:
    return structs.replace(stream, owner=command.owner), command


def _nobody(stream: Stream, command: Command) -> tuple[Stream, Command]:
    return structs.replace(stream, owner=None), command


def _lowest_n(stream: Stream, command: Checkpoint) -> tuple[Stream, Command]:
    return structs.replace(stream, progress=replace(stream.progress, commits=-1)), command


def _no_position(stream: Stream, command: Release) -> tuple[Stream, Command]:
    return stream, replace(command, commits=-1)


def _no_totals(stream: Stream, command: Checkpoint) -> tuple[Stream, Command]:
    return stream, replace(command, totals=stream.progress.totals)


def _as_if_fenced(stream: Stream, command: TakeOver) -> tuple[Stream, Command]:
    return structs.replace(stream, transactional=True), command


def _fenced_as_before(stream: Stream, command: Acquire, found: streams.Step) -> streams.Step:
    """The row says what was true of the first run."""
    is_first = stream.sink_identity is None
    kept = found.stream.transactional if is_first else stream.transactional
    return structs.replace(found, stream=structs.replace(found.stream, transactional=kept))


def _same_epoch(stream: Stream, command: Command, found: streams.Step) -> streams.Step:
    return structs.replace(found, stream=structs.replace(found.stream, epoch=stream.epoch))


def _same_edits(stream: Stream, command: Command, found: streams.Step) -> streams.Step:
    progress = replace(found.stream.progress, generation=stream.progress.generation)
    return structs.replace(found, stream=structs.replace(found.stream, progress=progress))


def _old_position(stream: Stream, command: Acquire, found: streams.Step) -> streams.Step:
    progress = replace(found.stream.progress, position=stream.progress.position)
    return structs.replace(found, stream=structs.replace(found.stream, progress=progress))


def _overwritten(stream: Stream, command: Release, found: streams.Step) -> streams.Step:
    if isinstance(found.reply, Fenced) and found.reply.why != "already_inactive":
        progress = replace(
            stream.progress, commits=max(stream.progress.commits, command.commits), position=command.position
        )
        return streams.Step(structs.replace(stream, progress=progress), Done())
    return found


ROWS = (
    _of_rows("checkpoint_ignores_the_epoch", "restless", _any_epoch, Checkpoint),
    _of_rows("checkpoint_of_an_earlier_run_is_taken", "restless", _any_earlier_run, Checkpoint),
    _of_rows("release_of_an_earlier_run_is_taken", "restless", _any_earlier_run, Release),
    _after_rows("a_stale_release_overwrites_the_position", "restless", _overwritten, Release),
    _of_rows("checkpoint_goes_back", "push", _lowest_n, Checkpoint),
    _of_rows("acquire_ignores_the_owner", "push", _any_owner, Acquire),
    _of_rows("release_without_a_checkpoint", "cooperative", _no_position, Release),
    _after_rows("grant_keeps_the_epoch", "crash", _same_epoch, Grant),
    _after_rows("acquire_keeps_the_epoch", "crash", _same_epoch, Acquire),
    _after_rows("revoke_keeps_the_epoch", "crash", _same_epoch, Revoke),
    _of_rows("what_no_sink_fences_is_taken_over", "takeover", _as_if_fenced, TakeOver),
    _after_rows("takeover_keeps_the_epoch", "takeover", _same_epoch, TakeOver),
    _after_rows("another_sink_is_taken_for_the_first_one", "takeover", _fenced_as_before, Acquire),
    _of_rows("edit_while_active", "cooperative", _nobody, Edit),
    _after_rows("edit_is_not_counted", "cooperative", _same_edits, Edit),
    _after_rows("change_of_sink_is_not_counted", "cooperative", _same_edits, Acquire),
    _after_rows("another_source_keeps_the_position", "cooperative", _old_position, Acquire),
    Mutation(
        "agree_prefers_the_registry",
        "crash",
        streams,
        "agree",
        lambda agree: lambda registry, sink: agree(registry, sink if sink is None else replace(sink, generation=-1)),
    ),
    Mutation(
        "agree_ignores_edits",
        "cooperative",
        streams,
        "agree",
        lambda agree: lambda registry, sink: agree(replace(registry, generation=min(registry.generation, 0)), sink),
    ),
    Mutation(
        "agree_takes_back_n",
        "restless",
        streams,
        "agree",
        lambda agree: lambda registry, sink: replace(agree(registry, sink), commits=registry.commits),
    ),
    Mutation(
        "agree_takes_the_totals_of_the_registry",
        "crash",
        streams,
        "agree",
        lambda agree: lambda registry, sink: replace(agree(registry, sink), totals=registry.totals),
    ),
    Mutation(
        "agree_takes_the_totals_of_who_wins_the_position",
        "restless",
        streams,
        "agree",
        lambda agree: (
            lambda registry, sink: replace(
                agree(registry, sink),
                totals=(registry if sink is None or registry.generation > sink.generation else sink).totals,
            )
        ),
    ),
    _of_rows("a_checkpoint_without_its_totals", "crash", _no_totals, Checkpoint),
)


# Leases.


def _never_anew(unanswered: Callable[[Observer], Observer]) -> Callable[[Observer], Observer]:
    return lambda observer: observer


def _hasty(observed: Any) -> Any:
    def planted(
        observer: Observer, beats: list[NodeBeat], asked_at_s: float, answered_at_s: float
    ) -> tuple[Observer, list[Expired]]:
        shorter = [replace(beat, lease_s=beat.lease_s - lease.MARGIN_S - 0.5) for beat in beats]
        found: tuple[Observer, list[Expired]] = observed(observer, shorter, asked_at_s, answered_at_s)
        return found

    return planted


def _from_asking(observed: Any) -> Any:
    """The count begins when the question was sent; the row may have changed between that and the answer."""

    def planted(
        observer: Observer, beats: list[NodeBeat], asked_at_s: float, answered_at_s: float
    ) -> tuple[Observer, list[Expired]]:
        found, expired = observed(observer, beats, asked_at_s, answered_at_s)
        seen = {
            node: replace(sighting, since_s=asked_at_s) if sighting.since_s == answered_at_s else sighting
            for node, sighting in found.seen.items()
        }
        return Observer(seen), expired

    return planted


def _by_the_lock_alone(quiet: Any) -> Any:
    """The first of the two signs is left out."""
    return lambda observer, beats, asked_at_s: [
        Quiet(row.node, row.beat) for row in beats if row.has_lock and not row.is_ended
    ]


def _whoever_beats(quiet: Any) -> Any:
    """It is not asked whether the beat has risen since the counts started over."""

    def planted(observer: Observer, beats: list[NodeBeat], asked_at_s: float) -> list[Quiet]:
        seen = {node: replace(one, has_risen=True) for node, one in observer.seen.items()}
        found: list[Quiet] = quiet(Observer(seen), beats, asked_at_s)
        return found

    return planted


LEASES = (
    Mutation("a_free_lock_is_enough", "takeover", lease, "quiet", _by_the_lock_alone),
    instead(
        "a_late_beat_is_enough",
        "takeover",
        lease,
        "is_gone",
        lambda row, found, is_free: row is not None and not row.is_ended and row.beat == found.beat,
    ),
    Mutation("who_never_beat_before_our_eyes_is_gone", "chaos", lease, "quiet", _whoever_beats),
    Mutation("observer_does_not_begin_anew", "outage", lease, "unanswered", _never_anew),
    Mutation("observer_is_hasty", "network", lease, "observed", _hasty),
    Mutation("observer_counts_from_its_question", "network", lease, "observed", _from_asking),
    Mutation(
        "trust_has_no_margin",
        "zombie",
        Trust,
        "until_s",
        lambda until_s: property(lambda trust: until_s.fget(trust) + trust.margin_s),
    ),
    Mutation(
        "planner_grants_to_the_draining",
        "cooperative",
        planner,
        "place",
        lambda place: (
            lambda free, candidates: place(
                free, [Candidate(one.node, one.load, is_eligible=True) for one in candidates]
            )
        ),
    ),
)

PATIENCE = (
    instead(
        "a_stream_is_taken_as_soon_as_its_holder_is_told",
        "cooperative",
        patience,
        "overdue",
        lambda seen, standing, now_s: list(standing),
    ),
)

CORE = (*ROWS, *LEASES, *PATIENCE)
