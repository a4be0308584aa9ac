"""Definitions of a whole database are made at the target, each with its line in the ledger, in one transaction.

What is run here is SQL of the source's database, with the rights of the target's URL, as `pg_restore` does it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from uuid import UUID

import asyncpg
from asyncpg import Connection

from headgate.connectors.api.whole import Definition, Left
from headgate.connectors.sql import ledger
from headgate.connectors.sql.quoting import literal, quoted

TARGET = "(definitions)"  # In the ledger, where the name of a table stands otherwise.

# As `pg_restore` has them. A commit that a crash of the server loses takes its line with it, and is made again.
_SETTINGS = {
    "search_path": "''",
    "check_function_bodies": "off",
    "xmloption": "content",
    "client_min_messages": "warning",
    "row_security": "off",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "synchronous_commit": "off",
}
_LINE = f"""
INSERT INTO {{place}} (dump, target, {ledger.KEY}, lo, hi, rows) VALUES ({{dump}}, {{target}}, {{key}}, '', '', 0)
"""
_OF_DUMP = f"FROM {ledger.TABLE} WHERE dump = $1 AND target = $2"
_PLACE = """
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)
"""


async def made(connection: Connection, dump: UUID) -> set[str]:
    """The keys that the ledger has."""
    if await connection.fetchval("SELECT to_regclass($1)", ledger.TABLE) is None:
        return set()
    return {row[0] for row in await connection.fetch(f"SELECT {ledger.KEY} {_OF_DUMP}", dump, TARGET)}


async def place_of_ledger(connection: Connection) -> str:
    """Its schema and name, whatever the search path is."""
    place: str = await connection.fetchval(_PLACE, ledger.TABLE)
    return place


async def make(
    connection: Connection, place: str, dump: UUID, one: Definition, statements: AsyncIterator[str] | None
) -> list[Left]:
    """Make one within a transaction, and write its line into the ledger at this place. Returns what of it cannot be had
    here. What can be said at once is: there may be thousands."""
    left: list[Left] = []
    settings = dict(_SETTINGS)
    for name, value in one.settings:
        if name == "default_tablespace" and not await _has_tablespace(connection, value):
            left.append(Left("tablespace", value, one.name, "the target does not have it"))
            continue
        settings[name] = literal(value)
    said = [f"SET LOCAL {name} = {value}" for name, value in settings.items()]
    if one.owner and not one.name.startswith("schema ") and one.owner == await _user(connection):
        pass  # The user who makes an object owns it. A schema may have been there.
    elif one.kind == "schema" and await connection.fetchval("SELECT to_regnamespace($1)", quoted(one.name)) is not None:
        pass  # It may be there: what is in it is ours to make.
    elif statements is None:
        said.append(f"{one.statement}\n")  # It may end with a remark.
    else:
        await connection.execute("; ".join(said))
        said = []
        async for statement in statements:
            await connection.execute(statement)
    line = _LINE.format(place=place, dump=literal(str(dump)), target=literal(TARGET), key=literal(one.key))
    await connection.execute("; ".join([*said, line]))
    return left


async def _user(connection: Connection) -> str:
    if not connection.user:
        connection.user = await connection.fetchval("SELECT current_user")
    name: str = connection.user
    return name


async def _has_tablespace(connection: Connection, name: str) -> bool:
    return bool(await connection.fetchval("SELECT count(*) FROM pg_tablespace WHERE spcname = $1", name))


async def has_line(connection: Connection, dump: UUID, one: Definition) -> bool:
    """Whether the ledger has it: another process may have made it."""
    query = f"SELECT count(*) {_OF_DUMP} AND {ledger.KEY} = $3"
    return bool(await connection.fetchval(query, dump, TARGET, one.key))


async def existing(connection: Connection, tables: Collection[str]) -> list[str]:
    """Which of these tables are there."""
    query = """
    SELECT name FROM unnest($1::text[]) AS t (name) JOIN pg_class c ON c.oid = to_regclass(name)
    WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm')
    """
    return [row["name"] for row in await connection.fetch(query, list(tables))]


async def tidy_up(connection: Connection, dump: UUID) -> None:
    """Forget what this dump has written down, and drop the ledger if nothing else is in it."""
    if await connection.fetchval("SELECT to_regclass($1)", ledger.TABLE) is None:
        return
    if await connection.fetchval("SELECT EXISTS (SELECT FROM pg_event_trigger)"):
        await _hush(connection)
    await connection.execute(f"LOCK TABLE {ledger.TABLE} IN ACCESS EXCLUSIVE MODE")
    await connection.execute(f"DELETE FROM {ledger.TABLE} WHERE dump = $1", dump)
    if not await connection.fetchval(f"SELECT EXISTS (SELECT FROM {ledger.TABLE})"):
        await connection.execute(f"DROP TABLE {ledger.TABLE}")


async def _hush(connection: Connection) -> None:
    """Let no event trigger see that the ledger goes, if the user may do that."""
    await connection.execute("SAVEPOINT hush")
    try:
        await connection.execute("SET LOCAL session_replication_role = replica")
    except asyncpg.InsufficientPrivilegeError:
        await connection.execute("ROLLBACK TO hush")


def is_retried(error: BaseException) -> bool:
    """Whether another transaction was in the way."""
    return isinstance(error, asyncpg.TransactionRollbackError | asyncpg.LockNotAvailableError)
