"""A table's schema in MySQL and MariaDB, as it is made at the target.

The primary key comes with the table, unlike elsewhere: InnoDB keeps the rows in its order, and rows that arrive in that
order are appended to it, while a key that is added later copies the whole table. Other indexes follow the data, and
foreign keys follow when all tables are there. Columns that the source computes are plain columns of the copy. Triggers
are not copied.

Whatever the source's catalog says is taken for the word of a stranger: names are quoted, and types and defaults are run
only if they are made of nothing but what such a type or default is made of.

A new table takes the old one's place with one RENAME TABLE, which no transaction covers. So the ledger first gets the
line `swapping`: from then on a table built apart that is not there any more has been renamed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pymysql

from headgate.connectors.api.bulk import Column, Excuse, Job, Left, target_of
from headgate.connectors.mysql.catalog import (
    NAME,
    ask,
    described,
    exists,
    foreign_of,
    indexes_of,
    name_for,
    named,
    parts_of,
    sql_name,
)
from headgate.connectors.mysql.declared import is_plain_default, own_type
from headgate.connectors.mysql.session import Session, is_gone
from headgate.connectors.mysql.types import COLLATION, FAMILY, base_of, made_type
from headgate.connectors.sql.actions import action
from headgate.connectors.sql.quoting import backquoted as quoted
from headgate.errors import Refused
from headgate.text import one_line

BEGINNING = 191  # Characters of a text that an index has: four bytes each are as many as old servers allow.

_DEPENDENTS = """
SELECT CONCAT('foreign key ', CONSTRAINT_NAME, ' of ', TABLE_SCHEMA, '.', TABLE_NAME)
FROM information_schema.KEY_COLUMN_USAGE
WHERE REFERENCED_TABLE_SCHEMA = {schema} AND REFERENCED_TABLE_NAME = {name}
UNION SELECT CONCAT('its own foreign key ', CONSTRAINT_NAME) FROM information_schema.REFERENTIAL_CONSTRAINTS
WHERE CONSTRAINT_SCHEMA = {schema} AND TABLE_NAME = {name}
UNION SELECT CONCAT('trigger ', TRIGGER_NAME) FROM information_schema.TRIGGERS
WHERE EVENT_OBJECT_SCHEMA = {schema} AND EVENT_OBJECT_TABLE = {name}
"""

_TRIGGERS = """
SELECT TRIGGER_NAME FROM information_schema.TRIGGERS
WHERE EVENT_OBJECT_SCHEMA = {schema} AND EVENT_OBJECT_TABLE = {name} AND EVENT_MANIPULATION IN ('INSERT', 'UPDATE')
ORDER BY 1
"""


# Names.


def apart_of(session: Session, job: Job, mark: str = "") -> str:
    """The name of the table that is built apart, or of the old one while it is replaced. Never too long."""
    schema, name = parts_of(session, job.target)
    suffix = f"__hg_{mark}{job.dump.hex[:8]}"
    if len(name) + len(suffix) > NAME:
        name = f"{name[:30]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    parts = (schema, f"{name}{suffix}")
    return name_for(parts[1]) if schema == session.where.database else named(parts)


def old_of(session: Session, job: Job) -> str:
    """The name of the table that was replaced, until it is dropped."""
    return apart_of(session, job, "old_")


def refuse_dependents(session: Session, table: str) -> None:
    """Say at the start what would be lost with the old table, or would stop its end."""
    found = [str(row[0]) for row in ask(session, _DEPENDENTS, table)]
    if found:
        some = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
        raise Refused(
            f"{table} cannot be replaced: {some} would be lost or left behind",
            code="dependents",
            hint="drop them first, or append",
        )


def refuse_triggers(session: Session, table: str) -> None:
    """Triggers would change what is copied, and the server fires them for everybody."""
    found = [str(row[0]) for row in ask(session, _TRIGGERS, table)]
    if found:
        raise Refused(
            f"{table} has trigger {', '.join(found[:3])}, which would change what is copied",
            code="triggers",
            hint="drop it for as long as the dump runs",
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
    native = own_type(column) if _is_own(job) and column.native else made_type(column, in_key, has_uuid)
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
    elif default and is_plain_default(default):
        parts.append(f"DEFAULT {default}")
    elif is_required and base_of(native) == "timestamp":
        parts.append(
            f"DEFAULT CURRENT_TIMESTAMP{native[9:]}"
        )  # Otherwise the first timestamp would follow each change of its row.
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
    return quoted(name) + (f"({int(length)})" if length else "")


def copy_shape(session: Session, table: str, apart: str) -> None:
    """A table like the one that it is to replace, with its indexes."""
    session.execute(f"CREATE TABLE IF NOT EXISTS {sql_name(session, apart)} LIKE {sql_name(session, table)}")


def complete(session: Session, job: Job, name: str) -> None:
    """The other indexes, and where the counter stands, of a table that the dump made. What is there is left."""
    if not _is_own(job):
        return
    details = job.source.details
    copied = {column.name for column in job.source.columns}
    there = {index["name"] for index in indexes_of(session, name)}
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


def index(session: Session, job: Job) -> list[Left]:
    """Plain indexes of another kind of database. Returns those that cannot be made, and why."""
    if _is_own(job):  # They came with the table.
        defaults: Mapping[str, str] = job.source.details.get("defaults", {})
        copied = {column.name for column in job.source.columns}
        left = [name for name, default in defaults.items() if name in copied and not is_plain_default(default)]
        why = "it is neither a plain value nor the time"
        return [Left("default", name, job.target, why) for name in left]
    table = described(session, job.target)
    assert table is not None, job.target
    natives = {column.name: base_of(column.native) for column in table.columns}
    there = {one["name"] for one in table.details["indexes"]}
    missing: list[Left] = []
    for one in job.source.indexes:
        if one.name in there or (one.unique and set(one.columns) == set(table.key)):
            continue
        if not natives.keys() >= set(one.columns):
            missing.append(Left("index", one.name, job.target, "its columns were not copied", Excuse.ASKED))
            continue
        # A text of any length is indexed by its beginning; whether it is unique, that cannot tell.
        lengths = [BEGINNING if natives[name].endswith(("text", "blob")) else None for name in one.columns]
        if one.unique and any(lengths):
            missing.append(Left("index", one.name, job.target, "a text without a length cannot be unique"))
            continue
        columns = ", ".join(_part(*part) for part in zip(one.columns, lengths, strict=True))
        add = f"ADD {'UNIQUE ' if one.unique else ''}INDEX {quoted(one.name)} ({columns})"
        missing += _tried(session, job.target, add, Left("index", one.name, job.target))
    return missing


def link(session: Session, job: Job, targets: Mapping[str, str]) -> list[Left]:
    """Foreign keys, once all tables are there. Returns those that cannot be made, and why."""
    there = {one.name for one in foreign_of(session, job.target)}
    copied = {column.name for column in job.source.columns}
    missing: list[Left] = []
    for one in job.source.foreign:
        refers = target_of(one.refers, targets)
        if one.name in there:
            continue
        if not copied >= set(one.columns):
            missing.append(Left("foreign key", one.name, job.target, "its columns were not copied", Excuse.ASKED))
        elif not exists(session, refers):
            missing.append(Left("foreign key", one.name, job.target, f"there is no {refers}"))
        else:
            columns, to = (", ".join(map(quoted, some)) for some in (one.columns, one.to))
            rest = f"({to}) ON DELETE {action(one.on_delete)} ON UPDATE {action(one.on_update)}"
            add = f"ADD CONSTRAINT {quoted(one.name)} FOREIGN KEY ({columns}) REFERENCES {sql_name(session, refers)}"
            missing += _tried(session, job.target, f"{add} {rest}", Left("foreign key", one.name, job.target))
    return missing


def _tried(session: Session, table: str, change: str, what: Left) -> list[Left]:
    """Change a table. What the server refuses is not worth the table."""
    try:
        session.execute(f"ALTER TABLE {sql_name(session, table)} {change}")
    except pymysql.MySQLError as error:
        if is_gone(error):
            raise
        return [replace(what, why=one_line(error.args[-1]))]
    return []


def _statements(wanted: Sequence[str]) -> list[str]:
    """All in one statement, which reads the table once; InnoDB makes only one full-text index at a time."""
    slow = [one for one in wanted if one.startswith("ADD FULLTEXT")]
    plain = [one for one in wanted if one not in slow]
    return ([", ".join(plain)] if plain else []) + slow


def put_in_place(session: Session, job: Job) -> None:
    """The table that was built apart becomes the target, at once; the old one is to be dropped."""
    names = (job.target, apart_of(session, job), old_of(session, job))
    target, apart, old = (sql_name(session, name) for name in names)
    away = f"{target} TO {old}, " if exists(session, job.target) else ""
    session.execute(f"RENAME TABLE {away}{apart} TO {target}")


def _is_own(job: Job) -> bool:
    return job.source.family == FAMILY
