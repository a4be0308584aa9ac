"""A stream's row: who owns it, under which epoch, and where it stands.

The row is the only place where ownership lives. `owner` is a node's incarnation, or nobody. Every grant raises `epoch`,
so whoever acts under an older one can be recognised and changes nothing. An epoch belongs to one *run*: a restart or a
swap of versions acquires again (same owner, epoch + 1) before its run opens the sink.

Where a stream stands is (edits, n, position). `n` counts commits and never falls; `edits` counts operators' edits and
changes of source or sink. A transactional sink keeps the same three with the data, and may be ahead of the registry,
because a checkpoint follows a commit. `agree` says who is right when a run opens.

A command is applied to a locked row and answered with the row to save and a reply. `Fenced` and `Busy` change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias, assert_never
from uuid import UUID

Position: TypeAlias = Any
"""Any JSON value that names the last record handled, inclusive; None means "nothing yet"."""


@dataclass(frozen=True, slots=True)
class Held:
    """Where a stream stands, as kept by the registry and by a transactional sink."""

    edits: int = 0  # Operators' edits and changes of source or sink. The higher one wins.
    n: int = 0  # The number of the stream's commits. Never falls.
    position: Position = None


@dataclass(frozen=True, slots=True)
class Stream:
    """One row."""

    id: UUID
    owner: UUID | None = None
    run: UUID | None = None  # The run that the epoch belongs to.
    epoch: int = 0
    held: Held = Held()
    version: int | None = None  # Of the last run.
    source_identity: str | None = None  # Which data the position is a position in.
    sink_identity: str | None = None  # Where the last run wrote.


# Commands.


@dataclass(frozen=True, slots=True)
class Acquire:
    """Claim a free stream, or regrant one's own to a new run."""

    owner: UUID
    run: UUID
    version: int
    source_identity: str
    sink_identity: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The sink has everything up to here."""

    owner: UUID
    epoch: int
    n: int
    position: Position


@dataclass(frozen=True, slots=True)
class Release:
    """The last checkpoint of a run that has drained, and the end of its ownership."""

    owner: UUID
    epoch: int
    n: int
    position: Position


@dataclass(frozen=True, slots=True)
class Revoke:
    """Take the stream from an owner that is dead or does not let go. The position stays.

    `epoch`, if given, is the grant that is meant: a later one of the same owner is not touched.
    """

    owner: UUID
    epoch: int | None = None


Command: TypeAlias = Acquire | Checkpoint | Release | Revoke


# Replies.


@dataclass(frozen=True, slots=True)
class Granted:
    """The stream is yours under the row's epoch."""

    starts_anew: bool = False  # Another source identity: the old position is worth nothing.


@dataclass(frozen=True, slots=True)
class Done:
    """Saved, or already so."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Another node owns it."""

    owner: UUID


@dataclass(frozen=True, slots=True)
class Fenced:
    """Not yours any more: stop."""


@dataclass(frozen=True, slots=True)
class IdentityChanged:
    """A secret alone, or an older version, would make this another source; only a new version may do that."""


Reply: TypeAlias = Granted | Done | Busy | Fenced | IdentityChanged


@dataclass(frozen=True, slots=True)
class Step:
    """The row to save, and the answer."""

    stream: Stream
    reply: Reply


def step(stream: Stream, command: Command) -> Step:
    """Apply one command to a locked row."""
    match command:
        case Acquire():
            return _acquire(stream, command)
        case Checkpoint():
            return _checkpoint(stream, command)
        case Release():
            return _release(stream, command)
        case Revoke():
            return _revoke(stream, command)
        case _:
            assert_never(command)


def _acquire(stream: Stream, command: Acquire) -> Step:
    if stream.owner is not None and stream.owner != command.owner:
        return Step(stream, Busy(stream.owner))
    source_changed = stream.source_identity not in (None, command.source_identity)
    if source_changed and stream.version is not None and command.version <= stream.version:
        return Step(stream, IdentityChanged())
    sink_changed = stream.sink_identity not in (None, command.sink_identity)
    held = stream.held
    if source_changed:
        held = replace(held, position=None)
    if source_changed or sink_changed:
        held = replace(held, edits=held.edits + 1)
    granted = replace(
        stream,
        owner=command.owner,
        run=command.run,
        epoch=stream.epoch + 1,
        held=held,
        version=command.version,
        source_identity=command.source_identity,
        sink_identity=command.sink_identity,
    )
    return Step(granted, Granted(starts_anew=source_changed))


def _checkpoint(stream: Stream, command: Checkpoint) -> Step:
    if (stream.owner, stream.epoch) != (command.owner, command.epoch):
        return Step(stream, Fenced())
    if stream.held.n >= command.n:
        return Step(stream, Done())
    return Step(replace(stream, held=replace(stream.held, n=command.n, position=command.position)), Done())


def _release(stream: Stream, command: Release) -> Step:
    saved = _checkpoint(stream, Checkpoint(command.owner, command.epoch, command.n, command.position))
    if isinstance(saved.reply, Fenced):
        return saved
    return Step(replace(saved.stream, owner=None, run=None), Done())


def _revoke(stream: Stream, command: Revoke) -> Step:
    if stream.owner != command.owner or (command.epoch is not None and stream.epoch > command.epoch):
        return Step(stream, Done())
    return Step(replace(stream, owner=None, run=None, epoch=stream.epoch + 1), Done())


def agree(registry: Held, sink: Held | None) -> Held:
    """Where a run begins: the higher `edits` wins; if equal, the sink, since its position lies with the data."""
    if sink is None:
        return registry
    winner = registry if registry.edits > sink.edits else sink
    return replace(winner, n=max(registry.n, sink.n))
