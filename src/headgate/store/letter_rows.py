"""Values of dead letters: what the table's rows become, which letters are meant, and how a record is sealed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, get_args
from uuid import UUID

import msgspec

from headgate.core.letters import Contents, Facts, Letter, LetterOutcome, pack, unpack
from headgate.ids import stream_name
from headgate.store.database import Row, Session, sql
from headgate.store.secrets import Keyring

OUTCOMES: tuple[LetterOutcome, ...] = get_args(LetterOutcome)


class Sealed(msgspec.Struct, frozen=True, array_like=True):
    """A letter as a sink keeps it: what it says, and the record, encrypted if there is a master key."""

    facts: Facts
    key_id: str | None
    payload: bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """A letter of the registry, without the record."""

    id: UUID
    datasource: UUID
    name: str  # The datasource's.
    stream: UUID
    stream_name: str
    place: str
    stage: str
    field: str | None
    reason: str
    cause: str
    version: int
    attempts: int
    first_at: datetime
    last_at: datetime
    size_bytes: int
    outcome: LetterOutcome
    outcome_at: datetime | None
    actor: str | None
    is_asked: bool  # Somebody wants to have it replayed, and that has not been done yet.
    has_key: bool


@dataclass(frozen=True, slots=True)
class ToReplay:
    """A letter that is to be replayed, with its record."""

    id: UUID
    contents: Contents
    place: str
    key: bytes | None
    version: int | None  # With this version's mapping; None: with the present one.
    overwrites: bool = False  # Also a row that may be newer.


@dataclass(frozen=True, slots=True)
class Again:
    """A letter that failed once more."""

    id: UUID
    stage: str
    field: str | None
    reason: str
    cause: str
    version: int


@dataclass(frozen=True, slots=True)
class Numbers:
    """What became of all dead letters of a datasource. All but `waiting` add up to the dead-lettered."""

    open: int = 0
    replayed: int = 0
    superseded: int = 0
    discarded: int = 0  # Those that `on_error: skip` discarded at once among them.
    expired: int = 0
    waiting: int = 0  # Those of the open ones that somebody wants to have replayed.


@dataclass(frozen=True, slots=True)
class Heap:
    """Open letters of one datasource that fail alike."""

    name: str  # The datasource's.
    stage: str
    field: str | None
    reason: str
    version: int
    letters: int
    waiting: int  # Those of them that somebody wants to have replayed.
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class Waiting:
    """A stream with letters that somebody wants to have replayed, and why that may have to wait."""

    stream: UUID
    name: str
    letters: int
    is_pushed: bool
    is_owned: bool  # A node runs it, or is about to.
    is_used: bool  # Its datasource still has a stream of this number, or programs still push it.
    is_quarantined: bool


@dataclass(frozen=True, slots=True)
class Stray:
    """A pushed stream with letters to replay, and no program that pushes it."""

    stream: UUID
    datasource: UUID
    label: str


@dataclass(frozen=True, slots=True)
class Filter:
    """Which letters."""

    datasources: Sequence[UUID] | None = None  # None: all; only to list them.
    stage: str | None = None
    field: str | None = None
    reason: str | None = None  # A part of it.
    version: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    ids: Sequence[UUID] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it leaves out no letter of its datasources."""
        narrow = (self.stage, self.field, self.reason, self.version, self.since, self.until, self.ids)
        return all(one is None for one in narrow)

    def arguments(self) -> tuple[object, ...]:
        """As the queries take them."""
        ids = None if self.ids is None else list(self.ids)
        datasources = None if self.datasources is None else list(self.datasources)
        return (datasources, self.stage, self.field, self.reason, self.version, self.since, self.until, ids)


# Sealing.


def seal(keyring: Keyring | None, id: UUID, facts: Facts, contents: Contents) -> bytes:
    """A letter's content. Without a master key the payload is as safe as the database is, like a webhook's inbox."""
    packed = pack(contents)
    facts = msgspec.structs.replace(facts, size_bytes=len(packed))
    return msgspec.msgpack.encode(Sealed(facts, *encrypt(keyring, id, packed)))


def dated(letter: Letter, at_s: float) -> Letter:
    """A letter of another time."""
    sealed = msgspec.msgpack.decode(letter.content, type=Sealed)
    facts = msgspec.structs.replace(sealed.facts, at_s=at_s)
    content = msgspec.msgpack.encode(msgspec.structs.replace(sealed, facts=facts))
    return replace(letter, content=content, remains=remains(content))


def remains(content: bytes) -> bytes:
    """What stays of a letter's content without its record."""
    facts = msgspec.msgpack.decode(content, type=Sealed).facts
    return msgspec.msgpack.encode(Sealed(facts, None, b""))


def encrypt(keyring: Keyring | None, id: UUID, packed: bytes) -> tuple[str | None, bytes]:
    """Which master key wraps, and what the table keeps of a record."""
    if keyring is None:
        return None, packed
    key_id, wrapped, ciphertext = keyring.seal_bytes(bound_name(id), packed)
    return key_id, joined(wrapped, ciphertext)


def opened(keyring: Keyring | None, row: Row) -> Contents | None:
    """The record; None if no key fits."""
    packed = row["payload"]
    if row["key_id"] is not None:
        wrapped, ciphertext = split(packed)
        packed = None
        if keyring is not None:
            packed = keyring.unseal_bytes(bound_name(row["id"]), row["key_id"], wrapped, ciphertext)
    return None if packed is None else unpack(packed)


def bound_name(id: UUID) -> str:
    """What binds a payload to its letter."""
    return f"dead letter {id}"


def joined(wrapped: bytes, ciphertext: bytes) -> bytes:
    """The wrapped data key, with what it encrypts."""
    return len(wrapped).to_bytes(2) + wrapped + ciphertext


def split(payload: bytes) -> tuple[bytes, bytes]:
    """The wrapped data key, and what it encrypts."""
    end = 2 + int.from_bytes(payload[:2])
    return payload[2:end], payload[end:]


def rewrapped(keyring: Keyring, letter: Letter) -> tuple[Letter | None, str | None]:
    """A letter of a sink with its data key under the current master key, and which key wraps it then. None: it needs no
    change, or no key fits."""
    sealed = msgspec.msgpack.decode(letter.content, type=Sealed)
    if sealed.key_id is None or sealed.key_id == keyring.current:
        return None, sealed.key_id
    wrapped, ciphertext = split(sealed.payload)
    found = keyring.rewrap(bound_name(letter.id), sealed.key_id, wrapped)
    if found is None:
        return None, sealed.key_id
    changed = Sealed(sealed.facts, found[0], joined(found[1], ciphertext))
    return replace(letter, content=msgspec.msgpack.encode(changed)), found[0]


# Rows.


async def insert(connection: Session, stream: UUID, letters: Sequence[Letter], *, in_sink: bool) -> None:
    """Keep letters of one stream."""
    if not letters:
        return
    read = [(letter, msgspec.msgpack.decode(letter.content, type=Sealed)) for letter in letters]
    await connection.execute(
        sql("letters/insert"),
        stream,
        in_sink,
        [letter.id for letter, _ in read],
        *_columns(one.facts for _, one in read),
        [letter.key for letter, _ in read],
        [one.facts.at_s for _, one in read],
        [one.facts.size_bytes for _, one in read],
        [one.key_id for _, one in read],
        [one.payload for _, one in read],
        [letter.outcome for letter, _ in read],
    )


def _columns(facts: Iterable[Facts]) -> list[list[object]]:
    rows = [(one.place, one.stage, one.field, one.reason, one.cause, one.version) for one in facts]
    return [list(column) for column in zip(*rows, strict=True)]


_MADE = ("stream_name", "is_asked", "has_key")  # From several columns.
_COLUMNS = [name for name in Kept.__slots__ if name not in _MADE]


def kept(row: Row) -> Kept:
    """A letter, without the record."""
    plain: Mapping[str, Any] = {name: row[name] for name in _COLUMNS}
    return Kept(
        **plain,
        stream_name=stream_name(row["name"], row["part"]),
        is_asked=row["replay"] is not None,
        has_key=row["key"] is not None,
    )


def numbers(row: Row) -> Numbers:
    """What became of the letters of a datasource."""
    return Numbers(**{name: int(row[name]) for name in Numbers.__slots__})


def waiting(row: Row) -> Waiting:
    """A stream with letters to replay."""
    name = stream_name(row["name"], row["part"])
    flags = [bool(row[flag]) for flag in ("is_pushed", "is_owned", "is_used", "is_quarantined")]
    return Waiting(row["stream"], name, row["letters"], *flags)
