"""What PostgreSQL's catalog says of tables: their names, columns, types and keys."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from asyncpg import Connection, Record

from headgate.connectors.api.bulk import Column, Foreign, Index
from headgate.connectors.postgres.types import type_of
from headgate.connectors.postgres.walls import REGISTRIES, keep_out
from headgate.connectors.sql.quoting import quoted
from headgate.errors import Refused
from headgate.text import counted

LONGEST = 63  # Bytes of a name.
LEAST_PAGES = 10  # The server assumes at least this size for a table that was never analyzed.

# Tables that Headgate keeps at a target, and those that a dump builds apart, of `pg_class c`.
OWN_TABLES = ("headgate_dump_chunk", "headgate_position", "headgate_dead_letter")
OURS = f"(c.relname IN {OWN_TABLES} OR c.relname ~ '__hg_[0-9a-f]{{8}}$')"

_FIND = """
SELECT c.oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind, c.reltuples::bigint AS rows,
       coalesce(m.amname = 'heap', false) AS is_heap,
       c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid) AS has_children,
       CASE c.relkind WHEN 'p' THEN (SELECT sum(pg_table_size(relid))::bigint FROM pg_partition_tree(c.oid))
                      WHEN 'v' THEN NULL ELSE pg_table_size(c.oid) END AS size
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_am m ON m.oid = c.relam
WHERE c.oid = to_regclass($1) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""
_PARTS = "SELECT parse_ident($1)"
_PROPER = """
SELECT string_agg(quote_ident(part), '.' ORDER BY place) FROM unnest(parse_ident($1)) WITH ORDINALITY p (part, place)
"""
# What an extension brings is the extension's business, and what a dump builds apart is no table yet.
_TABLES = f"""
SELECT CASE WHEN pg_table_is_visible(c.oid) THEN quote_ident(c.relname)
            ELSE quote_ident(n.nspname) || '.' || quote_ident(c.relname) END AS name
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast') AND n.oid NOT IN ({REGISTRIES}) AND NOT {OURS}
  AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = c.oid AND deptype = 'e')
ORDER BY 1
"""
# A domain has its type from another, which may be a domain; `plain` is what it stands for. `cast` is the type
# without its size: a cast with a size would cut. `is_textual`: the binary form is missing, or names other types by
# numbers that each database has its own. `is_added`: an extension or a user has made the type.
_COLUMNS = """
WITH RECURSIVE based (attnum, oid, size) AS (
    SELECT attnum, atttypid, atttypmod FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped
    UNION ALL SELECT b.attnum, t.typbasetype, CASE WHEN b.size = -1 THEN t.typtypmod ELSE b.size END
    FROM based b JOIN pg_type t ON t.oid = b.oid WHERE t.typtype = 'd'
)
SELECT a.attname AS name, a.attnotnull AS is_required, format_type(a.atttypid, a.atttypmod) AS native,
       format_type(a.atttypid, -1) AS cast, format_type(t.oid, b.size) AS plain,
       t.typname AS type, b.size, t.typcategory::text AS category,
       a.attgenerated <> '' AS is_generated, a.atthasdef OR a.attidentity <> '' AS has_default,
       t.typsend = 0 OR t.typtype = 'c' OR t.oid IN (SELECT oid FROM pg_type WHERE typname ~ '^_?reg')
       OR (t.typcategory = 'A' AND t.typelem >= 16384) AS is_textual, t.oid >= 16384 AS is_added
FROM pg_attribute a JOIN based b USING (attnum) JOIN pg_type t ON t.oid = b.oid AND t.typtype <> 'd'
WHERE a.attrelid = $1 ORDER BY a.attnum
"""
# The primary key, or else the narrowest index that is as good.
_KEYS = """
SELECT array(
    SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE k.place <= i.indnkeyatts ORDER BY k.place
) AS columns
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
WHERE i.indrelid = $1 AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
  AND m.amname = 'btree' AND ($2 OR NOT EXISTS (
    SELECT FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE k.place <= i.indnkeyatts AND NOT a.attnotnull))
ORDER BY i.indisprimary DESC, i.indnkeyatts, c.relname
"""

_INDEXES = """
SELECT c.relname AS name, i.indisunique AS is_unique, array(
    SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE k.place <= i.indnkeyatts ORDER BY k.place
) AS columns
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
WHERE i.indrelid = $1 AND i.indisvalid AND i.indimmediate AND NOT i.indisprimary AND i.indpred IS NULL
  AND i.indexprs IS NULL AND m.amname = 'btree' ORDER BY c.relname
"""
# Of the foreign key c: its columns, and those that it refers to.
PAIRED = """array(
    SELECT a.attname::text FROM unnest(c.conkey) WITH ORDINALITY AS k (attnum, place)
    JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.attnum ORDER BY k.place
) AS columns, array(
    SELECT a.attname::text FROM unnest(c.confkey) WITH ORDINALITY AS k (attnum, place)
    JOIN pg_attribute a ON a.attrelid = c.confrelid AND a.attnum = k.attnum ORDER BY k.place
) AS refers_to
"""
_FOREIGN = f"""
SELECT c.conname AS name, c.confrelid::regclass::text AS refers, c.confdeltype::text AS on_delete,
       c.confupdtype::text AS on_update, {PAIRED}
FROM pg_constraint c WHERE c.conrelid = $1 AND c.contype = 'f' AND c.conparentid = 0 ORDER BY c.conname
"""
_ACTIONS = {"a": "NO ACTION", "r": "RESTRICT", "c": "CASCADE", "n": "SET NULL", "d": "SET DEFAULT"}


# Names.


def quoted_path(table: str) -> str:
    """The name in a stream's options, quoted as it is; a dot separates schema and table."""
    return ".".join(map(quoted, table.split(".")))


async def proper(connection: Connection, table: str) -> str:
    """A table's name as SQL: folded and quoted as the server would. What is not SQL is one name, as it is."""
    if not is_sql(table):
        return quoted(table)
    return await connection.fetchval(_PROPER, table)  # type: ignore[no-any-return]


def name_for(plain: str) -> str:
    """How a name is written that means this very one: in quotes where SQL would fold it, or see two names in it."""
    is_kept = plain == plain.lower() and not {".", '"'} & set(plain)
    return plain if is_kept or not is_sql(plain) else quoted(plain)


async def place_of(connection: Connection, table: str) -> str:
    """What tells tables apart: schema and name. A name that the server would cut is refused."""
    parts = await parts_of(connection, await proper(connection, table))
    for part in parts:
        if not 0 < len(part.encode()) <= LONGEST:
            raise Refused(
                f"{table} has a name of {counted(len(part.encode()), 'byte')}, of which PostgreSQL keeps {LONGEST}",
                code="name",
                hint="rename it: --table name=target",
            )
    if (found := await find(connection, table)) is not None:
        parts = [found["schema"], found["name"]]
    elif len(parts) == 1:
        parts = [await connection.fetchval("SELECT current_schema()") or "", *parts]
    return ".".join(map(quoted, parts))


def is_sql(table: str) -> bool:
    """Whether a text is a name, or several with dots between, as SQL would have it."""
    name = r'(?:[^\W\d][\w$]*|"(?:[^"]|"")+")'
    return re.fullmatch(rf"{name}(?:\.{name})*", table) is not None


async def parts_of(connection: Connection, name: str) -> list[str]:
    """The names in a proper name: of the schema, if it is there, and of the table."""
    return await connection.fetchval(_PARTS, name)  # type: ignore[no-any-return]


# Tables.


async def find(connection: Connection, table: str) -> Record | None:
    """The catalog's row of a table; None: there is none, and one may be made. What is not ours to touch is refused."""
    name = await proper(connection, table)
    await keep_out(connection, name)
    return await connection.fetchrow(_FIND, name)


async def must_find(connection: Connection, table: str) -> Record:
    """The catalog's row of a table that is there."""
    found = await find(connection, table)
    assert found is not None, table
    return found


async def tables(connection: Connection) -> list[str]:
    """All tables that are not ours, by the name that finds them."""
    return [row["name"] for row in await connection.fetch(_TABLES)]


async def about_rows(connection: Connection, found: Record, relation: str) -> int | None:
    """About how many rows a table has: what was counted last, scaled to its size by the planner."""
    plan = msgspec.json.decode(await connection.fetchval(f"EXPLAIN (FORMAT JSON) SELECT FROM {relation}"))
    rows: int = plan[0]["Plan"]["Plan Rows"]
    if found["kind"] in ("r", "m") and not found["size"]:
        return None
    if found["rows"] < 0 and found["kind"] in ("r", "m"):
        query = "SELECT pg_relation_size($1::oid) / current_setting('block_size')::bigint"
        rows = rows * min(LEAST_PAGES, await connection.fetchval(query, found["oid"])) // LEAST_PAGES
    return max(1, rows)


async def key_of(connection: Connection, oid: int) -> tuple[str, ...]:
    """The columns that tell rows apart, unique and NOT NULL."""
    return tuple(await connection.fetchval(_KEYS, oid, False) or ())


async def indexes_of(connection: Connection, oid: int) -> tuple[Index, ...]:
    """The indexes that another kind of database can have, too."""
    rows = await connection.fetch(_INDEXES, oid)
    return tuple(Index(row["name"], tuple(row["columns"]), row["is_unique"]) for row in rows)


async def foreign_of(connection: Connection, oid: int) -> tuple[Foreign, ...]:
    """The foreign keys of a table."""
    return tuple(
        Foreign(
            row["name"],
            tuple(row["columns"]),
            row["refers"],
            tuple(row["refers_to"]),
            _ACTIONS[row["on_delete"]],
            _ACTIONS[row["on_update"]],
        )
        for row in await connection.fetch(_FOREIGN, oid)
    )


async def unique_keys(connection: Connection, oid: int) -> list[list[str]]:
    """The columns of each index that a conflict can be found by."""
    return [row["columns"] for row in await connection.fetch(_KEYS, oid, True)]


async def columns_of(connection: Connection, oid: int) -> tuple[tuple[Column, ...], dict[str, Any]]:
    """A table's columns, and what else a copy must know of them."""
    rows = await connection.fetch(_COLUMNS, oid)
    columns = tuple(
        Column(row["name"], type_of(row), nullable=not row["is_required"], native=row["native"]) for row in rows
    )
    return columns, {
        "key_types": {row["name"]: row["cast"] for row in rows},
        "plain": {row["name"]: row["plain"] for row in rows},
        "generated": [row["name"] for row in rows if row["is_generated"]],
        "textual": [row["name"] for row in rows if row["is_textual"]],
        "filled": [row["name"] for row in rows if row["has_default"] or not row["is_required"]],
        "server": connection.get_server_version().major,
        "added": [row["name"] for row in rows if row["is_added"]],
    }
