"""Whether a MySQL table holds what is copied into it. What does not fit is refused at the start."""

from __future__ import annotations

from headgate.connectors.api.bulk import By, Column, Job, Mode, StorageError, Table
from headgate.connectors.mysql import catalog
from headgate.connectors.mysql.types import FAMILY, has_order, takes
from headgate.connectors.sql.quoting import backquoted as quoted
from headgate.errors import Refused


def check(job: Job, table: Table) -> None:
    """The table must roll back, and each column must be there and hold what comes; nothing is guessed."""
    engine = table.details["engine"]
    if engine.lower() != "innodb":
        raise Refused(
            f"{job.target} is a table of {engine or 'no engine'}, which cannot roll back",
            code="engine",
            hint=f"ALTER TABLE {'.'.join(map(quoted, job.target.split('.')))} ENGINE = InnoDB",
        )
    there = {column.name: column for column in table.columns}
    for column in job.source.columns:
        if column.name not in there:
            raise Refused(
                f"{job.target} has no column {column.name!r}", code="no_column", hint="add it, or --exclude it"
            )
        target = there[column.name]
        if not takes(target, column, is_own(job)):
            raise Refused(
                f"{job.target}.{column.name} is {target.native} and cannot hold {column.native or column.type}",
                code="cannot_hold",
                hint="change the target's column; nothing is rounded or cut",
            )
    if job.mode in (Mode.UPSERT, Mode.ABSENT):
        key = key_of(job)
        if not key:
            raise Refused(
                f"{job.target} has no key by which rows can be found", code="no_key", hint="name it with --key"
            )
        if set(key) not in catalog.unique_keys(table):
            raise Refused(
                f"{job.target} has no unique index on ({', '.join(key)})", code="no_key", hint="create one first"
            )


def is_own(job: Job) -> bool:
    """Whether the source is MySQL too, so that its own types and texts are understood."""
    return job.source.family == FAMILY


def key_of(job: Job) -> tuple[str, ...]:
    """The columns by which rows are found."""
    return job.key or job.source.key


def column_pairs(job: Job, table: Table) -> list[tuple[Column, Column]]:
    """Each column that is copied, and the one that it goes into."""
    there = {column.name: column for column in table.columns}
    return [(column, there[column.name]) for column in job.source.columns]


def refuse_blind_repair(job: Job, table: Table) -> None:
    """A range is deleted only where it means the same rows here as at the source."""
    if job.source.by is By.KEY and has_order(job.source, table):
        return
    if job.source.by is By.OFFSET and job.created:
        return  # The one chunk of a table that is all ours.
    raise StorageError(
        f"{job.target}: a chunk cannot be replaced, since its keys have another order here",
        hint="copy the table again with --mode replace, or by key with --mode upsert",
    )
