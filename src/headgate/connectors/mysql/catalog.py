"""What MySQL's and MariaDB's information schema says of tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headgate.connectors.api.bulk import By, Column, Foreign, Index, Table, bad_name
from headgate.connectors.mysql.session import Session
from headgate.connectors.mysql.types import FAMILY, refusal, type_of
from headgate.connectors.sql.quoting import backquoted as quoted
from headgate.connectors.sql.quoting import escaped_literal as text_literal

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
# Two queries, because MariaDB 10.11 crashes now and then in a join of these two views.
_FOREIGN = """
SELECT CONSTRAINT_NAME, COLUMN_NAME, REFERENCED_TABLE_SCHEMA, REFERENCED_TABLE_NAME, REFERENCED_COLUMN_NAME
FROM information_schema.KEY_COLUMN_USAGE
WHERE TABLE_SCHEMA = {schema} AND TABLE_NAME = {name} AND REFERENCED_TABLE_NAME IS NOT NULL
ORDER BY CONSTRAINT_NAME, ORDINAL_POSITION
"""
_ACTIONS = """
SELECT CONSTRAINT_NAME, DELETE_RULE, UPDATE_RULE FROM information_schema.REFERENTIAL_CONSTRAINTS
WHERE CONSTRAINT_SCHEMA = {schema} AND TABLE_NAME = {name}
"""
_CHECKS = """
SELECT CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS
WHERE CONSTRAINT_SCHEMA = {schema} AND TABLE_NAME = {name}
"""

NAME = 64  # The longest name.
_NAME = re.compile(r"(?:(`(?:[^`]|``)+`|[^.`]+)\.)?(`(?:[^`]|``)+`|[^.`]+)")

# Names.


def name_for(plain: str) -> str:
    """How a name is written that means this very one: in backquotes where a dot would make two of it."""
    return quoted(plain) if {".", "`"} & set(plain) else plain


def parts_of(session: Session, table: str) -> tuple[str, str]:
    """The database and the table that a name means."""
    if found := _NAME.fullmatch(table):
        schema, name = (part and (part[1:-1].replace("``", "`") if part[0] == "`" else part) for part in found.groups())
    else:
        schema, _, name = table.rpartition(".")
    return schema or session.where.database, name


def named(parts: tuple[str, str]) -> str:
    """The name that means this database and this table."""
    return ".".join(map(name_for, parts))


def place_of(session: Session, table: str) -> str:
    """What tells tables apart: some servers do not by the case of letters. What no table can be called is refused."""
    schema, name = parts_of(session, table)
    if not 0 < len(name) <= NAME or name.endswith(" ") or max(name) > "\uffff" or "\0" in name:
        raise bad_name(name, "a table")
    if int(session.value("SELECT @@lower_case_table_names")):
        schema, name = schema.lower(), name.lower()
    return named((schema, name))


def sql_name(session: Session, table: str) -> str:
    """A table's name in a statement."""
    return ".".join(map(quoted, parts_of(session, table)))


# Tables.


def ask(session: Session, query: str, table: str) -> tuple[tuple[Any, ...], ...]:
    """What the server says of a table."""
    schema, name = parts_of(session, table)
    return session.rows(query.format(schema=text_literal(schema), name=text_literal(name)))


def exists(session: Session, table: str) -> bool:
    """Whether there is such a table."""
    return bool(ask(session, _TABLE, table))


def described(session: Session, table: str) -> Table | None:
    """What a table looks like. None: there is none."""
    found = ask(session, _TABLE, table)
    if not found:
        return None
    engine, rows, size, following, sort = found[0]
    documents = _documents(session, table)
    columns, details = [], _details(sort, engine)
    for name, native, nullable, length, precision, scale, collation, extra, default in ask(session, _COLUMNS, table):
        own = "json" if name in documents else _plain(str(native))
        type = type_of(own, length, precision, scale, session.where.is_bool)
        if type is None:
            raise refusal(name, own)
        columns.append(Column(name, type, nullable == "YES", own))
        _note(session, details, name, collation, str(extra).lower(), default)
        if "auto_increment" in str(extra).lower():
            details["auto_increment"] = {"column": name, "next": following}
    indexes = _all_indexes(session, table)
    details["indexes"] = [one for one in indexes if None not in one["columns"]]  # Those of expressions are not ours.
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
            if one is not index and not _unlike(one)
        ),
        unlike=tuple((one["name"], why) for one in indexes if one is not index and (why := _unlike(one))),
        foreign=foreign_of(session, table),
        plain=parts_of(session, table)[1],
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
    clauses = " ".join(str(row[0]) for row in ask(session, _CHECKS, table))
    return {name.replace("``", "`") for name in re.findall(r"json_valid\(`((?:[^`]|``)+)`\)", clauses)}


def indexes_of(session: Session, table: str) -> list[dict[str, Any]]:
    """The indexes of a table, but those on expressions."""
    return [index for index in _all_indexes(session, table) if None not in index["columns"]]


def _all_indexes(session: Session, table: str) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, many, column, length, sort, nullable in ask(session, _INDEXES, table):
        new = {"name": name, "columns": [], "lengths": [], "unique": not many, "type": sort, "nullable": False}
        index = found.setdefault(name, new)
        index["columns"].append(column)
        index["lengths"].append(length)
        index["nullable"] = index["nullable"] or nullable == "YES"
    return list(found.values())


def _unlike(index: dict[str, Any]) -> str:
    """Why no other kind of database can have an index. Empty: they can."""
    if index["type"] != "BTREE":
        return f"a {index['type'].lower()} index"
    if None in index["columns"]:
        return "it is on an expression"
    return "it has only the beginning of a text" if any(index["lengths"]) else ""


def foreign_of(session: Session, table: str) -> tuple[Foreign, ...]:
    """The foreign keys of a table."""
    found: dict[str, Foreign] = {}
    columns = ask(session, _FOREIGN, table)
    answers = ask(session, _ACTIONS, table) if columns else ()
    actions = {name: (on_delete, on_update) for name, on_delete, on_update in answers}
    for name, column, schema, refers, to in columns:
        if name not in actions:
            continue  # It was dropped between the two queries.
        whole = name_for(refers) if schema == session.where.database else named((schema, refers))
        one = found.get(name) or Foreign(name, (), whole, (), *actions[name])
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


def unique_keys(table: Table) -> list[set[str]]:
    """The sets of columns that are unique."""
    return [
        set(index["columns"]) for index in table.details["indexes"] if index["unique"] and not any(index["lengths"])
    ]
