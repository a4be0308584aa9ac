"""Planted bugs of the push protocol: in its two machines, and in what carries events between them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

from headgate.core.push import local_registry, notifier
from headgate.core.push.local_registry import Asking
from headgate.core.push.notifier import Active, PendingClose, PendingNotify, PendingRelinquish
from headgate.core.streams import Progress, Release
from simulation.lines import Line
from simulation.mutations import Mutation, instead
from simulation.network import Away
from simulation.push import PushHost

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


def _unasked_kept(entry: Any, event: Any, found: local_registry.Step) -> local_registry.Step:
    if entry is None and isinstance(event, local_registry.GlobalGranted):
        return local_registry.Step(None)
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
    _on_local("local_registry_keeps_what_nobody_asked_for", "upgrade", _unasked_kept),
    _on_local("local_registry_gives_a_stream_to_two_sessions", "push", _shared),
    _on_local("local_registry_forgets_a_session", "push", _session_forgotten),
)


# Around them.


def _completes_early(flush: Any) -> Any:
    async def planted(self: Line, barrier: int) -> None:
        if self.buffer:
            progress = Progress(self.progress.generation, self.progress.commits + 1, self.buffer[-1])
            self._host.completed(self, barrier, self.epoch, progress)
        await flush(self, barrier)

    return planted


def _commits_nothing(self: Line, barrier: int, epoch: int, progress: Progress) -> Any:
    async def nothing() -> None:
        self.saved = progress
        self._host.completed(self, barrier, epoch, progress)

    return nothing()


def _line_goes_on(self: Line) -> None:
    self.is_stopped = True


async def _forgets(self: PushHost, stream: UUID, session: UUID | None, epoch: int, commits: int, position: Any) -> None:
    with contextlib.suppress(Away):
        await self.manager.apply(stream, Release(self.manager.id, epoch, commits, position))
    self._local(stream, local_registry.GlobalReleased(epoch))
    self._tell(session, stream, notifier.RelinquishAnswered(epoch))


AROUND = (
    Mutation("push_acks_before_durable", "push", Line, "flush", _completes_early),
    instead("push_acks_without_a_commit", "push", Line, "_commit", _commits_nothing),
    instead("a_relinquish_without_answer_is_forgotten", "push", PushHost, "_relinquish", _forgets),
    instead("a_closed_session_goes_on_writing", "upgrade", Line, "stop", _line_goes_on),
)

PUSH = (*MACHINES, *AROUND)
