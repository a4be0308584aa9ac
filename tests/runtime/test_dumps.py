"""StreamProcess, its workers and its plan, between real databases that come and go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from headgate.connectors.api.bulk import StorageError
from headgate.connectors.postgres.reader import PostgresReader
from headgate.connectors.postgres.writer import PostgresWriter
from headgate.core.chunks.locks import ATTEMPTS, LOST, State
from headgate.core.chunks.offsets import FIRST_ROWS
from headgate.core.chunks.outcome import DumpWanted, TableState
from headgate.errors import NotFound, Refused, StoreError
from headgate.ids import new_id
from headgate.runtime.dumps import control
from headgate.runtime.dumps import process as processes
from headgate.runtime.dumps.locks import LockManager
from headgate.runtime.dumps.plan import Options, Request, Storages, create, parse_rate, plan_of
from headgate.runtime.dumps.process import DumpFailed, StreamProcess
from headgate.runtime.dumps.tables import CopiedTable, Tables
from headgate.runtime.dumps.verify import verify
from headgate.runtime.dumps.worker import Worker
from headgate.runtime.dumps.workers import join
from headgate.store import dumps
from headgate.store.database import Database
from headgate.store.dump_rows import TableRow
from headgate.store.dumps import Dumps
from tests.proxy import proxied
from tests.runtime.dump_bench import Bench
from tests.waiting import until

# A dump that goes well.


async def test_a_table_is_copied_in_chunks_with_its_key_and_every_chunk_is_in_the_ledger(bench: Bench) -> None:
    await bench.make()
    dump = await bench.create("items")
    assert await bench.process(dump).run() == "completed"
    assert await bench.equal()
    assert bench.kinds() == ["completed"] * 10
    lines = await bench.at(bench.target, "SELECT * FROM headgate_dump_chunk WHERE mark <> 'finished'")
    assert sum(line["rows"] for line in lines) == 1000
    (index,) = await bench.at(bench.target, "SELECT indexdef FROM pg_indexes WHERE tablename = 'items'")
    assert "(id)" in index["indexdef"]
    assert len(await bench.dumps.chunks.history(dump)) == 10


async def test_an_empty_table_is_made_and_done(bench: Bench) -> None:
    await bench.make(rows=0)
    dump = await bench.create()
    assert await bench.process(dump).run() == "completed"
    assert await bench.equal()


async def test_rows_beyond_the_top_belong_to_nobody(bench: Bench) -> None:
    """Rows are inserted for ever; the dump ends all the same, with those of its snapshot."""
    await bench.make(300)
    dump = await bench.create("items", rate="20k")
    async with bench.running(bench.process(dump)) as task:
        number = 1000
        while not task.done():
            number += 1
            await bench.at(bench.source, "INSERT INTO items VALUES ($1, 'late', NULL)", number)
        assert await task == "completed"
    last = (await bench.dumps.chunks.all(dump))[-1].chunk
    assert int(last.range.hi[0]) < number, "the dump ended while rows came in"
    (found,) = await bench.at(bench.target, "SELECT max(id), count(*) FROM items")
    assert tuple(found) == (int(last.range.hi[0]), 300 + max(0, int(last.range.hi[0]) - 1000))


async def test_sizes_follow_what_chunks_take(bench: Bench) -> None:
    await bench.make(400_000)
    dump = await bench.create("items", rows=None, workers=1)
    assert await bench.process(dump, count=1).run() == "completed"
    sizes = [row.chunk.rows for row in await bench.dumps.chunks.all(dump)]
    assert sizes[0] == FIRST_ROWS
    assert max(sizes) > FIRST_ROWS, "chunks that take a fraction of a second grow"
    assert await bench.equal()


async def test_workers_may_be_processes(bench: Bench) -> None:
    await bench.make(500)
    dump = await bench.create("items")
    assert await bench.process(dump, processes=bench.url).run() == "completed"
    assert await bench.equal()
    names = {row.worker for row in await bench.dumps.chunks.history(dump)}
    assert not any(name.startswith(processes.process_name()) for name in names)


async def test_a_pool_that_joins_before_there_is_a_snapshot_reads_in_it_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.make()
    dump = await bench.create("items")
    process, begin = bench.process(dump), PostgresReader.begin

    async def changed_since(reader: PostgresReader) -> str | None:
        await asyncio.sleep(1.0)  # Who joins is there first.
        snapshot = await begin(reader)
        await bench.at(bench.source, "UPDATE items SET note = 'later'")
        return snapshot

    monkeypatch.setattr(PostgresReader, "begin", changed_since)
    monkeypatch.setattr(process.workers, "start", lambda snapshot: None)  # Those who join copy everything.
    async with bench.running(process) as task:
        while not task.done():
            await join(bench.dumps, dump, Storages(bench.source, bench.target), 2)
            await asyncio.sleep(0.02)
        assert await task == "completed"
    assert await bench.at(bench.target, "SELECT count(*) FROM items WHERE note = 'later'") == [(0,)]


async def test_a_dump_that_was_copied_in_two_snapshots_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that has joined goes on with its chunk while another process takes the dump over."""
    await bench.make(100)
    dump = await bench.create("items")
    first, storages = bench.process(dump), Storages(bench.source, bench.target)
    monkeypatch.setattr(first.workers, "start", lambda snapshot: None)
    reading, goes_on, metered, set_snapshot = asyncio.Event(), asyncio.Event(), Worker._metered, Dumps.set_snapshot

    async def held(worker: Worker, pieces: Any, flow: Any) -> AsyncIterator[Any]:
        async for piece in metered(worker, pieces, flow):
            reading.set()
            await goes_on.wait()
            yield piece

    async def taken_over(dumps: Dumps, dump: UUID, snapshot: str, *, fuzzy: bool) -> None:
        await set_snapshot(dumps, dump, snapshot, fuzzy=fuzzy)
        goes_on.set()

    async def has_snapshot() -> bool:
        state = await bench.dumps.state(dump)
        return state is not None and state.snapshot is not None

    monkeypatch.setattr(Worker, "_metered", held)
    async with bench.running(first):
        await until(has_snapshot)
        joined = asyncio.create_task(join(bench.dumps, dump, storages, 1))
        await until(reading.is_set)
    assert not (await bench.dumps.find(str(dump))).fuzzy
    monkeypatch.setattr(Dumps, "set_snapshot", taken_over)
    assert await bench.process(dump).run() == "completed"
    await joined
    assert (await bench.dumps.find(str(dump))).fuzzy


async def test_nothing_is_copied_for_another_run_nor_into_a_table_that_is_not_ready(bench: Bench) -> None:
    await bench.make()
    dump = await bench.create("items")
    async with bench.running(bench.process(dump)) as task:
        await bench.until_done(dump, 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    state, locks = await bench.dumps.state(dump), LockManager(bench.dumps.chunks, dump)
    assert state is not None
    assert state.snapshot
    assert (leased := await locks.lease("of this run", state.snapshot)) is not None
    assert await locks.give_back(leased)
    assert await locks.lease("of another", "its snapshot") is None
    (row,) = await bench.dumps.tables(dump)
    await bench.dumps.set_table(dump, row.number, TableState.FAILED, json.loads(row.job), "refused")
    assert await locks.lease("of this run", state.snapshot) is None
    assert await bench.dumps.claim(dump, new_id(), "another") is not None
    await bench.dumps.set_table(dump, row.number, TableState.COPYING, json.loads(row.job), "")
    assert await locks.lease("of the run before", state.snapshot) is None


async def test_a_second_pool_that_joins_shares_the_chunks_and_the_rate(bench: Bench) -> None:
    await bench.make(2000)
    dump = await bench.create("items", rate="700")  # Slow enough that both are seen at work.
    process = bench.process(dump, count=1)
    shares = set()
    async with bench.running(process) as task:
        await bench.until_done(dump, 1)
        joined = asyncio.create_task(join(bench.dumps, dump, Storages(bench.source, bench.target), 2))
        while not task.done():
            shares.add(process.workers.throttle.share)
            await asyncio.sleep(0.02)
        assert await task == "completed"
        assert await bench.dumps.delete(dump)  # Before the other has seen that it is over.
        await joined
    assert await bench.equal()
    assert min(shares) == 0.5
    await join(bench.dumps, dump, Storages(bench.source, bench.target), 2)


# What is refused before anything is written.


async def test_a_target_with_rows_is_refused_unless_told(bench: Bench) -> None:
    await bench.make(10)
    await bench.at(bench.target, "CREATE TABLE items (id bigint PRIMARY KEY, name text NOT NULL, note text)")
    await bench.at(bench.target, "INSERT INTO items VALUES (999, 'mine', NULL)")
    with pytest.raises(Refused, match="has rows already"):
        await bench.create("items")
    dump = await bench.create("items", yes=True)
    assert await bench.process(dump).run() == "completed"
    (found,) = await bench.at(bench.target, "SELECT count(*) FROM items")
    assert found["count"] == 11


async def test_an_unknown_table_and_an_unknown_column_are_named(bench: Bench) -> None:
    await bench.make(1)
    with pytest.raises(NotFound, match="no table nothing"):
        await bench.create("nothing")
    with pytest.raises(NotFound, match="no column 'nope'"):
        await bench.create("items", exclude=("nope",))
    assert await bench.at(bench.target, "SELECT FROM pg_tables WHERE schemaname = 'public'") == []


async def test_a_second_dump_into_the_same_table_is_told_how_to_resume_the_first(bench: Bench) -> None:
    await bench.make(100)
    first = await bench.create("items")
    with pytest.raises(Refused, match="not finished") as refused:
        await bench.create("items")
    assert f"headgate dumps resume {str(first)[:13]}" in refused.value.hint
    assert await bench.process(first).run() == "completed"


def test_rates_are_rows_or_bytes() -> None:
    assert parse_rate("5000").rows == 5000
    assert parse_rate("20k").rows == 20_000
    assert parse_rate("1.5MB/s").bytes == 1_500_000
    assert parse_rate("max") == parse_rate(None)


# Errors, failures, and going on.


async def test_an_error_leaves_the_other_chunks_and_tables_alone_and_resume_copies_only_the_failed(
    bench: Bench,
) -> None:
    await bench.make(500)
    await bench.make(200, "others")
    await bench.at(bench.target, "CREATE TABLE items (id bigint PRIMARY KEY, name text NOT NULL, note text)")
    await bench.at(bench.target, "ALTER TABLE items ADD CONSTRAINT no CHECK (id <> 250)")
    dump = await bench.create("items", "others")
    assert await bench.process(dump).run() == "incomplete"
    assert await bench.equal("others")
    assert bench.kinds().count("error") == 4, "three attempts, then the table"
    failed = [row.chunk for row in await bench.dumps.chunks.all(dump) if row.chunk.error]
    assert [(chunk.range.lo, chunk.range.hi) for chunk in failed] == [(("200",), ("300",))]
    saved = json.loads((bench.home / "dumps" / f"{dump}.json").read_text())
    assert "no" in saved["error"]
    assert [one["notification"] for one in saved["attempts"]].count("error") == 3
    await bench.at(bench.target, "ALTER TABLE items DROP CONSTRAINT no")
    bench.heard.clear()
    assert await bench.process(dump).run() == "completed"
    assert bench.kinds() == ["completed"]
    assert await bench.equal()
    assert not (bench.home / "dumps" / f"{dump}.json").exists()


async def test_a_chunk_that_failed_waits_before_it_is_tried_again(bench: Bench) -> None:
    await bench.make(100)
    await bench.at(bench.target, "CREATE TABLE items (id bigint PRIMARY KEY, name text CHECK (id < 0), note text)")
    dump = await bench.create("items")
    assert await bench.process(dump).run() == "incomplete"
    first, second, third = [row.at for row in await bench.dumps.chunks.history(dump)]
    assert second - first >= timedelta(seconds=0.5)
    assert third - second >= timedelta(seconds=1.0)


async def test_the_history_that_is_saved_has_every_attempt_of_every_run(bench: Bench) -> None:
    await bench.make(500)
    await bench.at(bench.target, "CREATE TABLE items (id bigint PRIMARY KEY, name text NOT NULL, note text)")
    await bench.at(bench.target, "ALTER TABLE items ADD CONSTRAINT no CHECK (id NOT IN (150, 250))")
    dump = await bench.create("items")
    assert await bench.process(dump).run() == "incomplete"
    assert await bench.process(dump).run() == "incomplete"
    saved = json.loads((bench.home / "dumps" / f"{dump}.json").read_text())
    known = await bench.dumps.chunks.history(dump)
    assert [one["id"] for one in saved["attempts"]] == [row.id for row in known]
    errors = [(one["chunk"], one["lo"], one["hi"]) for one in saved["attempts"] if one["notification"] == "error"]
    assert sorted(errors) == [(2, ["100"], ["200"])] * 6 + [(3, ["200"], ["300"])] * 6
    assert saved["tables"][0]["error"].startswith("2 of 5 chunks failed")


async def test_an_attempt_that_the_database_could_not_be_told_of_is_saved_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.make(100)
    dump = await bench.create("items")

    async def away(self: LockManager, *args: Any) -> bool:
        raise StoreError("the database is away")

    monkeypatch.setattr(LockManager, "complete", away)
    with pytest.raises(DumpFailed, match="the database is away"):
        await bench.process(dump, count=1).run()
    saved = json.loads((bench.home / "dumps" / f"{dump}.json").read_text())
    assert [(one["notification"], one["rows"], one["hi"]) for one in saved["attempts"]] == [("completed", 100, ["100"])]


async def test_a_table_that_cannot_be_prepared_keeps_its_plan_and_is_resumed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.make(500)
    dump = await bench.create("items", rate="500")
    async with bench.running(bench.process(dump)) as task:
        await bench.until_done(dump, 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await bench.dumps.set_rate(dump, None)

    async def refused(self: PostgresWriter, job: Any) -> Any:
        raise StorageError("permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(PostgresWriter, "prepare", refused)
        assert await bench.process(dump).run() == "incomplete"
    assert await bench.process(dump).run() == "completed"
    assert await bench.equal()


async def test_chunks_have_exactly_the_rows_that_were_asked_for_though_keys_have_gaps(bench: Bench) -> None:
    await bench.make(1000)
    await bench.at(bench.source, "DELETE FROM items WHERE id % 3 = 0")
    await bench.at(bench.source, "ANALYZE items")
    dump = await bench.create("items", rows=100)
    assert await bench.process(dump).run() == "completed"
    assert [row.chunk.rows for row in await bench.dumps.chunks.all(dump)] == [100] * 6 + [67]
    assert await bench.equal()


@pytest.mark.parametrize("method", ["query", "size"])
async def test_a_source_that_stops_answering_is_gone_after_its_timeout(
    bench: Bench, tmp_path: Path, method: str
) -> None:
    """While a chunk is read, and while the next one is planned."""
    (tmp_path / "own.py").write_text(SILENT.format(silent=method))
    own = (f"from={tmp_path}/own.py:Source",)
    source, target = "from:anything", f"jsonl:{tmp_path}/out/"
    dump = await create(bench.dumps, Request(source, target, options=Options(workers=1, own=own), rows=10))
    storages = Storages(source, target, own, source_timeout_s=0.3)
    (tmp_path / "silent").touch()
    with pytest.raises(DumpFailed, match=r"the source has sent nothing for 0\.3 s"):
        await StreamProcess(bench.dumps, dump, storages, 1, bench.home).run()
    (tmp_path / "silent").unlink()
    assert await StreamProcess(bench.dumps, dump, storages, 1, bench.home).run() == "completed"


SILENT = """
import asyncio
import pathlib

HERE = pathlib.Path(__file__).parent

class Source:
    columns = {{"id": "int64"}}

    def __init__(self, url):
        pass

    async def answer(self, method):
        while method == "{silent}" and (HERE / "silent").exists():
            await asyncio.sleep(0.05)

    async def size(self):
        await self.answer("size")
        return 30

    async def query(self, offset, limit):
        await self.answer("query")
        return [{{"id": n}} for n in range(offset, min(30, offset + limit))]
"""


@pytest.mark.parametrize("side", ["source", "target"])
async def test_a_storage_that_goes_is_a_failure_and_the_dump_goes_on_from_the_ledger(bench: Bench, side: str) -> None:
    await bench.make(2000)
    async with proxied(getattr(bench, side)) as (proxy, url):
        dump = await bench.create("items", rate="3000", **{side: url})
        async with bench.running(bench.process(dump, **{side: url})) as task:
            await bench.until_done(dump, 3)
            proxy.refuse = True
            proxy.cut()
            with pytest.raises(DumpFailed) as failed:
                await task
    assert f"headgate dumps resume {str(dump)[:13]}" in failed.value.hint
    saved = json.loads((bench.home / "dumps" / f"{dump}.json").read_text())
    assert "failure" in {one["notification"] for one in saved["attempts"]} or saved["error"]
    await bench.at(bench.source, "INSERT INTO items VALUES (9999, 'beyond the top', NULL)")
    await bench.dumps.set_rate(dump, None)
    done = (await bench.dumps.find(str(dump))).done
    bench.heard.clear()
    assert await bench.process(dump).run() == "completed"
    assert bench.kinds().count("completed") <= 20 - done
    await bench.at(bench.source, "DELETE FROM items WHERE id = 9999")
    assert await bench.equal()
    assert (await bench.dumps.find(str(dump))).fuzzy


async def test_headgates_own_database_goes_and_the_history_is_saved_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dumps, "OWNER", timedelta(seconds=2))  # Nobody could let go of it.
    await bench.make(2000)
    async with proxied(bench.url) as (proxy, url):
        database = await Database.open(url)
        away = Bench(bench.source, bench.target, url, Dumps(database), bench.home)
        dump = await away.create("items", rate="3000")
        async with away.running(away.process(dump)) as task:
            await bench.until_done(dump, 3)
            proxy.refuse = True
            proxy.cut()
            with pytest.raises(DumpFailed):
                await task
        saved = json.loads((bench.home / "dumps" / f"{dump}.json").read_text())
        assert saved["attempts"]
        await database.close()
    await bench.dumps.set_rate(dump, None)
    assert await bench.process(dump).run() == "completed"
    assert await bench.equal()


async def test_a_chunk_whose_worker_is_gone_returns_and_is_written_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger has the chunk, the registry does not know: whoever has it next learns that it is done."""
    await bench.make(300)
    dump = await bench.create("items")

    async def deaf(self: LockManager, *args: Any) -> bool:
        return False

    with monkeypatch.context() as patch:
        patch.setattr(LockManager, "complete", deaf)
        async with bench.running(bench.process(dump)) as task:

            async def are_written() -> bool:
                return task.done() or await lines_in(bench) >= 3

            await until(are_written)
    bench.heard.clear()
    assert await bench.process(dump).run() == "completed"
    assert await bench.equal()
    assert bench.kinds() == [], "the ledger knew all of it"


async def test_a_chunk_that_kills_one_worker_after_another_is_left_and_the_others_go_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.make(300)
    dump = await bench.create("items")

    async def nothing(self: LockManager, *args: Any) -> None:
        return None

    with monkeypatch.context() as patch:
        patch.setattr(LockManager, "lease", nothing)
        async with bench.running(bench.process(dump)):

            async def are_planned() -> bool:
                return len(await bench.dumps.chunks.all(dump)) >= 3

            await until(are_planned)
    state, locks = await bench.dumps.state(dump), LockManager(bench.dumps.chunks, dump)
    assert state is not None
    assert state.snapshot is not None
    snapshot = state.snapshot
    for number in range(ATTEMPTS):
        leased = await locks.lease(f"worker {number}", snapshot)
        assert leased is not None
        assert leased.chunk.number == 1
        await bench.at(bench.url, "UPDATE headgate.dump_chunk SET until = now() WHERE state = 'leased'")
    assert await locks.lease("next", snapshot) is None, "the chunk is given up"
    leased = await locks.lease("next", snapshot)
    assert leased is not None
    assert leased.chunk.number == 2
    states = [(row.chunk.state, row.chunk.error) for row in await bench.dumps.chunks.all(dump)]
    assert states == [(State.FAILED, LOST), (State.LEASED, ""), (State.PLANNED, "")]
    reports = [(row.worker, row.kind, row.error, row.hi) for row in await bench.dumps.chunks.history(dump)]
    assert reports == [(f"worker {number}", "error", LOST, ("100",)) for number in range(ATTEMPTS)]
    await locks.give_back(leased)
    assert await bench.process(dump).run() == "completed", "resumed, it is tried again"
    assert await bench.equal()


async def lines_in(bench: Bench) -> int:
    try:
        (row,) = await bench.at(bench.target, "SELECT count(*) FROM headgate_dump_chunk WHERE mark <> 'finished'")
    except asyncpg.UndefinedTableError:
        return 0
    return int(row["count"])


async def test_what_the_target_has_lost_is_written_again(bench: Bench) -> None:
    """The target was set back to an older backup: its ledger decides, not what we remember."""
    await bench.make(1000)
    dump = await bench.create("items", rate="2000")
    async with bench.running(bench.process(dump)) as task:
        await bench.until_done(dump, 5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await bench.at(bench.target, "DELETE FROM items WHERE id BETWEEN 101 AND 200")
    await bench.at(bench.target, "DELETE FROM headgate_dump_chunk WHERE hi = '[\"200\"]'")
    await bench.dumps.set_rate(dump, None)
    assert await bench.process(dump).run() == "completed"
    assert await bench.equal()


async def test_a_plan_that_is_older_than_the_ledger_copies_nothing_twice(bench: Bench) -> None:
    """Headgate's database was set back to before the first chunk: new cuts would fall inside what is written."""
    await bench.make(300)
    dump = await bench.create("items", rate="60")
    async with bench.running(bench.process(dump)) as task:
        await bench.until_done(dump, 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    before = await lines_in(bench)
    await bench.dumps.chunks.forget(dump, 0)
    assert await bench.process(dump).run() == "incomplete"
    assert "ledger has chunks that the plan lacks" in bench.heard[-1].error
    assert await lines_in(bench) == before


async def test_two_processes_never_run_the_same_dump(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "CLAIM_S", 0.5)
    await bench.make(1000)
    dump = await bench.create("items", rate="400")
    async with bench.running(bench.process(dump)) as task:
        await bench.until_done(dump, 1)
        with pytest.raises(Refused, match="runs this dump"):
            await bench.process(dump).run()
        await bench.dumps.set_rate(dump, None)
        assert await task == "completed"
    assert await bench.equal()


# What operators do.


async def test_pause_resume_and_rate_while_it_runs(bench: Bench) -> None:
    await bench.make(2000)
    dump = await bench.create("items", rate="2000")
    async with bench.running(bench.process(dump)) as task:
        await bench.until_done(dump, 2)
        await bench.dumps.set_wanted(dump, DumpWanted.PAUSE)
        await asyncio.sleep(0.8)
        before = (await bench.dumps.find(str(dump))).done
        await asyncio.sleep(0.8)
        assert (await bench.dumps.find(str(dump))).done <= before + 2, "only what was under way"
        assert not task.done()
        await bench.dumps.set_rate(dump, "max")
        await bench.dumps.set_wanted(dump, DumpWanted.RUN)
        assert await task == "completed"
    assert await bench.equal()


async def test_a_cancelled_replace_leaves_the_old_table_as_it_was(bench: Bench) -> None:
    await bench.make(2000)
    await bench.at(bench.target, "CREATE TABLE items AS SELECT 1::bigint AS id, 'old'::text AS name, ''::text AS note")
    dump = await bench.create("items", mode="replace", rate="500")
    async with bench.running(bench.process(dump)) as task:
        await bench.until_done(dump, 2)
        await bench.dumps.set_wanted(dump, DumpWanted.CANCEL)
        assert await task == "cancelled"
    tables = await bench.at(bench.target, "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
    assert [row["tablename"] for row in tables] == ["headgate_dump_chunk", "items"]
    (row,) = await bench.at(bench.target, "SELECT name FROM items")
    assert row["name"] == "old"


async def test_a_dump_can_be_cancelled_whose_target_has_forgotten_it(bench: Bench) -> None:
    await bench.make(2000)
    await bench.at(bench.target, "CREATE TABLE items AS SELECT 1::bigint AS id, 'old'::text AS name, ''::text AS note")
    dump = await bench.create("items", mode="replace", rate="500")
    async with bench.running(bench.process(dump)):
        await bench.until_done(dump, 2)
    await bench.at(bench.target, "DROP TABLE headgate_dump_chunk")
    await control.cancel(bench.dumps, str(dump))
    row = await bench.dumps.find(str(dump))
    assert (row.status, row.error) == ("cancelled", "")
    tables = await bench.at(bench.target, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    assert [row["tablename"] for row in tables] == ["items"]


async def test_the_first_table_is_copied_while_others_are_made_ready(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.make(500)
    await bench.make(500, "others")
    dump = await bench.create("items", "others")
    prepare = Tables.prepare

    async def late(self: Tables, row: TableRow) -> CopiedTable:
        if row.name == "others":
            await bench.until_done(dump, 2)
        return await prepare(self, row)

    monkeypatch.setattr(Tables, "prepare", late)
    assert await bench.process(dump).run() == "completed"
    assert await bench.equal()
    assert await bench.equal("others")


async def test_replace_and_upsert(bench: Bench) -> None:
    await bench.make(300)
    await bench.at(bench.target, "CREATE TABLE items (id bigint PRIMARY KEY, name text NOT NULL, note text)")
    await bench.at(bench.target, "INSERT INTO items VALUES (5, 'stale', 'x'), (9999, 'mine', 'y')")
    dump = await bench.create("items", mode="upsert")
    assert await bench.process(dump).run() == "completed"
    rows = await bench.at(bench.target, "SELECT id, name FROM items WHERE id IN (5, 9999) ORDER BY id")
    assert [tuple(row) for row in rows] == [(5, "name 5"), (9999, "mine")]
    dump = await bench.create("items", mode="replace")
    assert await bench.process(dump).run() == "completed"
    assert await bench.equal()


async def test_a_table_without_a_key_is_read_by_blocks_and_begins_again_in_a_new_snapshot(bench: Bench) -> None:
    await bench.at(
        bench.source, "CREATE TABLE items AS SELECT g AS id, repeat('x', 200) AS name FROM generate_series(1, 2000) g"
    )
    dump = await bench.create("items", rate="5000")
    async with bench.running(bench.process(dump)) as task:
        await bench.until_done(dump, 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await bench.at(bench.source, "UPDATE items SET name = 'moved' WHERE id % 3 = 0")
    await bench.dumps.set_rate(dump, None)
    assert await bench.process(dump).run() == "completed"
    assert await bench.equal()
    tables = await bench.at(bench.target, "SELECT tablename FROM pg_tables WHERE tablename LIKE '%hg%'")
    assert tables == []


async def test_a_dump_from_a_point_copies_only_what_comes_after(bench: Bench) -> None:
    await bench.make(500)
    dump = await bench.create("items", since=("200",))
    assert await bench.process(dump).run() == "completed"
    (row,) = await bench.at(bench.target, "SELECT min(id), count(*) FROM items")
    assert tuple(row) == (201, 300)


# Verify.


async def test_verify_finds_each_kind_of_difference_and_repairs_only_those_chunks(bench: Bench) -> None:
    await bench.make(500)
    dump = await bench.create("items")
    await bench.process(dump).run()
    storages = Storages(bench.source, bench.target)
    assert (await verify(bench.dumps, dump, storages)).is_equal
    await bench.at(bench.target, "UPDATE items SET note = NULL WHERE id = 151")
    await bench.at(bench.target, "DELETE FROM items WHERE id = 250")
    await bench.at(bench.target, "UPDATE items SET name = 'other' WHERE id = 350")
    found = await verify(bench.dumps, dump, storages)
    assert sorted((one.chunk, one.why) for one in found.different) == [
        (2, "note: 15 NULLs in the source, 16 in the target"),
        (3, "100 rows in the source, 99 in the target"),
        (4, "values differ"),
    ]
    found = await verify(bench.dumps, dump, storages, repair=True)
    assert found.repaired == 3
    assert found.is_equal
    assert await bench.equal()


async def test_verify_of_an_upsert_looks_only_for_the_sources_rows(bench: Bench) -> None:
    await bench.make(200)
    await bench.at(bench.target, "CREATE TABLE items (id bigint PRIMARY KEY, name text NOT NULL, note text)")
    await bench.at(bench.target, "INSERT INTO items VALUES (9999, 'mine', 'y'), (50, 'old', '')")
    dump = await bench.create("items", mode="upsert")
    await bench.process(dump).run()
    storages = Storages(bench.source, bench.target)
    assert (await verify(bench.dumps, dump, storages)).is_equal
    await bench.at(bench.target, "UPDATE items SET name = 'changed' WHERE id = 50")
    found = await verify(bench.dumps, dump, storages, repair=True)
    assert [one.why for one in found.different] == ["1 row of the source not in the target"]
    assert found.is_equal


async def test_urls_are_sealed_and_shown_without_passwords(bench: Bench) -> None:
    await bench.make(1)
    secret = bench.source.replace("headgate@", "headgate:hush@")
    dump = await bench.create("items", source=secret)
    found = await bench.dumps.find(str(dump))
    assert "hush" not in str(found)
    urls = await bench.dumps.urls(dump)
    assert urls is not None
    assert urls.source == secret
    assert await Dumps(await Database.open(bench.url)).urls(dump) is None
    rows = await bench.dumps.tables(dump)
    assert "hush" not in str(rows)
    assert plan_of(rows[0]).job.target == "items"


# Storages from the user's own file.

OWN = """
import json
import pathlib

class Source:
    def __init__(self, url):
        self.rows = json.loads(pathlib.Path(url.partition(":")[2]).read_text())

    def query(self, offset, limit):
        return self.rows[offset:offset + limit]


class Target:
    def __init__(self, url):
        self.folder = pathlib.Path(url.partition(":")[2])

    def normalize(self, rows):
        return [{"number": row["id"], "text": row["name"].upper()} for row in rows]

    def write(self, rows, chunk):
        (self.folder / f"{chunk.key}.json").write_text(json.dumps(rows))
        once = self.folder.parent / "once"
        if chunk.hi == ("300",) and not once.exists():
            once.touch()
            raise ValueError("once")

    def undo(self, chunk):
        (self.folder / f"{chunk.key}.json").unlink()
"""


async def test_json_to_json_of_size_1000_in_chunks_of_100_with_5_workers(bench: Bench, tmp_path: Path) -> None:
    """Storages from the user's own file, a source without a size, an error that is compensated, and the end."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "out").mkdir()
    rows = [{"id": number, "name": f"name {number}"} for number in range(1000)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    own = (f"from={tmp_path}/own.py:Source", f"to={tmp_path}/own.py:Target")
    source, target = f"from:{tmp_path}/rows.json", f"to:{tmp_path}/out"
    request = Request(source, target, options=Options(workers=5, own=own), rows=100)
    dump = await create(bench.dumps, request)
    process = StreamProcess(bench.dumps, dump, Storages(source, target, own), 5, bench.home, notify=bench.heard.append)
    assert await process.run() == "completed"
    assert bench.kinds().count("completed") == 10
    assert bench.kinds().count("error") == 1
    assert bench.kinds().count("end") >= 1
    assert len({one.worker for one in bench.heard}) > 1
    written = [row for file in (tmp_path / "out").iterdir() for row in json.loads(file.read_text())]
    assert sorted(row["number"] for row in written) == list(range(1000))
    assert written[0]["text"].startswith("NAME ")
