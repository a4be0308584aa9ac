"""The table that a stream writes into: its columns, how it is made, and how it follows records that change.

A table is made from the first batch. The option `columns` decides the type of a column, or else the mapping, where its
functions tell, or else all values of the batch: integers and fractions together are `numeric`, because
`double precision` would lose large integers; objects and lists are `jsonb`, also with other values between; any other
mixture is `text`.

A table that Headgate made says so in its comment, and a column that was added later in its own. Only who owns the table
could write that, and who owns it may change it anyway. The marks go with the table, through renames, dumps and restores
of the server. To remove one is to take the table over.

A change is a separate transaction, under the stream's fence, that waits 200 ms for the table's lock and no longer,
because everybody who writes to the table waits behind it. Inside batches two changes would wait for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, time
from decimal import Decimal
from typing import Any, Literal

import asyncpg
from asyncpg import Connection

from headgate.connectors.api import Context, Grant
from headgate.connectors.postgres import positions
from headgate.connectors.postgres.catalog import columns_of, find, quoted_path
from headgate.connectors.postgres.culprits import savepoint
from headgate.connectors.postgres.declared import parse_type, resolve
from headgate.connectors.postgres.judge import BITS, Field, is_finite, is_vast
from headgate.connectors.postgres.options import PostgresOptions
from headgate.connectors.postgres.types import WHOLE, type_for_values
from headgate.connectors.sql.quoting import literal, quoted
from headgate.errors import Bad, Cause, ConnectorError, RetryLater

LONGEST = 63  # Bytes of a name. PostgreSQL would cut a longer one, and not find it again.
MOST_ADDED = 100  # Columns of one table, dropped ones included: a table has 1,600 places, and senders name fields.
MOST_MADE = 1_000  # Columns of a table that is made from records.
LARGEST_REWRITE = 2**30  # Bytes. To widen a column may write the whole table again, and nobody else gets to it then.
TRIES = 5
PAUSE_S = 0.2
MIDNIGHT = time()
SYSTEM = ("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid")
MADE = "Made by Headgate"
MADE_FOR = f"{MADE} for the stream"  # That a source names.
ADDED = "Added by Headgate"

_TYPES = {
    "text": "text", "int": "bigint", "float": "double precision", "decimal": "numeric", "bool": "boolean",
    "timestamp": "timestamptz", "date": "date", "json": "jsonb", "uuid": "uuid", "bytes": "bytea",
}  # fmt: skip
_STATE = """
SELECT coalesce(starts_with(obj_description(c.oid, 'pg_class'), $2), false) AND pg_has_role(c.relowner, 'USAGE')
           AS is_made,
       (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
        AND (a.attisdropped OR starts_with(col_description(c.oid, a.attnum), $3))) AS added,
       coalesce((SELECT sum(pg_table_size(relid)) FROM pg_partition_tree(c.oid)), pg_table_size(c.oid))::bigint AS size
FROM pg_class c WHERE c.oid = to_regclass($1)
"""


# Constraints, triggers, policies, partitions, domains, and what is computed. The unique index that an upsert goes by
# knows this key already.
_HAS_RULES = """
SELECT c.relkind <> 'r' OR c.relrowsecurity OR c.relhasrules OR c.relhastriggers
       OR EXISTS (SELECT FROM pg_constraint WHERE conrelid = c.oid AND contype IN ('c', 'f', 'x'))
       OR (SELECT count(*) FILTER (WHERE indisunique) > 1 OR coalesce(bool_or(indexprs IS NOT NULL), false)
           FROM pg_index WHERE indrelid = c.oid)
       OR EXISTS (SELECT FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid WHERE a.attrelid = c.oid
                  AND a.attnum > 0 AND NOT a.attisdropped AND (a.attgenerated <> '' OR t.typtype = 'd'))
FROM pg_class c WHERE c.oid = to_regclass($1)
"""


@dataclass(frozen=True, slots=True)
class State:
    """What decides about changes of a table."""

    is_made: bool  # By Headgate, and this user may alter it.
    added: int  # Columns that were added by drift, and those that were dropped.
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Policy:
    """What to do with records that do not fit."""

    new_fields: Literal["add", "ignore", "dead_letter", "fail"]
    new_types: Literal["widen", "dead_letter", "fail"]


def wrong_name(field: str) -> str | None:
    """Why no column can be made for a field."""
    if "\0" in field:
        return "no column can have a name with a NUL"
    try:
        size = len(field.encode())
    except UnicodeEncodeError:
        return "no column can have a name with half of a surrogate pair"
    if size > LONGEST or not field:
        return f"no column can have a name of more than {LONGEST} bytes" if field else "no column can be without a name"
    return "the name is the server's own" if field in SYSTEM else None


def widened(type: str, values: Iterable[object]) -> str | None:
    """The type that holds these values, too, and everything that a column of this type holds. None: there is none."""
    if type == "date":
        stamps = [value for value in values if isinstance(value, datetime)]
        is_zoned = all(value.tzinfo is not None for value in stamps)
        return f"timestamp with{'' if is_zoned else 'out'} time zone" if stamps else None
    if type not in WHOLE:
        return None
    bits = BITS[type]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not is_finite(value):
            continue
        if is_vast(value) or value != int(value) or not -(2**63) <= value < 2**63:
            return "numeric"
        bits = max(bits, 31 if -(2**31) <= value < 2**31 else 63)
    return next(name for name, of in BITS.items() if of == bits) if bits > BITS[type] else None


class Table:
    """One stream's table. `columns` is empty until it is there."""

    def __init__(self, options: PostgresOptions, context: Context, made_for: str = "") -> None:
        self._options = options
        self._context = context
        self._made = f"{made_for or MADE}. It may add columns and widen types."  # Its comment, if it is made.
        self.path = quoted_path(options.table)
        self.columns: dict[str, Field] = {}
        self._policy: Policy | None = None
        self._fixed: set[str] = set()  # Columns that the server did not let us widen.
        self.known: Mapping[str, str] = {}  # Types of fields that the source knows, for those without a value.

    async def look(self, connection: Connection) -> None:
        """Read the columns, as they are now."""
        self.columns = {}
        found = await find(connection, self.path)
        if found is None:
            return
        columns, details = await columns_of(connection, found["oid"])
        plain: Mapping[str, str] = details["plain"]
        self.columns = {
            column.name: Field(column.name, plain[column.name], column.native, not column.nullable)
            for column in columns
            if column.name not in details["generated"]
        }

    async def has_rules(self, connection: Connection) -> bool:
        """Whether it may refuse a row for more than the types of its columns. Somebody may have made a rule just now,
        so the server is asked each time."""
        return bool(await connection.fetchval(_HAS_RULES, self.path))

    async def policy(self, connection: Connection) -> Policy:
        """What the options say, or else what follows from who made the table."""
        if self._policy is None:
            wanted = self._options.drift
            is_made = (await self._state(connection)).is_made
            self._policy = Policy(
                wanted.new_fields or ("add" if is_made else "dead_letter"),
                wanted.new_types or ("widen" if is_made else "dead_letter"),
            )
        return self._policy

    async def declared(self, connection: Connection) -> dict[str, str]:
        """The types of the option `columns` as the server knows them."""
        found = {}
        for field, text in self._options.columns.items():
            type = await resolve(connection, parse_type(text))
            if type is None:
                raise ConnectorError(
                    f"columns: {field!r}: the server has no type {text!r}", cause=Cause.CONFIG, hint="create it first"
                )
            found[field] = type
        return found

    # Changes.

    async def make(self, connection: Connection, records: Sequence[Mapping[str, Any]], key: Sequence[str]) -> None:
        """Make the table from the first batch, unless somebody has made it meanwhile."""
        await self.look(connection)
        if self.columns:
            return
        if not self._options.create:
            raise self.absent()
        fields = list(dict.fromkeys(field for record in records for field in record))
        types = await self._types(connection, fields, records)
        lines = [f"{quoted(field)} {types[field]}" for field in fields]
        if key:
            lines.append(f"PRIMARY KEY ({', '.join(map(quoted, key))})")
        async with apart(connection):
            await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", self._options.table)
            if await find(connection, self.path) is None:
                await connection.execute(
                    f"CREATE TABLE {self.path} ({', '.join(lines)});"
                    f"COMMENT ON TABLE {self.path} IS {literal(self._made)}"
                )
        if not connection.is_in_transaction():  # It is one in a rehearsal only.
            self._context.log.info("table created", table=self._options.table)
            self._context.note("table_created", table=self._options.table)
        self._policy = None
        await self.look(connection)

    async def add(
        self, connection: Connection, grant: Grant | None, fields: Sequence[str], records: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add columns for fields, as many as the table may still get, and look again."""
        left = MOST_ADDED - (await self._state(connection)).added
        fields = [field for field in fields if wrong_name(field) is None][: max(0, left)]
        if fields:
            types = await self._types(connection, fields, records)
            columns = ", ".join(f"ADD COLUMN IF NOT EXISTS {quoted(field)} {types[field]}" for field in fields)
            marks = [f"COMMENT ON COLUMN {self.path}.{quoted(field)} IS {literal(f'{ADDED}.')}" for field in fields]
            await self._alter(connection, grant, [f"ALTER TABLE {self.path} {columns}", *marks])
            for field in fields:
                self._report(connection, "column_added", field, "", types[field])
        await self.look(connection)

    async def widen(self, connection: Connection, grant: Grant | None, values: Mapping[str, Sequence[Any]]) -> bool:
        """Widen columns for these values, and look again. Returns whether any was."""
        types = self.would_widen(values)
        if not types or (await self._state(connection)).size_bytes > LARGEST_REWRITE:
            self._fixed |= types.keys()
            return False
        is_done = False
        for name, type in types.items():
            column = quoted(name)
            # The day as it is in UTC, whatever the session's time zone is.
            how = f" USING {column}::timestamp AT TIME ZONE 'UTC'" if type == "timestamp with time zone" else ""
            try:
                await self._alter(
                    connection, grant, [f"ALTER TABLE {self.path} ALTER COLUMN {column} TYPE {type}{how}"]
                )
            except (asyncpg.FeatureNotSupportedError, asyncpg.SyntaxOrAccessError):
                self._fixed.add(name)  # A view, a rule or a partition needs the type that it has; or it is not ours.
                continue
            self._report(connection, "column_widened", name, self.columns[name].plain, type)
            is_done = True
        await self.look(connection)
        return is_done

    def would_widen(self, values: Mapping[str, Sequence[Any]]) -> dict[str, str]:
        """The columns that these values need wider, with their new types. What a domain is, is its owner's business."""
        return {
            name: type
            for name, some in values.items()
            if name in self.columns
            and name not in self._fixed
            and (field := self.columns[name]).native == field.plain
            and (type := widened(field.plain, some)) is not None
        }

    def days_with_times(
        self, columns: Sequence[str], records: Sequence[Mapping[str, Any]]
    ) -> dict[str, Sequence[datetime]]:
        """Values of columns of dates that would lose their time of day, where columns may be widened."""
        days = [name for name in columns if self.columns[name].plain == "date" and name not in self._fixed]
        if not days or (self._policy is not None and self._policy.new_types != "widen"):
            return {}
        found = {name: [x for record in records if isinstance(x := record.get(name), datetime)] for name in days}
        return {name: some for name, some in found.items() if any(x.time() != MIDNIGHT for x in some)}

    def lacks(self, field: str) -> ConnectorError:
        """There is no column for a field, and none may be added."""
        return ConnectorError(
            f"table {self._options.table} has no column {field[:80]!r}",
            cause=Cause.CONFIG,
            hint=f"ALTER TABLE {self.path} ADD COLUMN {quoted(field[:80])} …, then restart",
        )

    def misfit(self, bad: Bad) -> ConnectorError:
        """A value does not fit, and that is to stop the stream."""
        return ConnectorError(
            f"table {self._options.table}: record {bad.index + 1}: {bad}",
            cause=Cause.BAD_RECORD,
            hint="ALTER TABLE …, or schema: {new_types: dead_letter}",
        )

    def absent(self) -> ConnectorError:
        """There is no such table, and none may be made."""
        return ConnectorError(
            f"table {self._options.table} does not exist", cause=Cause.CONFIG, hint="create it, or set create: true"
        )

    async def _state(self, connection: Connection) -> State:
        row = await connection.fetchrow(_STATE, self.path, MADE, ADDED)
        return State(False, 0, 0) if row is None else State(row["is_made"], row["added"], row["size"])

    async def _types(
        self, connection: Connection, fields: Sequence[str], records: Sequence[Mapping[str, Any]]
    ) -> dict[str, str]:
        declared = await self.declared(connection)
        told = self._context.field_types
        # A mapping may have made something else of a field that the source knows: its values go before that.
        announced = [field for field in fields if field in self.known]
        empty = [field for field in announced if all(record.get(field) is None for record in records)]
        known = {field: _TYPES.get(self.known[field]) for field in empty}
        return {
            field: declared.get(field)
            or _TYPES.get(told.get(field, ""))
            or known.get(field)
            or type_for_values(record.get(field) for record in records)
            for field in fields
        }

    async def _alter(self, connection: Connection, grant: Grant | None, statements: Sequence[str]) -> None:
        for left in reversed(range(TRIES)):
            try:
                async with apart(connection, grant):
                    await connection.execute(";".join(["SET LOCAL lock_timeout = 200", *statements]))
                return
            except asyncpg.LockNotAvailableError:
                if not left:
                    raise RetryLater(f"table {self._options.table} is locked by others", after_s=1.0) from None
            await asyncio.sleep(PAUSE_S)

    def _report(self, connection: Connection, type: str, column: str, before: str, after: str) -> None:
        if connection.is_in_transaction():
            return
        table = self._options.table
        self._context.log.info(type.replace("_", " "), table=table, column=column, before=before, after=after)
        self._context.note(type, table=table, column=column, before=before, after=after)


@asynccontextmanager
async def apart(connection: Connection, grant: Grant | None = None) -> AsyncIterator[None]:
    """A separate transaction, of a run that is not fenced; in a rehearsal a part of it, which is rolled back."""
    if connection.is_in_transaction():
        async with savepoint(connection):
            yield
        return
    if grant is None:
        await connection.execute("BEGIN")
    else:
        await positions.begin(connection, grant)
        await positions.hold(connection, grant)
    try:
        yield
    except asyncpg.PostgresError:
        await connection.execute("ROLLBACK")
        raise
    await connection.execute("COMMIT")
