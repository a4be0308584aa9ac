"""Planted bugs in the life of a worker, in what should run, and in who reads which part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from headgate.core import lifecycle, parts
from headgate.core.lifecycle import Draining, Opening, Running, Step, Worker, holding
from headgate.core.reconcile import Entry
from simulation import manager
from simulation.mutations import Mutation, instead

# The life of a worker.


def _on_lifecycle(name: str, exposed_by: str, change: Callable[[Worker, Any, Step], Step]) -> Mutation:
    """A bug in the machine: another step than the right one."""

    def mutate(step: Any) -> Any:
        return lambda worker, event: change(worker, event, step(worker, event))

    return Mutation(name, exposed_by, lifecycle, "step", mutate)


def _without(step: Step, *kinds: type) -> Step:
    return replace(step, effects=tuple(effect for effect in step.effects if not isinstance(effect, kinds)))


def _released_at_once(worker: Worker, event: Any, found: Step) -> Step:
    phase = found.worker.phase
    is_stopped = isinstance(event, lifecycle.Want) and isinstance(phase, Draining) and phase.then is None
    if is_stopped and isinstance(worker.phase, Running):
        return replace(found, effects=(*found.effects, lifecycle.ReleaseStream()))
    return found


def _never_rejected(worker: Worker, event: Any, found: Step) -> Step:
    """A trial that has failed is not remembered."""
    return _without(found, lifecycle.RejectVersion) if isinstance(event, lifecycle.Failed) else found


def _proved_by_opening(worker: Worker, event: Any, found: Step) -> Step:
    """A version has proved itself as soon as it was granted the stream."""
    phase = found.worker.phase
    if isinstance(event, lifecycle.Acquired) and isinstance(phase, Opening) and phase.trial is not None:
        wanted = found.worker.wanted
        assert wanted is not None
        proved = replace(found.worker, phase=replace(phase, trial=None), wanted=replace(wanted, running=phase.version))
        return Step(proved, (lifecycle.Prove(phase.version), *found.effects))
    return found


def _never_proved(worker: Worker, event: Any, found: Step) -> Step:
    return _without(found, lifecycle.Prove)


def _unchecked(worker: Worker, event: Any, found: Step) -> Step:
    """A version that fails its check is left where it is, and neither tried nor rejected."""
    return _without(found, lifecycle.RejectVersion) if isinstance(event, lifecycle.Checked) else found


LIFE = (
    _on_lifecycle("releases_before_the_last_write_has_ended", "cooperative", _released_at_once),
    _on_lifecycle("a_failed_trial_rejects_nothing", "cooperative", _never_rejected),
    _on_lifecycle("a_version_has_proved_itself_before_it_runs", "trial", _proved_by_opening),
    _on_lifecycle("a_proof_is_not_written_down", "cooperative", _never_proved),
    _on_lifecycle("a_failed_check_rejects_nothing", "cooperative", _unchecked),
)


# What the registry is told.

HOLDING = (
    instead(
        "a_fence_of_ones_own_making_ends_the_worker",
        "restless",
        holding,
        "is_lost",
        lambda held, phase, epoch, why: held.epoch == epoch,
    ),
    instead("an_unanswered_acquisition_is_forgotten", "restless", holding, "is_to_revoke", lambda *answer: False),
    Mutation(
        "every_position_is_taken_for_the_sinks",
        "parts",
        holding,
        "ended",
        lambda ended: lambda held, progress, settled: ended(held, progress, True),
    ),
    Mutation(
        "what_is_handed_over_is_not_granted",
        "cooperative",
        holding,
        "is_meant",
        lambda is_meant: lambda held, epoch: False,
    ),
)


# What should run.


def _on_entry(name: str, exposed_by: str, change: Callable[[Entry], Entry]) -> Mutation:
    """A bug in what is wanted here: another entry than the registry's."""

    def mutate(wanted_here: Any) -> Any:
        def planted(entry: Entry | None, *args: Any, **options: Any) -> Any:
            return wanted_here(None if entry is None else change(entry), *args, **options)

        return planted

    return Mutation(name, exposed_by, manager, "wanted_here", mutate)


SHOULD_RUN = (
    _on_entry("a_stop_is_not_heard", "cooperative", lambda entry: replace(entry, is_to_run=True)),
    _on_entry(
        "a_pause_is_not_heard",
        "cooperative",
        lambda entry: replace(entry, is_to_run=entry.is_to_run or entry.is_paused),
    ),
    _on_entry("a_stream_is_read_while_it_is_dealt", "parts", lambda entry: replace(entry, is_to_run=entry.enabled)),
    Mutation(
        "a_worker_goes_on_under_an_old_deal",
        "parts",
        manager,
        "wanted_here",
        lambda wanted_here: lambda entry, place, dealt=None, **options: wanted_here(entry, place, **options),
    ),
    Mutation(
        "a_draining_node_goes_on",
        "cooperative",
        manager,
        "wanted_here",
        lambda wanted_here: (
            lambda entry, place, **options: wanted_here(entry, replace(place, is_draining=False), **options)
        ),
    ),
    Mutation(
        "every_stream_tries_a_new_version",
        "cooperative",
        Entry,
        "wanted_of",
        lambda wanted_of: lambda self, index: self.wanted,
    ),
)


# Who reads which part.


def _too_many(parts_of: Any) -> Any:
    def planted(index: int, n: int, names: Sequence[str]) -> list[str]:
        mine: list[str] = parts_of(index, n, names)
        return mine if index or n == 1 else [*mine, *parts_of(1, n, names)[:1]]

    return planted


def _too_few(parts_of: Any) -> Any:
    return lambda index, n, names: [part for part in parts_of(index, n, names) if n == 1 or part != names[-1]]


def _never_back(next_step: Any) -> Any:
    def planted(found: parts.Dealt) -> parts.Next:
        decided: parts.Next = next_step(found)
        return parts.Keep() if isinstance(decided, parts.TakeBack) and found.wanted != found.dealt else decided

    return planted


PARTS = (
    instead("streams_are_dealt_before_they_are_home", "parts", parts, "_settles", lambda one: True),
    Mutation("two_streams_read_the_same_part", "parts", parts, "parts_of", _too_many),
    Mutation("nobody_reads_the_last_part", "parts", parts, "parts_of", _too_few),
    Mutation(
        "a_deal_loses_a_position",
        "parts",
        parts,
        "deal",
        lambda deal: lambda positions, names, n: [None, *deal(positions, names, n)[1:]],
    ),
    Mutation("a_try_to_deal_is_not_taken_back", "parts", parts, "next_step", _never_back),
)

WORKERS = (*LIFE, *HOLDING, *SHOULD_RUN, *PARTS)
