"""A PostgreSQL table takes another's place: built apart with its shape, dressed with its keys, swapped in at once.

Readers of the old table wait only for the last transaction, which moves names. What would be left behind by that, or
broken, is listed and refused, at the start and again at the end.
"""

from __future__ import annotations

from asyncpg import Connection

from headgate.connectors.postgres.catalog import find, must_find, parts_of
from headgate.connectors.postgres.links import referring
from headgate.connectors.postgres.schema import (
    CONSTRAINTS,
    INDEXES,
    defaults_of,
    index_on,
    other_name,
    owner_of,
)
from headgate.connectors.sql.quoting import literal, quoted
from headgate.errors import Refused

SHOWN = 5  # Dependents that a message names.

_DEPENDENTS = """
SELECT CASE v.relkind WHEN 'r' THEN 'rule ' || r.rulename ELSE 'view ' || v.oid::regclass END AS what
FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid JOIN pg_class v ON v.oid = r.ev_class
WHERE d.classid = 'pg_rewrite'::regclass AND d.refobjid = $1
UNION SELECT 'foreign key ' || conname || ' of ' || conrelid::regclass FROM pg_constraint
      WHERE confrelid = $1 AND conrelid <> $1 AND contype = 'f'
UNION SELECT 'trigger ' || tgname FROM pg_trigger WHERE tgrelid = $1 AND NOT tgisinternal
UNION SELECT 'policy ' || polname || ' of ' || polrelid::regclass FROM pg_policy WHERE polrelid = $1
      OR oid IN (SELECT objid FROM pg_depend WHERE classid = 'pg_policy'::regclass AND refobjid = $1)
UNION SELECT 'row security' FROM pg_class WHERE oid = $1 AND relrowsecurity
UNION SELECT 'replica identity' FROM pg_class WHERE oid = $1 AND relreplident <> 'd'
UNION SELECT 'publication ' || p.pubname FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
      WHERE r.prrelid = $1
UNION SELECT 'child ' || inhrelid::regclass FROM pg_inherits WHERE inhparent = $1
UNION SELECT 'parent ' || inhparent::regclass FROM pg_inherits WHERE inhrelid = $1
UNION SELECT pg_describe_object(d.classid, d.objid, d.objsubid) FROM pg_depend d
      WHERE d.deptype = 'n' AND (d.classid = 'pg_proc'::regclass AND d.refobjid = $1
         OR d.refclassid = 'pg_type'::regclass AND d.refobjid IN (
            SELECT unnest(ARRAY[t.oid, t.typarray]) FROM pg_type t WHERE t.typrelid = $1))
ORDER BY 1
"""
# Rights of the table and of its columns.
_GRANTS = """
SELECT format('GRANT %s%s ON %s TO %s%s', g.privilege_type, a.columns, $2::text,
              CASE WHEN g.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END,
              CASE WHEN g.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END) AS statement
FROM (SELECT relacl AS acl, '' AS columns, relowner FROM pg_class WHERE oid = $1
      UNION ALL SELECT attacl, ' (' || quote_ident(attname) || ')', relowner
      FROM pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE attrelid = $1 AND NOT attisdropped) a,
     aclexplode(a.acl) g WHERE g.grantee <> a.relowner
"""
# What default privileges gave to the new table is not what the old one had.
_GRANTEES = """
SELECT DISTINCT CASE WHEN g.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END AS name
FROM pg_class c, aclexplode(c.relacl) g WHERE c.oid = to_regclass($1) AND g.grantee <> c.relowner
"""
_SHAPE = """
SELECT relpersistence = 'u' AS is_unlogged, coalesce(reloptions, '{}') AS options,
       quote_ident(pg_get_userbyid(relowner)) AS owner FROM pg_class WHERE oid = $1
"""


async def refuse_dependents(connection: Connection, table: str) -> None:
    """Say at the start what would stop the swap at the end."""
    found = await find(connection, table)
    if found is None:
        return
    if found["kind"] != "r":
        raise Refused(f"{table} is not a plain table and cannot be replaced", code="dependents", hint="append to it")
    names = [row["what"] for row in await connection.fetch(_DEPENDENTS, found["oid"])]
    if names:
        depend = "depends" if len(names) == 1 else "depend"
        some = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        raise Refused(
            f"{table} cannot be replaced: {some} {depend} on it", code="dependents", hint="drop them first, or append"
        )


async def copy_shape(connection: Connection, table: str, apart: str) -> None:
    """A table like the one that it is to replace, without what slows the copy down."""
    if await find(connection, apart) is not None:
        return
    found = await must_find(connection, table)
    shape = await connection.fetchrow(_SHAPE, found["oid"])
    unlogged = "UNLOGGED " if shape["is_unlogged"] else ""
    await connection.execute(f"CREATE {unlogged}TABLE {apart} (LIKE {table} INCLUDING ALL EXCLUDING INDEXES)")
    for option in shape["options"]:
        name, _, value = option.partition("=")
        await connection.execute(f"ALTER TABLE {apart} SET ({name} = {literal(value)})")


async def dress(connection: Connection, old: str, apart: str, suffix: str) -> None:
    """Give the table that was built apart the keys and indexes of the one that it will replace, under other names.

    The old table is read meanwhile as ever. What has been made already, before a crash, is not made again.
    """
    found = await must_find(connection, old)
    there = "SELECT conname FROM pg_constraint WHERE conrelid = to_regclass($1)"
    names = {row["conname"] for row in await connection.fetch(there, apart)}
    for one in await connection.fetch(CONSTRAINTS, found["oid"]):
        name = other_name(one["name"], suffix) if one["index"] else one["name"]
        if name not in names:
            definition = referring(one, apart)
            await connection.execute(f"ALTER TABLE {apart} ADD CONSTRAINT {quoted(name)} {definition}")
    for one in await connection.fetch(INDEXES, found["oid"]):
        name = other_name(one["name"], suffix)
        if await owner_of(connection, name, apart) is None:
            await connection.execute(index_on(one, name, apart))


async def swap(connection: Connection, old: str, apart: str, suffix: str) -> None:
    """Put the table that was built apart in the place of the old one, with its names, rights and owner."""
    parts = await parts_of(connection, old)
    if await find(connection, old) is not None:
        await connection.execute(f"LOCK TABLE {old} IN ACCESS EXCLUSIVE MODE")
        await refuse_dependents(connection, old)
        found = await must_find(connection, old)
        shape = await connection.fetchrow(_SHAPE, found["oid"])
        constraints = await connection.fetch(CONSTRAINTS, found["oid"])
        indexes = await connection.fetch(INDEXES, found["oid"])
        grants = await connection.fetch(_GRANTS, found["oid"], apart)
        await connection.execute(f"ALTER TABLE {apart} OWNER TO {shape['owner']}")
        counters = await _keep_sequences(connection, found["oid"], apart)
        await connection.execute(f"DROP TABLE {old}")
        for one in constraints:
            if one["index"]:
                name = quoted(other_name(one["name"], suffix))
                await connection.execute(f"ALTER TABLE {apart} RENAME CONSTRAINT {name} TO {quoted(one['name'])}")
        for one in indexes:
            name = f"{quoted(found['schema'])}.{quoted(other_name(one['name'], suffix))}"
            await connection.execute(f"ALTER INDEX {name} RENAME TO {quoted(one['name'])}")
        for row in await connection.fetch(_GRANTEES, apart):
            await connection.execute(f"REVOKE ALL ON {apart} FROM {row['name']}")
        for row in grants:
            await connection.execute(row["statement"])
    else:
        counters = await _names_for_sequences(connection, parts[-1], apart)
    for sequence, name in counters.items():
        await connection.execute(f"ALTER SEQUENCE {sequence} RENAME TO {quoted(name)}")
    await connection.execute(f"ALTER TABLE {apart} RENAME TO {quoted(parts[-1])}")


async def _keep_sequences(connection: Connection, oid: int, apart: str) -> dict[str, str]:
    """Sequences that the old table owns would go with it; those of identities go on where they were. Returns the names
    that the new ones of identities get."""
    names: dict[str, str] = {}
    for row in await defaults_of(connection, oid):
        if not row["sequence"]:
            continue
        if not row["identity"]:
            await connection.execute(f"ALTER SEQUENCE {row['sequence']} OWNED BY {apart}.{quoted(row['name'])}")
            continue
        sequence = await connection.fetchval("SELECT pg_get_serial_sequence($1, $2)", apart, row["name"])
        last = await connection.fetchrow(f"SELECT last_value, is_called FROM {row['sequence']}")
        await connection.execute("SELECT setval($1::text::regclass, $2, $3)", sequence, *last)
        names[sequence] = (await parts_of(connection, row["sequence"]))[-1]
    return names


async def _names_for_sequences(connection: Connection, table: str, apart: str) -> dict[str, str]:
    """The names that identities' sequences would have, had the table been made in its place."""
    names: dict[str, str] = {}
    found = await must_find(connection, apart)
    for row in await defaults_of(connection, found["oid"]):
        name = f"{table}_{row['name']}_seq"
        if row["identity"] and len(name.encode()) < 63 and await owner_of(connection, name, apart) is None:
            names[row["sequence"]] = name
    return names
