"""One push session: a program's streams, each with its notifier, and what this node has of them.

A `Session` steps the notifier of each of its streams (`core.push.notifier`) and tells its program what that decides.
A `Pushed` stands between a session's stream and the worker that runs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias
from uuid import UUID

from headgate.connectors.api import Progress
from headgate.core.push import local_registry as local
from headgate.core.push import notifier
from headgate.core.streams import Why
from headgate.ids import new_id
from headgate.runtime.push.feed import Piece, PushFeed
from headgate.runtime.streams.handle import Handle

if TYPE_CHECKING:
    from headgate.runtime.push.listener import PushListener

Key: TypeAlias = tuple[UUID, str]
"""A datasource and a stream's label."""


class Peer(Protocol):
    """What a session says to its program."""

    def accepted(self, stream: str, epoch: int, position: int | None) -> None:
        """It may push this stream."""

    def refused(self, stream: str, reason: notifier.Reason, retry_after_ms: int) -> None:
        """It may not."""

    def acked(self, credits: int, positions: list[tuple[str, int | None]]) -> None:
        """Records up to these positions are durable, and this many more may come."""

    def closed(self, stream: str, position: int | None) -> None:
        """The end of the stream is durable."""

    def restart(self, stream: str | None, address: str | None, reason: str) -> None:
        """Ask again for this stream, or for all of them, perhaps elsewhere."""

    def fail(self, code: str, text: str) -> None:
        """The session is over, and why."""


class Session:
    """One program's streams."""

    def __init__(self, listener: PushListener, peer: Peer, datasource: UUID) -> None:
        self.id = new_id()
        self.datasource = datasource
        self.peer = peer
        self.credits_due = 0  # Of records that were skipped or are durable, and not given back yet.
        self.acks: dict[str, int | None] = {}
        self.streams: dict[str, notifier.Phase] = {}
        self.is_over = False
        self._listener = listener

    def notify(self, stream: str, name: str) -> None:
        """The program asks to push this stream."""
        held = len(self.streams)
        if held >= notifier.MOST_STREAMS:  # Few sessions have that many: the others need not be counted.
            held = sum(not isinstance(phase, notifier.TakenBack) for phase in self.streams.values())
        self.step(stream, notifier.Notify(stream, held), name=name)

    def received(self, stream: str, piece: Piece) -> None:
        """Records have come."""
        self.step(stream, notifier.Received(piece.ids), piece=piece)

    def ended(self, stream: str) -> None:
        """There is no more of this stream."""
        self.step(stream, notifier.EndOfStream(self._listener.barrier))
        self._listener.due.set()

    def close(self) -> None:
        """The connection is gone."""
        self.is_over = True
        self._listener.closed(self)

    def step(self, stream: str, event: notifier.Event, *, name: str = "", piece: Piece | None = None) -> None:
        """One event of one stream, and what follows from it."""
        step = notifier.step(self.streams.get(stream), event)
        if step.phase is None:
            self.streams.pop(stream, None)
        else:
            self.streams[stream] = step.phase
        for effect in step.effects:
            self._perform(stream, effect, name, piece)

    def _perform(self, stream: str, effect: notifier.Effect, name: str, piece: Piece | None) -> None:
        match effect:
            case notifier.AskLocal():
                self._listener.ask(self, stream, name)
            case notifier.TellAccepted(epoch=epoch, position=position):
                self.peer.accepted(stream, epoch, position)
            case notifier.TellRejected(reason=reason, retry_after_ms=retry_after_ms):
                self.peer.refused(stream, reason, retry_after_ms)
            case notifier.Take(skipped=skipped):
                assert piece is not None
                self._listener.take(self, stream, piece, skipped)
            case notifier.GiveCredits(records=records):
                self.give_credits(records)
            case notifier.TellAcked(position=position):
                self.acks[stream] = position
            case notifier.RelinquishLocal(epoch=epoch, position=position):
                self._listener.relinquish(self, stream, epoch, position)
            case notifier.TellClosed(position=position):
                self.flush()
                self.peer.closed(stream, position)
            case notifier.TellRestart(reason=reason):
                self.peer.restart(stream, None, reason)
            case notifier.Fail(code=code, text=text):
                self.peer.fail(code, text)

    def give_credits(self, records: int) -> None:
        """This many records are no longer under way, durable or not."""
        if records:
            self.credits_due += records
            self._listener.due.set()

    def flush(self) -> None:
        """Tell the program what it can forget, and how much more it may send."""
        if self.acks or self.credits_due:
            self.peer.acked(self.credits_due, list(self.acks.items()))
            self.acks, self.credits_due = {}, 0


class Pushed:
    """One pushed stream of this node: what the manager tells of it goes to the local registry and to its session."""

    is_brief = False

    def __init__(self, listener: PushListener, key: Key, session: Session) -> None:
        self.feed = PushFeed()
        self.session = session
        self.handle: Handle | None = None
        self.epoch = 0
        self.acked_commits = -1  # The commit that the program was last told of.
        self._listener = listener
        self._key = key

    def refused(self, reason: notifier.Reason) -> None:
        """It could not be acquired or opened, or a later run of it was denied."""
        if not self._listener.is_current(self._key, self):
            return
        if not isinstance(self._listener.entry(self._key), local.Asking):
            self.released("owned_by_other")
            return
        self._listener.step(self._key, local.GlobalDenied(reason))
        self._listener.forget(self._key, self)

    def opened(self, epoch: int, progress: Progress) -> None:
        """A run has opened it: the first one makes it active, a later one goes on with it."""
        if not self._listener.is_current(self._key, self):
            self._listener.give_back(self)  # Its session has been told that it is over.
            return
        self.epoch = epoch
        self._listener.step(self._key, local.GlobalGranted(epoch, progress.position))
        self.session.step(self._key[1], notifier.Regranted(epoch))
        self._listener.due.set()

    def committed(self) -> None:
        """Something more is durable."""
        self._listener.due.set()

    def released(self, nack: Why | None) -> None:
        """It is no longer ours: given back, or taken from us."""
        if not self._listener.is_current(self._key, self):
            return
        if isinstance(self._listener.entry(self._key), local.Asking):
            self.refused("not_ready")
            return
        self._listener.step(self._key, local.GlobalReleased(self.epoch))
        self._listener.forget(self._key, self)
        self.session.give_credits(self.feed.clear())  # Its program has what was not durable, and sends it again.
        stream = self._key[1]
        if isinstance(self.session.streams.get(stream), notifier.PendingRelinquish):
            self.session.step(stream, notifier.RelinquishAnswered(self.epoch, nack))
        else:
            self.session.step(
                stream, notifier.StreamLost(self.epoch, nack or self._listener.why_released(self.session.datasource))
            )
