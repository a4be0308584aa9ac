"""A small batch in one statement: rows, position and fence go to the server together, and one answer comes back.

Most streams have a record now and then. For those a transaction of five statements, each of them waited for, is what a
node at rest spends its time on.

The statement is a whole transaction, so it needs no limit for one that was left open: of a process that is stopped
the server has either all of it, and carries it out, or nothing that it could begin. The rest is as in a larger write.
The advisory lock lets a successor end the session; the position's row is updated only under our epoch; an update that
waits for a successor's looks at the epoch again; and rows are inserted only if the position was updated.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from asyncpg import Connection, DataError

from headgate.connectors.api import Grant, Progress
from headgate.connectors.postgres import letters
from headgate.connectors.postgres.positions import Kept, lock_key, position_of
from headgate.connectors.sql.quoting import quoted

MOST_TEXTS = 1000  # Statements that are not put together again.
MOST_ROWS = 50  # Of a batch that goes as JSON. Values of a single record go as they are.
ANSWER_S = 30.0  # The server's limit for locks begins to count when the statement runs: not while the table is locked.

# The settings hold for this transaction alone, and before the row is waited for.
_STATEMENT = """
WITH limits AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'on', true), set_config('lock_timeout', '5000', true),
           pg_advisory_xact_lock($8), $7::bigint[], $9::uuid
), moved AS (
    UPDATE headgate_position SET edits = $4, n = $5, position = $6{totals} FROM limits
    WHERE installation = $1 AND stream = $2 AND epoch = $3{unless} RETURNING 1
){put}
SELECT count(*) FROM moved
"""
FIRST = 10  # The number of the first parameter that is a value.
IF_MOVED = " WHERE EXISTS (SELECT FROM moved)"
_UNLESS = f" AND NOT EXISTS ({letters.any_with_keys('$1', '$9')})"


@lru_cache(maxsize=MOST_TEXTS)
def of_row(table: str, columns: tuple[str, ...]) -> str:
    """What inserts one row of values, $10 and so on. As with COPY, values of identity columns are taken as they are."""
    names = ", ".join(map(quoted, columns))
    values = ", ".join(f"${FIRST + place}" for place in range(len(columns)))
    return f"INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE SELECT {values}{IF_MOVED}"


async def write(
    connection: Connection,
    grant: Grant,
    progress: Progress,
    kept: Kept,
    insert: str = "",
    values: Sequence[Any] = (),
    *,
    supersedes: bool = False,
) -> bool:
    """Carry it out. False: the stream has another run; or, if the rows supersede letters, there are open letters with
    keys. Nothing was written then.

    Raises TypeError for a value that does not fit its column as it is.
    """
    statement = _statement(insert, kept.set_totals, supersedes)
    of_stream = (*position_of(grant, progress), lock_key(grant.installation, grant.stream), grant.datasource)
    try:
        found: int = await connection.fetchval(statement, *of_stream, *values, timeout=ANSWER_S)
    except DataError as error:
        if error.severity is None:  # The driver says so: the server was not asked.
            raise TypeError(str(error)) from None
        raise
    return found == 1


@lru_cache(maxsize=MOST_TEXTS)
def _statement(insert: str, set_totals: str, supersedes: bool) -> str:
    """It has nothing of a stream in it: all streams of one table share one statement, which sessions know by heart."""
    put, unless = f", put AS ({insert})" if insert else "", _UNLESS if supersedes else ""
    return _STATEMENT.format(put=put, totals=set_totals, unless=unless)
