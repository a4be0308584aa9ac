"""A target's triggers and rules stay out of a copy: they would change rows, drop them, or write others.

A copy is to be what the source has. So a chunk for a table with triggers is written in the role `replica`, in which
PostgreSQL fires none but those that somebody marked for it. That role may be taken by a superuser, or by someone who
was granted it; where it may not, or a trigger fires in it, the table is refused before a row is written.

Foreign keys are triggers, too, and rest in that role. What they would have refused is looked for when the rows are
there. A table without triggers is written in the ordinary role, and its foreign keys judge each row as ever.
"""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
from asyncpg import Connection, Record

from headgate.connectors.api.bulk import StorageError
from headgate.connectors.postgres.catalog import PAIRED
from headgate.connectors.sql.quoting import quoted
from headgate.errors import Refused

SHOWN = 3  # Triggers that a message names.

# Of the table and, if it is partitioned, of its partitions, each name once. A rule is not asked by COPY, but by INSERT.
_ACTIVE = """
WITH tables AS (SELECT to_regclass($1)::oid AS oid UNION SELECT relid FROM pg_partition_tree(to_regclass($1)))
SELECT DISTINCT 'trigger ' || tgname AS what, tgenabled::text AS fires FROM pg_trigger
JOIN tables ON tgrelid = tables.oid
WHERE NOT tgisinternal AND tgenabled <> 'D' AND tgtype::int & 28 <> 0
UNION SELECT 'rule ' || rulename, ev_enabled::text FROM pg_rewrite JOIN tables ON ev_class = tables.oid
WHERE rulename <> '_RETURN' AND ev_enabled <> 'D' ORDER BY 1
"""
_FOREIGN = f"""
SELECT c.conname AS name, c.conrelid::regclass::text AS refers_from, c.confrelid::regclass::text AS other,
       c.confmatchtype = 'f' AS is_full, {PAIRED}
FROM pg_constraint c
WHERE c.contype = 'f' AND c.conparentid = 0 AND c.convalidated AND to_regclass($1)::oid IN (c.conrelid, c.confrelid)
  AND to_jsonb(c) ->> 'conperiod' IS DISTINCT FROM 'true' ORDER BY c.conname
"""


async def silence(connection: Connection, table: str) -> bool:
    """Have no trigger of a table fire in this transaction. Returns whether there was one. Raises `Refused` if that is
    not possible."""
    rows = await connection.fetch(_ACTIVE, table)
    if not any(row["fires"] in ("O", "A") for row in rows):
        return False  # There are none, or they fire in that role alone.
    if stubborn := [row for row in rows if row["fires"] in ("A", "R")]:
        raise Refused(
            f"{table} has {_named(stubborn)}, which would change what is copied and cannot be kept from it",
            code="triggers",
            hint=f"ALTER TABLE {table} DISABLE TRIGGER USER for as long as the dump runs, or drop it",
        )
    await connection.execute("SAVEPOINT role")
    try:
        await connection.execute("SET LOCAL session_replication_role = replica")
    except asyncpg.InsufficientPrivilegeError:
        await connection.execute("ROLLBACK TO role")
        user = quoted(await connection.fetchval("SELECT current_user"))
        raise Refused(
            f"{table} has {_named(rows)}, which would change what is copied, and {user} may not keep it from that",
            code="triggers",
            hint=f"as a superuser: GRANT SET ON PARAMETER session_replication_role TO {user}; or ALTER TABLE {table}"
            " DISABLE TRIGGER USER for as long as the dump runs",
        ) from None
    await connection.execute("RELEASE role")
    return True


def _named(rows: Sequence[Record]) -> str:
    names = [row["what"] for row in rows]
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


async def refuse_orphans(connection: Connection, table: str) -> None:
    """Raise `StorageError` if a foreign key of the table, or one that refers to it, is broken."""
    for row in await connection.fetch(_FOREIGN, table):
        pairs = zip(row["columns"], row["refers_to"], strict=True)
        same = " AND ".join(f"o.{quoted(other)} = t.{quoted(own)}" for own, other in pairs)
        values = ", ".join(f"t.{quoted(name)}" for name in row["columns"])
        # A key with a NULL in it refers to nothing; one that must match in full may have NULLs only.
        refers = f"num_nonnulls({values}) > 0" if row["is_full"] else f"num_nulls({values}) = 0"
        query = (
            f"SELECT EXISTS (SELECT FROM {row['refers_from']} t WHERE {refers}"
            f" AND NOT EXISTS (SELECT FROM {row['other']} o WHERE {same}))"
        )
        if await connection.fetchval(query):
            raise StorageError(
                f"{row['refers_from']} has rows that the foreign key {row['name']} refuses",
                hint=f"copy {row['other']} first, or with it",
            )
