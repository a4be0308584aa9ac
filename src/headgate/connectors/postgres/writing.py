"""The rows of a batch, into a transaction that is under way: by COPY, or as JSON; and whose fault it is if they are
refused. It knows the table, and no positions, letters or sessions.

What it learns of a stream stays: once a value needed converting, all batches go as JSON; and once two spellings of one
key met, keys are compared as the table stores them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import asyncpg
from asyncpg import Connection

from headgate.connectors.api import Context, Grant, KeyKind, Outgoing
from headgate.connectors.postgres.batches import (
    Split,
    earlier_of,
    last_of,
    last_rows,
    null_keys,
    picked,
    split,
    units_of,
)
from headgate.connectors.postgres.culprits import Unit, judged, refused_rows
from headgate.connectors.postgres.errors import DRIVERS, Fault, fault_of
from headgate.connectors.postgres.judge import NOT_OF_TYPE, Field, judge_column
from headgate.connectors.postgres.options import PostgresOptions
from headgate.connectors.postgres.statements import Statements
from headgate.connectors.postgres.tables import Table
from headgate.connectors.postgres.types import key_kind
from headgate.connectors.postgres.values import Unfit, fitted, json_texts
from headgate.errors import Bad, BadRecords

VALUES_AT_ONCE = 40_000  # What goes to the driver in one go: five milliseconds by COPY, ten as JSON.
MOST_TURNS = 16  # Statements for records that others of their batch replace. With more, one search is quicker.
ROWS_AT_ONCE = 1_000  # What is made ready for it in one go. Values may be long, and are JSON by then.


class Writing:
    """The rows of one table."""

    def __init__(self, options: PostgresOptions, context: Context, made_for: str = "") -> None:
        self.name = options.table
        self.table = Table(options, context, made_for)
        self.is_upsert = options.mode == "upsert"
        self.as_json = self.is_upsert
        self._spells_keys = False

    async def put(self, connection: Connection, columns: list[str], batch: Outgoing) -> None:
        """The rows, into the transaction that is under way."""
        last, keys = last_of(batch, self.key_kinds(batch.key)) if batch.deletes else (batch, [])
        rows = self.last(columns, await self.rows(columns, last.records), last) if last.records else []
        if self.is_upsert and len(rows) + len(keys) < len(batch.records) and self.table.columns:
            await self._try_earlier(connection, columns, batch)
        await self._put(connection, columns, batch, rows, keys)

    async def delete(self, connection: Connection, columns: list[str], batch: Outgoing) -> None:
        """What is to be gone in the end."""
        if batch.deletes:
            _, keys = last_of(batch, self.key_kinds(batch.key))
            await self._put(connection, columns, batch, (), keys)

    async def _put(
        self, connection: Connection, columns: list[str], batch: Outgoing, rows: Sequence[Any], keys: Sequence[Any]
    ) -> None:
        """Delete what has these keys, and write these rows."""
        schema, _, table = self.name.rpartition(".")
        statements, most = self.statements(columns, batch), _most_rows(columns)
        if keys and self.table.columns:
            for text in json_texts(batch.key, keys):
                await connection.execute(statements.delete(), text)
        for begin in range(0, len(rows), most):
            some = rows[begin : begin + most]
            if self.as_json:
                for text in json_texts(columns, some):
                    await connection.execute(statements.insert(), text)
            else:
                await connection.copy_records_to_table(table, schema_name=schema or None, columns=columns, records=some)

    def last(self, columns: list[str], rows: list[Any], batch: Outgoing) -> list[Any]:
        if not self.is_upsert:
            return rows
        return last_rows(columns, rows, batch.key, self.key_kinds(batch.key) if self._spells_keys else ())

    def key_kinds(self, key: Sequence[str]) -> Sequence[KeyKind]:
        """What the table keeps a key in; nothing if it is not there yet."""
        columns = self.table.columns
        return [key_kind(columns[field].type) for field in key] if all(field in columns for field in key) else ()

    def statements(self, columns: Sequence[str], batch: Outgoing) -> Statements:
        return Statements(self.name, columns, self._key(batch))

    # Rows.

    async def columns(self, connection: Connection, grant: Grant | None, batch: Outgoing, parts: Split) -> list[str]:
        """The fields of all records, which the table has, or gets now."""
        if parts.bad:
            raise BadRecords(parts.bad)
        records, table = parts.records, self.table
        if not records:
            return list(batch.key)
        if not table.columns:
            key = self._key(batch)
            await table.look(connection)
            if not table.columns and (bad := parts.unmakeable(key)):
                raise BadRecords(bad)
            await table.make(connection, records, key)
        columns = list(records[0])
        if len(set().union(*records)) > len(columns):
            columns = list(dict.fromkeys(chain.from_iterable(records)))
        if unknown := [column for column in columns if column not in table.columns]:
            policy = (await table.policy(connection)).new_fields
            if policy == "fail":
                raise table.lacks(unknown[0])
            if policy == "add":
                await table.add(connection, grant, unknown, records)
            columns = [column for column in columns if column in table.columns]
            if bad := parts.without_columns(table.columns, unknown, ignores=policy == "ignore"):
                raise BadRecords(bad)
        stamps = table.days_with_times(columns, records)
        if stamps and (await table.policy(connection)).new_types == "widen":
            await table.widen(connection, grant, stamps)
        return columns

    async def rows(self, columns: list[str], records: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        """The batch as tuples. One payload may have become any number of records: others have turns in between."""
        most = min(ROWS_AT_ONCE, _most_rows(columns))
        rows = self._some_rows(columns, records[:most])
        for begin in range(most, len(records), most):
            await asyncio.sleep(0)
            rows += self._some_rows(columns, records[begin : begin + most])
        return rows

    def _some_rows(self, columns: list[str], records: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        rows = picked(columns, records)
        for index, column in enumerate(columns):
            rows = fitted(rows, index, self.table.columns[column].plain, as_json=self.as_json)
        return rows

    # Earlier ones. A record that a later one of its key replaces is refused if it is bad, all the same: else it would
    # count as written. What only the server knows it says when it gets to see them; that is then taken back. Of a table
    # that has no more to say than the types of its columns, nobody asks.

    async def _try_earlier(self, connection: Connection, columns: list[str], batch: Outgoing) -> None:
        turns = earlier_of(batch, self.key_kinds(batch.key))
        if not await self.table.has_rules(connection):
            fields, indexes, rows = self._doubtful(columns, batch, turns)
            if fields and await judged(connection, self.table.path, fields, indexes, rows):
                raise Unfit("a value does not fit, of a record that a later one replaces")
            return
        await connection.execute("SAVEPOINT headgate_earlier")
        if len(turns) > MOST_TURNS or not await self._are_taken(connection, columns, batch, turns):
            await self._search_all(connection, columns, batch)
        await connection.execute("ROLLBACK TO headgate_earlier; RELEASE headgate_earlier")

    async def are_earlier_good(self, connection: Connection, columns: list[str], batch: Outgoing) -> bool:
        """Whether that can be said of all earlier ones without a transaction."""
        if await self.table.has_rules(connection):
            return False
        return not self._doubtful(columns, batch, earlier_of(batch, self.key_kinds(batch.key)))[0]

    def _doubtful(
        self, columns: list[str], batch: Outgoing, turns: Sequence[Sequence[int]]
    ) -> tuple[list[Field], list[int], list[tuple[Any, ...]]]:
        """The columns in which some of these may not fit, and what each has there."""
        gone = set(batch.deletes)
        indexes = [index for turn in turns for index in turn if index not in gone]
        rows = picked(columns, [batch.records[index] for index in indexes]) if indexes else []
        fields = [self.table.columns[column] for column in columns]
        places = [place for place, field in enumerate(fields) if judge_column(field, [row[place] for row in rows])]
        return [fields[place] for place in places], indexes, [tuple(row[at] for at in places) for row in rows]

    async def _are_taken(
        self, connection: Connection, columns: list[str], batch: Outgoing, turns: Sequence[Sequence[int]]
    ) -> bool:
        """Whether the server takes the earlier ones, in their order. If not, the others may be missing to them."""
        gone = set(batch.deletes)
        try:
            for turn in turns:
                rows = await self.rows(columns, [batch.records[index] for index in turn if index not in gone])
                keys = [tuple(batch.records[index][field] for field in batch.key) for index in turn if index in gone]
                await self._put(connection, columns, batch, rows, keys)
            await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except Exception as error:
            if not is_refusal(error):
                raise
            await connection.execute("ROLLBACK TO headgate_earlier")
            return False
        return True

    async def _search_all(self, connection: Connection, columns: list[str], batch: Outgoing) -> None:
        """Try all records of the batch, one after another."""
        parts = split(batch)
        if await self.judged(connection, batch, parts, columns):
            raise Unfit("a value needs a wider column")
        units = units_of(batch, columns, await self.rows(columns, parts.records), parts.indexes)
        (found,), _ = await refused_rows(connection, [(self.statements(columns, batch), units)])
        if found:
            raise BadRecords(found)

    # Bad ones.

    def learns(self, error: Exception) -> bool:
        """Whether a refusal has told of another way to write that may be taken."""
        if not self.as_json and not is_servers(error):
            self.as_json = True  # A value needs converting: let PostgreSQL do it, from now on.
            return True
        if isinstance(error, asyncpg.CardinalityViolationError) and self.is_upsert and not self._spells_keys:
            self._spells_keys = True  # `"017"` and 17 are one key here, and look like two.
            return True
        return False

    async def to_search(self, batch: Outgoing, parts: Split, columns: list[str]) -> tuple[Statements, list[Unit]]:
        """What a search tries, as JSON."""
        was_json, self.as_json = self.as_json, True
        try:
            rows = await self.rows(columns, parts.records)
        finally:
            self.as_json = was_json
        units = units_of(replace(batch, key=self._key(batch)), columns, rows, parts.indexes)
        return self.statements(columns, batch), units

    async def judged(
        self, connection: Connection, batch: Outgoing, parts: Split, columns: Sequence[str]
    ) -> Sequence[Bad]:
        """The records with bad values, if there are any: raised, or returned if a wider column would hold them."""
        fields = [self.table.columns[column] for column in columns if column in self.table.columns]
        found = {bad.index: bad for bad in null_keys(batch)} if self.is_upsert else {}
        if parts.records:
            rows = picked([field.name for field in fields], parts.records)
            for bad in await judged(connection, self.table.path, fields, parts.indexes, rows, as_json=self.as_json):
                found.setdefault(bad.index, bad)
        if batch.deletes:
            keys = [self.table.columns[name] for name in batch.key if name in self.table.columns]
            gone = [tuple(batch.records[at].get(field.name) for field in keys) for at in batch.deletes]
            for bad in await judged(connection, self.table.path, keys, batch.deletes, gone):
                found.setdefault(bad.index, bad)
        bads = [found[index] for index in sorted(found)]
        if not bads:
            return ()
        policy = (await self.table.policy(connection)).new_types
        if policy == "fail" and (drifted := next((bad for bad in bads if bad.reason not in NOT_OF_TYPE), None)):
            raise self.table.misfit(drifted)
        if policy == "widen" and self.table.would_widen(_values(batch, bads)):
            return bads
        raise BadRecords(bads)

    async def changed(self, connection: Connection, grant: Grant | None, batch: Outgoing, bads: Sequence[Bad]) -> None:
        """Widen what these records need. If that cannot be, they are bad."""
        if bads and not await self.table.widen(connection, grant, _values(batch, bads)):
            raise BadRecords(bads)

    def _key(self, batch: Outgoing) -> tuple[str, ...]:
        return batch.key if self.is_upsert else ()


def _values(batch: Outgoing, bads: Sequence[Bad]) -> dict[str, list[Any]]:
    """The values that do not fit, by their fields."""
    found: dict[str, list[Any]] = {}
    for bad in bads:
        if bad.field is not None:
            found.setdefault(bad.field, []).append(batch.records[bad.index].get(bad.field))
    return found


def is_refusal(error: Exception) -> bool:
    """Whether a record may be at fault."""
    return isinstance(error, (asyncpg.DatatypeMismatchError, *DRIVERS)) or fault_of(error) is Fault.DATA


def is_servers(error: Exception) -> bool:
    """Whether the server has judged the values, and not the driver."""
    return (
        isinstance(error, asyncpg.PostgresError)
        and error.severity is not None
        and not isinstance(error, asyncpg.DatatypeMismatchError)
    )


def _most_rows(columns: Sequence[str]) -> int:
    """How many rows of these columns go to the driver in one go."""
    return max(1, VALUES_AT_ONCE // max(1, len(columns)))
