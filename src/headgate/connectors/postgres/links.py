"""What follows the data of a table that was copied into PostgreSQL: indexes of another kind of database, foreign keys,
and a word about what of the source's schema is left out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import asyncpg
from asyncpg import Connection

from headgate.connectors.api.bulk import Excuse, Job, Left, StorageError, target_of
from headgate.connectors.postgres.catalog import LONGEST, find, parts_of, proper
from headgate.connectors.postgres.judged import (
    NOT_SQL,
    is_constraint,
    why_not_constraint,
    why_not_expression,
    why_not_index,
)
from headgate.connectors.postgres.schema import (
    NAMES,
    Detail,
    expressions,
    is_own,
    name_for,
    other_name,
    possible,
)
from headgate.connectors.sql.actions import action
from headgate.connectors.sql.quoting import quoted

NO_COLUMNS = "its columns were not copied"
FOREIGN_KEY = "foreign key"

_HAS_CONSTRAINT = "SELECT count(*) FROM pg_constraint WHERE conrelid = to_regclass($1) AND conname = $2"
# Rows that do not fit, types that do not go together, values that are too long for an index.
_CANNOT_BE = (
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.SyntaxOrAccessError,
    asyncpg.ProgramLimitExceededError,
    StorageError,
)


async def index(connection: Connection, job: Job, name: str) -> list[Left]:
    """Plain indexes of another kind of database. Returns those that cannot be made, and why."""
    if is_own(job):
        return await _left_out(connection, job, name)  # The others came with the table.
    missing: list[Left] = []
    there = {row["attname"] for row in await connection.fetch(NAMES, name)}
    table = (await parts_of(connection, name))[-1]
    for one in job.source.indexes:
        if not there.issuperset(one.columns):
            missing.append(Left("index", one.name, job.target, NO_COLUMNS, Excuse.ASKED))
            continue
        wanted = f"{table}_{'_'.join(one.columns)}_{'key' if one.unique else 'idx'}"
        if len(wanted.encode()) > LONGEST:
            wanted = other_name(wanted, hashlib.sha256(wanted.encode()).hexdigest()[:8])
        try:
            if given := await name_for(connection, wanted, name, job.dump.hex[:8]):
                columns = ", ".join(map(quoted, one.columns))
                unique = "UNIQUE " if one.unique else ""
                await connection.execute(f"CREATE {unique}INDEX {quoted(given)} ON {name} ({columns})")
        except _CANNOT_BE as error:
            missing.append(Left("index", one.name, job.target, str(error.args[0])))
    return missing


async def _left_out(connection: Connection, job: Job, name: str) -> list[Left]:
    """What of the source's schema is not run here, and why."""
    there = {row["attname"] for row in await connection.fetch(NAMES, name)}
    found = job.source.details
    left: list[Left] = []
    for row, expression in expressions(job):
        is_counter = "nextval(" in expression and row["sequence"]  # That sequence came with the table.
        if not is_counter and (why := await why_not_expression(connection, name, expression)):
            left.append(Left("expression" if row["generated"] else "default", row["name"], job.target, why))
    for one in possible(found.get("constraints", ()), there):
        if one["type"] != "f" and (why := await why_not_constraint(connection, name, one["definition"])):
            left.append(Left("constraint", one["name"], job.target, why))
    for one in possible(found.get("indexes", ()), there):
        if why := await why_not_index(connection, name, one["rest"]):
            left.append(Left("index", one["name"], job.target, why))
    return left


async def _link_other(connection: Connection, job: Job, name: str, targets: Mapping[str, str]) -> list[Left]:
    """Foreign keys of another kind of database."""
    missing: list[Left] = []
    there = {row["attname"] for row in await connection.fetch(NAMES, name)}
    for one in job.source.foreign:
        refers = await proper(connection, target_of(one.refers, targets))
        if await connection.fetchval(_HAS_CONSTRAINT, name, one.name):
            continue
        if not there.issuperset(one.columns):
            missing.append(Left(FOREIGN_KEY, one.name, job.target, NO_COLUMNS, Excuse.ASKED))
        elif await find(connection, refers) is None:
            missing.append(Left(FOREIGN_KEY, one.name, job.target, f"there is no {refers}"))
        else:
            columns, to = (", ".join(map(quoted, some)) for some in (one.columns, one.to))
            rest = f"REFERENCES {refers} ({to}) ON DELETE {action(one.on_delete)} ON UPDATE {action(one.on_update)}"
            try:
                await connection.execute(
                    f"ALTER TABLE {name} ADD CONSTRAINT {quoted(one.name)} FOREIGN KEY ({columns}) {rest}"
                )
            except _CANNOT_BE as error:
                missing.append(Left(FOREIGN_KEY, one.name, job.target, str(error.args[0])))
    return missing


async def link(connection: Connection, job: Job, name: str, targets: Mapping[str, str]) -> list[Left]:
    """Foreign keys, once all tables are there. Returns those that cannot be made, and why."""
    if not is_own(job):
        return await _link_other(connection, job, name, targets)
    missing: list[Left] = []
    there = {row["attname"] for row in await connection.fetch(NAMES, name)}
    for one in job.source.details.get("constraints", ()):
        if one["type"] != "f" or await connection.fetchval(_HAS_CONSTRAINT, name, one["name"]):
            continue
        if not there.issuperset(one["columns"]):
            missing.append(Left(FOREIGN_KEY, one["name"], job.target, NO_COLUMNS, Excuse.ASKED))
        elif not one["is_own"] and await find(connection, one["refers"]) is None:
            missing.append(Left(FOREIGN_KEY, one["name"], job.target, f"there is no {one['refers']}"))
        elif not is_constraint(one["definition"]):
            missing.append(Left(FOREIGN_KEY, one["name"], job.target, NOT_SQL))
        else:
            try:
                await connection.execute(
                    f"ALTER TABLE {name} ADD CONSTRAINT {quoted(one['name'])} {referring(one, name)}"
                )
            except _CANNOT_BE as error:
                missing.append(Left(FOREIGN_KEY, one["name"], job.target, str(error.args[0])))
    return missing


def referring(constraint: Detail, table: str) -> str:
    """A constraint's definition for another table: one that refers to its own table goes on to do so."""
    definition: str = constraint["definition"]
    if not constraint["is_own"]:
        return definition
    return definition.replace(f" REFERENCES {constraint['refers']}(", f" REFERENCES {table}(", 1)
