"""Dumps whose process is killed or stopped: real processes, a real PostgreSQL, and a source that is written to."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import asyncpg
import pytest

from headgate.store.embedded import EmbeddedServer
from tests.acceptance.dump_cycle import Cycle, Place, ended
from tests.conftest import _fresh
from tests.waiting import until

ROWS, CHUNK_ROWS = 4000, 100
# Chunks of a megabyte, which go in several pieces: after a first burst each takes half a second. PostgreSQL writes a
# thousand rows at a time, so a chunk has more of them.
SLOW = ("--rate", "2MB", "--workers", "1", "--chunk-rows", "4000")


@pytest.fixture
async def place(server: EmbeddedServer, url: str, tmp_path: Path) -> AsyncIterator[Place]:
    """Databases for source and target, and Headgate's own."""
    async for source in _fresh(server, "template1"):
        async for target in _fresh(server, "template1"):
            yield Place(source, target, url, tmp_path)


@pytest.mark.parametrize(("mode", "kills"), [("plain", 2)])
async def test_a_dump_that_is_killed_and_resumed_has_each_row_once_while_its_source_is_written_to(
    place: Place, mode: str, kills: int
) -> None:
    """The seed of the moments is part of what fails."""
    seed = Random().randrange(1 << 30)
    seen = await Cycle(place, Random(seed), "items", mode, ROWS, CHUNK_ROWS).run(most_kills=kills)
    assert seen.is_good, (seed, seen)


@pytest.mark.parametrize("mode", ["keyed"])
async def test_a_process_that_slept_past_its_lease_changes_nothing_when_it_wakes(place: Place, mode: str) -> None:
    """It is stopped in the middle of a chunk. Its leases are ended by hand, as time would, and another finishes."""
    source, target, own = [await asyncpg.connect(url) for url in (place.source, place.target, place.own)]
    try:
        await source.execute("CREATE TABLE items (id bigint PRIMARY KEY, body text NOT NULL)")
        await source.execute("INSERT INTO items SELECT n, repeat(md5(n::text), 8) FROM generate_series(1, 20000) n")
        await target.execute(f"CREATE TABLE items (id bigint{' PRIMARY KEY' if mode == 'keyed' else ''}, body text)")
        how = "replace" if mode == "replace" else "append"
        sleeper = place.start("dump", place.source, place.target, "--table", "items", "--mode", how, *SLOW)
        try:
            dump = await _in_the_middle(own, target)
            sleeper.send_signal(signal.SIGSTOP)
            await own.execute("UPDATE headgate.dump SET until = now() WHERE id = $1", dump)
            await own.execute(
                "UPDATE headgate.dump_chunk SET until = now() WHERE until IS NOT NULL AND dump = $1", dump
            )
            await own.execute("UPDATE headgate.dump SET rate = NULL WHERE id = $1", dump)
            assert await ended(place.start("dumps", "resume", str(dump))) == 0, place.complained()
            done = await _state(own, target, dump)
            sleeper.send_signal(signal.SIGCONT)
            assert await ended(sleeper) != 0
        finally:
            sleeper.kill()
            sleeper.wait()
        assert await _state(own, target, dump) == done
        assert await target.fetch("SELECT * FROM items ORDER BY id") == await source.fetch(
            "SELECT * FROM items ORDER BY id"
        )
    finally:
        for connection in (source, target, own):
            await connection.close()


async def _in_the_middle(own: Any, target: Any) -> Any:
    """The dump, as soon as one chunk is done and rows of another are on their way in a transaction."""
    done = """
        SELECT dump FROM headgate.dump_chunk GROUP BY dump
        HAVING bool_or(state = 'done') AND bool_or(state = 'leased')
    """
    copying = """
        SELECT count(*) FROM pg_stat_progress_copy WHERE datname = current_database() AND tuples_processed > 0
    """

    async def is_caught() -> Any:
        dump = await own.fetchval(done)
        return dump if dump is not None and await target.fetchval(copying) else None

    return await until(is_caught, look_s=0.005)


async def _state(own: Any, target: Any, dump: Any) -> tuple[Any, ...]:
    """What must not change: the dump's status, its chunks, the target's ledger and its rows."""
    chunks = 'SELECT number, state, epoch, rows FROM headgate.dump_chunk WHERE dump = $1 ORDER BY "table", number'
    return (
        await own.fetchval("SELECT status FROM headgate.dump WHERE id = $1", dump),
        await own.fetch(chunks, dump),
        await target.fetchval("SELECT count(*) FROM headgate_dump_chunk"),
        await target.fetchval("SELECT count(*) FROM items"),
    )


OWN = """
class Source:
    name = "people"
    size = 1000

    def __init__(self, url):
        pass

    def query(self, offset, limit):
        return [{"id": n, "name": f"name {n}"} for n in range(offset, min(offset + limit, self.size))]
"""


@pytest.mark.parametrize("is_sized", [True, False], ids=["sized", "without a size"])
async def test_a_thousand_rows_of_a_users_own_storage_in_chunks_of_a_hundred_with_five_workers(
    place: Place, is_sized: bool
) -> None:
    (place.home / "own.py").write_text(
        OWN if is_sized else OWN.replace("    size = 1000\n", "").replace("self.size", "1000")
    )
    storage = ("--storage", f"{place.home}/own.py:Source")
    sizes = ("--chunk-rows", "100", "--workers", "5")
    code = await ended(place.start("dump", "mine:people", place.target, *storage, *sizes, "--json"))
    assert code == 0, place.complained()
    found = place.said()
    assert (found["status"], found["rows"], found["tables"][0]["name"]) == ("completed", 1000, "people")
    target = await asyncpg.connect(place.target)
    try:
        (row,) = await target.fetch("SELECT count(*), count(DISTINCT id), min(id), max(id) FROM people")
    finally:
        await target.close()
    assert tuple(row) == (1000, 1000, 0, 999)
    assert await ended(place.start("dumps", "history", found["id"], "--json")) == 0
    done = [one for one in place.said()["items"] if one["notification"] == "completed"]
    assert [one["rows"] for one in done if one["rows"]] == [100] * 10
    assert {one["notification"] for one in place.said()["items"]} <= {"completed", "end"}, "no attempt failed"
