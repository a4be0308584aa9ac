"""Bodies about dead letters."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, TypeAlias
from uuid import UUID

from msgspec import UNSET, Meta, UnsetType

from headgate.core.letters import LetterOutcome
from headgate.core.records import Stage
from headgate.web.bodies import Answer, Json, Request

MOST_IDS = 1000
MOST_TEXT = 500  # Characters of a field or a reason.

Outcomes: TypeAlias = LetterOutcome | Literal["all"]


class Letter(Answer):
    """A record that could not be read, mapped or written. Nothing here repeats a value of it."""

    id: UUID
    datasource: str
    stream: str
    place: str  # What the source calls it: an id, an offset, a line.
    stage: str  # source, mapping or sink.
    field: str | None
    reason: str
    cause: str
    version: int  # Of the datasource, which could not handle it.
    attempts: int
    first_at: datetime
    last_at: datetime
    size_bytes: int
    outcome: str  # open, replayed, superseded, discarded or expired.
    outcome_at: datetime | None
    actor: str | None  # Who asked for its replay, or discarded it.
    is_waiting: bool  # Somebody wants to have it replayed, and that has not been done yet.
    has_key: bool  # Without one, nobody knows whether a newer row of it has been written.


class LetterList(Answer):
    """Letters, the latest first."""

    items: list[Letter]
    after: str | None  # For the next ones; null: there are no more.


class LetterHeap(Answer):
    """Open letters of one datasource that fail alike."""

    datasource: str
    stage: str
    field: str | None
    reason: str
    version: int
    letters: int
    waiting: int  # Those of them that somebody wants to have replayed.
    first_at: datetime
    last_at: datetime


class LetterHeaps(Answer):
    """All heaps, the largest first."""

    items: list[LetterHeap]
    more: bool  # There are more than were asked for.


class LetterDetails(Letter):
    """A letter with its record, as long as it is open. What JSON cannot express is text."""

    is_kept: bool  # False: the record is gone, because the letter is not open any more.
    payload: Json = None  # As it was read. Null if it could not be decoded; then `base64` has its bytes.
    meta: Json = None
    mapped: Json = None  # Null if it did not get that far.
    base64: str | None = None  # The bytes of a payload that could not be decoded,
    text: str | None = None  # and as text, if that is what they are.


class LetterNumbers(Answer):
    """What became of all dead letters of a datasource. All but `waiting` add up to its dead-lettered records."""

    open: int = 0
    replayed: int = 0
    superseded: int = 0  # Their keys were written, or deleted, after them.
    discarded: int = 0  # Those that `on_error: skip` discarded at once among them.
    expired: int = 0
    waiting: int = 0  # Those of the open ones that somebody wants to have replayed.


class LetterState(LetterNumbers, kw_only=True):
    """The same, with what stands in the way of a replay."""

    datasource: str
    waits: str | None  # Why letters that are to be replayed are not replayed now.


class Which(Request):
    """Which letters of a datasource: those that fit all of what is given."""

    ids: Annotated[list[UUID], Meta(max_length=MOST_IDS)] | UnsetType = UNSET
    stage: Stage | UnsetType = UNSET
    field: Annotated[str, Meta(max_length=MOST_TEXT)] | UnsetType = UNSET
    reason: Annotated[str, Meta(max_length=MOST_TEXT)] | UnsetType = UNSET  # A part of it.
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | UnsetType = UNSET
    since: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET  # Of the last try.
    until: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET


class Replay(Which):
    """Have letters replayed."""

    with_version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | UnsetType = UNSET  # With the mapping of this version.
    overwrite: bool = False  # Also those that may be older than the row of their key.
    dry_run: bool = False  # Only say what would become of them.


class Discard(Which):
    """Letters that nobody needs."""

    all: bool = False  # Every open one, if nothing else says which.


class LeftAlone(Answer):
    """Letters that are not replayed."""

    letters: int
    reason: str


class TriedLetter(Answer):
    """What would become of a letter."""

    id: UUID
    place: str
    outcome: str  # written, filtered or dead_lettered.
    stage: str | None  # Of one that would fail again: where,
    field: str | None  # on which field,
    reason: str | None  # and why.


class DryRun(Answer):
    """What would become of letters. Nothing of it has happened."""

    version: int  # Whose mapping and sink were tried.
    is_rehearsed: bool  # The sink has tried to write them, and has taken it back.
    is_cut: bool  # There are more letters than are tried at once.
    written: int
    filtered: int
    dead_lettered: int
    letters: list[TriedLetter]
    trouble: str  # What kept it from its end; empty: nothing.


class Replaying(Answer):
    """What comes of a wish to have letters replayed."""

    datasource: str
    letters: int  # They are, or would be, replayed.
    left_alone: list[LeftAlone]
    waits: str | None  # Why not now; null: a run is about to.
    before: LetterNumbers  # What had become of all letters before.
    dry_run: DryRun | None = None  # If no more was asked for.


class Discarded(Answer):
    """How many letters were discarded."""

    datasource: str
    letters: int


class EditLetter(Request):
    """Another payload in place of the one that was read."""

    payload: Json
