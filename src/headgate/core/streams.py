"""The global registry: a stream's row says who owns it, under which epoch, and where it stands.

The row is the only place where ownership lives. `owner` is a node's incarnation, or nobody. Every grant raises `epoch`,
so a run that acts under an older one is recognised and changes nothing. An epoch belongs to one *run*: a restart or a
swap of versions acquires again (same owner, epoch + 1) before its run opens the sink.

The tick *grants* a worker stream to a node, and that node acquires it for its first run. A stream that a program pushes
is *claimed*: the node of its session acquires it while nobody has it.

Where a stream stands is its progress: (generation, commits, position). `commits` never falls; `generation` rises with
each operator's edit and each change of source or sink. A transactional sink keeps the same three with the data, and may
be ahead of the registry, because a checkpoint follows a commit. `agree` says who is right when a run opens. A stream is
*settled* when the two are known to be the same: nobody has written since a run ended that knew what became of its last
write. Only settled streams are *dealt*: the parts of the source that they read are shared out again (`core.parts`).

A command is applied to a locked row and answered with the row to save and a reply. `Fenced` and `Busy` change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, assert_never
from uuid import UUID

import msgspec

from headgate.core.identity import UNMARKED, Marks, compare, kept
from headgate.core.lineage import next_generation
from headgate.core.records import NOTHING, Totals
from headgate.errors import Refused

Position: TypeAlias = Any
"""Any JSON value that names the last record handled, inclusive; None means "nothing yet"."""

Outcome: TypeAlias = Literal["stopped", "finished", "unable"]
"""How a run came to its end: it was told to, its source has no more, or this node cannot run it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a stream stands, as kept by the registry and by a transactional sink."""

    generation: int = 0  # Rises with an operator's edit, and with another source or sink. The higher one wins.
    commits: int = 0  # The number of the stream's commits. Never falls.
    position: Position = None
    totals: Totals = NOTHING  # They follow the higher number of commits, not the position.


class Stream(msgspec.Struct, frozen=True):
    """One row. There may be a hundred thousand of them: a struct is made ten times as fast as a dataclass."""

    id: UUID
    owner: UUID | None = None
    run: UUID | None = None  # The run that the epoch belongs to.
    epoch: int = 0
    progress: Progress = Progress()
    version: int | None = None  # Of the last run.
    source_identity: str | None = None  # Which data the position is a position in.
    sink_identity: str | None = None  # Where the last run wrote.
    rests: str | None = None  # The key of what was wanted when its source came to an end: nothing is left to do.
    settled: bool = True  # The position is the sink's own.
    transactional: bool = False  # The sink of the last run refuses older epochs.
    source_mark: str | None = None  # What the data are known by if their name changes (`core.identity`).
    sink_mark: str | None = None


# Commands.


@dataclass(frozen=True, slots=True)
class Grant:
    """Give a free stream to this node, which acquires it for its first run."""

    owner: UUID


@dataclass(frozen=True, slots=True)
class Acquire:
    """Regrant one's own stream to a new run; or, with `claims`, take one that nobody has."""

    owner: UUID
    run: UUID
    version: int
    source_identity: str
    sink_identity: str
    claims: bool = False
    transactional: bool = False  # The sink keeps the position with the data, and refuses older epochs.
    source_marks: Marks = UNMARKED
    sink_marks: Marks = UNMARKED


@dataclass(frozen=True, slots=True)
class Mark:
    """The systems have said by which marks they can be known. None: this one has not."""

    owner: UUID
    epoch: int
    source: str | None = None
    sink: str | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The sink has everything up to here."""

    owner: UUID
    epoch: int
    commits: int
    position: Position
    totals: Totals = NOTHING


@dataclass(frozen=True, slots=True)
class Release:
    """The last checkpoint of a run that has drained, and the end of its ownership.

    `outcome` says why, and `wanted_key` what was wanted then: a finished stream rests until another key is wanted. A
    node that is unable gets it again only under another key, or when nobody else can have it.
    """

    owner: UUID
    epoch: int
    commits: int
    position: Position
    outcome: Outcome = "stopped"
    wanted_key: str = ""
    reason: str = ""  # Why it is unable.
    hands_over: bool = False  # It goes on elsewhere: the next is granted it in the same transaction.
    is_settled: bool = False  # The sink has this position, and nothing that follows it.
    totals: Totals = NOTHING


@dataclass(frozen=True, slots=True)
class Revoke:
    """Take the stream from an owner that is dead or does not let go. The position stays.

    `epoch`, if given, names the grant to revoke: a later one of the same owner is not touched.
    """

    owner: UUID
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Take the stream from an owner that was ended before its lease was over, and may still be at work.

    If it is, a transactional sink refuses what it writes, and where no run has begun there is nothing to refuse. In any
    other sink nothing but the owner's own trust stops it, so the stream waits until that has certainly ended.
    """

    owner: UUID


@dataclass(frozen=True, slots=True)
class Edit:
    """An operator says where the stream stands. Refused while somebody has it."""

    position: Position


@dataclass(frozen=True, slots=True)
class Deal:
    """The stream gets another share of the source's parts. Refused while somebody has the stream."""

    position: Position
    version: int | None = None  # The newest that any stream of the datasource has run,
    source_identity: str | None = None  # and what it reads: the same for all of them.
    source_mark: str | None = None


Command: TypeAlias = Grant | Acquire | Mark | Checkpoint | Release | Revoke | TakeOver | Edit | Deal


# Replies.


@dataclass(frozen=True, slots=True)
class Granted:
    """The stream is yours under the row's epoch."""

    resets_position: bool = False  # Another source identity: the old position is worth nothing.


@dataclass(frozen=True, slots=True)
class Done:
    """Saved, or already so."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Another node owns it; or nobody does (None), and it has to be granted first."""

    owner: UUID | None


Why: TypeAlias = Literal["already_inactive", "stale", "owned_by_other"]


@dataclass(frozen=True, slots=True)
class Fenced:
    """No longer yours: stop. `already_inactive`: your own release was carried out; its answer may have been lost."""

    why: Why = "stale"


@dataclass(frozen=True, slots=True)
class IdentityChanged:
    """A secret alone, or an older version, would make this another source; only a new version may do that."""


@dataclass(frozen=True, slots=True)
class IdentityUnclear:
    """A name is another, and whether the data are, only their marks can tell: ask for those, and acquire again."""


Reply: TypeAlias = Granted | Done | Busy | Fenced | IdentityChanged | IdentityUnclear


class Step(msgspec.Struct, frozen=True):
    """The row to save, and the answer."""

    stream: Stream
    reply: Reply


def step(stream: Stream, command: Command) -> Step:
    """Apply one command to a locked row."""
    match command:
        case Grant():
            return _grant(stream, command)
        case Acquire():
            return _acquire(stream, command)
        case Mark():
            return _mark(stream, command)
        case Checkpoint():
            return _checkpoint(stream, command)
        case Release():
            return _release(stream, command)
        case Revoke():
            return _revoke(stream, command)
        case TakeOver(owner=owner):
            return _take_over(stream, owner)
        case Edit():
            return _edit(stream, command)
        case Deal():
            return _deal(stream, command)
        case _:
            assert_never(command)


def _grant(stream: Stream, command: Grant) -> Step:
    if stream.owner is not None:
        return Step(stream, Busy(stream.owner))
    return Step(_moved(stream, command.owner, stream.epoch + 1, stream.progress), Granted())


def _acquire(stream: Stream, command: Acquire) -> Step:
    if stream.owner != command.owner and (stream.owner is not None or not command.claims):
        return Step(stream, Busy(stream.owner))
    source = compare(stream.source_identity, stream.source_mark, command.source_identity, command.source_marks)
    sink = compare(stream.sink_identity, stream.sink_mark, command.sink_identity, command.sink_marks)
    if "unclear" in (source, sink):
        return Step(stream, IdentityUnclear())
    source_changed, sink_changed = source == "other", sink == "other"
    if source_changed and stream.version is not None and command.version <= stream.version:
        return Step(stream, IdentityChanged())
    progress = stream.progress
    if source_changed:
        progress = replace(progress, position=None)
    if source_changed or sink_changed:
        progress = replace(progress, generation=next_generation(progress.generation, stream.epoch))
    epoch, identities = stream.epoch + 1, (command.source_identity, command.sink_identity)
    granted = Stream(
        stream.id,
        command.owner,
        command.run,
        epoch,
        progress,
        command.version,
        *identities,
        settled=False,
        transactional=command.transactional,
        source_mark=kept(source, stream.source_mark, command.source_marks),
        sink_mark=kept(sink, stream.sink_mark, command.sink_marks),
    )
    return Step(granted, Granted(resets_position=source_changed))


def _mark(stream: Stream, command: Mark) -> Step:
    if (stream.owner, stream.epoch) != (command.owner, command.epoch):
        return Step(stream, Fenced(_why(stream, command.owner, command.epoch)))
    marks = command.source or stream.source_mark, command.sink or stream.sink_mark
    if marks == (stream.source_mark, stream.sink_mark):
        return Step(stream, Done())
    return Step(msgspec.structs.replace(stream, source_mark=marks[0], sink_mark=marks[1]), Done())


def _checkpoint(stream: Stream, command: Checkpoint) -> Step:
    if (stream.owner, stream.epoch) != (command.owner, command.epoch):
        return Step(stream, Fenced(_why(stream, command.owner, command.epoch)))
    if stream.progress.commits >= command.commits:
        return Step(stream, Done())
    progress = Progress(stream.progress.generation, command.commits, command.position, command.totals)
    return Step(_moved(stream, stream.owner, stream.epoch, progress, stream.run), Done())


def _release(stream: Stream, command: Release) -> Step:
    saved = _checkpoint(
        stream, Checkpoint(command.owner, command.epoch, command.commits, command.position, command.totals)
    )
    if isinstance(saved.reply, Fenced):
        return saved
    rests = command.wanted_key if command.outcome == "finished" else None
    progress = saved.stream.progress
    if stream.run is None:  # No run began, so nothing was written.
        return Step(_moved(stream, None, stream.epoch, progress, rests=rests), Done())
    if command.is_settled and command.commits == progress.commits and command.position != progress.position:
        progress = replace(progress, position=command.position)  # The sink was right when the run opened it.
    return Step(_moved(stream, None, stream.epoch, progress, rests=rests, settled=command.is_settled), Done())


def _why(stream: Stream, owner: UUID, epoch: int) -> Why:
    """Who was revoked, or whose stream was granted again, finds a higher epoch; who released it does not."""
    if stream.owner is None and stream.epoch == epoch:
        return "already_inactive"
    return "stale" if stream.owner in (None, owner) else "owned_by_other"


def _revoke(stream: Stream, command: Revoke) -> Step:
    if stream.owner != command.owner or (command.epoch is not None and stream.epoch > command.epoch):
        return Step(stream, Done())
    return Step(_moved(stream, None, stream.epoch + 1, stream.progress), Done())


def _take_over(stream: Stream, owner: UUID) -> Step:
    if stream.owner == owner and stream.run is not None and not stream.transactional:
        return Step(stream, Busy(owner))
    return _revoke(stream, Revoke(owner))


def _edit(stream: Stream, command: Edit) -> Step:
    """One more edit outranks a sink that is ahead; one more epoch fences a run that may still be at work."""
    if stream.owner is not None:
        return Step(stream, Busy(stream.owner))
    generation = next_generation(stream.progress.generation, stream.epoch)
    progress = replace(stream.progress, generation=generation, position=command.position)
    return Step(_moved(stream, None, stream.epoch + 1, progress), Done())


def _deal(stream: Stream, command: Deal) -> Step:
    """Like an edit: whatever the sink and an old run still have no longer counts."""
    if stream.owner is not None:
        return Step(stream, Busy(stream.owner))
    generation = next_generation(stream.progress.generation, stream.epoch)
    progress = replace(stream.progress, generation=generation, position=command.position)
    dealt = Stream(
        stream.id,
        epoch=stream.epoch + 1,
        progress=progress,
        version=command.version,
        source_identity=command.source_identity,
        sink_identity=stream.sink_identity,
        transactional=stream.transactional,
        source_mark=command.source_mark,
        sink_mark=stream.sink_mark,
    )
    return Step(dealt, Done())


def _moved(
    stream: Stream,
    owner: UUID | None,
    epoch: int,
    progress: Progress,
    run: UUID | None = None,
    rests: str | None = None,
    settled: bool | None = None,
) -> Stream:
    """The row with another owner, epoch or position."""
    return Stream(
        stream.id,
        owner,
        run,
        epoch,
        progress,
        stream.version,
        stream.source_identity,
        stream.sink_identity,
        rests,
        stream.settled if settled is None else settled,
        stream.transactional,
        stream.source_mark,
        stream.sink_mark,
    )


_BEHIND = "the sink stands at generation {}, and the registry, which was set back, at {}: say where to go on"


def agree(registry: Progress, sink: Progress | None) -> Progress:
    """Where a run begins: the higher `generation` wins; if equal, the sink, whose position is kept with the data. The
    totals are those of the higher number of commits, unless it is a sink's that has kept none.

    A generation rises in the registry first. A sink with a higher one was written by a registry that this one was set
    back from (`core.lineage`), after an edit, or under another source or deal of its parts: then nobody but a person
    can say what its position means.
    """
    if sink is None:
        return registry
    if sink.generation > registry.generation:
        raise Refused(_BEHIND.format(sink.generation, registry.generation), code="behind")
    winner = registry if registry.generation > sink.generation else sink
    counted = registry if registry.commits > sink.commits or sink.totals == NOTHING else sink
    return replace(winner, commits=max(registry.commits, sink.commits), totals=counted.totals)
