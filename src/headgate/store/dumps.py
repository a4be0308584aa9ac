"""Dumps as a whole: what each is, what is wanted of it, which process runs it, and how far its tables are planned.

Only the process that runs a dump writes its plan: the dump's row names the owner and an epoch, and a plan under an
older epoch changes nothing. All of this is the memory of a dump, not its truth: that is the ledger of the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from headgate.core.chunks.left import Left
from headgate.core.chunks.locks import Chunk
from headgate.core.chunks.offsets import FIRST_ROWS, Offsets
from headgate.core.chunks.outcome import DumpWanted, Status, TableState
from headgate.errors import NotFound, Refused
from headgate.store.database import Database, Row, sql
from headgate.store.dump_chunks import Chunks
from headgate.store.dump_rows import (
    DumpRow,
    DumpState,
    NewDump,
    OpenDump,
    Pace,
    TableRow,
    Urls,
    as_json,
    bound_json,
    bound_of,
)
from headgate.store.secrets import Keyring

OWNER = timedelta(seconds=10)  # How long a dump whose process is silent stays that process's.
MOST = 1000  # Rows of a list.


class Dumps:
    """Make dumps, find them, run them, plan them."""

    def __init__(self, database: Database, keyring: Keyring | None = None) -> None:
        self.chunks = Chunks(database)
        self._database = database
        self._keyring = keyring

    # Whole dumps.

    async def create(self, new: NewDump) -> None:
        """Write a new dump and its tables."""
        sealed = self._keyring.seal(str(new.id), as_json(new.urls)) if self._keyring else (None, None, None)
        async with self._database.transaction() as connection:
            await connection.execute(
                sql("dumps/insert"),
                new.id,
                new.source,
                new.target,
                *sealed,
                as_json(new.options),
                new.datasource,
                new.rate,
                new.place,
                new.spread,
                new.actor,
            )
            await connection.execute(
                sql("dumps/insert_tables"),
                new.id,
                list(range(len(new.tables))),
                [name for name, _, _ in new.tables],
                [target for _, target, _ in new.tables],
                [as_json(job) for _, _, job in new.tables],
                new.rows or FIRST_ROWS,
                new.rows is not None,
            )

    async def all(self, most: int = MOST) -> list[DumpRow]:
        """All dumps, newest first."""
        return [_dump(row) for row in await self._database.fetch(sql("dumps/list"), None, most)]

    async def find(self, id: str) -> DumpRow:
        """One dump, by its id or the beginning of it."""
        rows = await self._database.fetch(sql("dumps/list"), id.lower(), 2) if _is_id(id) else []
        if not rows:
            raise NotFound(f"dump {id!r} does not exist", hint="headgate dumps list")
        if len(rows) > 1:
            raise Refused(
                f"dump {id!r} is ambiguous: several begin with it", code="ambiguous", hint="write more of the id"
            )
        return _dump(rows[0])

    async def urls(self, dump: UUID) -> Urls | None:
        """The URLs with their passwords. None: they were not kept, or no key decrypts them."""
        row = await self._database.fetchrow(sql("dumps/read_urls"), dump)
        if row is None or row["ciphertext"] is None or self._keyring is None:
            return None
        text = self._keyring.unseal(str(dump), row["key_id"], row["wrapped"], row["ciphertext"])
        return None if text is None else msgspec.json.decode(text, type=Urls)

    async def unfinished(self, target: str, tables: Sequence[str]) -> list[UUID]:
        """Dumps into these tables that have begun and not finished."""
        rows = await self._database.fetch(sql("dumps/unfinished"), target, list(tables))
        return [row["id"] for row in rows]

    async def set_wanted(self, dump: UUID, wanted: DumpWanted) -> None:
        """Run, pause or cancel."""
        await self._database.execute(sql("dumps/set_wanted"), dump, wanted)

    async def set_rate(self, dump: UUID, rate: str | None) -> None:
        """How fast it may go."""
        await self._database.execute(sql("dumps/set_rate"), dump, rate)

    async def set_status(self, dump: UUID, status: Status, error: str = "") -> None:
        """How it ended, or that it runs again."""
        await self._database.execute(sql("dumps/set_status"), dump, status, error)

    async def set_left(self, dump: UUID, left: Sequence[Left]) -> None:
        """What the target does not have."""
        await self._database.execute(sql("dumps/set_left"), dump, as_json(left))

    async def set_lists(self, dump: UUID, lists: Mapping[int, Sequence[int]] | None) -> None:
        """The chunks that the next run is for, by table; of tables that are not named, none. None: all chunks."""
        numbers = None if lists is None else list(lists)
        texts = [as_json(list(lists[number])) for number in lists] if lists else []
        await self._database.execute(sql("dumps/set_lists"), dump, numbers, texts)

    async def delete(self, dump: UUID) -> bool:
        """Forget one that is over, and its history. False: it is not over."""
        return await self._database.fetchval(sql("dumps/delete"), dump) is not None

    async def state(self, dump: UUID) -> DumpState | None:
        """What is wanted of it now. None: it was deleted."""
        row = await self._database.fetchrow(sql("dumps/read_state"), dump)
        return None if row is None else _state(row)

    async def to_run(self) -> list[OpenDump]:
        """Dumps that nodes should work on."""
        return [OpenDump(**row) for row in await self._database.fetch(sql("dumps/open"))]

    async def figures(self) -> dict[str, int]:
        """How many dumps there are of each status."""
        return {row["status"]: row["dumps"] for row in await self._database.fetch(sql("dumps/figures"))}

    async def totals(self) -> dict[str, int]:
        """Rows and bytes that all dumps together have copied, including those that were deleted."""
        (row,) = await self._database.fetch(sql("dumps/totals"))
        return dict(row)

    async def pace(self, dump: UUID) -> Pace:
        """Rows and bytes copied lately, and in how many seconds."""
        (row,) = await self._database.fetch(sql("dumps/pace"), dump)
        return Pace(**row)

    # The process that runs it.

    async def claim(self, dump: UUID, owner: UUID, process: str, dead: str | None = None) -> int | None:
        """Run it from now on. Returns the epoch. None: another process runs it."""
        found: int | None = await self._database.fetchval(sql("dumps/claim"), dump, owner, process, OWNER, dead)
        return found

    async def renew(self, dump: UUID, owner: UUID, epoch: int) -> DumpState | None:
        """Go on running it; what is wanted of it. None: another process runs it now."""
        row = await self._database.fetchrow(sql("dumps/renew"), dump, owner, epoch, OWNER)
        return None if row is None else _state(row)

    async def release(self, dump: UUID, owner: UUID) -> None:
        """Run it no longer."""
        await self._database.execute(sql("dumps/release"), dump, owner)

    async def set_snapshot(self, dump: UUID, snapshot: str, *, fuzzy: bool) -> None:
        """The snapshot that it reads ("": the source has none), and whether it has read another before."""
        await self._database.execute(sql("dumps/set_snapshot"), dump, snapshot, fuzzy)

    # The plan.

    async def tables(self, dump: UUID) -> list[TableRow]:
        """Its tables, with what is done of each."""
        return [_table(row) for row in await self._database.fetch(sql("dumps/tables"), dump)]

    async def set_table(self, dump: UUID, number: int, state: TableState, job: object, error: str = "") -> None:
        """A table's state. How far it is planned stays as it is."""
        await self._database.execute(sql("dumps/set_table"), dump, number, state, as_json(job), error)

    async def set_offsets(self, dump: UUID, number: int, offsets: Offsets) -> None:
        """How far a table is planned, from its top on."""
        places = (bound_json(offsets.top), bound_json(offsets.at), offsets.ended, offsets.rows)
        await self._database.execute(sql("dumps/set_offsets"), dump, number, *places)

    async def plan(
        self, dump: UUID, owner: UUID, epoch: int, table: int, offsets: Offsets, cut: Sequence[Chunk]
    ) -> bool:
        """Write chunks that were cut, before a worker can lease them. False: another process runs the dump now."""
        numbers = [chunk.number for chunk in cut]
        los, his = [bound_json(chunk.range.lo) for chunk in cut], [bound_json(chunk.range.hi) for chunk in cut]
        places = (bound_json(offsets.at), offsets.ended, offsets.rows)
        done = await self._database.fetchval(sql("dumps/plan"), dump, owner, epoch, table, numbers, los, his, *places)
        return done is not None


def _dump(row: Row) -> DumpRow:
    left = tuple(msgspec.json.decode(row["left_behind"], type=list[Left]))
    status, wanted = Status(row["status"]), DumpWanted(row["wanted"])
    return DumpRow(**{**row, "status": status, "wanted": wanted, "left_behind": left})


def _state(row: Row) -> DumpState:
    status, wanted, pools = Status(row["status"]), DumpWanted(row["wanted"]), tuple(row["pools"])
    return DumpState(**{**row, "status": status, "wanted": wanted, "pools": pools})


def _table(row: Row) -> TableRow:
    kept = dict(row)
    top, at = bound_of(kept.pop("top")), bound_of(kept.pop("at"))
    offsets = Offsets(top, at, ended=kept.pop("planned"), rows=kept.pop("size"), fixed=kept.pop("fixed"))
    listed = kept.pop("listed")
    kept["listed"] = None if listed is None else tuple(listed)
    return TableRow(**{**kept, "state": TableState(kept["state"]), "offsets": offsets})


def _is_id(text: str) -> bool:
    return bool(text) and set(text.lower()) <= set("0123456789abcdef-")
