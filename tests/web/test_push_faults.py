"""Pushing while things go wrong: connections cut, versions swapped, sinks and databases away, nodes drained and lost.

Whatever happens, what was acked is in the table, nothing is there twice, and what nobody pushes any more is free.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from headgate.connectors import plugins as connectors
from headgate.connectors.api import Progress
from headgate.core import backoff, frames, lifecycle
from headgate.errors import Cause, ConnectorError, NotConnected, StoreError
from headgate.runtime.push import listener as push
from headgate.runtime.push.feed import PushFeed
from headgate.runtime.push.session import Pushed, Session
from headgate.web.doors.push import _Connection
from tests.proxy import proxied
from tests.web.pushing import WINDOW, Gate, House, Program, house
from tests.web_node import Databases

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATED = {"type": "gate"}
CONFIG = ConnectorError("wrong", cause=Cause.CONFIG)


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> str:
    return databases.make()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    """The node of this module, for whatever it survives. It is in a hurry."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(push, "BARRIER_S", 0.01)
        patched.setattr(backoff, "FIRST_S", 0.02)
        async with house(database_url, tmp_path_factory.mktemp("push") / "home") as found:
            yield found


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """A sink that does as its test says."""
    gate, real = Gate(), connectors.get
    monkeypatch.setattr(connectors, "get", lambda name: gate.connector if name == "gate" else real(name))
    return gate


async def locked(here: House, name: str, stream: str) -> Any:
    """A session that holds a stream's row: whoever would change it waits until it is closed."""
    row = await here.row(name, stream)
    connection = await here.connection()
    await connection.execute("BEGIN")
    await connection.execute("SELECT FROM headgate.stream WHERE id = $1 FOR UPDATE", row["id"])
    return connection


async def until_waiting(here: House, holder: Any) -> None:
    """Until somebody waits for what this session holds."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
    pid = holder.get_server_pid()

    async def waiting() -> int:
        return int((await here.sql(query, pid))[0]["count"])

    await here.until(waiting, lambda found: found > 0)


# Connections that are cut.


@pytest.mark.parametrize("seed", range(4))
async def test_a_program_that_is_cut_off_again_and_again_loses_and_repeats_nothing(here: House, seed: int) -> None:
    name, dice, acked = await here.publish(), random.Random(seed), -1
    for _ in range(8):
        async with here.connected(name) as program:
            position = await program.have("s")
            first = 0 if position is None else position + 1
            assert first > acked, "what was acked is durable"
            last = first + dice.choice([50, 100, 3000])
            for begin in range(first, last, 50):
                await program.push("s", range(begin, begin + 50))
            await program.acked("s", dice.randrange(first - 1, last))
            acked = max(acked, program.acks.get("s", -1))
            program.cut()
    async with here.connected(name) as program:
        last = await program.have("s") or 0
        assert last >= acked
        await program.push("s", range(last + 1, last + 10))
        assert await program.end("s") == last + 9
    assert await here.ids(name) == list(range(last + 10))
    await here.until_free(name, "s")


async def test_a_cut_while_the_sink_writes_lets_the_write_finish_and_another_session_goes_on(
    here: House, gate: Gate
) -> None:
    name = await here.publish(sink=GATED)
    gate.may_write.clear()
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", [0, 1])
        await gate.writing.acquire()
        await program.push("s", [2])
        program.cut()
    async with here.connected(name) as other:
        await here.until(sessions(here), lambda found: found == 1)
        assert (await other.ask("s"))["reason"] == "busy"
        gate.may_write.set()
        assert await other.have("s") == 1
        await other.push("s", [2])
        await other.acked("s", 2)
    assert [record["id"] for record in gate.records] == [0, 1, 2]


def sessions(here: House) -> Any:
    """How many there are."""

    async def count() -> int:
        return len(here.node.push.sessions)

    return count


async def test_a_cut_between_a_write_and_its_failing_commit_leaves_the_old_position(here: House, gate: Gate) -> None:
    name = await here.publish(sink=GATED)
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", [0])
        await program.acked("s", 0)
        gate.may_write.clear()
        await program.push("s", [1])
        await gate.writing.acquire()
        await gate.writing.acquire()
        program.cut()
    await here.until(sessions(here), lambda found: found == 0)
    gate.failures = [NotConnected("gone with the commit")]
    gate.may_write.set()
    await here.until_empty()
    async with here.connected(name) as program:
        assert await program.have("s") == 0
        await program.push("s", [1])
        assert await program.end("s") == 1
    assert [record["id"] for record in gate.records] == [0, 1]


async def test_a_cut_while_the_stream_is_looked_up_leaves_nothing(
    here: House, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await here.publish(sink=GATED)
    asked, may_answer, real = asyncio.Event(), asyncio.Event(), here.node.streams.label

    async def label(labels: Any) -> Any:
        asked.set()
        await may_answer.wait()
        return await real(labels)

    monkeypatch.setattr(here.node.streams, "label", label)
    async with here.connected(name) as other:
        async with here.connected(name) as program:
            await program.say("notify", "s", None)
            await asked.wait()
            program.cut()
        await here.until(sessions(here), lambda found: found == 1)
        assert (await other.ask("s"))["reason"] == "busy"
        may_answer.set()
        await here.until(rows(here, name), lambda found: found == [("s", None)])
        await here.until(entries(here), lambda found: not found)
        assert gate.opening.locked(), "a sink was opened for nobody"
        assert await other.have("s") is None


def rows(here: House, name: str) -> Any:
    """The labels of a datasource, and who owns them."""
    query = "SELECT s.label, s.owner FROM headgate.stream s JOIN headgate.datasource d ON d.id = s.datasource"

    async def read() -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await here.sql(f"{query} WHERE d.name = $1 AND s.label IS NOT NULL", name)]

    return read


def entries(here: House) -> Any:
    """What the local registry holds."""

    async def read() -> list[Any]:
        return list(here.node.push._entries)

    return read


async def test_a_cut_while_the_row_is_claimed_gives_it_back(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("s")
        await program.end("s")
        holder = await locked(here, name, "s")
        await program.say("notify", "s", None)
        await until_waiting(here, holder)
        program.cut()
    await here.until(sessions(here), lambda found: found == 0)
    await holder.close()
    await here.until_empty()
    await here.until_free(name, "s")
    async with here.connected(name) as other:
        await other.have("s")


@pytest.mark.parametrize("opens", [True, False])
async def test_a_cut_while_the_sink_is_opened_gives_the_stream_back_whether_it_opens_or_not(
    here: House, gate: Gate, monkeypatch: pytest.MonkeyPatch, opens: bool
) -> None:
    monkeypatch.setattr(lifecycle.transitions, "CANCEL_S", 8.0 if opens else 0.05)
    name = await here.publish(sink=GATED)
    gate.may_open.clear()
    async with here.connected(name) as program:
        await program.say("notify", "s", None)
        await gate.opening.acquire()
        program.cut()
    await here.until(sessions(here), lambda found: found == 0)
    if opens:
        gate.may_open.set()
    await here.until_empty()
    await here.until_free(name, "s")


async def test_a_stream_whose_row_is_being_given_back_is_busy_and_then_free(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", [0])
        await program.acked("s", 0)
        holder = await locked(here, name, "s")
        program.cut()
    await until_waiting(here, holder)
    async with here.connected(name) as other:
        assert (await other.ask("s"))["reason"] == "busy"
        await holder.close()
        assert await other.have("s") == 0


async def test_a_session_that_is_cut_at_its_end_of_stream_leaves_it_closed_or_open_but_free(here: House) -> None:
    name = await here.publish()
    for n in range(5):
        async with here.connected(name) as program:
            await program.have("s")
            await program.push("s", [n])
            await program.say("eos", "s")
            program.cut()
        await here.until_empty()
        await here.until_free(name, "s")
    assert len(await here.ids(name)) == len(set(await here.ids(name)))


# Versions, stops, failures.


async def test_nothing_is_acked_before_the_registry_knows_it_too(here: House, monkeypatch: pytest.MonkeyPatch) -> None:
    name, real, is_away = await here.publish(), here.node.streams.checkpoint, True

    async def checkpoint(node: Any, commands: Any) -> Any:
        if is_away:
            raise StoreError("away")
        return await real(node, commands)

    monkeypatch.setattr(here.node.streams, "checkpoint", checkpoint)
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", [0, 1])
        await here.until(lambda: here.ids(name), lambda found: found == [0, 1])
        begun = here.node.push.barrier
        await here.until(barrier(here), lambda number: number > begun + 1)
        await program.say("beat", 1)
        assert await program.expect("beat") == [1]  # And no ack before it.
        is_away = False
        await program.acked("s", 1)
        await program.got_back(2)
        assert (await here.row(name, "s"))["position"] == "1"


def barrier(here: House) -> Any:
    """The number of the last one."""

    async def number() -> int:
        return here.node.push.barrier

    return number


async def pushing(program: Program, stream: str, stop: asyncio.Event) -> int:
    """Push records one frame after another until told to stop; the session must stay. Returns how many."""
    id = 0
    while not stop.is_set():
        await program.push(stream, range(id, id + 5))
        id += 5
        await program.acked(stream, id - 40)
    await program.acked(stream, id - 1)
    await program.got_back(id)
    return id


async def test_a_version_is_swapped_under_a_program_that_pushes_and_no_record_is_lost_or_repeated(
    here: House,
) -> None:
    def mapping(version: int) -> dict[str, Any]:
        return {"set": {"id": "meta.id", "v": str(version)}}

    name, stop = await here.publish(mapping=mapping(1)), asyncio.Event()
    async with here.connected(name) as program:
        await program.have("s")
        task = asyncio.create_task(pushing(program, "s", stop))
        for version in (2, 3, 4):
            await here.until(lambda: here.ids(name, "v"), lambda found, old=version - 1: old in found)
            await here.publish(name, mapping=mapping(version))
        await here.until(lambda: here.ids(name, "v"), lambda found: 4 in found)
        stop.set()
        pushed = await task
        assert await program.end("s") == pushed - 1
    assert await here.ids(name) == list(range(pushed))
    rows = await here.sql(f"SELECT v FROM {name.replace('-', '_')} ORDER BY id")
    assert [row["v"] for row in rows] == sorted(row["v"] for row in rows)


async def test_a_version_that_cannot_be_opened_is_rejected_and_the_session_goes_on(here: House, gate: Gate) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", [0])
        await program.acked("s", 0)
        gate.open_failure = CONFIG
        await here.publish(name, sink=GATED)
        await gate.opening.acquire()
        await program.push("s", [1])
        await program.acked("s", 1)
        assert await program.end("s") == 1
    assert await here.ids(name) == [0, 1]


async def test_a_stop_takes_the_streams_and_a_start_gives_them_again(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        for stream in ("a", "b"):
            await program.have(stream)
            await program.push(stream, [0])
            await program.acked(stream, 0)
        await here.node.registry.set_enabled(name, False, "tester")
        assert sorted([await program.expect("restart") for _ in range(2)]) == [
            ["a", None, "stopped"],
            ["b", None, "stopped"],
        ]
        assert (await here.row(name, "a"))["owner"] is None
        assert (await program.ask("a"))["reason"] == "not_ready"
        await here.node.registry.set_enabled(name, True, "tester")
        assert await program.have("a") == 0
        await program.push("a", [1])
        assert await program.end("a") == 1
        await program.got_back(3)
    assert await here.ids(name) == [0, 0, 1]


async def test_what_is_under_way_when_a_stream_is_taken_is_no_mistake_and_its_credits_come_back(here: House) -> None:
    """The program cannot know yet: its records cross the node's word."""
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("s")
        await program.have("other")
        row = await here.row(name, "s")
        await here.sql("UPDATE headgate.stream SET owner = NULL, epoch = epoch + 1 WHERE id = $1", row["id"])
        await program.push("s", [0])
        assert await program.expect("restart", "ack") == ["s", None, "stale"]
        await program.push("s", [1, 2])
        await program.say("eos", "s")
        await program.got_back(3)
        await program.push("other", [7])
        await program.acked("other", 7)
        position = await program.have("s")
        await program.push("s", range(0 if position is None else position + 1, 5))
        assert await program.end("s") == 4
        await program.push("s", [9])
        await program.fails("not_granted")
    assert await here.ids(name) == [0, 1, 2, 3, 4, 7]


async def test_all_credits_come_back_when_a_stream_is_taken_with_a_full_window(here: House, gate: Gate) -> None:
    name = await here.publish(sink=GATED)
    async with here.connected(name) as program:
        await program.have("s")
        gate.may_write.clear()
        for first in range(0, WINDOW, 1024):
            await program.push("s", range(first, first + 1024))
        await gate.writing.acquire()
        gate.failures = [CONFIG]
        gate.may_write.set()
        await program.expect("restart", "ack")
        await program.got_back(WINDOW)
        assert await program.have("s") is None
        await program.push("s", range(WINDOW))
        await program.acked("s", WINDOW - 1)
        await program.got_back(2 * WINDOW)
    assert [record["id"] for record in gate.records] == list(range(WINDOW))


async def test_a_sink_that_fails_for_a_while_costs_the_session_nothing(here: House, gate: Gate) -> None:
    name = await here.publish(sink=GATED)
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", [0])
        await program.acked("s", 0)
        gate.failures = [NotConnected("away")] * 3
        for id in range(1, 20):
            await program.push("s", [id])
        await program.acked("s", 19)
        await program.got_back(20)
    assert [record["id"] for record in gate.records] == list(range(20))


async def test_a_sink_whose_connections_are_cut_costs_the_session_nothing(here: House) -> None:
    name, stop = await here.publish(), asyncio.Event()
    async with here.connected(name) as program:
        await program.have("s")
        task = asyncio.create_task(pushing(program, "s", stop))
        for _ in range(3):
            seen = len(await here.ids(name))
            await here.until(lambda: here.ids(name), lambda found, seen=seen: len(found) > seen)
            await here.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()"
                " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
        stop.set()
        pushed = await task
    assert await here.ids(name) == list(range(pushed))


async def test_a_quarantined_stream_is_taken_and_can_be_had_again_when_it_is_mended(here: House) -> None:
    strict = {**here.table("push-mended"), "schema": {"new_fields": "fail"}}
    name = await here.publish("push-mended", mapping={"set": {"id": "meta.id", "extra": "1"}}, sink=strict)
    table = name.replace("-", "_")
    await here.sql(f"CREATE TABLE {table} (id bigint)")
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", [0, 1])
        assert (await program.expect("restart", "ack"))[:2] == ["s", None]
        await program.got_back(2)
        await here.sql(f"ALTER TABLE {table} ADD extra int")
        assert await program.have("s") is None
        await program.push("s", [0, 1])
        assert await program.end("s") == 1
    assert await here.ids(name) == [0, 1]


async def test_a_restart_while_a_quarantined_stream_is_given_back_leaves_it_to_nobody(here: House, gate: Gate) -> None:
    """The worker begins anew for a session that has been told to ask again."""
    name = await here.publish(sink=GATED)
    async with here.connected(name) as program:
        await program.have("s")
        await program.push("s", [0])
        await program.acked("s", 0)
        holder = await locked(here, name, "s")
        gate.failures = [CONFIG]
        await program.push("s", [1])
        await until_waiting(here, holder)
        await here.node.registry.restart(name, "tester")
        assert here.node.manager is not None
        await here.node.manager.look()
        await holder.close()
        if not await one_of(program, "restart", lambda: program.acks.get("s") == 1):
            assert await program.have("s") == 0
            await program.push("s", [1])
        assert await program.end("s") == 1
    await here.until_empty()
    await here.until_free(name, "s")


async def one_of(program: Program, kind: str, is_so: Any) -> bool:
    """Until this holds (True), or a frame of this kind has come (False)."""
    while not is_so():
        if (await program.hear())[0] == kind:
            return False
    return True


async def test_a_stream_that_another_node_has_taken_is_lost_at_the_next_checkpoint(here: House) -> None:
    name, other = await here.publish(), uuid4()
    async with here.connected(name) as program:
        await program.have("s")
        row = await here.row(name, "s")
        await here.sql("UPDATE headgate.stream SET owner = $2, epoch = epoch + 1 WHERE id = $1", row["id"], other)
        await program.push("s", [0])
        assert await program.expect("restart", "ack") == ["s", None, "stale"]
        assert program.acks == {}
        answer = await program.ask("s")
        assert (answer["accepted"], answer["reason"], answer["retry_after_ms"]) == (False, "owned", 2000)
        await here.sql("UPDATE headgate.stream SET owner = NULL, epoch = epoch + 1 WHERE id = $1", row["id"])
        position = await program.have("s")
        await program.push("s", range(0 if position is None else position + 1, 3))
        assert await program.end("s") == 2
    assert await here.ids(name) == [0, 1, 2]
    await here.until_empty()


async def test_a_stream_whose_next_version_is_denied_is_lost_and_its_session_told(here: House) -> None:
    """Nothing is due, so that the swap is the first to find the new owner, or the next beat is."""
    name, other = await here.publish(), uuid4()
    async with here.connected(name) as program:
        await program.have("s")
        row = await here.row(name, "s")
        await here.sql("UPDATE headgate.stream SET owner = $2, epoch = epoch + 1 WHERE id = $1", row["id"], other)
        await here.publish(name, mapping={"set": {"id": "meta.id", "v": "2"}})
        assert await program.expect("restart") in (["s", None, "owned_by_other"], ["s", None, "stale"])
        assert (await program.ask("s"))["reason"] == "owned"
    await here.until_empty()


async def test_a_node_that_starts_over_and_knows_of_no_datasource_yet_does_not_call_one_deleted(here: House) -> None:
    name = await here.publish()
    async with here.connected(name) as program:
        here.node.registry.forget()
        assert (await program.ask("s"))["accepted"]
        here.node.registry.forget()
        async with here.connected(name) as another:
            assert (await another.ask("t"))["accepted"]
    await here.until_empty()


async def test_a_lookup_that_fails_for_an_unknown_reason_is_answered(
    here: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, real = await here.publish(), here.node.streams.label

    async def label(labels: Any) -> Any:
        raise ValueError("nobody thought of this")

    async with here.connected(name) as program:
        monkeypatch.setattr(here.node.streams, "label", label)
        assert (await program.ask("s"))["reason"] == "not_ready"
        monkeypatch.setattr(here.node.streams, "label", real)
        await program.have("s")


async def test_a_sink_that_is_ahead_of_the_registry_decides_where_a_stream_begins(here: House, gate: Gate) -> None:
    name = await here.publish(sink=GATED)
    async with here.connected(name) as program:
        await program.have("s")
        await program.end("s")
        stream = (await here.row(name, "s"))["id"]
        gate.progress[stream] = Progress(0, 5, 42)
        assert await program.have("s") == 42
        await program.push("s", [41, 42, 43])
        assert await program.end("s") == 43
    assert [record["id"] for record in gate.records] == [43]
    assert (await here.row(name, "s"))["position"] == "43"


async def test_a_stream_that_changes_hands_faster_than_its_state_is_written_is_reported_all_the_same(
    here: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that ended one after the other are due together, and are the same stream."""
    name, states = await here.publish(), here.node.registry.states
    writing, may_write, failures, real = asyncio.Event(), asyncio.Event(), [], states.save

    async def save(*args: Any) -> Any:
        writing.set()
        await may_write.wait()
        try:
            return await real(*args)
        except Exception as error:
            failures.append(error)
            raise

    monkeypatch.setattr(states, "save", save)
    async with here.connected(name) as program:
        await program.have("s")
        await writing.wait()
        await program.end("s")
        await program.have("s")
        await program.end("s")
        may_write.set()
        datasource = (await here.node.registry.get(name)).id

        async def reported() -> list[Any]:
            rows, _ = (await states.one(datasource)).of(datasource)
            return [row.worker_status for row in rows]

        await here.until(reported, lambda found: bool(failures) or found == ["STOPPED"])
        assert failures == []


# Many.


async def test_two_hundred_sessions_with_five_streams_each_push_at_once(
    here: House, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "HEARTBEAT_S", 600.0)  # They wait for each other without a word.
    name = await here.publish(sink=GATED)
    start, over = asyncio.Barrier(200), asyncio.Barrier(200)

    async def session(number: int) -> None:
        async with here.connected(name) as program:
            await start.wait()
            streams = [f"{number}-{n}" for n in range(5)]
            for stream in streams:
                await program.say("notify", stream, None)
            wanted = set(streams)
            while wanted:  # A claim that the database did not answer in time is refused, and the program asks again.
                stream, is_granted, *_ = await program.expect("notify_ack")
                if is_granted:
                    wanted.remove(stream)
                else:
                    await program.say("notify", stream, None)
            await over.wait()  # All thousand are there now.
            for n, stream in enumerate(streams):
                first = 100 * (5 * number + n)
                await program.push(stream, range(first, first + 20))
                await program.push(stream, range(first + 20, first + 30))
                await program.say("eos", stream)
            closed = [await program.expect("closed", "ack") for _ in streams]
            assert sorted(closed) == [[s, 100 * (5 * number + n) + 29] for n, s in enumerate(streams)]
            await program.got_back(150)

    async with asyncio.TaskGroup() as sessions:  # If one fails, the others end with it, and so do their connections.
        for number in range(200):
            sessions.create_task(session(number))
    assert sorted(record["id"] for record in gate.records) == [100 * n + i for n in range(1000) for i in range(30)]
    await here.until_empty()
    query = "SELECT count(*) FROM headgate.stream s JOIN headgate.datasource d ON d.id = s.datasource"
    assert (await here.sql(f"{query} WHERE d.name = $1 AND s.owner IS NOT NULL", name))[0]["count"] == 0


async def test_nothing_of_a_session_is_kept_when_it_is_over(here: House, gate: Gate) -> None:
    async def kept() -> int:
        gc.collect()
        return sum(isinstance(one, Session | Pushed | PushFeed | _Connection) for one in gc.get_objects())

    await here.until_empty()
    before = await kept()  # Tests of other files, in the same process, may have left some.
    name = await here.publish()
    gated = await here.publish(sink=GATED)
    gate.open_failure = NotConnected("away")
    async with here.connected(name) as owner:
        await owner.have("owned")
        for ending in ("eos", "cut", "bad", "owned", "unopened", "stopped"):
            async with here.connected(gated if ending == "unopened" else name) as program:
                if ending in ("owned", "unopened"):
                    await program.ask("owned")
                    continue
                await program.have("s")
                await program.push("s", range(10))
                if ending == "eos":
                    await program.end("s")
                elif ending == "stopped":
                    await here.node.registry.set_enabled(name, False, "tester")
                    await program.expect("restart", "ack")
                elif ending == "cut":
                    program.cut()
                else:
                    await program.socket.send(b"")
                    await program.fails("bad_frame")
            await here.node.registry.set_enabled(name, True, "tester")
    await here.until_empty()
    # Whoever reports keeps what was last reported until there is something else.
    await here.publish(source={"type": "generator", "rate": 1}, sink={"type": "blackhole"}, mapping=None)

    await here.until(kept, lambda found: found <= before)


async def test_what_is_durable_is_not_kept_in_memory(here: House) -> None:
    await here.until_empty()
    name = await here.publish()
    async with here.connected(name) as program:
        await program.have("s")
        for n in range(20):
            await program.push("s", range(10 * n, 10 * n + 10))
        await program.acked("s", 199)
        await program.got_back(200)
        feeds = [pushed.feed for (_, stream), pushed in here.node.push._pushed.items() if stream == "s"]
        assert [list(feed._pieces) for feed in feeds] == [[]]


# Nodes.


@pytest.fixture
def url(databases: Databases) -> str:
    """A database for a test that brings its own nodes."""
    return databases.make()


async def test_without_trust_sessions_end_and_with_it_everything_goes_on(url: str, tmp_path: Path) -> None:
    async with (
        proxied(url) as (proxy, through),
        house(through, tmp_path / "home", direct=url, lease_s=3.0) as here,
    ):
        name = await here.publish()
        async with here.connected(name) as program:
            await program.have("s")
            await program.push("s", range(100))
            await program.acked("s", 99)
            proxy.refuse = True
            proxy.cut()
            await program.push("s", range(100, 200))
            await program.say("beat", 1)
            await program.fails("not_ready")
        async with here.connected() as program:
            await program.say("hello", 1, here.token, name, None, None)
            await program.fails("not_ready")
        proxy.refuse = False
        await here.until(trusted(here), bool)
        async with here.connected(name) as program:
            position = await program.have("s")
            assert position is not None
            assert position >= 99
            await program.push("s", range(position + 1, 300))
            assert await program.end("s") == 299
        assert await here.ids(name) == list(range(300))


def trusted(here: House) -> Any:
    """Whether the node may act."""

    async def is_trusted() -> bool:
        return here.node.trust_left_s() > 0.0

    return is_trusted


async def test_a_node_that_was_taken_for_dead_begins_anew_and_so_do_its_sessions(url: str, tmp_path: Path) -> None:
    async with house(url, tmp_path / "home") as here:
        name, before = await here.publish(), here.node.incarnation
        async with here.connected(name) as program:
            await program.have("s")
            await program.push("s", range(10))
            await program.acked("s", 9)
            assert await here.node.nodes.end(before)
            await program.push("s", [10])
            heard = [frame async for frame in program.rest()]
            assert heard[-1][:2] == ["error", "not_ready"]
            assert program.acks["s"] == 9
        await here.until(trusted(here), lambda is_trusted: is_trusted and here.node.incarnation != before)
        async with here.connected(name) as program:
            position = await program.have("s")
            assert position in (9, 10)
            assert (await here.row(name, "s"))["owner"] == here.node.incarnation
            await program.push("s", range(position + 1, 20))
            assert await program.end("s") == 19
        assert await here.ids(name) == list(range(20))
        await here.until_empty()


async def test_of_two_nodes_one_has_a_stream_and_the_other_gets_it_with_its_position(url: str, tmp_path: Path) -> None:
    async with house(url, tmp_path / "a") as one, house(url, tmp_path / "b") as two:
        name = await one.publish()
        async with two.connected(name) as there:
            async with one.connected(name) as here:
                answers = await asyncio.gather(here.ask("s"), there.ask("s"))
                assert sorted(answer["accepted"] for answer in answers) == [False, True]
                loser = next(answer for answer in answers if not answer["accepted"])
                assert (loser["reason"], loser["retry_after_ms"]) == ("owned", 2000)
                winner, other = (here, there) if answers[0]["accepted"] else (there, here)
                await winner.push("s", range(5))
                assert await winner.end("s") == 4
                answer = await other.ask("s")
                assert (answer["accepted"], answer["position"]) == (True, 4)
                await other.end("s")
                await here.have("s")
                here.cut()
            assert await there.have("s") == 4
            assert (await two.row(name, "s"))["owner"] == two.node.incarnation


async def test_a_drained_node_sends_its_programs_to_another_and_nothing_is_lost_or_repeated(
    url: str, tmp_path: Path
) -> None:
    async with house(url, tmp_path / "a") as one, house(url, tmp_path / "b") as two:
        name = await one.publish()
        async with one.connected(name) as program:
            assert sorted(program.ok[3]) == sorted([one.url, two.url])
            await program.have("s")
            await program.push("s", range(1000))
            await one.node.nodes.set_draining(one.node.incarnation, True)
            told = await program.expect("restart", "ack")
            if told[0] is not None:
                assert told == ["s", None, "draining"]
                told = await program.expect("restart", "ack")
            assert told == [None, two.url, "draining"]
            acked = program.acks.get("s", -1)
        async with two.connected(name) as program:
            position = await program.have("s")
            first = 0 if position is None else position + 1
            assert first > acked
            await program.push("s", range(first, 2000))
            assert await program.end("s") == 1999
        assert await one.ids(name) == list(range(2000))
        await one.until_empty()


async def test_a_node_that_stops_takes_leave_of_its_programs(url: str, tmp_path: Path) -> None:
    async with house(url, tmp_path / "a") as one:
        name = await one.publish()
        async with one.connected(name) as program:
            await program.have("s")
            await program.push("s", range(100))
            assert await one.node.drain() == []
            while (await program.expect("restart", "ack"))[0] is not None:
                pass
            assert (await one.row(name, "s"))["owner"] is None
            table = await one.ids(name)
            assert table == list(range(len(table)))
            assert program.acks.get("s", -1) < len(table)


async def test_a_run_that_does_not_let_go_is_abandoned_and_its_stream_can_be_had_again(
    url: str, tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle.transitions, "CANCEL_S", 0.05)
    monkeypatch.setattr(lifecycle.transitions, "STOP_S", 0.1)
    async with house(url, tmp_path / "home") as here:
        name = await here.publish(sink=GATED)
        async with here.connected(name) as program:
            await program.have("s")
            gate.is_stubborn = True
            gate.may_write.clear()
            await program.push("s", [0])
            await gate.writing.acquire()
        await here.until_free(name, "s")
        gate.is_stubborn = False
        gate.may_write.set()
        await here.until_empty()
        async with here.connected(name) as program:
            await program.have("s")
