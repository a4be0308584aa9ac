"""One client's connection, as the node sees it: frames are events of the notifier, and its effects are frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headgate.core.push import notifier
from headgate.core.push.notifier import Phase
from simulation.pipes import Pipe

if TYPE_CHECKING:
    from simulation.push import PushHost


class Session:
    """The streams of one connection."""

    def __init__(self, id: UUID, pipe: Pipe, host: PushHost) -> None:
        self.id = id
        self.pipe = pipe
        self.phases: dict[UUID, Phase] = {}
        self.is_open = True
        self.is_dead = False  # Its handler has died, and hears nothing more.
        self._host = host

    def received(self, frame: tuple[Any, ...]) -> None:
        """A frame has come."""
        if not self.is_open or self._host.manager.is_over:
            return
        stream: UUID = frame[1]
        match frame[0]:
            case "notify":
                self._notify(stream)
            case "messages":
                self.step(stream, notifier.Received(frame[2]), frame[2])
            case "eos":
                self.step(stream, notifier.EndOfStream(self._host.barrier))

    def _notify(self, stream: UUID) -> None:
        reason = self._host.why_not()
        if reason is None:
            self.step(stream, notifier.Notify(str(stream)))
        else:
            self.pipe.to_client(("refused", stream, reason, notifier.RETRY_MS))

    def step(self, stream: UUID, event: notifier.Event, ids: Sequence[int] = ()) -> None:
        """Take in one event of one stream, and do what follows from it."""
        if self.is_dead:
            return
        step = notifier.step(self.phases.get(stream), event)
        if step.phase is not None:
            self.phases[stream] = step.phase
        else:
            self.phases.pop(stream, None)
            if not self.is_open and not self.phases:
                self._host.forget(self)
        for effect in step.effects:
            self._perform(stream, effect, ids)

    def _perform(self, stream: UUID, effect: notifier.Effect, ids: Sequence[int]) -> None:
        tell = self.pipe.to_client
        match effect:
            case notifier.AskLocal():
                self._host.ask(self, stream)
            case notifier.RelinquishLocal(epoch=epoch, position=position):
                self._host.relinquish(self.id, stream, epoch, position)
            case notifier.Take(skipped=skipped):
                self._host.take(stream, ids[skipped:])
            case notifier.GiveCredits():
                pass  # Nobody counts them here.
            case notifier.TellAccepted(epoch=epoch, position=position):
                tell(("accepted", stream, epoch, position))
            case notifier.TellRejected(reason=reason, retry_after_ms=retry_after_ms):
                tell(("refused", stream, reason, retry_after_ms))
            case notifier.TellAcked(position=position):
                tell(("ack", stream, position))
            case notifier.TellClosed(position=position):
                tell(("closed", stream, position))
            case notifier.TellRestart(reason=reason):
                tell(("restart", stream, reason))
            case notifier.Fail(code=code):
                tell(("error", stream, code))
