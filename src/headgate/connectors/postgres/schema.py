"""A table's schema in PostgreSQL: read from the source, made at the target.

Columns, defaults, generated columns, identities and sequences come with the table. Keys, indexes and checks follow the
data, when each is made in one go; foreign keys follow when all tables are there. Types that a database defines itself
are made where they are enumerations, and must exist already where they are anything else. Of another kind of database a
table has its key, its counter, its plain indexes and its foreign keys.

Whatever the source's catalog says is taken for the word of a stranger: names are quoted, types are parsed and looked up
(`postgres.declared`), and expressions are judged before they are run (`postgres.judged`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from asyncpg import Connection, Record

from headgate.connectors.api.bulk import Column, Job, Mode, StorageError
from headgate.connectors.postgres.catalog import LONGEST, parts_of, proper
from headgate.connectors.postgres.declared import Declared, parse_type, resolve
from headgate.connectors.postgres.judged import (
    is_counting,
    why_not_constraint,
    why_not_expression,
    why_not_index,
)
from headgate.connectors.postgres.types import FAMILY, made_type
from headgate.connectors.sql.quoting import literal, quoted
from headgate.connectors.values.kinds import Kind
from headgate.text import one_line

Detail: TypeAlias = Mapping[str, Any]  # A row of the catalog, or what is left of it in a plan.

_DEFAULTS = """
SELECT a.attname AS name, a.attidentity::text AS identity, a.attgenerated::text AS generated,
       pg_get_expr(d.adbin, d.adrelid) AS expression, s.oid::regclass::text AS sequence,
       format('INCREMENT BY %s MINVALUE %s MAXVALUE %s START WITH %s CACHE %s %sCYCLE', s.seqincrement, s.seqmin,
              s.seqmax, s.seqstart, s.seqcache, CASE WHEN s.seqcycle THEN '' ELSE 'NO ' END) AS options,
       format_type(s.seqtypid, NULL) AS counts, has_sequence_privilege(s.oid, 'SELECT') AS is_readable,
       CASE WHEN a.attcollation <> t.typcollation THEN quote_ident(cn.nspname) || '.' || quote_ident(c.collname) END
           AS collation
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN pg_collation c ON c.oid = a.attcollation LEFT JOIN pg_namespace cn ON cn.oid = c.collnamespace
LEFT JOIN LATERAL (
    SELECT k.oid, q.* FROM pg_depend p JOIN pg_class k ON k.oid = p.objid AND k.relkind = 'S'
    JOIN pg_sequence q ON q.seqrelid = k.oid WHERE p.classid = 'pg_class'::regclass
      AND p.refobjid = a.attrelid AND p.refobjsubid = a.attnum AND p.deptype IN ('a', 'i') LIMIT 1
) s ON true
WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
CONSTRAINTS = """
SELECT c.conname AS name, c.contype::text AS type, pg_get_constraintdef(c.oid) AS definition,
       c.confrelid::regclass::text AS refers, c.confrelid = c.conrelid AS is_own, ic.relname AS index,
       array(SELECT attname::text FROM pg_attribute WHERE attrelid = c.conrelid AND attnum = ANY (c.conkey)) AS columns
FROM pg_constraint c LEFT JOIN pg_class ic ON ic.oid = c.conindid AND c.contype <> 'f'
WHERE c.conrelid = $1 AND c.contype IN ('p', 'u', 'x', 'c', 'f') AND (c.conparentid = 0 OR c.contype <> 'f')
ORDER BY position(c.contype in 'puxcf'), c.conname
"""
# `rest` is all that follows the table's name.
INDEXES = """
SELECT c.relname AS name, i.indisunique AS is_unique, substr(pg_get_indexdef(i.indexrelid), 1 + length(format(
           'CREATE %sINDEX %I ON %s%I.%I', CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END, c.relname,
           CASE WHEN t.relkind = 'p' THEN 'ONLY ' ELSE '' END, n.nspname, t.relname))) AS rest,
       array(SELECT DISTINCT a.attname::text FROM pg_depend d JOIN pg_attribute a ON a.attnum = d.refobjsubid
             AND a.attrelid = i.indrelid WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
             AND d.refobjid = i.indrelid) AS columns
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
JOIN pg_namespace n ON n.oid = t.relnamespace
WHERE i.indrelid = $1 AND i.indisvalid
  AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x'))
ORDER BY c.relname
"""
_ENUMS = """
SELECT DISTINCT format_type(t.oid, NULL) AS name, (
    SELECT array_agg(e.enumlabel::text ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid) AS labels
FROM pg_attribute a JOIN pg_type c ON c.oid = a.atttypid
JOIN pg_type t ON t.oid = CASE WHEN c.typtype = 'd' THEN c.typbasetype WHEN c.typelem <> 0 AND c.typcategory = 'A'
                               THEN c.typelem ELSE c.oid END
WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped AND t.typtype = 'e'
"""
# Whose an index of this name is, or a constraint of the table: indexes share their names with all of the schema.
_OWNER_OF = """
SELECT coalesce(i.indrelid = t.oid, false) AS is_ours FROM pg_class t
JOIN pg_class c ON c.relnamespace = t.relnamespace AND c.relname = $1 LEFT JOIN pg_index i ON i.indexrelid = c.oid
WHERE t.oid = to_regclass($2)
UNION ALL SELECT true FROM pg_constraint WHERE conrelid = to_regclass($2) AND conname = $1
"""
_COUNTER = """
SELECT s.oid::regclass::text AS name, q.seqincrement > 0 AS rises, q.seqmin, q.seqmax
FROM pg_class s JOIN pg_sequence q ON q.seqrelid = s.oid
WHERE s.oid = pg_get_serial_sequence($1, $2)::regclass AND has_sequence_privilege(s.oid, 'SELECT')
  AND has_sequence_privilege(s.oid, 'UPDATE')
"""
NAMES = """
SELECT attname FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
"""

# Read.


async def details(connection: Connection, found: Record) -> dict[str, Any]:
    """Whatever a copy of the table should have besides its columns."""
    oid = found["oid"]
    defaults = await defaults_of(connection, oid)
    sequences = {row["name"]: await _counted(connection, row) for row in defaults if row["sequence"]}
    return {
        "kind": found["kind"],
        "defaults": defaults,
        "sequences": sequences,
        "constraints": [dict(row) for row in await connection.fetch(CONSTRAINTS, oid)],
        "indexes": [dict(row) for row in await connection.fetch(INDEXES, oid)],
        "enums": {row["name"]: list(row["labels"]) for row in await connection.fetch(_ENUMS, oid)},
    }


async def defaults_of(connection: Connection, oid: int) -> list[Detail]:
    """For each column its default, identity, sequence, generation and collation."""
    return [dict(row) for row in await connection.fetch(_DEFAULTS, oid)]


async def _counted(connection: Connection, row: Detail) -> dict[str, Any]:
    """How far a sequence is; nothing is known of one that we may not read."""
    last = None
    if row["is_readable"]:
        last = await connection.fetchrow(f"SELECT last_value, is_called FROM {row['sequence']}")
    return {"last": last and last["last_value"], "called": last and last["is_called"]}


# Make.


async def make_table(connection: Connection, job: Job, name: str) -> None:
    """The table without anything that would slow the copy down; with its key if rows are found by it."""
    schema = await _make_schema(connection, name)
    await _make_enums(connection, job)
    rows = _defaults(job)
    counters = await _make_sequences(connection, job, schema)
    lines = [await _line(connection, column, job, rows.get(column.name)) for column in job.source.columns]
    if finds_rows(job) and not job.aside:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, job.key))})")
    await connection.execute(f"CREATE TABLE {name} ({', '.join(lines)})")
    for row, expression in expressions(job, counters):
        if await why_not_expression(connection, name, expression):
            continue  # `index` says so when all is there.
        if row["generated"]:
            type = await _type(connection, row["name"], _dropped(job)[row["name"]])
            kind = "STORED" if row["generated"] == "s" else "VIRTUAL"
            change = f"ADD COLUMN {quoted(row['name'])} {type} GENERATED ALWAYS AS ({expression}) {kind}"
        else:
            change = f"ALTER COLUMN {quoted(row['name'])} SET DEFAULT ({expression})"
        await connection.execute(f"ALTER TABLE {name} {change}")
    for column, sequence in counters.items():
        await connection.execute(f"ALTER SEQUENCE {sequence} OWNED BY {name}.{quoted(column)}")


def expressions(job: Job, counters: Mapping[str, str] | None = None) -> list[tuple[Detail, str]]:
    """The defaults of copied columns, and what generates those that are not copied."""
    found = []
    copied = {column.name for column in job.source.columns if column.native}
    for row in _defaults(job).values():
        expression: str | None = row["expression"]
        is_default = row["name"] in copied and not row["generated"] and not row["identity"]
        if expression and (is_default or (row["generated"] and row["name"] in _dropped(job))):
            if counter := (counters or {}).get(row["name"]):
                old, new = literal(row["sequence"]), literal(counter)
                expression = expression.replace(f"nextval({old}::regclass)", f"nextval({new}::regclass)")
            found.append((row, expression))
    return found


def _dropped(job: Job) -> dict[str, str]:
    """The generated columns that the target computes by itself, with their types."""
    copied = {column.name for column in job.source.columns}
    dropped = job.source.details.get("dropped", ())
    return {one["name"]: one["native"] for one in dropped if one["name"] not in copied}


async def _make_schema(connection: Connection, name: str) -> str:
    """Have the schema of a name. Returns it with a dot, or nothing if the name has none."""
    parts = await parts_of(connection, name)
    if len(parts) == 1:
        return ""
    schema = quoted(parts[-2])
    if await connection.fetchval("SELECT to_regnamespace($1)", schema) is None:
        await connection.execute(f"CREATE SCHEMA {schema}")
    return f"{schema}."


async def _line(connection: Connection, column: Column, job: Job, row: Detail | None) -> str:
    parts = [quoted(column.name), await _type(connection, column.name, made_type(column, job.source))]
    if row is not None and column.native:
        if row["collation"]:
            parts.append(f"COLLATE {await proper(connection, row['collation'])}")
        if row["identity"]:
            always = "ALWAYS" if row["identity"] == "a" else "BY DEFAULT"
            parts.append(f"GENERATED {always} AS IDENTITY ({_counting(row)})")
    is_whole = column.type.kind in (Kind.INT16, Kind.INT32, Kind.INT64)
    if not is_own(job) and column.name == job.source.counts and is_whole:
        parts.append("GENERATED BY DEFAULT AS IDENTITY")
    if not column.nullable:
        parts.append("NOT NULL")
    return " ".join(parts)


async def _make_enums(connection: Connection, job: Job) -> None:
    enums: dict[str, list[str]] = job.source.details.get("enums", {}) if is_own(job) else {}
    for name, labels in enums.items():
        declared = _declared(name)
        if declared is not None and await resolve(connection, declared) is None:
            path = ".".join(map(quoted, declared.path))
            await _make_schema(connection, path)
            await connection.execute(f"CREATE TYPE {path} AS ENUM ({', '.join(map(literal, labels))})")


async def _type(connection: Connection, column: str, native: str) -> str:
    """The target's name for a type."""
    declared = _declared(native)
    type = await resolve(connection, declared) if declared is not None else None
    if type is None:
        raise StorageError(
            f"column {column!r} has the type {one_line(native, 100)}, which the target does not have",
            hint="create the type (or its extension) there first",
        )
    return type


def _declared(native: str) -> Declared | None:
    try:
        return parse_type(native)
    except ValueError:
        return None


def _counting(row: Detail) -> str:
    """The options of a sequence."""
    options: str = row["options"]
    if not is_counting(options, row["counts"]):
        raise StorageError(f"column {row['name']!r} is numbered in a way that PostgreSQL does not know")
    return options


async def _make_sequences(connection: Connection, job: Job, schema: str) -> dict[str, str]:
    """The sequence of each column that counts by its default. Those of identities are made with the column."""
    counters: dict[str, str] = {}
    copied = {column.name for column in job.source.columns if column.native}
    for row in _defaults(job).values():
        if not row["sequence"] or row["identity"] or row["name"] not in copied:
            continue
        last = (await parts_of(connection, row["sequence"]))[-1]
        name = schema + quoted(last)
        if await connection.fetchval("SELECT to_regclass($1)", name) is not None:
            name = schema + quoted(other_name(last, job.dump.hex[:8]))  # Another table's.
        options = _counting(row)
        await connection.execute(f"CREATE SEQUENCE {name} AS {row['counts']} {options}")
        counters[row["name"]] = name
    return counters


# Complete.


async def complete(connection: Connection, job: Job, name: str) -> None:
    """Keys, indexes and checks of a table that the dump made, from the source's schema. What is there is not made
    again, and what needs a column that was not copied is left out."""
    suffix, found = job.dump.hex[:8], job.source.details if is_own(job) else {}
    there = {row["attname"] for row in await connection.fetch(NAMES, name)}
    key = job.key if finds_rows(job) else () if is_own(job) else job.source.key
    if key and there.issuperset(key) and not await _has_key(connection, name):
        await connection.execute(f"ALTER TABLE {name} ADD PRIMARY KEY ({', '.join(map(quoted, key))})")
    for one in possible(found.get("constraints", ()), there):
        if one["type"] == "f" or (one["type"] == "p" and await _has_key(connection, name)):
            continue
        if await why_not_constraint(connection, name, one["definition"]):
            continue
        if given := await name_for(connection, one["name"], name, suffix):
            await connection.execute(f"ALTER TABLE {name} ADD CONSTRAINT {quoted(given)} {one['definition']}")
    for one in possible(found.get("indexes", ()), there):
        if await why_not_index(connection, name, one["rest"]):
            continue
        if given := await name_for(connection, one["name"], name, suffix):
            await connection.execute(index_on(one, given, name))


def possible(found: Iterable[Detail], there: set[str]) -> list[Detail]:
    return [one for one in found if there.issuperset(one["columns"])]


async def advance(connection: Connection, job: Job, name: str) -> None:
    """Let sequences continue after what was copied, and where the table is ours, after what the source had counted."""
    known = job.source.details.get("sequences", {}) if is_own(job) and job.created else {}
    for column in job.source.columns:
        counter = await connection.fetchrow(_COUNTER, name, column.name)
        if counter is None or column.type.kind not in (Kind.INT16, Kind.INT32, Kind.INT64):
            continue
        rises = counter["rises"]
        query = f"SELECT {'max' if rises else 'min'}({quoted(column.name)})::bigint FROM {name}"
        high = await connection.fetchval(query)
        now = tuple(await connection.fetchrow(f"SELECT last_value, is_called FROM {counter['name']}"))
        before = known.get(column.name, {})
        places = [now, (before.get("last"), before.get("called")), (high, True)]
        reached = [one for one in places if one[0] is not None and counter["seqmin"] <= one[0] <= counter["seqmax"]]
        # In the order of the sequence: a number that was given away comes after the same that was not.
        last = max(reached, key=lambda one: (one[0], one[1]) if rises else (-one[0], one[1]))
        if last != now:
            await connection.execute("SELECT setval($1::text::regclass, $2, $3)", counter["name"], *last)


async def _has_key(connection: Connection, name: str) -> bool:
    query = "SELECT count(*) FROM pg_index WHERE indrelid = to_regclass($1) AND indisprimary"
    return bool(await connection.fetchval(query, name))


def index_on(index: Detail, name: str, table: str) -> str:
    """The statement that makes this index, under this name, on another table."""
    return f"CREATE {'UNIQUE ' if index['is_unique'] else ''}INDEX {quoted(name)} ON {table}{index['rest']}"


async def name_for(connection: Connection, name: str, table: str, suffix: str) -> str | None:
    """The name to give an index or a constraint: its own, unless another table has that. None: it is there already."""
    for candidate in (name, other_name(name, suffix)):
        owner = await owner_of(connection, candidate, table)
        if owner is None:
            return candidate
        if owner["is_ours"]:
            return None
    raise StorageError(f"{table}: the names {name} and {candidate} are both taken")


async def owner_of(connection: Connection, name: str, table: str) -> Record | None:
    """Whether a name is taken, and if so, by the table. None: it is free."""
    return await connection.fetchrow(_OWNER_OF, name, table)


def other_name(name: str, suffix: str) -> str:
    """A name of at most 63 bytes that no other index has, and no other long name is cut to."""
    if len(name.encode()) + 1 + len(suffix) > LONGEST:
        suffix = f"{hashlib.sha256(name.encode()).hexdigest()[:8]}_{suffix}"
    return name.encode()[: LONGEST - 1 - len(suffix)].decode(errors="ignore") + "_" + suffix


def finds_rows(job: Job) -> bool:
    """Whether the job looks rows up by their key."""
    return job.mode in (Mode.UPSERT, Mode.ABSENT) and bool(job.key)


def is_own(job: Job) -> bool:
    return job.source.family == FAMILY


def _defaults(job: Job) -> dict[str, Detail]:
    found: Sequence[Detail] = job.source.details.get("defaults", ()) if is_own(job) else ()
    return {row["name"]: row for row in found}
