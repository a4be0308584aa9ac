"""The notifier: one push session's streams, and what each of them waits for.

A stream of a session is in at most one of five states, and in none of them if the session does not have it:

    Notify ─▶ PendingNotify ─▶ Active ─▶ PendingClose ─▶ PendingRelinquish ─▶ (gone)
                   │              └── connection lost ──────▲
                   └─▶ (refused, gone)

**PendingNotify**: the local registry has been asked. **Active**: granted under an epoch; records come in. `last_seen`
is the last id handed to the pipeline, `last_acked` the last that is durable in the sink and committed in the registry.
**PendingClose**: the client said that there is no more. **PendingRelinquish**: the stream is being given back, until
the registry has answered. **TakenBack**: the node has taken the stream from the session and told it so. What the
session had sent by then is nobody's fault: records and an end are dropped until it asks for the stream again.

A *barrier* makes everything that had been handed over when it began durable and committed; at its end `last_acked`
moves up. An end of stream is closed by the first barrier that *began* after it and reached the last record seen: one
that was already under way may have left records behind.

A grant that arrives for a session that has been closed is given back at once: closing cancels a request, it does not
forget it. A stream that a request, a session's end and a late answer chase through these states is never left behind
with an owner that does not know of it. `step` takes one stream's state and one event; the session applies it to one
stream or to all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, assert_never

from headgate.core.streams import Why
from headgate.ids import is_label

Reason: TypeAlias = Literal["busy", "owned", "draining", "not_ready", "bad_stream", "too_many"]
"""Why a notify is rejected."""

Id: TypeAlias = int | None
"""A position: the id of a record, or None for "nothing yet"."""


# States. No state: the session does not have the stream.


@dataclass(frozen=True, slots=True)
class PendingNotify:
    """Asked for."""

    is_cancelled: bool = False  # The session has been closed meanwhile: a grant is given back.


@dataclass(frozen=True, slots=True)
class Active:
    """Granted: records may come."""

    epoch: int
    last_acked: Id
    last_seen: Id
    last_sent: Id = None  # The last id that this session sent; what it sends must rise.


@dataclass(frozen=True, slots=True)
class PendingClose:
    """The client has said that there is no more; not everything is committed yet."""

    epoch: int
    last_acked: Id
    last_seen: Id
    after: int  # The last barrier that had begun when the end came: a later one is needed.


@dataclass(frozen=True, slots=True)
class PendingRelinquish:
    """Being given back."""

    epoch: int
    position: Id
    tells_client: bool  # Whether the client waits for `closed`.


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Taken from the session, which was told to ask again."""


Phase: TypeAlias = PendingNotify | Active | PendingClose | PendingRelinquish | TakenBack


# From the client.


@dataclass(frozen=True, slots=True)
class Notify:
    """It asks to push the stream of this label. `held` is how many streams the session has, or asks for."""

    label: str
    held: int = 0


@dataclass(frozen=True, slots=True)
class Received:
    """Records with these ids came."""

    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class EndOfStream:
    """There are no more for now. `barrier` is the last barrier that has begun."""

    barrier: int


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The session is over."""


# From the node.


@dataclass(frozen=True, slots=True)
class Accepted:
    """The stream is ours under this epoch, and stands here."""

    epoch: int
    position: Id


@dataclass(frozen=True, slots=True)
class Rejected:
    """It is not ours."""

    reason: Reason
    retry_after_ms: int = 0


@dataclass(frozen=True, slots=True)
class Regranted:
    """A new run goes on with it, under a higher epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class BarrierCompleted:
    """Everything up to `position` is durable and committed. `barrier` is the number it began with."""

    barrier: int
    epoch: int
    position: Id


@dataclass(frozen=True, slots=True)
class RelinquishAnswered:
    """The registry has taken the stream back, or says why it was not ours to give (`nack`)."""

    epoch: int
    nack: Why | None = None


@dataclass(frozen=True, slots=True)
class StreamLost:
    """The stream was taken from us: revoked, stopped, or its node may no longer act."""

    epoch: int
    reason: str


Event: TypeAlias = (
    Notify
    | Received
    | EndOfStream
    | ConnectionLost
    | Accepted
    | Rejected
    | Regranted
    | BarrierCompleted
    | RelinquishAnswered
    | StreamLost
)


# Effects.


@dataclass(frozen=True, slots=True)
class AskLocal:
    """Ask the local registry for the stream."""


@dataclass(frozen=True, slots=True)
class TellAccepted:
    """Tell the client that it may push, from where, and under which epoch."""

    epoch: int
    position: Id


@dataclass(frozen=True, slots=True)
class TellRejected:
    """Tell the client that it may not, and when to ask again."""

    reason: Reason
    retry_after_ms: int


@dataclass(frozen=True, slots=True)
class Take:
    """Hand these records to the pipeline, except the first `skipped`: those are already durable."""

    skipped: int


@dataclass(frozen=True, slots=True)
class GiveCredits:
    """This many records were dropped: give their credits back."""

    records: int


@dataclass(frozen=True, slots=True)
class TellAcked:
    """Tell the client that everything up to here is durable."""

    position: Id


@dataclass(frozen=True, slots=True)
class RelinquishLocal:
    """Give the stream back, and go on asking until there is an answer."""

    epoch: int
    position: Id


@dataclass(frozen=True, slots=True)
class TellClosed:
    """Tell the client that the end of the stream is durable and the stream is free."""

    position: Id


@dataclass(frozen=True, slots=True)
class TellRestart:
    """Tell the client to ask for the stream again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The client broke the protocol: tell it, and end the session."""

    code: Literal["not_granted", "backwards", "unexpected"]
    text: str


Effect: TypeAlias = (
    AskLocal
    | TellAccepted
    | TellRejected
    | Take
    | GiveCredits
    | TellAcked
    | RelinquishLocal
    | TellClosed
    | TellRestart
    | Fail
)


@dataclass(frozen=True, slots=True)
class Step:
    """The stream's new state, and what to do."""

    phase: Phase | None
    effects: tuple[Effect, ...] = ()


def step(phase: Phase | None, event: Event) -> Step:
    """Take in one event that concerns one stream of the session."""
    match event:
        case Notify():
            return _notify(phase, event)
        case Received():
            return _received(phase, event)
        case EndOfStream():
            return _end_of_stream(phase, event)
        case ConnectionLost():
            return _connection_lost(phase)
        case Accepted():
            return _accepted(phase, event)
        case Rejected():
            return _refused(phase, event)
        case Regranted():
            return _regranted(phase, event)
        case BarrierCompleted():
            return _barrier_completed(phase, event)
        case RelinquishAnswered():
            return _relinquish_answered(phase, event)
        case StreamLost():
            return _lost(phase, event)
        case _:
            assert_never(event)


RETRY_MS = 500  # A stream that is being opened or given back takes about this long.
FULL_RETRY_MS = 2000  # A session that has all the streams that it may have may keep them for days.
MOST_STREAMS = 10_000  # Of one session.


def _notify(phase: Phase | None, event: Notify) -> Step:
    if not is_label(event.label):
        return Step(phase, (TellRejected("bad_stream", 0),))
    if phase is not None and not isinstance(phase, TakenBack):
        return Step(phase, (TellRejected("busy", RETRY_MS),))
    if event.held >= MOST_STREAMS:
        return Step(phase, (TellRejected("too_many", FULL_RETRY_MS),))
    return Step(PendingNotify(), (AskLocal(),))


def _received(phase: Phase | None, event: Received) -> Step:
    if isinstance(phase, TakenBack):
        return Step(phase, (GiveCredits(len(event.ids)),))
    if not isinstance(phase, Active):
        return Step(phase, (Fail("not_granted", "records were sent for a stream that is not granted"),))
    last = -1 if phase.last_sent is None else phase.last_sent
    seen = -1 if phase.last_seen is None else phase.last_seen
    skipped = 0
    for id in event.ids:
        if id <= last:
            return Step(phase, (Fail("backwards", "an id is not above the one before it; ids must rise"),))
        last = id
        skipped += id <= seen
    if not event.ids:
        return Step(phase)
    return Step(replace(phase, last_sent=last, last_seen=max(seen, last)), (Take(skipped),))


def _end_of_stream(phase: Phase | None, event: EndOfStream) -> Step:
    match phase:
        case Active():
            return Step(PendingClose(phase.epoch, phase.last_acked, phase.last_seen, event.barrier))
        case PendingClose() | PendingRelinquish():
            return Step(phase, (Fail("unexpected", "the stream has already been ended"),))
        case TakenBack():
            return Step(phase)
        case PendingNotify() | None:
            return Step(phase, (Fail("not_granted", "a stream that is not granted was ended"),))
        case _:
            assert_never(phase)


def _connection_lost(phase: Phase | None) -> Step:
    match phase:
        case PendingNotify():
            return Step(PendingNotify(is_cancelled=True))
        case Active() | PendingClose():
            pending = PendingRelinquish(phase.epoch, phase.last_acked, tells_client=False)
            return Step(pending, (RelinquishLocal(phase.epoch, phase.last_acked),))
        case PendingRelinquish():
            return Step(replace(phase, tells_client=False))
        case TakenBack() | None:
            return Step(None)
        case _:
            assert_never(phase)


def _accepted(phase: Phase | None, event: Accepted) -> Step:
    match phase:
        case PendingNotify(is_cancelled=False):
            active = Active(event.epoch, event.position, event.position)
            return Step(active, (TellAccepted(event.epoch, event.position),))
        case PendingNotify():
            pending = PendingRelinquish(event.epoch, event.position, tells_client=False)
            return Step(pending, (RelinquishLocal(event.epoch, event.position),))
        case Active() | PendingClose() | PendingRelinquish():
            return _regranted(phase, Regranted(event.epoch))  # The same answer twice, or a newer one.
        case TakenBack() | None:
            return Step(phase, (RelinquishLocal(event.epoch, event.position),))  # Nobody here waits for it any more.
        case _:
            assert_never(phase)


def _refused(phase: Phase | None, event: Rejected) -> Step:
    match phase:
        case PendingNotify(is_cancelled=cancelled):
            return Step(None, () if cancelled else (TellRejected(event.reason, event.retry_after_ms),))
        case _:
            return Step(phase)


def _regranted(phase: Phase | None, event: Regranted) -> Step:
    match phase:
        case Active() | PendingClose() if event.epoch > phase.epoch:
            return Step(replace(phase, epoch=event.epoch))
        case PendingRelinquish() if event.epoch > phase.epoch:
            # The answer to the older one says nothing about this grant: it is given back as well.
            return Step(replace(phase, epoch=event.epoch), (RelinquishLocal(event.epoch, phase.position),))
        case _:
            return Step(phase)


def _barrier_completed(phase: Phase | None, event: BarrierCompleted) -> Step:
    if not isinstance(phase, Active | PendingClose) or event.epoch > phase.epoch or _is_before(event, phase):
        return Step(phase)
    effects: tuple[Effect, ...] = (TellAcked(event.position),) if event.position != phase.last_acked else ()
    phase = replace(phase, last_acked=event.position)
    if isinstance(phase, PendingClose) and event.barrier > phase.after and phase.last_acked == phase.last_seen:
        pending = PendingRelinquish(phase.epoch, phase.last_acked, tells_client=True)
        return Step(pending, (*effects, RelinquishLocal(phase.epoch, phase.last_acked)))
    return Step(phase, effects)


def _is_before(event: BarrierCompleted, phase: Active | PendingClose) -> bool:
    """Barriers may complete out of order: none takes back what another has reached."""
    return phase.last_acked is not None and (event.position is None or event.position < phase.last_acked)


def _relinquish_answered(phase: Phase | None, event: RelinquishAnswered) -> Step:
    if not isinstance(phase, PendingRelinquish) or event.epoch != phase.epoch:
        return Step(phase)
    if not phase.tells_client:
        return Step(None)
    if event.nack in (None, "already_inactive"):
        return Step(None, (TellClosed(phase.position),))
    # Somebody else has it: what we know of its position is no longer worth anything.
    return Step(TakenBack(), (TellRestart(event.nack or ""),))


def _lost(phase: Phase | None, event: StreamLost) -> Step:
    match phase:
        case Active() | PendingClose() if event.epoch >= phase.epoch:
            return Step(TakenBack(), (TellRestart(event.reason),))
        case PendingRelinquish() if event.epoch >= phase.epoch and phase.tells_client:
            return Step(TakenBack(), (TellRestart(event.reason),))
        case PendingRelinquish() if event.epoch >= phase.epoch:
            return Step(None)
        case _:
            return Step(phase)
