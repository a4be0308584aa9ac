"""The tables that a sink writes into: one, or one for each stream that the source names.

Of one table a batch is one piece, and nothing is looked for. Of several, each has what one has: its columns, how it is
made and how it follows its records. All of them are written in the transaction that commits the position.

A table belongs to one stream. What it is in this run is remembered, and what it was in others is in the comment of a
table that Headgate made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeAlias

from asyncpg import Connection

from headgate.connectors.api import Context, Grant, KeyKind, Outgoing, SourceStream
from headgate.connectors.postgres.batches import picked_of, split
from headgate.connectors.postgres.culprits import refused_rows
from headgate.connectors.postgres.names import MOST_TABLES, has_streams, mark_of, table_of
from headgate.connectors.postgres.options import PostgresOptions
from headgate.connectors.postgres.pieces import Piece, by_stream, in_order, in_turns, parents_first, unnamed
from headgate.connectors.postgres.tables import MADE_FOR
from headgate.connectors.postgres.walls import keep_out
from headgate.connectors.postgres.writing import Writing, is_servers
from headgate.errors import Bad, BadRecords, Cause, ConnectorError, Refused
from headgate.text import one_line

Cut: TypeAlias = Callable[[Sequence[SourceStream]], list[tuple[SourceStream, list[int]]]]
Misfits: TypeAlias = list[tuple[Piece, Sequence[Bad]]]

LONGEST_SAID = 100  # Characters of a stream's name, in a table's comment and in errors.
_COMMENT = re.compile(rf"{MADE_FOR} (\"(?:[^\"\\]|\\.)*\") \(([0-9a-f]{{16}})\)")
_WHOSE = "SELECT relkind::text, obj_description(oid, 'pg_class') FROM pg_class WHERE oid = to_regclass($1)"
_NO_TABLES = {
    "v": "a view", "m": "a materialized view", "f": "a foreign table", "i": "an index", "I": "an index",
    "S": "a sequence", "c": "a type",
}  # fmt: skip
_NUMBER = """
SELECT count(*) FROM pg_description WHERE classoid = 'pg_class'::regclass AND objsubid = 0
AND starts_with(description, $1) AND strpos(description, $2) > 0
"""
_LINKS = """
WITH known AS (SELECT name, to_regclass(path)::oid AS oid FROM unnest($1::text[], $2::text[]) AS k (name, path))
SELECT DISTINCT child.name, parent.name, c.confdeltype IN ('c', 'n', 'd') AS acts FROM pg_constraint c
JOIN known parent ON parent.oid = c.confrelid LEFT JOIN known child ON child.oid = c.conrelid WHERE c.contype = 'f'
"""


class Tables:
    """The tables of one sink."""

    def __init__(self, options: PostgresOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self.is_upsert = options.mode == "upsert"
        self.only = None if has_streams(options.table) else Writing(options, context)
        self._writings: dict[str, Writing] = {}  # By the table's name.
        self._whose: dict[str, SourceStream] = {}
        self._looked: set[str] = set()  # Tables that are there, and belong to their streams.
        self._links: set[tuple[str, str]] = set()  # Foreign keys, from table to table,
        self._ranks: dict[str, int] = {}  # of these, and the order in which they are written.
        self._acting: set[str] = set()  # Tables whose deletions delete or change rows of others.
        self.at: Writing | None = None  # The table that is being written.

    def __str__(self) -> str:
        """The table at work, if it is known."""
        return self._options.table if self.at is None else self.at.name

    # Cutting.

    async def pieces(self, batch: Outgoing, cut: Cut = by_stream) -> list[Piece]:
        """The batch, table by table. Its columns are not known yet."""
        if self.only is not None:
            return [Piece(self.only, batch, range(len(batch.records)), split(batch), [])]
        streams = batch.streams or [SourceStream("")] * len(batch.records)
        if bad := unnamed(streams):
            raise BadRecords(bad)
        gone, pieces = set(batch.deletes), list[Piece]()
        async for stream, numbers in in_turns(cut(streams)):
            pieces.append(self._piece(stream, numbers, batch, gone))
        return pieces

    def _piece(self, stream: SourceStream, numbers: Sequence[int], batch: Outgoing, gone: Collection[int]) -> Piece:
        if self.is_upsert and not stream.key:
            said = f"stream {_said(stream)} says no key, by which the sink could upsert"
            raise ConnectorError(said, cause=Cause.CONFIG, hint="name one in mapping.key, or leave the stream out")
        writing = self.of(stream)
        writing.table.known = stream.types or writing.table.known
        part = batch if len(numbers) == len(batch.records) else picked_of(batch, numbers, gone)
        part = replace(part, key=stream.key)
        return Piece(writing, part, numbers, split(part), [])

    def of(self, stream: SourceStream) -> Writing:
        """What writes this stream."""
        if self.only is not None:
            return self.only
        name = table_of(self._options.table, stream.name)
        whose = self._whose.get(name)
        if whose is None:
            if len(self._whose) >= MOST_TABLES:
                raise _too_many(stream)
            options = self._options.model_copy(update={"table": name})
            comment = (
                f"{MADE_FOR} {json.dumps(str(stream)[:LONGEST_SAID])} ({mark_of(stream)}) of {self._options.table}"
            )
            self._writings[name] = Writing(options, self._context, comment)
            self._whose[name] = stream
        elif whose.whole_name != stream.whole_name:
            raise _two_streams(name, _said(stream), _said(whose))
        return self._writings[name]

    def knows(self, stream: SourceStream) -> bool:
        """Whether the table of a stream is there, and was looked at."""
        return self.of(stream).name in self._looked

    # Getting ready.

    async def ready(
        self, connection: Connection, grant: Grant | None, batch: Outgoing, cut: Cut
    ) -> tuple[list[Piece], Cut]:
        """Look at the tables, and make those that are absent. Returns the pieces in the order in which they go, and how
        the batch was cut: in the order of its records if a deletion may take along what an earlier one has saved."""
        pieces = await self.pieces(batch, cut)
        await self._make(connection, grant, pieces)
        names = {piece.writing.name for piece in pieces}
        if cut is in_order or len(names) < 2:
            return pieces, cut
        if batch.deletes or not self._ranks.keys() >= names:
            await self.relink(connection)
        if any(piece.batch.deletes and piece.writing.name in self._acting for piece in pieces):
            return await self.ready(connection, grant, batch, in_order)
        pieces.sort(key=lambda piece: self._ranks[piece.writing.name])
        return pieces, cut

    async def _make(self, connection: Connection, grant: Grant | None, pieces: Sequence[Piece]) -> None:
        bad: list[Bad] = []
        async for piece in in_turns(pieces):
            self.at = piece.writing
            await self.look(connection, piece.writing)
            try:
                with piece.named():
                    piece.columns = await piece.writing.columns(connection, grant, piece.batch, piece.parts)
            except BadRecords as error:
                bad += error.bad
            await self.look(connection, piece.writing)  # If it was made now, perhaps by somebody else.
        self.at = None
        if bad:
            raise BadRecords(sorted(bad, key=lambda one: one.index))

    async def look(self, connection: Connection, writing: Writing) -> None:
        """See whether the table of a stream is that stream's. The table of all has been looked at before."""
        if self.only is not None:
            return
        await refuse_own(connection, writing.table.path)
        if writing.name in self._looked:
            return
        await writing.table.look(connection)
        stream = self._whose[writing.name]
        kind, comment = await connection.fetchrow(_WHOSE, writing.table.path) or ("", None)
        if kind in _NO_TABLES:  # A view leads to rows of others, and there is no room for a table.
            raise _no_table(writing.name, _NO_TABLES[kind], _said(stream))
        if writing.table.columns:
            found = _COMMENT.match(comment or "")
            if found is not None and found[2] != mark_of(stream):
                raise _two_streams(writing.name, _said(stream), found[1])
            self._looked.add(writing.name)
        elif await connection.fetchval(_NUMBER, MADE_FOR, f" of {self._options.table}. ") >= MOST_TABLES:
            raise _too_many(stream)

    async def relink(self, connection: Connection) -> bool:
        """Ask for the foreign keys between the tables. Returns whether there are others than before."""
        before, names = (self._links, self._acting), sorted(self._writings)
        rows = await connection.fetch(_LINKS, names, [self._writings[name].table.path for name in names])
        self._links = {(child, parent) for child, parent, _ in rows if child is not None}
        self._acting = {parent for _, parent, acts in rows if acts}
        if self._ranks.keys() != set(names) or self._links != before[0]:
            # By name as far as it goes: two sinks that lock the same rows in two orders would wait for each other.
            self._ranks = {name: rank for rank, name in enumerate(parents_first(names, self._links))}
        return (self._links, self._acting) != before

    async def key_kinds(self, connection: Connection, key: Sequence[str], stream: SourceStream) -> Sequence[KeyKind]:
        """What the table of a stream keeps a key in."""
        writing = self.of(stream)
        await self.look(connection, writing)
        return writing.key_kinds(key)

    # Writing.

    async def put(self, connection: Connection, pieces: Sequence[Piece], cut: Cut = by_stream) -> None:
        """All of it, into the transaction that is under way."""
        if len(pieces) > 1 and cut is by_stream:
            for piece in reversed(pieces):  # Children are gone before their parents.
                self.at = piece.writing
                with piece.named():
                    await piece.writing.delete(connection, piece.columns, piece.batch)
        for piece in pieces:
            self.at = piece.writing
            with piece.named():
                await piece.writing.put(connection, piece.columns, piece.batch)
        self.at = None

    async def isolated(
        self, connection: Connection, pieces: Sequence[Piece], error: Exception, cut: Cut
    ) -> Misfits | None:
        """Find out whose fault it is that a batch was refused, in a transaction that is not committed.

        Returns what wider columns would hold; if that is nothing, the batch is worth another try as it is. None: no
        record by itself is at fault, or it may be the order of the tables.
        """
        misfits = await _misfits(connection, pieces)
        if misfits:
            return misfits
        failed = [piece.writing for piece in pieces if self.at in (None, piece.writing)]
        if [writing for writing in failed if writing.learns(error)]:
            return []
        if not is_servers(error) and not isinstance(error, BadRecords):
            return None
        asked = [await piece.writing.to_search(piece.batch, piece.parts, piece.columns) for piece in pieces]
        await connection.execute("SAVEPOINT headgate_search")
        refused, may_be_order = await refused_rows(connection, asked)
        await connection.execute("ROLLBACK TO headgate_search")
        if may_be_order and cut is by_stream and len(pieces) > 1:
            return None
        bad = [one for piece, some in zip(pieces, refused, strict=True) for one in piece.renamed(some)]
        if bad:
            raise BadRecords(sorted(bad, key=lambda one: one.index))
        if all(writing.as_json for writing in failed):
            return None
        for writing in failed:
            writing.as_json = True
        return []


async def _misfits(connection: Connection, pieces: Sequence[Piece]) -> Misfits:
    """The records with values that do not fit: raised, or returned if wider columns would hold them."""
    misfits: Misfits = []
    bad: list[Bad] = []
    for piece in pieces:
        try:
            with piece.named():
                found = await piece.writing.judged(connection, piece.batch, piece.parts, piece.columns)
        except BadRecords as error:
            bad += error.bad
        else:
            misfits += [(piece, found)] if found else []
    if bad:
        raise BadRecords(sorted(bad, key=lambda one: one.index))
    return misfits


async def changed(connection: Connection, grant: Grant | None, misfits: Misfits) -> None:
    """Widen what these records need. If that cannot be, they are bad."""
    for piece, bad in misfits:
        with piece.named():
            await piece.writing.changed(connection, grant, piece.batch, bad)


async def refuse_own(connection: Connection, path: str) -> None:
    """No stream touches what is Headgate's own, or the server's."""
    try:
        await keep_out(connection, path)
    except Refused as error:
        raise ConnectorError(error.message, cause=Cause.CONFIG, hint=error.hint) from None


def _said(stream: SourceStream) -> str:
    return repr(one_line(stream, LONGEST_SAID))


def _two_streams(table: str, one: str, other: str) -> ConnectorError:
    said = f"the streams {one} and {other} would both be the table {table}"
    return ConnectorError(said, cause=Cause.CONFIG, hint="read one of them with another datasource")


def _no_table(name: str, kind: str, stream: str) -> ConnectorError:
    said = f"{name} is {kind}, and the stream {stream} goes into a table only"
    return ConnectorError(said, cause=Cause.CONFIG, hint="rename one of them, or leave the stream out")


def _too_many(stream: SourceStream) -> ConnectorError:
    said = f"stream {_said(stream)} would be one of more than {MOST_TABLES:,} tables"
    return ConnectorError(said, cause=Cause.CONFIG, hint="name the streams that are wanted, or read some elsewhere")
