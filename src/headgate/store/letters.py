"""Dead letters in the registry: kept, listed, asked for, and what became of them.

Where the sink keeps letters itself, what stands here is a copy, and the sink's word on the outcome counts. A payload is
encrypted under its own data key, as a secret is, and goes as soon as its letter is not open any more.

What people do to many letters is done in pieces, each a transaction with its event: no statement holds others up for
long, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from headgate.core.letters import Contents, Letter, LetterOutcome, pack
from headgate.core.push import PUSH
from headgate.core.streams import Checkpoint
from headgate.errors import Fenced, NotFound, Refused
from headgate.ids import as_id
from headgate.store.database import Database, Row, sql
from headgate.store.events import Event, append
from headgate.store.letter_rows import (
    OUTCOMES,
    Again,
    Filter,
    Heap,
    Kept,
    Numbers,
    Sealed,
    Stray,
    ToReplay,
    Waiting,
    bound_name,
    encrypt,
    insert,
    joined,
    kept,
    numbers,
    opened,
    seal,
    split,
    waiting,
)
from headgate.store.secrets import Keyring
from headgate.store.streams import checkpoint_one

__all__ = [
    "OUTCOMES",
    "Again",
    "Filter",
    "Heap",
    "Kept",
    "Known",
    "Letters",
    "Numbers",
    "Sealed",
    "Stray",
    "ToReplay",
    "Waiting",
    "seal",
]

KEEP_ROWS = timedelta(days=30)  # Of letters that are not open any more.
JUST_NOW = timedelta(seconds=3)  # Nodes look at least twice a second.
AT_ONCE = 1000  # Rows that one statement removes.
PIECE = 5000  # Letters that people ask for, or discard, in one transaction.
MOST_STREAMS = 1000  # That are named as having letters to replay.
READ_BYTES = 4 * 1024 * 1024  # Of payloads that are read together, unless one alone is larger,
READ_AT_ONCE = 200  # and how many.
NOT_LOOKED_AT = ""  # In place of a key: nobody knows yet which one wraps the sink's copy.
LEAST_ID = 6  # Characters of an id that is not given in full.


@dataclass(frozen=True, slots=True)
class Known:
    """What the registry knows of a letter that a sink keeps."""

    outcome: LetterOutcome
    is_elsewhere: bool = False  # Another sink says so, into which it was replayed.


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
            await insert(connection, stream, letters, in_sink=False)

    async def save_replayed(self, node: UUID, stream: UUID, ids: Sequence[UUID], checkpoint: Checkpoint) -> None:
        """Letters of such a sink were replayed."""
        async with self._database.transaction() as connection:
            if not await checkpoint_one(connection, node, stream, checkpoint):
                raise Fenced(f"epoch {checkpoint.epoch} is fenced: the replay was not noted")
            await connection.execute(sql("letters/resolve"), list(ids), "replayed", False)

    async def copy(self, stream: UUID, letters: Sequence[Letter]) -> None:
        """Keep copies of letters that the sink has."""
        async with self._database.transaction() as connection:
            await insert(connection, stream, letters, in_sink=True)

    async def known(self, stream: UUID) -> dict[UUID, Known]:
        """Of the letters that the sink of a stream keeps, those that have a copy here."""
        rows = await self._database.fetch(sql("letters/known"), stream)
        return {row["id"]: Known(row["outcome"], row["is_elsewhere"]) for row in rows}

    async def resolve(self, ids: Sequence[UUID], outcome: LetterOutcome, *, is_elsewhere: bool = False) -> None:
        """The sink says what became of these: the one that keeps them, or another."""
        await self._database.execute(sql("letters/resolve"), list(ids), outcome, is_elsewhere)

    async def reopen(self, stream: UUID, letters: Sequence[Letter]) -> list[UUID]:
        """The sink has these open, though it had said otherwise: it went back in time. Returns those that are open here
        again."""
        read = [(letter.id, msgspec.msgpack.decode(letter.content, type=Sealed)) for letter in letters]
        columns = [(id, one.key_id, one.payload, one.facts.size_bytes) for id, one in read]
        rows = await self._database.fetch(sql("letters/reopen"), stream, *map(list, zip(*columns, strict=True)))
        return [row["id"] for row in rows]

    async def to_rewrap(self, stream: UUID, limit: int) -> list[UUID]:
        """Letters whose copy in the sink is, or may be, wrapped by a key that only decrypts here."""
        rows = await self._database.fetch(sql("letters/to_rewrap"), stream, self._older_keys, limit)
        return [row["id"] for row in rows]

    async def rewrapped(self, keys: Mapping[UUID, str | None]) -> None:
        """Which master keys wrap the copies of these in their sink."""
        await self._database.execute(sql("letters/rewrapped"), list(keys), list(keys.values()))

    @property
    def _older_keys(self) -> list[str]:
        """The keys of copies in sinks that a run here should look at."""
        return [] if self.keyring is None else [NOT_LOOKED_AT, *self.keyring.others]

    async def tell(self, ids: Sequence[UUID]) -> None:
        """The sink is about to be told what became of these."""
        await self._database.execute(sql("letters/tell"), list(ids))

    async def asked(self, node: UUID) -> set[UUID]:
        """The streams of this node with letters that are to be replayed, were given up just now, or are to be rewrapped
        in their sink."""
        found = await self._database.fetch(sql("letters/asked"), node, JUST_NOW, self._older_keys)
        return {row["stream"] for row in found}

    async def to_replay(
        self, stream: UUID, limit: int, version: int | None = None
    ) -> tuple[list[ToReplay], list[Again]]:
        """The oldest letters of a stream that a run of this version is to replay; and those whose payload cannot be
        decrypted."""
        found: list[ToReplay] = []
        closed: list[Again] = []
        for row in await self._database.fetch(sql("letters/to_replay"), stream, limit, version):
            contents = opened(self.keyring, row)
            if contents is None:
                reason = "the payload cannot be decrypted: its master key is not here"
                closed.append(Again(row["id"], row["stage"], None, reason, "config", row["version"]))
            else:
                wish = row["with_version"], row["overwrites"]
                found.append(ToReplay(row["id"], contents, row["place"], row["key"], *wish))
        return found, closed

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

    async def strays(self) -> list[Stray]:
        """Pushed streams with letters to replay, which no program pushes now."""
        rows = await self._database.fetch(sql("letters/strays"), MOST_STREAMS)
        return [Stray(row["stream"], row["datasource"], row["label"]) for row in rows]

    # What people do.

    async def page(
        self, which: Filter, outcome: LetterOutcome | None, limit: int, after: tuple[datetime, UUID] | None = None
    ) -> list[Kept]:
        """The latest first."""
        last_at, last_id = after or (None, None)
        rows = await self._database.fetch(sql("letters/list"), *which.arguments(), outcome, last_at, last_id, limit)
        return [kept(row) for row in rows]

    async def find(self, id: str) -> Kept:
        """One by its id, or by the first characters of it."""
        return kept(await self._row(id))

    async def read(self, id: str) -> tuple[Kept, Contents | None]:
        """The same with the record; None if it is gone, because the letter is not open any more."""
        row = await self._row(id)
        found = kept(row)
        if row["payload"] is None:
            return found, None
        contents = opened(self.keyring, row)
        if contents is None:
            hint = "set the HEADGATE_MASTER_KEY of its time"
            raise Refused(f"letter {found.id} cannot be decrypted", code="no_master_key", hint=hint)
        return found, contents

    async def contents(self, letters: Sequence[Kept]) -> dict[UUID, Contents]:
        """The records of some of these letters: as many as fit into memory at a time. `pieces` cuts them so."""
        rows = await self._database.fetch(sql("letters/payloads"), [one.id for one in letters])
        found = {row["id"]: opened(self.keyring, row) for row in rows if row["payload"] is not None}
        return {id: contents for id, contents in found.items() if contents is not None}

    async def _row(self, id: str) -> Row:
        whole, digits = as_id(id), id.replace("-", "").lower()
        is_begun = LEAST_ID <= len(digits) <= 32 and set(digits) <= _HEX
        rows: list[Row] = []
        if whole is not None:
            rows = await self._database.fetch(sql("letters/find"), whole, whole)
        elif is_begun:
            first, last = (UUID(digits.ljust(32, digit)) for digit in "0f")
            rows = await self._database.fetch(sql("letters/find"), first, last)
        if not rows:
            raise NotFound(f"dead letter {id[:100]!r} does not exist", hint="headgate dlq list")
        if len(rows) > 1:
            raise Refused(f"dead letter {id!r} is ambiguous", code="ambiguous", hint="give more of its id")
        return rows[0]

    async def ask(
        self, which: Filter, version: int | None, *, overwrite: bool, any_key: bool, actor: str, name: str = ""
    ) -> int:
        """Have open letters replayed. Returns how many. Without `any_key`, those whose key is not known are left alone:
        they might overwrite newer rows."""
        wish = msgspec.json.encode({"version": version, "overwrite": overwrite, "actor": actor}).decode()
        done, last = 0, UUID(int=0)
        payload: dict[str, object] = {"overwrite": overwrite, **({} if version is None else {"version": version})}
        while True:
            async with self._database.transaction() as connection:
                rest = (wish, any_key or overwrite, last, PIECE)
                (row,) = await connection.fetch(sql("letters/ask"), *which.arguments(), *rest)
                await append(connection, _events(which, name, "letters_replay_asked", row["letters"], actor, payload))
            piece: int = row["letters"]
            done += piece
            if piece < PIECE:
                return done
            last = row["last"]

    async def discard(self, which: Filter, actor: str, name: str = "") -> int:
        """Open letters that nobody needs. Returns how many."""
        done, piece = 0, PIECE
        while piece == PIECE:
            async with self._database.transaction() as connection:
                piece = await connection.fetchval(sql("letters/discard"), *which.arguments(), actor, PIECE)
                await append(connection, _events(which, name, "letters_discarded", piece, actor))
            done += piece
        return done

    async def count(self, which: Filter) -> tuple[int, int]:
        """How many open letters there are, and how many of them whose key is not known."""
        row = await self._database.fetchrow(sql("letters/count"), *which.arguments())
        assert row is not None
        return row["all"], row["keyless"]

    async def heaps(self, which: Filter, limit: int) -> list[Heap]:
        """Open letters by datasource, stage, field, reason and version, the largest heaps first."""
        rows = await self._database.fetch(sql("letters/summary"), *which.arguments(), limit)
        return [Heap(**{name: row[name] for name in Heap.__slots__}) for row in rows]

    async def edit(self, letter: Kept, contents: Contents, actor: str, *, is_same_key: bool) -> None:
        """Another record in place of the one that was read. Its key counts as known only if it is the same as before:
        what was written under another one meanwhile, nobody has compared with this letter."""
        packed = pack(contents)
        sealed = (*encrypt(self.keyring, letter.id, packed), len(packed))
        async with self._database.transaction() as connection:
            if await connection.fetchval(sql("letters/replace_payload"), letter.id, *sealed, is_same_key) is None:
                hint = "look at it again once it has been replayed"
                raise Refused(f"letter {letter.id} is not open, or is about to be replayed", code="not_open", hint=hint)
            payload = {"letter": str(letter.id)}
            await append(connection, [Event(letter.datasource, letter.name, "letter_edited", payload, actor)])

    async def open_numbers(self) -> dict[UUID, int]:
        """How many are open, by datasource."""
        return {row["datasource"]: row["letters"] for row in await self._database.fetch(sql("letters/open"))}

    async def numbers(self, datasource: UUID) -> Numbers:
        """What became of the letters of a datasource, since it began."""
        (row,) = await self._database.fetch(sql("letters/numbers"), datasource)
        return numbers(row)

    async def waiting(self, datasource: UUID) -> list[Waiting]:
        """The streams of a datasource with letters to replay."""
        rows = await self._database.fetch(sql("letters/waiting"), datasource, PUSH, MOST_STREAMS)
        return [waiting(row) for row in rows]

    # Housekeeping.

    async def clean(self) -> bool:
        """Let some old letters expire, and forget some that have long not been open. Says whether there may be more."""
        expired = await self._database.fetchval(sql("letters/expire"), AT_ONCE)
        purged = await self._database.fetchval(sql("letters/purge"), KEEP_ROWS, AT_ONCE)
        return bool(AT_ONCE in (expired, purged))

    async def rotate(self) -> tuple[int, int]:
        """Wrap the data keys of all payloads with the current master key. Returns how many, and those no key fits."""
        keyring, done, stuck, last = self.keyring, 0, 0, UUID(int=0)
        if keyring is None:
            return 0, 0
        while rows := await self._database.fetch(sql("letters/read_sealed"), keyring.current, last):
            for row in rows:
                last = row["id"]
                wrapped, ciphertext = split(row["payload"])
                found = keyring.rewrap(bound_name(last), row["key_id"], wrapped)
                if found is None:
                    stuck += 1
                    continue
                data = joined(found[1], ciphertext)
                rewrapped = await self._database.fetchval(sql("letters/rewrap"), last, found[0], data, row["payload"])
                done += rewrapped is not None
        return done, stuck

    async def left_to_rewrap(self) -> int:
        """How many letters have a copy in their sink that the current master key does not wrap yet."""
        if self.keyring is None:
            return 0
        return int(await self._database.fetchval(sql("letters/left_to_rewrap"), self.keyring.current))


_HEX = frozenset("0123456789abcdef")


def pieces(letters: Sequence[Kept]) -> Iterator[Sequence[Kept]]:
    """These letters, cut so that the records of a piece fit into memory."""
    begin = size = 0
    for number, one in enumerate(letters):
        if number > begin and (size + one.size_bytes > READ_BYTES or number - begin == READ_AT_ONCE):
            yield letters[begin:number]
            begin, size = number, 0
        size += one.size_bytes
    if letters[begin:]:
        yield letters[begin:]


def _events(
    which: Filter, name: str, type: str, letters: int, actor: str, payload: Mapping[str, object] | None = None
) -> list[Event]:
    """Something was done to letters of one datasource: how many, and by whom."""
    assert which.datasources is not None
    (datasource,) = which.datasources
    return [Event(datasource, name or None, type, {"letters": letters, **(payload or {})}, actor)] if letters else []
