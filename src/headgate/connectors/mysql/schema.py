"""A table's schema in MySQL and MariaDB: read from the source, made at the target.

The primary key comes with the table, unlike elsewhere: InnoDB keeps the rows in its order, and rows that arrive in that
order are appended to it, while a key that is added later copies the whole table. Other indexes follow the data, and
foreign keys follow when all tables are there. Columns that the source computes are plain columns of the copy. Triggers
are not copied.

A new table takes the old one's place with one RENAME TABLE, which no transaction covers. So the ledger first gets the
line `swapping`: from then on a table beside that is not there any more has been renamed, and not begun anew.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pymysql

from headgate.connectors.api.bulk import By, Column, Foreign, Index, Job, Table, target_of
from headgate.connectors.mysql.session import Session, is_gone
from headgate.connectors.mysql.types import (
    COLLATION,
    FAMILY,
    base_of,
    made_type,
    quoted,
    refusal,
    text_literal,
    type_of,
)
from headgate.errors import Refused
from headgate.text import one_line

NAME = 64  # The longest name.
BEGINNING = 191  # Characters of a text that an index has: four bytes each are as many as old servers allow.

_TABLE = """
SELECT ENGINE, TABLE_ROWS, DATA_LENGTH, AUTO_INCREMENT, TABLE_TYPE FROM information_schema.TABLES
WHERE TABLE_SCHEMA = {schema} AND TABLE_NAME = {name}
"""
_COLUMNS = """
SELECT COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, CHARACTER_MAXIMUM_LENGTH, NUMERIC_PRECISION, NUMERIC_SCALE,
       COLLATION_NAME, EXTRA, COLUMN_DEFAULT
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = {schema} AND TABLE_NAME = {name} ORDER BY ORDINAL_POSITION
"""
_INDEXES = """
SELECT INDEX_NAME, NON_UNIQUE, COLUMN_NAME, SUB_PART, INDEX_TYPE, NULLABLE FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = {schema} AND TABLE_NAME = {name} ORDER BY INDEX_NAME, SEQ_IN_INDEX
"""
_FOREIGN = """
SELECT k.CONSTRAINT_NAME, k.COLUMN_NAME, k.REFERENCED_TABLE_SCHEMA, k.REFERENCED_TABLE_NAME, k.REFERENCED_COLUMN_NAME,
       r.DELETE_RULE, r.UPDATE_RULE
FROM information_schema.KEY_COLUMN_USAGE k JOIN information_schema.REFERENTIAL_CONSTRAINTS r
  ON r.CONSTRAINT_SCHEMA = k.CONSTRAINT_SCHEMA AND r.CONSTRAINT_NAME = k.CONSTRAINT_NAME
  AND r.TABLE_NAME = k.TABLE_NAME
WHERE k.TABLE_SCHEMA = {schema} AND k.TABLE_NAME = {name} AND k.REFERENCED_TABLE_NAME IS NOT NULL
ORDER BY k.CONSTRAINT_NAME, k.ORDINAL_POSITION
"""
_CHECKS = """
SELECT CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS
WHERE CONSTRAINT_SCHEMA = {schema} AND TABLE_NAME = {name}
"""
_DEPENDENTS = """
SELECT CONCAT('foreign key ', CONSTRAINT_NAME, ' of ', TABLE_SCHEMA, '.', TABLE_NAME)
FROM information_schema.KEY_COLUMN_USAGE
WHERE REFERENCED_TABLE_SCHEMA = {schema} AND REFERENCED_TABLE_NAME = {name}
UNION SELECT CONCAT('its own foreign key ', CONSTRAINT_NAME) FROM information_schema.REFERENTIAL_CONSTRAINTS
WHERE CONSTRAINT_SCHEMA = {schema} AND TABLE_NAME = {name}
UNION SELECT CONCAT('trigger ', TRIGGER_NAME) FROM information_schema.TRIGGERS
WHERE EVENT_OBJECT_SCHEMA = {schema} AND EVENT_OBJECT_TABLE = {name}
"""


# Names.


def parts_of(session: Session, table: str) -> tuple[str, str]:
    """The database and the table that a name means."""
    schema, dot, name = table.partition(".")
    return (schema, name) if dot else (session.where.database, table)


def sql_name(session: Session, table: str) -> str:
    """A table's name in a statement."""
    return ".".join(map(quoted, parts_of(session, table)))


def beside_of(job: Job, mark: str = "") -> str:
    """The name of the table beside, or of the old one while the new one takes its place. Never too long."""
    schema, dot, name = job.target.rpartition(".")
    suffix = f"__hg_{mark}{job.dump.hex[:8]}"
    if len(name) + len(suffix) > NAME:
        name = f"{name[:30]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{schema}{dot}{name}{suffix}"


def old_of(job: Job) -> str:
    """The name of the table that was replaced, until it is dropped."""
    return beside_of(job, "old_")


# Read.


def _ask(session: Session, query: str, table: str) -> tuple[tuple[Any, ...], ...]:
    schema, name = parts_of(session, table)
    return session.rows(query.format(schema=text_literal(schema), name=text_literal(name)))


def exists(session: Session, table: str) -> bool:
    """Whether there is such a table."""
    return bool(_ask(session, _TABLE, table))


def described(session: Session, table: str) -> Table | None:
    """What a table looks like. None: there is none."""
    found = _ask(session, _TABLE, table)
    if not found:
        return None
    engine, rows, size, following, sort = found[0]
    documents = _documents(session, table)
    columns, details = [], _details(sort, engine)
    for name, native, nullable, length, precision, scale, collation, extra, default in _ask(session, _COLUMNS, table):
        own = "json" if name in documents else _plain(str(native))
        type = type_of(own, length, precision, scale, session.where.is_bool)
        if type is None:
            raise refusal(name, own)
        columns.append(Column(name, type, nullable == "YES", own))
        _note(session, details, name, collation, str(extra).lower(), default)
        if "auto_increment" in str(extra).lower():
            details["auto_increment"] = {"column": name, "next": following}
    details["indexes"] = _indexes(session, table)
    index = _key_index(details["indexes"])
    key = tuple(index["columns"]) if index else ()
    details["key_index"] = index["name"] if index else ""
    details["key_types"] = {column.name: column.native for column in columns if column.name in key}
    return Table(
        table,
        tuple(columns),
        key,
        By.KEY if key else By.OFFSET,
        rows,
        size,
        FAMILY,
        details,
        counts=details.get("auto_increment", {}).get("column", ""),
        indexes=tuple(
            Index(one["name"], tuple(one["columns"]), one["unique"])
            for one in details["indexes"]
            if one is not index and one["type"] == "BTREE" and not any(one["lengths"])
        ),
        foreign=_foreign(session, table),
    )


def _plain(native: str) -> str:
    """A type without what is said about it in a comment."""
    return re.sub(r"\s*/\*.*?\*/", "", native)


def _details(sort: str, engine: str | None) -> dict[str, Any]:
    return {"kind": sort, "engine": engine or "", "collations": {}, "computed": [], "defaults": {}}


def _note(
    session: Session, details: dict[str, Any], name: str, collation: str | None, extra: str, default: str | None
) -> None:
    """What a copy needs to know of a column besides its type."""
    if collation:
        details["collations"][name] = collation
    if "generated" in extra and "default_generated" not in extra:
        details["computed"].append(name)
    elif default is not None and default != "NULL":
        is_sql = session.is_mariadb or "default_generated" in extra
        update = re.search(r"on update [a-z_]+(\(\d*\))?", extra)
        details["defaults"][name] = (default if is_sql else text_literal(default)) + (f" {update[0]}" if update else "")


def _documents(session: Session, table: str) -> set[str]:
    """The columns that are JSON to MariaDB: text with a check."""
    if not session.is_mariadb:
        return set()
    clauses = " ".join(str(row[0]) for row in _ask(session, _CHECKS, table))
    return {name.replace("``", "`") for name in re.findall(r"json_valid\(`((?:[^`]|``)+)`\)", clauses)}


def _indexes(session: Session, table: str) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, many, column, length, sort, nullable in _ask(session, _INDEXES, table):
        new = {"name": name, "columns": [], "lengths": [], "unique": not many, "type": sort, "nullable": False}
        index = found.setdefault(name, new)
        index["columns"].append(column)
        index["lengths"].append(length)
        index["nullable"] = index["nullable"] or nullable == "YES"
    return [index for index in found.values() if None not in index["columns"]]  # Those of expressions are not ours.


def _foreign(session: Session, table: str) -> tuple[Foreign, ...]:
    found: dict[str, Foreign] = {}
    for name, column, schema, refers, to, on_delete, on_update in _ask(session, _FOREIGN, table):
        whole = refers if schema == session.where.database else f"{schema}.{refers}"
        one = found.get(name) or Foreign(name, (), whole, (), on_delete, on_update)
        found[name] = replace(one, columns=(*one.columns, column), to=(*one.to, to))
    return tuple(found.values())


def _key_index(indexes: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The primary key, or else the narrowest index that is as good."""
    good = [
        index
        for index in indexes
        if index["name"] == "PRIMARY"
        or (index["unique"] and not index["nullable"] and not any(index["lengths"]) and index["type"] == "BTREE")
    ]
    return min(good, key=lambda one: (one["name"] != "PRIMARY", len(one["columns"]), one["name"]), default=None)


def refuse_dependents(session: Session, table: str) -> None:
    """Say at the start what would be lost with the old table, or would stop its end."""
    found = [str(row[0]) for row in _ask(session, _DEPENDENTS, table)]
    if found:
        some = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
        raise Refused(
            f"{table} cannot be replaced: {some} would be lost or left behind",
            code="dependents",
            hint="drop them first, or append",
        )


# Make.


def make_table(session: Session, job: Job, name: str) -> None:
    """The table with its primary key, from the source's schema."""
    key = (job.key or job.source.key) if job.mode in ("upsert", "absent") else job.source.key
    key = key if {column.name for column in job.source.columns} >= set(key) else ()
    has_uuid = session.is_mariadb and session.version >= (10, 7)
    known = _collations(session, job)
    lines = [
        f"{quoted(column.name)} {_line(session, column, job, known, len(key) if column.name in key else 0, has_uuid)}"
        for column in job.source.columns
    ]
    if key:
        lengths = _key_lengths(job)
        lines.append(f"PRIMARY KEY ({', '.join(_part(one, lengths.get(one)) for one in key)})")
    session.execute(
        f"CREATE TABLE IF NOT EXISTS {sql_name(session, name)} ({', '.join(lines)})"
        f" ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = {COLLATION} ROW_FORMAT = DYNAMIC"
    )


def _line(session: Session, column: Column, job: Job, known: set[str], in_key: int, has_uuid: bool) -> str:
    details = job.source.details if _is_own(job) else {}
    native = column.native if _is_own(job) and column.native else made_type(column, in_key, has_uuid)
    if native in ("uuid", "inet4", "inet6") and not has_uuid:
        native = "varchar(45)"
    parts = [native]
    collation = details.get("collations", {}).get(column.name)
    if collation in known and base_of(native) != "json":
        parts.append(f"CHARACTER SET {collation.split('_')[0]} COLLATE {collation}")
    is_required = in_key > 0 or not column.nullable
    parts.append("NOT NULL" if is_required else "NULL")
    counter = job.source.counts
    default = details.get("defaults", {}).get(column.name)
    if counter == column.name and job.source.key[:1] == (counter,) and in_key:
        parts.append("AUTO_INCREMENT")
    elif default:
        parts.append(f"DEFAULT {default}")
    elif is_required and base_of(native) == "timestamp":
        parts.append(f"DEFAULT CURRENT_TIMESTAMP{native[9:]}")  # Or the first one would follow each change of its row.
    return " ".join(parts)


def _collations(session: Session, job: Job) -> set[str]:
    """The source's collations that this server knows."""
    if not _is_own(job) or not job.source.details.get("collations"):
        return set()
    query = "SELECT COLLATION_NAME FROM information_schema.COLLATIONS"
    if session.is_mariadb and session.version >= (10, 10):  # There the other table has names without a character set.
        query = "SELECT FULL_COLLATION_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
    return {str(row[0]) for row in session.rows(query)}


def _key_lengths(job: Job) -> dict[str, int | None]:
    for index in job.source.details.get("indexes", ()) if _is_own(job) else ():
        if index["name"] == job.source.details.get("key_index"):
            return dict(zip(index["columns"], index["lengths"], strict=True))
    return {}


def _part(name: str, length: int | None) -> str:
    return quoted(name) + (f"({length})" if length else "")


def copy_shape(session: Session, table: str, beside: str) -> None:
    """A table like the one that it is to replace, with its indexes."""
    session.execute(f"CREATE TABLE IF NOT EXISTS {sql_name(session, beside)} LIKE {sql_name(session, table)}")


def complete(session: Session, job: Job, name: str) -> None:
    """The other indexes, and where the counter stands, of a table that the dump made. What is there is left."""
    if not _is_own(job):
        return
    details = job.source.details
    copied = {column.name for column in job.source.columns}
    there = {index["name"] for index in _indexes(session, name)}
    wanted = []
    for index in details.get("indexes", ()):
        if index["name"] in there or index["name"] == details.get("key_index") or not copied >= set(index["columns"]):
            continue
        sort = {"FULLTEXT": "FULLTEXT ", "SPATIAL": "SPATIAL "}.get(index["type"], "UNIQUE " if index["unique"] else "")
        lengths = index["lengths"] if index["type"] == "BTREE" else [None] * len(index["columns"])
        columns = ", ".join(_part(*one) for one in zip(index["columns"], lengths, strict=True))
        wanted.append(f"ADD {sort}INDEX {quoted(index['name'])} ({columns})")
    for one in _statements(wanted):
        session.execute(f"ALTER TABLE {sql_name(session, name)} {one}")
    following = details.get("auto_increment", {}).get("next")
    if following:
        session.execute(f"ALTER TABLE {sql_name(session, name)} AUTO_INCREMENT = {int(following)}")


def index(session: Session, job: Job) -> list[str]:
    """Plain indexes of another kind of database. Returns those that cannot be, and why."""
    if _is_own(job):
        return []  # They came with the table.
    table = described(session, job.target)
    assert table is not None, job.target
    natives = {column.name: base_of(column.native) for column in table.columns}
    there = {one["name"] for one in table.details["indexes"]}
    missing = []
    for one in job.source.indexes:
        if one.name in there or (one.unique and set(one.columns) == set(table.key)):
            continue
        if not natives.keys() >= set(one.columns):
            missing.append(f"index {one.name} (its columns were not copied)")
            continue
        # A text of any length is indexed by its beginning; whether it is unique, that cannot tell.
        lengths = [BEGINNING if natives[name].endswith(("text", "blob")) else None for name in one.columns]
        if one.unique and any(lengths):
            missing.append(f"index {one.name} (a text without a length cannot be unique)")
            continue
        columns = ", ".join(_part(*part) for part in zip(one.columns, lengths, strict=True))
        add = f"ADD {'UNIQUE ' if one.unique else ''}INDEX {quoted(one.name)} ({columns})"
        missing += _tried(session, job.target, add, f"index {one.name}")
    return missing


def link(session: Session, job: Job, targets: Mapping[str, str]) -> list[str]:
    """Foreign keys, once all tables are there. Returns those that cannot be, and why."""
    there = {one.name for one in _foreign(session, job.target)}
    copied = {column.name for column in job.source.columns}
    missing = []
    for one in job.source.foreign:
        refers = target_of(one.refers, targets)
        if one.name in there:
            continue
        if not copied >= set(one.columns):
            missing.append(f"{one.name} (its columns were not copied)")
        elif not exists(session, refers):
            missing.append(f"{one.name} (there is no {refers})")
        else:
            columns, to = (", ".join(map(quoted, some)) for some in (one.columns, one.to))
            rest = f"({to}) ON DELETE {one.on_delete} ON UPDATE {one.on_update}"
            add = f"ADD CONSTRAINT {quoted(one.name)} FOREIGN KEY ({columns}) REFERENCES {sql_name(session, refers)}"
            missing += _tried(session, job.target, f"{add} {rest}", one.name)
    return missing


def _tried(session: Session, table: str, change: str, what: str) -> list[str]:
    """Change a table. What the server refuses is not worth the table."""
    try:
        session.execute(f"ALTER TABLE {sql_name(session, table)} {change}")
    except pymysql.MySQLError as error:
        if is_gone(error):
            raise
        return [f"{what} ({one_line(error.args[-1])})"]
    return []


def _statements(wanted: Sequence[str]) -> list[str]:
    """All in one statement, which reads the table once; InnoDB makes only one full-text index at a time."""
    slow = [one for one in wanted if one.startswith("ADD FULLTEXT")]
    plain = [one for one in wanted if one not in slow]
    return ([", ".join(plain)] if plain else []) + slow


def put_in_place(session: Session, job: Job) -> None:
    """The table beside becomes the target, at once; the old one is to be dropped."""
    target, beside, old = (sql_name(session, name) for name in (job.target, beside_of(job), old_of(job)))
    away = f"{target} TO {old}, " if exists(session, job.target) else ""
    session.execute(f"RENAME TABLE {away}{beside} TO {target}")


def _is_own(job: Job) -> bool:
    return job.source.family == FAMILY


def unique_keys(table: Table) -> list[set[str]]:
    """The sets of columns that are unique."""
    return [
        set(index["columns"]) for index in table.details["indexes"] if index["unique"] and not any(index["lengths"])
    ]
