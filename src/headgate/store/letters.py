"""Dead letters in the registry: kept, listed, asked for, and what became of them.

Where the sink keeps letters itself, what stands here is a copy, and the sink's word on the outcome counts. A payload is
encrypted under a data key of its own, as a secret is, and goes as soon as its letter is not open any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, get_args
from uuid import UUID

import msgspec

from headgate.core.letters import Contents, Facts, Letter, LetterOutcome, pack, unpack
from headgate.core.streams import Checkpoint
from headgate.errors import Fenced, NotFound, Refused
from headgate.ids import as_id, stream_name
from headgate.store.database import Database, Row, Session, sql
from headgate.store.secrets import Keyring
from headgate.store.streams import checkpoint_one

OUTCOMES: tuple[LetterOutcome, ...] = get_args(LetterOutcome)
KEEP_ROWS = timedelta(days=30)  # Of letters that are not open any more.
AT_ONCE = 1000  # Rows that one statement removes.
LEAST_ID = 6  # Characters of an id that is not given in full.


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

    def arguments(self) -> tuple[object, ...]:
        """As the queries take them."""
        ids = None if self.ids is None else list(self.ids)
        datasources = None if self.datasources is None else list(self.datasources)
        return (datasources, self.stage, self.field, self.reason, self.version, self.since, self.until, ids)


def seal(keyring: Keyring | None, id: UUID, facts: Facts, contents: Contents) -> bytes:
    """A letter's content. Without a master key the payload is as safe as the database is, like a webhook's inbox."""
    packed = pack(contents)
    facts = msgspec.structs.replace(facts, size_bytes=len(packed))
    key_id, payload = (None, packed) if keyring is None else _encrypt(keyring, id, packed)
    return msgspec.msgpack.encode(Sealed(facts, key_id, payload))


def _encrypt(keyring: Keyring, id: UUID, packed: bytes) -> tuple[str, bytes]:
    key_id, wrapped, ciphertext = keyring.seal_bytes(_name(id), packed)
    return key_id, len(wrapped).to_bytes(2) + wrapped + ciphertext


def _name(id: UUID) -> str:
    """What binds a payload to its letter."""
    return f"dead letter {id}"


class Letters:
    """All dead letters of the installation."""

    def __init__(self, database: Database, keyring: Keyring | None) -> None:
        self._database = database
        self.keyring = keyring

    # What runs need.

    async def save(self, node: UUID, stream: UUID, letters: Sequence[Letter], checkpoint: Checkpoint) -> None:
        """Keep letters of a sink that keeps none, with the position that passes them, in one transaction."""
        async with self._database.transaction() as connection:
            if not await checkpoint_one(connection, node, stream, checkpoint):
                raise Fenced(f"epoch {checkpoint.epoch} is fenced: the letters were not kept")
            await _insert(connection, stream, letters, in_sink=False)

    async def save_replayed(self, node: UUID, stream: UUID, ids: Sequence[UUID], checkpoint: Checkpoint) -> None:
        """Letters of such a sink were replayed."""
        async with self._database.transaction() as connection:
            if not await checkpoint_one(connection, node, stream, checkpoint):
                raise Fenced(f"epoch {checkpoint.epoch} is fenced: the replay was not noted")
            await connection.execute(sql("letters/resolve"), list(ids), "replayed")

    async def copy(self, stream: UUID, letters: Sequence[Letter]) -> None:
        """Keep copies of letters that the sink has."""
        async with self._database.transaction() as connection:
            await _insert(connection, stream, letters, in_sink=True)

    async def known(self, stream: UUID) -> dict[UUID, LetterOutcome]:
        """Of the letters that the sink of a stream keeps, those that have a copy here."""
        return {row["id"]: row["outcome"] for row in await self._database.fetch(sql("letters/known"), stream)}

    async def resolve(self, ids: Sequence[UUID], outcome: LetterOutcome) -> None:
        """The sink says what became of these."""
        await self._database.execute(sql("letters/resolve"), list(ids), outcome)

    async def asked(self, node: UUID) -> set[UUID]:
        """The streams of this node with letters that are to be replayed."""
        return {row["stream"] for row in await self._database.fetch(sql("letters/asked"), node)}

    async def to_replay(self, stream: UUID, limit: int) -> tuple[list[ToReplay], list[Again]]:
        """The oldest letters of a stream that are to be replayed; and those whose payload cannot be decrypted."""
        found: list[ToReplay] = []
        closed: list[Again] = []
        for row in await self._database.fetch(sql("letters/to_replay"), stream, limit):
            contents = self._open(row)
            if contents is None:
                reason = "the payload cannot be decrypted: its master key is not here"
                closed.append(Again(row["id"], row["stage"], None, reason, "config", row["version"]))
            else:
                found.append(ToReplay(row["id"], contents, row["place"], row["key"], row["with_version"]))
        return found, closed

    async def older(self, datasource: UUID, ids: Sequence[UUID]) -> list[UUID]:
        """Open letters with the key of one of these, and older than it."""
        rows = await self._database.fetch(sql("letters/older"), datasource, list(ids)) if ids else []
        return [row["id"] for row in rows]

    async def failed_again(self, letters: Sequence[Again]) -> None:
        """These stay open, with another reason, and are not tried again until somebody asks."""
        await self._database.execute(
            sql("letters/failed_again"),
            [one.id for one in letters],
            [one.stage for one in letters],
            [one.field for one in letters],
            [one.reason for one in letters],
            [one.cause for one in letters],
            [one.version for one in letters],
        )

    # What people do.

    async def page(
        self, which: Filter, outcome: LetterOutcome | None, limit: int, after: tuple[datetime, UUID] | None = None
    ) -> list[Kept]:
        """The latest first."""
        last_at, last_id = after or (None, None)
        rows = await self._database.fetch(sql("letters/list"), *which.arguments(), outcome, last_at, last_id, limit)
        return [_kept(row) for row in rows]

    async def find(self, id: str) -> Kept:
        """One by its id, or by the first characters of it."""
        return _kept(await self._row(id))

    async def read(self, id: str) -> tuple[Kept, Contents | None]:
        """The same with the record; None if it is gone, because the letter is not open any more."""
        row = await self._row(id)
        kept = _kept(row)
        if row["payload"] is None:
            return kept, None
        contents = self._open(row)
        if contents is None:
            raise Refused(
                f"letter {kept.id} cannot be decrypted", code="no_key", hint="set the HEADGATE_MASTER_KEY of its time"
            )
        return kept, contents

    async def _row(self, id: str) -> Row:
        whole = as_id(id)
        if whole is not None:
            rows = await self._database.fetch(sql("letters/find"), whole)
        elif len(id) >= LEAST_ID and id.replace("-", "").isalnum():
            rows = await self._database.fetch(sql("letters/find_prefix"), id.lower())
        else:
            rows = []
        if not rows:
            raise NotFound(f"dead letter {id!r} does not exist", hint="headgate dlq list")
        if len(rows) > 1:
            raise Refused(f"dead letter {id!r} is ambiguous", code="ambiguous", hint="give more of its id")
        return rows[0]

    async def ask(
        self, which: Filter, version: int | None, *, overwrite: bool, any_key: bool, actor: str
    ) -> list[UUID]:
        """Have open letters replayed. Returns the stream of each. Without `any_key`, those whose key is not known are
        left alone: they might overwrite newer rows."""
        wish = msgspec.json.encode({"version": version, "overwrite": overwrite, "actor": actor}).decode()
        rows = await self._database.fetch(sql("letters/ask"), *which.arguments(), wish, any_key or overwrite)
        return [row["stream"] for row in rows]

    async def discard(self, which: Filter, actor: str) -> int:
        """Open letters that nobody needs. Returns how many."""
        return len(await self._database.fetch(sql("letters/discard"), *which.arguments(), actor))

    async def count(self, which: Filter) -> tuple[int, int]:
        """How many open letters there are, and how many of them whose key is not known."""
        row = await self._database.fetchrow(sql("letters/count"), *which.arguments())
        assert row is not None
        return row["all"], row["keyless"]

    async def edit(self, id: UUID, payload: Any, meta: Any, key: bytes | None) -> None:
        """Another payload in place of the one that was read."""
        packed = pack(Contents(payload, meta, None))
        key_id, data = (None, packed) if self.keyring is None else _encrypt(self.keyring, id, packed)
        if await self._database.fetchval(sql("letters/replace_payload"), id, key_id, data, len(packed), key) is None:
            raise Refused(f"letter {id} is not open any more", code="not_open")

    async def numbers(self, datasource: UUID | None = None) -> dict[UUID, dict[LetterOutcome, int]]:
        """How many letters of each datasource had which outcome, for ever."""
        found: dict[UUID, dict[LetterOutcome, int]] = {}
        for row in await self._database.fetch(sql("letters/numbers"), datasource):
            found.setdefault(row["datasource"], dict.fromkeys(OUTCOMES, 0))[row["outcome"]] = row["letters"]
        return found

    # Housekeeping.

    async def clean(self) -> None:
        """Let old letters expire, and forget those that have long not been open."""
        await self._database.execute(sql("letters/expire"), AT_ONCE)
        await self._database.execute(sql("letters/purge"), KEEP_ROWS, AT_ONCE)

    async def rotate(self) -> int:
        """Wrap the data keys of all payloads with the current master key."""
        keyring, done, last = self.keyring, 0, UUID(int=0)
        if keyring is None:
            return 0
        while rows := await self._database.fetch(sql("letters/read_sealed"), keyring.current, last):
            for row in rows:
                last = row["id"]
                wrapped, ciphertext = _split(row["payload"])
                found = keyring.rewrap(_name(last), row["key_id"], wrapped)
                if found is not None:
                    data = len(found[1]).to_bytes(2) + found[1] + ciphertext
                    await self._database.execute(sql("letters/rewrap"), last, found[0], data)
                    done += 1
        return done

    def _open(self, row: Row) -> Contents | None:
        """The record; None if no key fits."""
        packed = row["payload"]
        if row["key_id"] is not None:
            packed = None
            if self.keyring is not None:
                packed = self.keyring.unseal_bytes(_name(row["id"]), row["key_id"], *_split(row["payload"]))
        return None if packed is None else unpack(packed)


def _split(payload: bytes) -> tuple[bytes, bytes]:
    """The wrapped data key, and what it encrypts."""
    end = 2 + int.from_bytes(payload[:2])
    return payload[2:end], payload[end:]


async def _insert(connection: Session, stream: UUID, letters: Sequence[Letter], *, in_sink: bool) -> None:
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


def _kept(row: Row) -> Kept:
    plain: Mapping[str, Any] = {name: row[name] for name in _COLUMNS}
    return Kept(
        **plain,
        stream_name=stream_name(row["name"], row["part"]),
        is_asked=row["replay"] is not None,
        has_key=row["key"] is not None,
    )
