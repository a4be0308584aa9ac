"""Which records of a refused batch are at fault: the server is asked, in a transaction that is rolled back.

First their values are judged, all of them at once (`judge.py`). What only the server knows, such as constraints and
triggers, is found by trying: ranges of rows are inserted, and those that are refused are tried again in halves, each in
a subtransaction, so that rows which are accepted stay for those that follow. One round trip does it all: the search is
a block of PL/pgSQL, because a search by statements waits for hundreds of answers. Where the language is not at hand, it
goes by statements (`core.isolation`).

Constraints are checked as each range ends, those that are deferred, too. A row may refer to one that follows it in the
batch, perhaps in another table, so those that a foreign key refused are tried again when all others are there.

The server's messages are not repeated: they may hold values. A reason is made of the error's code and of the names of
its constraint and column.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import asyncpg
import msgspec
from asyncpg import Connection

from headgate.connectors.postgres.errors import DRIVERS, OF_SERVER, is_of_record, reason_of
from headgate.connectors.postgres.judge import Field, Question, judge_column, reason_of_answer
from headgate.connectors.postgres.statements import Statements
from headgate.connectors.postgres.values import LONGEST_JSON, as_json_rows
from headgate.connectors.sql.quoting import literal
from headgate.core.isolation import accepted, begin, refused
from headgate.errors import Bad, BadRecords

AT_ONCE = 32  # Rows that are tried together. Of a hundred rows one is bad, say: then most of these are accepted.
ASKS = 16  # The first version of PostgreSQL that says what is wrong with a text, without an error.
SEARCHED = 1_000  # Rows of one search: what it has found is copied for each that it finds.
VALUES = 40_000  # What is judged, or sent to the server, in one go.
HEARD_S = 0.2  # Judging may take long; then the server should see that we are at work.
FOREIGN_KEY = "23503"
OF_ITSELF = ("22", "23502", "23505", "23514", "23P01")  # What begins so asks for nothing in other tables.

_OF_SERVER = ", ".join(map(literal, OF_SERVER))

_ASK = """
SELECT e.sql_error_code FROM unnest($1::text[]) WITH ORDINALITY AS u (t, n)
CROSS JOIN LATERAL pg_input_error_info(u.t, $2) AS e ORDER BY n
"""
_CAST = "SELECT count(u.t::{type}) FROM unnest($1::text[]) AS u (t)"
_TAKES_NULLS = """
SELECT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass($1) AND relkind <> 'r')
    OR EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass($1) AND tgtype & 7 = 7 AND tgenabled <> 'D')
"""
_SEARCH = """
#variable_conflict use_column
DECLARE
    hg_base int; hg_rows json[]; hg_todo int[]; hg_first int; hg_last int; hg_middle int;
    hg_code text; hg_constraint text; hg_column text; hg_table text;
    hg_gone int[] := current_setting('headgate.deletes')::int[]; hg_found jsonb := '[]';
BEGIN
    FOR hg_base, hg_rows IN
        SELECT (min(e.n) - 1)::int, array_agg(e.r ORDER BY e.n)
        FROM json_array_elements(current_setting('headgate.rows')::json) WITH ORDINALITY AS e (r, n)
        GROUP BY (e.n - 1) / {at_once} ORDER BY 1
    LOOP
        hg_todo := ARRAY[1, cardinality(hg_rows)];
        WHILE cardinality(hg_todo) > 0 LOOP
            hg_first := hg_todo[1]; hg_last := hg_todo[2]; hg_todo := hg_todo[3:];
            BEGIN
                {delete}
                {insert};
            EXCEPTION WHEN OTHERS OR ASSERT_FAILURE THEN
                GET STACKED DIAGNOSTICS hg_code = RETURNED_SQLSTATE, hg_constraint = CONSTRAINT_NAME,
                    hg_column = COLUMN_NAME, hg_table = TABLE_NAME;
                IF left(hg_code, 2) IN ({of_server}) THEN RAISE; END IF;
                IF hg_first = hg_last THEN
                    hg_found := hg_found || jsonb_build_array(jsonb_build_array(
                        hg_base + hg_first - 1, hg_code, hg_constraint, hg_column, hg_table));
                ELSE
                    hg_middle := (hg_first + hg_last) / 2;
                    hg_todo := ARRAY[hg_first, hg_middle, hg_middle + 1, hg_last] || hg_todo;
                END IF;
            END;
        END LOOP;
    END LOOP;
    PERFORM set_config('headgate.rows', '', true), set_config('headgate.found', hg_found::text, true);
END
"""
_PUT = "SELECT set_config('headgate.rows', $1, true), set_config('headgate.deletes', $2, true)"
_FOUND = "SELECT current_setting('headgate.found')"
_COLUMNS_OF = """
SELECT c.conname::text AS name, c.conkey AS places FROM pg_constraint c
WHERE c.conrelid = to_regclass($1) AND c.conname = ANY ($2::text[]) AND cardinality(c.conkey) = 1
UNION SELECT r.relname, i.indkey::int2[] FROM pg_index i JOIN pg_class r ON r.oid = i.indexrelid
WHERE i.indrelid = to_regclass($1) AND r.relname = ANY ($2::text[]) AND i.indnkeyatts = 1
"""
_NAME_OF = "SELECT attnum, attname FROM pg_attribute WHERE attrelid = to_regclass($1)"


@dataclass(frozen=True, slots=True)
class Unit:
    """One record: its index in the batch, and its row; or the row of a key that is to be deleted."""

    index: int
    row: tuple[Any, ...]
    is_delete: bool = False


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why the server refused one row, by the fields of its error."""

    place: int
    code: str
    constraint: str
    column: str
    table: str


# Values.


async def judged(
    connection: Connection,
    table: str,
    fields: Sequence[Field],
    indexes: Sequence[int],
    rows: Sequence[Sequence[Any]],
    *,
    as_json: bool = True,
) -> list[Bad]:
    """The records, by these indexes, with a value that its column cannot hold. The session is in a transaction, and
    stays usable."""
    found: dict[int, Bad] = {}
    takes_nulls: bool | None = None
    heard_s = time.monotonic()
    for first, (place, field) in product(_begins(rows, fields), enumerate(fields)):
        if time.monotonic() - heard_s > HEARD_S:
            await connection.execute("SELECT")
            heard_s = time.monotonic()
        else:
            await asyncio.sleep(0)
        some = rows[first : first + _most(fields)]
        verdicts = judge_column(field, [row[place] for row in some], as_json=as_json)
        if not verdicts:
            continue
        if field.is_required and takes_nulls is None:
            takes_nulls = await connection.fetchval(_TAKES_NULLS, table)
        questions = {verdict.text: verdict for verdict in verdicts.values() if isinstance(verdict, Question)}
        codes = dict(zip(questions, await _answers(connection, field, list(questions)), strict=True))
        for at, verdict in verdicts.items():
            index = indexes[first + at]
            if isinstance(verdict, Question):
                code = codes[verdict.text]
                reason = reason_of_answer(field, verdict, code) if code else None
            else:
                # A trigger may put something in the place of NULL before the server looks.
                reason = None if takes_nulls and some[at][place] is None else verdict
            if reason is not None:
                found.setdefault(index, Bad(index, field.name, reason))
    return [found[index] for index in sorted(found)]


def _most(columns: Sequence[object]) -> int:
    """How many rows of these columns are looked at in one go."""
    return max(1, VALUES // max(1, len(columns)))


def _begins(rows: Sequence[object], columns: Sequence[object]) -> range:
    return range(0, len(rows), _most(columns))


async def _answers(connection: Connection, field: Field, texts: list[str]) -> list[str | None]:
    """For each text the code of what is wrong with it as a value of the column's type."""
    if not texts:
        return []
    if connection.get_server_version().major >= ASKS:
        try:
            async with savepoint(connection):
                return [row["sql_error_code"] for row in await connection.fetch(_ASK, texts, field.native)]
        except asyncpg.PostgresError as error:
            if not is_of_record(error.sqlstate):  # A type whose input function knows errors only.
                raise
    codes: list[str | None] = [None] * len(texts)
    search = begin(len(texts), AT_ONCE)
    while (tried := search.next) is not None:
        try:
            async with savepoint(connection):
                await connection.execute(_CAST.format(type=field.native), texts[slice(*tried)])
            search = accepted(search)
        except asyncpg.PostgresError as error:
            if not is_of_record(error.sqlstate):
                raise
            codes[tried[0]] = error.sqlstate
            search = refused(search)
    return [code if place in search.bad else None for place, code in enumerate(codes)]


# Rows.


async def refused_rows(
    connection: Connection, asked: Sequence[tuple[Statements, Sequence[Unit]]]
) -> tuple[list[list[Bad]], bool]:
    """Of each table the records that the server refuses, and whether the order of the tables may be why. The session is
    in a transaction, which is worth nothing afterwards."""
    await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    found = [await _search_in_turns(connection, statements, units) for statements, units in asked]
    is_better = True
    while is_better:  # What one table refuses may wait for a row of another.
        is_better = False
        for number, (statements, units) in enumerate(asked):
            again = [refusal.place for refusal in found[number] if refusal.code == FOREIGN_KEY]
            still = await _search(connection, statements, [units[place] for place in again]) if again else []
            if len(still) < len(again):
                is_better = True
                kept = [refusal for refusal in found[number] if refusal.code != FOREIGN_KEY]
                found[number] = kept + [replace(one, place=again[one.place]) for one in still]
    # For a foreign key all others were there in the end, except for what is deleted.
    of_itself = OF_ITSELF if any(unit.is_delete for _, units in asked for unit in units) else (*OF_ITSELF, FOREIGN_KEY)
    may_be_order = any(not refusal.code.startswith(of_itself) for some in found for refusal in some)
    return [await _bad(connection, *one, some) for one, some in zip(asked, found, strict=True)], may_be_order


async def _search_in_turns(connection: Connection, statements: Statements, units: Sequence[Unit]) -> Sequence[_Refusal]:
    found = list[_Refusal]()
    for first in _begins(units, statements.columns):
        some = units[first : first + _most(statements.columns)]
        found += [replace(one, place=one.place + first) for one in await _search(connection, statements, some)]
    return found


async def _bad(
    connection: Connection, statements: Statements, units: Sequence[Unit], found: Sequence[_Refusal]
) -> list[Bad]:
    """The records, by the fields that are at fault."""
    fields = await _fields(connection, statements, found)
    name = statements.table.rpartition(".")[2]
    bad = []
    for one in found:
        column = one.column if one.table == name else ""
        field = column or fields.get(one.constraint)
        bad.append(Bad(units[one.place].index, field, reason_of(one.code, one.constraint, column)))
    return sorted(bad, key=lambda one: one.index)


async def _search(connection: Connection, statements: Statements, units: Sequence[Unit]) -> list[_Refusal]:
    try:
        async with savepoint(connection):
            return await _in_one(connection, statements, units)
    except (asyncpg.UndefinedObjectError, asyncpg.InsufficientPrivilegeError):  # There is no such language, for us.
        return await _by_halves(connection, statements, units)


async def _in_one(connection: Connection, statements: Statements, units: Sequence[Unit]) -> list[_Refusal]:
    """All in one round trip, or a few if there is much to send."""
    text = "" if len(units) > SEARCHED else as_json_rows(statements.columns, [unit.row for unit in units])
    if len(units) > SEARCHED or (len(text) > LONGEST_JSON and len(units) > 1):
        middle = len(units) // 2
        first = await _in_one(connection, statements, units[:middle])
        second = await _in_one(connection, statements, units[middle:])
        return first + [replace(one, place=one.place + middle) for one in second]
    deletes = [place for place, unit in enumerate(units) if unit.is_delete]
    elements = "unnest(hg_rows[hg_first:hg_last]) WITH ORDINALITY AS u (r, n)"
    delete, inserted = "", elements
    if deletes:
        is_gone = "hg_base + hg_first + u.n - 2 = ANY (hg_gone)"
        delete = statements.delete_each(f"(SELECT u.r FROM {elements} WHERE {is_gone}) AS u") + ";"
        inserted = f"(SELECT u.r FROM {elements} WHERE NOT {is_gone}) AS u"
    body = _SEARCH.format(at_once=AT_ONCE, of_server=_OF_SERVER, delete=delete, insert=statements.insert_each(inserted))
    tag = f"$h{secrets.token_hex(16)}$"  # Names of columns are a sender's, who must not be able to end the text.
    await connection.execute(_PUT, text, f"{{{','.join(map(str, deletes))}}}")
    await connection.execute(f"DO LANGUAGE plpgsql {tag}{body}{tag}")
    found = msgspec.json.decode(await connection.fetchval(_FOUND), type=list[tuple[int, str, str, str, str]])
    return [_Refusal(*one) for one in found]


async def _by_halves(connection: Connection, statements: Statements, units: Sequence[Unit]) -> list[_Refusal]:
    """The same with a few statements for each range."""
    search, found = begin(len(units), AT_ONCE), dict[int, _Refusal]()
    while (tried := search.next) is not None:
        try:
            async with savepoint(connection):
                await write_rows(connection, statements, units[slice(*tried)])
            search = accepted(search)
        except asyncpg.PostgresError as error:
            code = error.sqlstate or ""
            if not is_of_record(code):
                raise
            names = (error.constraint_name, error.column_name, error.table_name)
            found[tried[0]] = _Refusal(tried[0], code, *(name or "" for name in names))
            search = refused(search)
    return [found[place] for place in search.bad]


async def write_rows(connection: Connection, statements: Statements, units: Sequence[Unit]) -> None:
    """Delete and insert, as JSON."""
    for is_delete, statement in ((True, statements.delete), (False, statements.insert)):
        rows = [unit.row for unit in units if unit.is_delete is is_delete]
        if rows:
            await connection.execute(statement(), as_json_rows(statements.columns, rows))


async def _fields(connection: Connection, statements: Statements, found: Sequence[_Refusal]) -> dict[str, str]:
    """The column of each constraint that concerns only one."""
    names = list({one.constraint for one in found if one.constraint})
    if not names:
        return {}
    columns = {row["attnum"]: row["attname"] for row in await connection.fetch(_NAME_OF, statements.path)}
    rows = await connection.fetch(_COLUMNS_OF, statements.path, names)
    return {row["name"]: columns[row["places"][0]] for row in rows if row["places"][0] in columns}


@asynccontextmanager
async def savepoint(connection: Connection) -> AsyncIterator[None]:
    """What fails inside is taken back, and the transaction goes on."""
    await connection.execute("SAVEPOINT headgate")
    try:
        yield
    except (asyncpg.PostgresError, BadRecords, *DRIVERS):
        await connection.execute("ROLLBACK TO headgate; RELEASE headgate")
        raise
    await connection.execute("RELEASE headgate")
