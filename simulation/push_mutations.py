"""Planted bugs of the push protocol: in its two machines, and in what carries events between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from headgate.core.lifecycle import holding
from headgate.core.push import local_registry, notifier
from headgate.core.push.local_registry import Asking
from headgate.core.push.notifier import Active, PendingClose, PendingNotify, PendingRelinquish
from headgate.core.streams import Progress, Release, Revoke
from simulation.effects import Effects
from simulation.handle import Handle
from simulation.mutations import Mutation, instead
from simulation.push import Pushed, PushHost
from simulation.sources import Feed

# The two machines.


def _on_notifier(name: str, exposed_by: str, change: Callable[[Any, Any, notifier.Step], notifier.Step]) -> Mutation:
    """A bug in the notifier: another step than the right one."""

    def mutate(step: Any) -> Any:
        return lambda phase, event: change(phase, event, step(phase, event))

    return Mutation(name, exposed_by, notifier, "step", mutate)


def _kept_late(phase: Any, event: Any, found: notifier.Step) -> notifier.Step:
    if isinstance(phase, PendingNotify) and phase.is_cancelled and isinstance(event, notifier.Accepted):
        return notifier.Step(Active(event.epoch, event.position, event.position))
    return found


def _cancel_forgets(phase: Any, event: Any, found: notifier.Step) -> notifier.Step:
    if isinstance(phase, PendingNotify) and isinstance(event, notifier.ConnectionLost):
        return notifier.Step(phase)
    return found


def _closed_early(phase: Any, event: Any, found: notifier.Step) -> notifier.Step:
    if isinstance(phase, PendingClose) and isinstance(event, notifier.BarrierCompleted):
        pending = PendingRelinquish(phase.epoch, phase.last_seen, tells_client=True)
        return notifier.Step(pending, (notifier.RelinquishLocal(phase.epoch, phase.last_seen),))
    return found


def _taken_back(phase: Any, event: Any, found: notifier.Step) -> notifier.Step:
    if isinstance(phase, Active) and isinstance(event, notifier.BarrierCompleted) and phase == found.phase:
        if event.position == phase.last_acked:
            return found
        return notifier.Step(replace(phase, last_acked=event.position), (notifier.TellAcked(event.position),))
    return found


def _nothing_skipped(phase: Any, event: Any, found: notifier.Step) -> notifier.Step:
    effects = tuple(notifier.Take(0) if isinstance(one, notifier.Take) else one for one in found.effects)
    return notifier.Step(found.phase, effects)


def _lost_keeps(phase: Any, event: Any, found: notifier.Step) -> notifier.Step:
    return notifier.Step(phase) if isinstance(event, notifier.StreamLost) else found


def _connection_lost_keeps(phase: Any, event: Any, found: notifier.Step) -> notifier.Step:
    if isinstance(event, notifier.ConnectionLost) and isinstance(phase, Active | PendingClose):
        return notifier.Step(None)
    return found


def _on_local(
    name: str, exposed_by: str, change: Callable[[Any, Any, local_registry.Step], local_registry.Step]
) -> Mutation:
    """A bug in the local registry: another step than the right one."""

    def mutate(step: Any) -> Any:
        return lambda entry, event: change(entry, event, step(entry, event))

    return Mutation(name, exposed_by, local_registry, "step", mutate)


def _orphan_kept(entry: Any, event: Any, found: local_registry.Step) -> local_registry.Step:
    if isinstance(entry, Asking) and entry.is_orphan and isinstance(event, local_registry.GlobalGranted):
        progress = local_registry.HeldBySession(entry.session, entry.name, event.epoch, event.position, event.position)
        return local_registry.Step(progress)
    return found


def _shared(entry: Any, event: Any, found: local_registry.Step) -> local_registry.Step:
    if isinstance(entry, local_registry.HeldBySession) and isinstance(event, local_registry.Ask):
        accept = local_registry.AcceptSession(event.session, entry.epoch, entry.last_acked)
        return local_registry.Step(entry, (accept,))
    return found


def _session_forgotten(entry: Any, event: Any, found: local_registry.Step) -> local_registry.Step:
    return local_registry.Step(entry) if isinstance(event, local_registry.SessionClosed) else found


MACHINES = (
    _on_notifier("notifier_keeps_a_late_grant", "upgrade", _kept_late),
    _on_notifier("notifier_does_not_cancel", "upgrade", _cancel_forgets),
    _on_notifier("notifier_forgets_what_it_had", "push", _connection_lost_keeps),
    _on_notifier("end_of_stream_is_closed_by_an_earlier_barrier", "push", _closed_early),
    _on_notifier("a_barrier_takes_back_an_ack", "push", _taken_back),
    _on_notifier("what_was_seen_is_taken_again", "push", _nothing_skipped),
    _on_notifier("a_lost_stream_is_kept", "push", _lost_keeps),
    _on_local("local_registry_keeps_a_late_grant", "push", _orphan_kept),
    _on_local("local_registry_gives_a_stream_to_two_sessions", "push", _shared),
    _on_local("local_registry_forgets_a_session", "push", _session_forgotten),
)


# Around them.


def _completes_early(barrier: Any) -> Any:
    """What the sink has not got yet is acknowledged with the rest."""

    async def planted(self: PushHost) -> None:
        for pushed in list(self._pushed.values()):
            if pushed.handle is not None and pushed.handle.holding.is_opened and pushed.feed.ids:
                progress = pushed.handle.holding.progress
                self._reached(
                    self.barrier, pushed, Progress(progress.generation, progress.commits + 1, pushed.feed.ids[-1])
                )
        await barrier(self)

    return planted


async def _commits_nothing(self: PushHost, waiting: Sequence[Pushed]) -> None:
    for pushed in waiting:
        if pushed.handle is not None:
            pushed.handle.holding = holding.saved(pushed.handle.holding, pushed.handle.holding.progress)


def _answered_at_once(self: PushHost, pushed: Pushed) -> None:
    """The stream is given back, and the next session that asks does not wait for it."""
    if pushed.handle is not None:
        self.forget_pushed(pushed)
        self.local(pushed.stream, local_registry.GlobalReleased(pushed.epoch))


def _unanswered_claim_kept(release: Any) -> Any:
    """A claim that was not answered may have been carried out; nobody asks for it any more."""

    async def planted(self: Effects, handle: Handle, command: Release | Revoke) -> None:
        if isinstance(command, Release):
            await release(self, handle, command)
        else:
            self._manager.remove(handle)

    return planted


def _feed_is_kept(self: Feed, position: Any) -> None:
    """Everything that was handed on is forgotten, durable or not."""
    self.ids = []


AROUND = (
    Mutation("push_acks_before_durable", "push", PushHost, "_barrier", _completes_early),
    instead("push_acks_without_a_commit", "push", PushHost, "_save", _commits_nothing),
    instead("a_relinquish_without_answer_is_forgotten", "push", PushHost, "give_back", _answered_at_once),
    Mutation("what_nobody_asks_for_any_more_is_kept", "push", Effects, "_release", _unanswered_claim_kept),
    instead("a_run_that_follows_finds_nothing_of_what_was_pushed", "upgrade", Feed, "open", _feed_is_kept),
)

PUSH = (*MACHINES, *AROUND)
