"""MySQL and MariaDB as a target: each chunk is one LOAD DATA and one line in the ledger, in one transaction.

The rows go to the server through a pipe that the client library reads as if it were a file. LOAD DATA LOCAL turns
errors into warnings, cuts what is too long and skips what is there already. So each warning, and each row that is not
there in the end, rolls the chunk back. A server that does not allow LOAD DATA LOCAL gets INSERT statements.

Only InnoDB rolls back: a table of another engine is refused. Sessions are strict, wait for locks a few seconds only,
and are ended by the server when their client stands still.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import pymysql

from headgate.connectors.api.bulk import (
    AlreadyWritten,
    Job,
    Language,
    Left,
    Mode,
    Pieces,
    Range,
    StorageError,
    Table,
)
from headgate.connectors.mysql import catalog, schema
from headgate.connectors.mysql.fit import check, column_pairs, is_own, key_of, refuse_blind_repair
from headgate.connectors.mysql.load import CSV, Feed, records_of
from headgate.connectors.mysql.options import Where
from headgate.connectors.mysql.session import Session, number_of
from headgate.connectors.mysql.types import FAMILY, condition, written
from headgate.connectors.sql import ledger
from headgate.connectors.sql.quoting import backquoted as quoted
from headgate.connectors.sql.quoting import escaped_literal as text_literal
from headgate.connectors.values.convert import Normalizes
from headgate.errors import Refused
from headgate.text import counted, one_line

_SETUP = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', autocommit = 1",
    "SET SESSION foreign_key_checks = 1, unique_checks = 1, sql_notes = 1, innodb_lock_wait_timeout = 10",
    "SET SESSION lock_wait_timeout = 30, net_read_timeout = 300, net_write_timeout = 300, wait_timeout = 600",
)
_STAGE = "headgate_stage"
_DUPLICATE = 1062
_EARLIER = 5  # Attempts that may still be under way.
_ROLL_BACK_S = 60
_LEDGER = ledger.Statements(
    lambda number: "%s",
    f"""dump CHAR(36) NOT NULL, target VARCHAR(190) NOT NULL, {ledger.KEY} CHAR(32) NOT NULL, lo LONGTEXT NOT NULL,
    hi LONGTEXT NOT NULL, `rows` BIGINT NOT NULL, at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)""",
    rest="ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin ROW_FORMAT = DYNAMIC",
    rows="`rows`",
)


class MysqlWriter(Normalizes):
    """One session that writes."""

    languages: Sequence[Language] = (Language.CSV,)
    csv = CSV
    transactional = True
    family = FAMILY

    def __init__(self, url: str) -> None:
        self._session = Session(Where(url), _SETUP, local_infile=True, autocommit=None)

    # The table.

    def name_for(self, plain: str) -> str:
        """The name, in backquotes where it needs them."""
        return catalog.name_for(plain)

    async def place_of(self, table: str) -> str:
        """Database and table, as the server tells them apart."""
        return await self._session.run(lambda: catalog.place_of(self._session, table))

    async def look(self, table: str) -> Table | None:
        """The table as it is now."""
        return await self._session.run(lambda: self._look(table))

    def _look(self, table: str) -> Table | None:
        found = catalog.described(self._session, table)
        if found is None:
            return None
        name = catalog.sql_name(self._session, table)
        has_rows = bool(self._session.rows(f"SELECT 1 FROM {name} LIMIT 1"))
        rows = max(1, found.rows or 0) if has_rows else 0
        return Table(found.name, found.columns, found.key, found.by, rows, found.size, FAMILY, found.details)

    async def prepare(self, job: Job) -> Table:
        """The table that chunks go into, and the ledger."""
        return await self._session.run(lambda: self._prepared(job))

    def _prepared(self, job: Job) -> Table:
        session, apart = self._session, schema.apart_of(self._session, job)
        if len(job.target) > 190:
            raise Refused(f"{job.target} is too long for a name in the ledger", code="name")
        if not catalog.exists(session, ledger.TABLE):
            session.execute(_LEDGER.create)
        there = catalog.described(session, job.target)
        exists, name = there is not None, job.target
        if there is not None:
            check(job, there)  # Before anything is made in its likeness.
            if job.mode not in (Mode.REPLACE, Mode.ABSENT):
                schema.refuse_triggers(session, job.target)
        if job.is_apart and not self._is_placed(job):
            name = apart
            if job.mode is Mode.REPLACE and exists:
                schema.refuse_dependents(session, job.target)
            if exists:
                schema.copy_shape(session, job.target, apart)
            else:
                schema.make_table(session, job, apart)
        elif not exists:
            schema.make_table(session, job, name)
        table = catalog.described(session, name)
        assert table is not None, name
        check(job, table)
        return table

    def accepts(self, table: Table, job: Job) -> Sequence[Language]:
        """CSV, always."""
        return self.languages

    # The ledger.

    async def done(self, job: Job) -> dict[Range, int]:
        """What the ledger has."""
        rows = await self._session.run(lambda: self._lines(_LEDGER.done, str(job.dump), job.target))
        return ledger.rows_by_range((str(lo), str(hi), count) for lo, hi, count in rows)

    async def unfinished(self, target: str) -> list[UUID]:
        """Dumps of this table that are not finished."""
        rows = await self._session.run(lambda: self._lines(_LEDGER.unfinished_of, target))
        return [UUID(str(row[0])) for row in rows]

    def _lines(self, wanted: str, *values: str) -> tuple[tuple[Any, ...], ...]:
        return self._session.rows(wanted, *values) if catalog.exists(self._session, ledger.TABLE) else ()

    def _has_line(self, job: Job, key: str) -> bool:
        return bool(self._session.rows(_LEDGER.has, str(job.dump), job.target, key))

    def _write_line(self, job: Job, key: str, lo: str, hi: str, rows: int) -> None:
        try:
            self._session.execute(_LEDGER.write, str(job.dump), job.target, key, lo, hi, rows)
        except pymysql.IntegrityError as error:
            if number_of(error) != _DUPLICATE:
                raise
            raise AlreadyWritten(f"{job.target} already has this chunk") from None

    def _is_placed(self, job: Job) -> bool:
        """Whether the table that was built apart has become the target, or its rows have been added."""
        if self._has_line(job, ledger.FINISHED):
            return True
        apart = schema.apart_of(self._session, job)
        return self._has_line(job, ledger.SWAPPING) and not catalog.exists(self._session, apart)

    # Chunks.

    async def write(
        self, job: Job, table: Table, range: Range, language: Language, pieces: Pieces, *, again: bool = False
    ) -> int:
        """One chunk and its line."""
        if again:
            refuse_blind_repair(job, table)
        feed = Feed()
        loading = self._session.submit(lambda: self._chunk(job, table, range, feed, again))
        try:
            await feed.pour(pieces)
            return await self._session.ended(loading)
        except asyncio.CancelledError:
            self._session.cut()
            if loading.cancel():
                feed.close()  # It had not begun.
            raise
        except BaseException:
            with contextlib.suppress(Exception):
                await self._session.ended(loading)  # It rolls back.
            raise

    def _chunk(self, job: Job, table: Table, range: Range, feed: Feed, again: bool) -> int:
        key, lo, hi = ledger.line_of(range)
        name = f"headgate {job.dump.hex[:16]} {ledger.key_of(range, job.target)[:16]} "
        own = text_literal(name + str(self.attempt))
        try:
            self._end_earlier(name)
            self._session.value(f"SELECT GET_LOCK({own}, 0)")
            with self._session.transaction():
                if again:
                    self._erase(job, table, range)
                elif self._has_line(job, key):
                    raise AlreadyWritten(f"{job.target} already has this chunk")
                rows = self._loaded(job, table, feed)
                self._write_line(job, key, lo, hi, rows)
                return rows
        except (pymysql.MySQLError, StorageError) as error:
            # A worker that was faster has the rows' locks first, and its rows are duplicates before its line is one.
            if not again and number_of(error) in (0, _DUPLICATE, 1205, 1213) and self._is_there(job, key):
                raise AlreadyWritten(f"{job.target} already has this chunk") from None
            raise
        finally:
            feed.close()
            with contextlib.suppress(Exception):
                self._session.value(f"SELECT RELEASE_LOCK({own})")

    def _end_earlier(self, name: str) -> None:
        """End earlier attempts at the chunk, each of which has a named lock: their process has been stopped, or cut
        off, and what they have locked stays locked. Whatever they would commit meets our line."""
        for earlier in range(max(1, self.attempt - _EARLIER), self.attempt):
            lock = text_literal(name + str(earlier))
            if (holder := self._session.value(f"SELECT IS_USED_LOCK({lock})")) is None:
                continue
            with contextlib.suppress(pymysql.MySQLError):  # It has just ended by itself.
                self._session.execute(f"KILL CONNECTION {int(holder)}")
            self._session.value(f"SELECT GET_LOCK({lock}, {_ROLL_BACK_S})")  # It is free when all is rolled back.
            self._session.value(f"SELECT RELEASE_LOCK({lock})")

    def _is_there(self, job: Job, key: str) -> bool:
        with contextlib.suppress(Exception):
            return self._has_line(job, key)
        return False

    def _erase(self, job: Job, table: Table, range: Range) -> None:
        natives = {column.name: column.native for column in table.columns}
        own = Table(
            table.name, table.columns, job.source.key, job.source.by, family=FAMILY, details={"key_types": natives}
        )
        _, warnings = self._session.execute(f"DELETE FROM {self._sql(table.name)} WHERE {condition(own, range)}")
        self._refuse_warnings(job, warnings)  # A bound that was not understood would mean other rows.
        self._session.execute(_LEDGER.forget_one, str(job.dump), job.target, ledger.key_of(range))

    def _loaded(self, job: Job, table: Table, feed: Feed) -> int:
        """The rows, in the table; by way of a stage where rows of the same key may be there."""
        is_staged = job.mode in (Mode.UPSERT, Mode.ABSENT)
        into = quoted(_STAGE) if is_staged else self._sql(table.name)
        if is_staged:
            self._session.execute(f"DROP TEMPORARY TABLE IF EXISTS {into}")
            self._session.execute(f"CREATE TEMPORARY TABLE {into} LIKE {self._sql(table.name)}")
        load = self._load if self._session.value("SELECT @@local_infile") else self._insert
        rows = load(job, table, into, feed)
        if not feed.is_whole:
            raise StorageError(f"{job.target}: the rows of a chunk ended too early")
        if feed.rows and feed.rows != rows:
            raise StorageError(f"{job.target}: read {counted(feed.rows, 'row')} and wrote {rows:,}")
        if is_staged:
            for statement in _merge(job, table, self._sql(table.name), into):
                self._session.execute(statement)
            self._session.execute(f"DROP TEMPORARY TABLE {into}")
        return rows

    def _load(self, job: Job, table: Table, into: str, feed: Feed) -> int:
        places, changes = [], []
        for number, (column, target) in enumerate(column_pairs(job, table)):
            change = written(target, column, f"@v{number}", is_own(job))
            is_computed = column.name in table.details["computed"]
            places.append(f"@v{number}" if change or is_computed else quoted(column.name))
            if change and not is_computed:
                changes.append(f"{quoted(column.name)} = {change}")
        path = f"/dev/fd/{feed.end}"
        changed, warnings = self._session.load(
            f"LOAD DATA LOCAL INFILE '{path}' INTO TABLE {into} CHARACTER SET utf8mb4"
            f" FIELDS TERMINATED BY '{CSV.delimiter}' OPTIONALLY ENCLOSED BY '\"' ESCAPED BY ''"
            f" LINES TERMINATED BY '\\n' ({', '.join(places)})" + (f" SET {', '.join(changes)}" if changes else ""),
            path,
        )
        self._refuse_warnings(job, warnings)
        return changed

    def _insert(self, job: Job, table: Table, into: str, feed: Feed) -> int:
        """The same without LOAD DATA: the text is taken apart here."""
        computed = table.details["computed"]
        pairs = [(place, *pair) for place, pair in enumerate(column_pairs(job, table)) if pair[0].name not in computed]
        names = ", ".join(quoted(column.name) for _, column, _ in pairs)
        rows = 0
        for records in records_of(feed.end, len(job.source.columns)):
            lines = []
            for record in records:
                values = [
                    written(target, column, record[place], is_own(job)) or record[place]
                    for place, column, target in pairs
                ]
                lines.append(f"({', '.join(values)})")
            changed, warnings = self._session.execute(f"INSERT INTO {into} ({names}) VALUES {', '.join(lines)}")
            self._refuse_warnings(job, warnings)
            rows += changed
        return rows

    def _refuse_warnings(self, job: Job, warnings: int) -> None:
        if warnings:
            found = sorted(self._session.rows("SHOW WARNINGS LIMIT 5"), key=lambda one: one[0] == "Note")
            warning = one_line(found[0][2], 300) if found else "a value was changed"
            more = f", and {warnings - 1} more" if warnings > 1 else ""
            raise StorageError(f"{job.target}: {warning}{more}", hint="the chunk was rolled back")

    async def undo(self, job: Job, table: Table, range: Range) -> None:
        """Nothing to undo: a transaction leaves nothing."""

    # The end.

    async def finish(self, job: Job) -> None:
        """Indexes and the counter; then what was built apart takes its place, and the last line is written."""
        await self._session.run(lambda: self._finish(job))

    def _finish(self, job: Job) -> None:
        session, apart = self._session, schema.apart_of(self._session, job)
        if not job.is_apart:
            if not self._has_line(job, ledger.FINISHED):
                if job.created:
                    schema.complete(session, job, job.target)
                self._write_line(job, *ledger.last_line())
            return
        if not self._is_placed(job):
            exists = catalog.exists(session, job.target)
            if job.mode is Mode.REPLACE or not exists:
                if not exists:
                    schema.complete(session, job, apart)
                if not self._has_line(job, ledger.SWAPPING):
                    self._write_line(job, *ledger.last_line(ledger.SWAPPING))
                schema.put_in_place(session, job)
            else:
                table = catalog.described(session, job.target)
                assert table is not None, job.target
                with session.transaction():
                    for statement in _merge(job, table, self._sql(job.target), self._sql(apart)):
                        session.execute(statement)
                    self._write_line(job, *ledger.last_line())
        if not self._has_line(job, ledger.FINISHED):
            self._write_line(job, *ledger.last_line())
        for name in (apart, schema.old_of(session, job)):
            session.execute(f"DROP TABLE IF EXISTS {self._sql(name)}")

    async def index(self, job: Job) -> list[Left]:
        """Indexes that a table of another kind of database had. Returns those that cannot be made."""
        return await self._session.run(lambda: schema.index(self._session, job))

    async def link(self, job: Job, targets: Mapping[str, str]) -> list[Left]:
        """Foreign keys. Returns those that cannot be made."""
        return await self._session.run(lambda: schema.link(self._session, job, targets))

    async def drop(self, job: Job) -> None:
        """Remove what was built apart, and its lines."""
        await self._session.run(lambda: self._drop(job))

    def _drop(self, job: Job) -> None:
        if not job.is_apart or not catalog.exists(self._session, ledger.TABLE) or self._is_placed(job):
            return
        self._session.execute(f"DROP TABLE IF EXISTS {self._sql(schema.apart_of(self._session, job))}")
        self._session.execute(_LEDGER.forget, str(job.dump), job.target)

    async def clean(self, dump: UUID, targets: Sequence[str]) -> None:
        """Remove the dump's lines, and the ledger after the last of all lines."""
        await self._session.run(lambda: self._clean(dump))

    def _clean(self, dump: UUID) -> None:
        if catalog.exists(self._session, ledger.TABLE):
            self._session.execute(_LEDGER.clean, str(dump))
            if not self._session.rows(_LEDGER.any):
                self._session.execute(_LEDGER.drop)

    async def close(self) -> None:
        """End the session."""
        await self._session.close()

    def _sql(self, table: str) -> str:
        return catalog.sql_name(self._session, table)


def _merge(job: Job, shape: Table, table: str, stage: str) -> list[str]:
    """What brings staged rows into the table. Only the key decides; a conflict with another index ends the chunk."""
    names = [column.name for column in job.source.columns if column.name not in shape.details["computed"]]
    listed = ", ".join(map(quoted, names))
    insert = f"INSERT INTO {table} ({listed}) SELECT {', '.join(f's.{quoted(name)}' for name in names)} FROM {stage} s"
    if job.mode not in (Mode.UPSERT, Mode.ABSENT):
        return [insert]
    key = key_of(job)
    same = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in key)
    others = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in names if name not in key)
    absent = f"{insert} WHERE NOT EXISTS (SELECT 1 FROM {table} t WHERE {same})"
    if job.mode is Mode.ABSENT or not others:
        return [absent]
    return [f"UPDATE {table} t JOIN {stage} s ON {same} SET {others}", absent]
