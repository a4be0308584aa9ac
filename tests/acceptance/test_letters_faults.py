"""Letters and kill -9: whatever moment a node dies at while letters are replayed, each row is there once."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from headgate.testing.processes import NodeProcess
from tests.waiting import until

Start = Callable[..., NodeProcess]

RECORDS = 1500  # Of which every third cannot be mapped by the first version.
KILLS = 5
SEED = 20_260_701
SLOW = """
CREATE TABLE target (id bigint, n bigint);
%s
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.002); RETURN NEW; END';
CREATE TRIGGER slow BEFORE INSERT ON target FOR EACH ROW WHEN (NEW.n > 0) EXECUTE FUNCTION slow()
"""  # A row of a letter takes a while, so that a node can be killed between two of them.


async def execute(url: str, statements: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(statements)
    await connection.close()


async def fetch(url: str, query: str, *args: Any) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        return list(await connection.fetch(query, *args))
    finally:
        await connection.close()


@pytest.mark.parametrize("mode", ["insert", "upsert"])
async def test_killed_while_letters_are_replayed_each_row_is_there_once(start_node: Start, url: str, mode: str) -> None:
    index = "CREATE UNIQUE INDEX ON target (id);" if mode == "upsert" else ""
    await execute(url, SLOW % index)
    node, chance = start_node(), random.Random(SEED)
    node.call("PUT", "/api/secrets/warehouse", {"value": url})
    document: dict[str, Any] = {
        "source": {"type": "generator", "count": RECORDS, "fields": {"id": "sequence"}},
        "mapping": {"key": ["id"], "set": {"id": "id", "n": '0 if id % 3 else int("x")'}},
        "sink": {"type": "postgres", "url": {"$secret": "warehouse"}, "table": "target", "mode": mode},
        "dead_letters": {"stop_after": "never"},
    }
    node.call("POST", "/api/apply", {"datasources": {"orders": document}})
    dead = RECORDS // 3

    def numbers() -> dict[str, Any]:
        found: dict[str, Any] = node.call("GET", "/api/datasources/orders/dead-letters")
        return found

    await until(lambda: numbers()["open"] == dead)
    await until(lambda: node.call("GET", "/api/datasources/orders")["detail"] == "finished")
    mended = {**document, "mapping": {"key": ["id"], "set": {"id": "id", "n": "id"}}}
    node.call("POST", "/api/apply", {"datasources": {"orders": mended}})
    in_the_middle = 0
    for _ in range(KILLS):
        node.call("POST", "/api/datasources/orders/dead-letters/replay")
        await asyncio.sleep(chance.uniform(0.2, 0.6))
        node.end(signal.SIGKILL)
        node = start_node()
        in_the_middle += bool(await fetch(url, "SELECT FROM headgate.dead_letter WHERE outcome = 'open' LIMIT 1"))
    assert in_the_middle, "it was never killed while letters were left"
    node.call("POST", "/api/datasources/orders/dead-letters/replay")
    await until(lambda: (numbers()["replayed"], numbers()["open"]) == (dead, 0))
    ids = [row["id"] for row in await fetch(url, "SELECT id FROM target ORDER BY id")]
    assert len(ids) == len(set(ids)) == RECORDS
    totals = "SELECT records_read, records_written, records_dead_lettered FROM headgate.stream"
    await until(lambda: _has(url, totals, (RECORDS, RECORDS - dead, dead)))


async def _has(url: str, query: str, wanted: tuple[int, ...]) -> bool:
    return tuple((await fetch(url, query))[0]) == wanted
