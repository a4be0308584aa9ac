"""Whether a PostgreSQL table holds what comes: refused at the start, or never in silence.

PostgreSQL refuses a number that is too large and a text that is too long, but it rounds to a column's digits and to a
clock's, and cuts a `name`. Where that could happen the column is refused before anything is made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from headgate.connectors.api.bulk import Column, Job, Table
from headgate.connectors.postgres.types import FAMILY
from headgate.connectors.values.kinds import Kind, holds
from headgate.errors import Refused

FINEST = 6  # Digits of a second.
ENDLESS = 17  # The first version with infinite intervals.

_CUTS = ('"char"', "name")
_SIZES = {Kind.INT16: (5, 0), Kind.INT32: (10, 0), Kind.INT64: (19, 0)}
# Columns whose values Arrow and PostgreSQL hold alike (`postgres.binary`).
MOST_DIGITS = 18  # Of a decimal that a machine word holds,
MOST_SCALE = 16  # also when what is after the point is filled up to groups of four.
_WIDER = {Kind.INT16: ("smallint", "integer", "bigint"), Kind.INT32: ("integer", "bigint"), Kind.INT64: ("bigint",)}
_TEXTS = re.compile(r"text|character varying(\(\d+\))?|character\(\d+\)")
_NUMERIC = re.compile(r"numeric(\(\d+,\d+\))?")


def is_same(job: Job, table: Table) -> bool:
    """Whether each column has the same type on both sides, and one whose binary form means the same there."""
    there = {column.name: column for column in table.columns}
    textual = {*job.source.details.get("textual", ()), *table.details.get("textual", ()), *_unlike(job, table)}
    return job.source.family == FAMILY and all(
        _is_alike(column, there[column.name]) and column.name not in textual for column in job.source.columns
    )


def _unlike(job: Job, table: Table) -> set[str]:
    """The columns whose binary form may mean something else to a server of another version: those of types that are not
    PostgreSQL's own, and intervals that an older server is given. Version 17 says `infinity` with numbers that are many
    years before it. Read as text, such a value is refused there."""
    ours, theirs = table.details.get("server"), job.source.details.get("server")
    if ours is None or theirs is None or ours == theirs:
        return set()
    plain: Mapping[str, str] = table.details["plain"]
    intervals = {name for name, native in plain.items() if native.startswith("interval")}
    return {*table.details["added"], *(intervals if theirs >= ENDLESS > ours else ())}


def check(job: Job, table: Table) -> None:
    """Each column must be there and hold what comes; nothing is guessed."""
    there = {column.name: column for column in table.columns}
    for column in job.source.columns:
        if column.name not in there:
            raise Refused(
                f"{job.target} has no column {column.name!r}", code="no_column", hint="add it, or --exclude it"
            )
        if column.name in table.details["generated"]:
            raise Refused(f"{job.target}.{column.name} is a generated column", code="generated", hint="--exclude it")
        target = there[column.name]
        if not _keeps(job, table, column, target):
            raise Refused(
                f"{job.target}.{column.name} is {target.native} and cannot hold {column.native or column.type}",
                code="cannot_hold",
                hint="change the target's column; nothing is rounded or cut",
            )
    given = {column.name for column in job.source.columns}
    dropped = {one["name"] for one in job.source.details.get("dropped", ())}
    for name in there.keys() - given - set(table.details["generated"]):
        if name in dropped:
            raise Refused(
                f"{job.target}.{name} is generated at the source and plain here",
                code="generated",
                hint="drop the column, or have it generated here, too",
            )
        if name not in table.details["filled"]:
            raise Refused(
                f"{job.target}.{name} must not be NULL, and the source has no such column",
                code="required_column",
                hint="give it a default",
            )


def _is_alike(column: Column, target: Column) -> bool:
    """Types of one name may differ: domains."""
    return column.native == target.native and column.type == target.type


def _keeps(job: Job, table: Table, column: Column, target: Column) -> bool:
    """Whether a column of the target keeps each value, or refuses it with an error."""
    is_own = job.source.family == FAMILY
    into: str = table.details["plain"][column.name]
    natives = job.source.details.get("plain", {}) if is_own and column.native else {}
    given: str = natives.get(column.name, column.native)
    if is_own and _is_alike(column, target) and into == given:
        return True
    if into in _CUTS or (into.startswith("interval") and into != "interval"):
        return False
    if is_own and into.endswith("[]") != given.endswith("[]") and Kind.TEXT not in (target.type.kind, column.type.kind):
        return False
    if into.startswith("time") and _precision(into, FINEST) < _precision(given, 0 if _is_mysql(job) else FINEST):
        return False
    if target.type.kind is Kind.NUMERIC and into != "numeric":
        return _fits(into, given, column)
    return holds(target.type, column.type)


def _is_mysql(job: Job) -> bool:
    return job.source.family == "mysql"


def _precision(native: str, default: int) -> int:
    """The digits of a second that a type of time keeps."""
    found = re.match(r"(?:time|timestamp|datetime)\((\d)\)", native)
    return int(found[1]) if found else default


def _fits(into: str, given: str, column: Column) -> bool:
    """Whether numbers with that many digits go into a numeric that has a size beyond the usual."""
    here, there = _digits(into), _digits(given)
    if column.type.kind is Kind.DECIMAL:
        there = (column.type.precision, column.type.scale)
    there = _SIZES.get(column.type.kind, there)
    return here is not None and there is not None and there[1] <= here[1] and there[0] - there[1] <= here[0] - here[1]


def _digits(native: str) -> tuple[int, int] | None:
    if native == "money":
        return 19, 2
    found = re.fullmatch(r"numeric\((\d+),(-?\d+)\)", native)
    return (int(found[1]), int(found[2])) if found else None


# What goes as binary COPY, made of Arrow batches.


def has_binary_forms(job: Job, table: Table) -> bool:
    """Whether each column has a binary form here. A domain has its own ideas, and goes as text."""
    plain = table.details["plain"]
    natives = {column.name: column.native for column in table.columns}
    return all(
        natives[column.name] == plain[column.name] and _has_form(column, plain[column.name])
        for column in job.source.columns
    )


def _has_form(column: Column, native: str) -> bool:
    type = column.type
    match type.kind:
        case Kind.INT16 | Kind.INT32 | Kind.INT64:
            return native in _WIDER[type.kind]
        case Kind.TEXT:
            return _TEXTS.fullmatch(native) is not None
        case Kind.DECIMAL:
            fits = type.precision <= MOST_DIGITS and type.scale <= MOST_SCALE
            return fits and _NUMERIC.fullmatch(native) is not None
        case Kind.JSON:
            return native in ("json", "jsonb")
    return native == {
        Kind.BOOL: "boolean",
        Kind.FLOAT32: "real",
        Kind.FLOAT64: "double precision",
        Kind.BYTES: "bytea",
        Kind.DATE: "date",
        Kind.TIME: "time without time zone",
        Kind.TIMESTAMP: "timestamp without time zone",
        Kind.TIMESTAMPTZ: "timestamp with time zone",
        Kind.UUID: "uuid",
    }.get(type.kind)
