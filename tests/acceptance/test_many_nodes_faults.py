"""Two and three real nodes on one PostgreSQL, and real faults: who runs what afterwards, and is every record there?

Every test ends with the same audit (`Cluster.check`): in the table each stream's ids have no gap and no repeat; in the
file, which no transaction guards, nothing is lost, and only what a crash interrupted may be there twice; and no
stream's epoch or commit number ever fell.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.client import PushClient
from headgate.store.embedded import EmbeddedServer
from tests.acceptance.cluster import Cluster
from tests.acceptance.ledger import Ledger
from tests.proxy import Proxy, proxied
from tests.waiting import LONG_S


@pytest.fixture
async def cluster(tmp_path: Path, url: str) -> AsyncIterator[Cluster]:
    async with _cluster(tmp_path, url) as found:
        yield found


@contextlib.asynccontextmanager
async def _cluster(folder: Path, url: str) -> AsyncIterator[Cluster]:
    found = Cluster(folder, url)
    try:
        await found.fetch("CREATE TABLE target (stream text, id bigint)")
        yield found
    finally:
        await found.close()


class Program:
    """A program that pushes two streams, a few records at a time, until it is told to finish."""

    def __init__(self, name: str, urls: list[str], token: str) -> None:
        self._client = PushClient(urls, datasource="pushed", token=token, program=name)
        self._names = [f"{name}-0", f"{name}-1"]
        self._stop = asyncio.Event()
        self.sent = 0  # Of each stream.
        self.acked: dict[str, int | None] = {}
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> dict[str, int | None]:
        async with self._client as client:
            streams = [await client.stream(name) for name in self._names]
            while not self._stop.is_set():
                for stream in streams:
                    await stream.send(self.sent, {"stream": stream.name, "id": self.sent})
                    self.acked[stream.name] = stream.position
                self.sent += 1
                await asyncio.sleep(0.01)
            return {stream.name: await stream.finish() for stream in streams}

    async def finish(self) -> None:
        """End both streams, and see that the node has all of them."""
        self._stop.set()
        async with asyncio.timeout(LONG_S):
            assert await self.task == dict.fromkeys(self._names, self.sent - 1)

    async def has_acked(self, id: int) -> bool:
        """Whether the node says that it has this record of both streams."""
        if self.task.done():
            self.task.result()
        acked = list(self.acked.values())
        return len(acked) == 2 and all(position is not None and position >= id for position in acked)


async def test_killed_under_load_one_of_three_nodes_leaves_its_streams_to_the_others(cluster: Cluster) -> None:
    """kill -9, with the default lease."""
    await cluster.start("a", "b", "c", lease_s=5.0)
    documents = cluster.noting("notes-0") | cluster.noting("notes-1")
    for number in range(4):
        documents |= cluster.counting(f"orders-{number}")
    await cluster.apply(documents)
    await cluster.until_placed("a", "b", "c")
    await cluster.until_moved_on()
    before = await cluster.streams()
    crashed = {name for name, row in before.items() if row["node"] == "b"}
    assert len(crashed) == 2  # Granted in turn.
    await cluster.end("b", signal.SIGKILL)
    await cluster.until_placed("a", "c")
    await cluster.until_moved_on()
    after = await cluster.streams()
    for name in before:
        assert (after[name]["epoch"] > before[name]["epoch"]) == (name in crashed)
    await cluster.check(crashed)


async def test_a_node_that_slept_past_its_lease_changes_nothing_and_begins_anew(cluster: Cluster) -> None:
    """SIGSTOP; the other takes over; SIGCONT."""
    await cluster.start("a")
    await cluster.apply(cluster.counting("orders-0") | cluster.counting("orders-1") | cluster.noting("notes"))
    await cluster.until_moved_on()
    await cluster.pin("a")
    await cluster.start("b")
    before, (incarnation,) = await cluster.streams(), await cluster.ids_of("a")
    cluster.nodes["a"].pause()
    await cluster.until_placed("b")
    await cluster.until_moved_on()
    await cluster.pin("b")
    taken = await cluster.streams()
    cluster.nodes["a"].go_on()

    async def begins_anew() -> bool:
        return await cluster.ids_of("a") not in ([], [incarnation])

    await cluster.until(begins_anew, "a begins anew")
    await cluster.until_moved_on()
    after = await cluster.streams()
    for name in before:
        assert taken[name]["epoch"] > before[name]["epoch"]
        assert (after[name]["owner"], after[name]["epoch"]) == (taken[name]["owner"], taken[name]["epoch"])
    await cluster.apply(cluster.counting("later"))
    await cluster.until_placed("a", streams={"later:0"})  # It has the fewest, and is one of us again.
    await cluster.until_moved_on()
    await cluster.check(crashed=before)


class Server:
    """A PostgreSQL that can be stopped and started again."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.start()

    @property
    def url(self) -> str:
        return self._server.url

    def start(self) -> None:
        self._server = EmbeddedServer.join(self._home, {"fsync": "off", "full_page_writes": "off"})

    def stop(self) -> None:
        self._server.leave()

    def crash(self) -> None:
        os.kill(int((self._home / "postgres/data/postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
        self.stop()


@pytest.fixture
def own_server() -> Any:
    home = Path(tempfile.mkdtemp(prefix="hg"))  # Not in the test's own folder: a socket's path has to be short.
    found = Server(home)
    yield found
    found.stop()
    shutil.rmtree(home, ignore_errors=True)


async def test_a_database_that_restarts_or_is_away_pauses_the_streams_and_moves_none(
    tmp_path: Path, own_server: Server
) -> None:
    """A crash and a restart at once; then seven seconds without a database, twice the lease and more."""
    async with _cluster(tmp_path, own_server.url) as cluster:
        await cluster.start("a", "b")
        await cluster.apply(cluster.counting("orders-0") | cluster.counting("orders-1") | cluster.noting("notes"))
        await cluster.until_moved_on()
        owners = {name: row["owner"] for name, row in (await cluster.streams()).items()}
        await asyncio.to_thread(own_server.crash)
        await asyncio.to_thread(own_server.start)
        await cluster.until_moved_on()
        await asyncio.to_thread(own_server.stop)
        away = asyncio.create_task(asyncio.sleep(7.0))
        paused_at = await _comes_to_rest(cluster)
        await away
        assert cluster.ledger.sizes() == paused_at
        await asyncio.to_thread(own_server.start)
        await cluster.until_moved_on()
        assert {name: row["owner"] for name, row in (await cluster.streams()).items()} == owners
        assert not await cluster.fetch("SELECT FROM headgate.stream_history WHERE kind = 'revoked'")
        await cluster.check(interrupted={"notes:0"})


async def _comes_to_rest(cluster: Cluster) -> dict[str, int]:
    """Until the file grows no more: nobody is trusted any longer. Returns its size."""
    seen: list[dict[str, int]] = []

    async def rests() -> bool:
        await asyncio.sleep(0.5)
        seen.append(cluster.ledger.sizes())
        return len(seen) > 2 and seen[-1] == seen[-2] == seen[-3]

    await cluster.until(rests, "pauses without a database")
    return seen[-1]


class StrandingProxy(Proxy):
    """Can leave the connections there are half-open for good, while new ones work."""

    def strand(self) -> None:
        self._flowing.clear()
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        flowing = self._flowing
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


async def test_a_node_cut_off_for_less_than_its_lease_goes_on_under_the_same_epochs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections to the database that freeze, that are ended, and that never say anything again."""
    monkeypatch.setattr("tests.proxy.Proxy", StrandingProxy)
    async with proxied(cluster.url) as (proxy, through):
        await cluster.start("a", database=through, lease_s=12.0)
        await cluster.apply(cluster.counting("orders") | cluster.noting("notes"))
        await cluster.until_moved_on()
        await cluster.start("b", lease_s=12.0)
        await cluster.until_even()
        before = await cluster.streams()
        proxy.freeze()
        await asyncio.sleep(2.0)
        proxy.thaw()
        await cluster.until_moved_on()
        await cluster.until_beats("a", 1)
        proxy.cut()
        await cluster.until_moved_on()
        await cluster.until_beats("a", 1)
        assert isinstance(proxy, StrandingProxy)
        proxy.strand()
        await cluster.until_beats("a", 2)
        await cluster.until_moved_on()
        assert await cluster.streams() == before
        await cluster.check()


async def test_a_node_cut_off_for_longer_than_its_lease_loses_its_streams_to_another(cluster: Cluster) -> None:
    """It still reaches the sinks, and knows by itself that it may not."""
    async with proxied(cluster.url) as (proxy, through):
        await cluster.start("a", database=through)
        await cluster.apply(cluster.counting("orders") | cluster.noting("notes"))
        await cluster.until_moved_on()
        await cluster.pin("a")
        await cluster.start("b")
        proxy.freeze()
        await cluster.until_placed("b")
        await cluster.until_moved_on()
        proxy.thaw()
        await _is_here(cluster, "a")
        await cluster.call("b", "POST", "/api/nodes/b/drain")
        await cluster.until_placed("a")
        await cluster.until_moved_on()
        await cluster.call("b", "POST", "/api/nodes/b/undrain")
        proxy.refuse = True
        proxy.cut()
        await cluster.until_placed("b")
        proxy.refuse = False
        await cluster.until_moved_on()
        await _is_here(cluster, "a")
        await cluster.check(crashed={"notes:0"})


async def _is_here(cluster: Cluster, name: str) -> None:
    async def is_here() -> bool:
        return bool(await cluster.ids_of(name))

    await cluster.until(is_here, f"{name} is here")


async def test_a_drained_node_gives_all_streams_to_others_and_gets_some_again(cluster: Cluster) -> None:
    """Nobody crashed: not even the plain sink sees a record twice."""
    await cluster.start("a", "b")
    documents = {}
    for number in range(2):
        documents |= cluster.counting(f"orders-{number}") | cluster.noting(f"notes-{number}")
    await cluster.apply(documents)
    await cluster.until_moved_on()
    for leaves, stays in (("a", "b"), ("b", "a")):
        await cluster.call("a", "POST", f"/api/nodes/{leaves}/drain")
        await cluster.until_placed(stays)
        await cluster.until_moved_on()
        await cluster.call("a", "POST", f"/api/nodes/{leaves}/undrain")
    await cluster.start("c")
    assert await cluster.end("a") == 0
    await cluster.until_placed("b", "c")
    assert set((await cluster.places()).values()) == {"b", "c"}
    await cluster.until_moved_on()
    await cluster.check()


async def test_a_rolling_restart_of_three_nodes_under_load_loses_and_repeats_nothing(cluster: Cluster) -> None:
    """Worker streams and programs that push, all the time; each node is told to stop and started again."""
    await cluster.start("a", "b", "c")
    documents = cluster.pushed()
    for number in range(2):
        documents |= cluster.counting(f"orders-{number}", 50) | cluster.noting(f"notes-{number}", 50)
    await cluster.apply(documents)
    urls = [node.url for node in cluster.nodes.values()]
    programs = [Program(f"p{n}", urls[n:] + urls[:n], cluster.token) for n in range(3)]

    def have_acked(id: int) -> Callable[[], Awaitable[bool]]:
        async def have() -> bool:
            return all([await program.has_acked(id) for program in programs])

        return have

    await cluster.until(have_acked(50), "all programs push")
    for name in ("a", "b", "c"):
        assert await cluster.end(name) == 0
        await cluster.start(name)
        furthest = max(program.sent for program in programs)
        await cluster.until(have_acked(furthest), f"all push after {name}'s restart")
        await cluster.until_moved_on(20)
    for program in programs:
        await program.finish()
    sizes = await cluster.sizes()
    for program in programs:
        assert [sizes[name] for name in program.acked] == [program.sent, program.sent]
    await cluster.check()


async def test_a_program_whose_node_is_killed_resumes_through_another_node(cluster: Cluster) -> None:
    """What was acknowledged is there, what was not is sent again, and nothing is there twice."""
    await cluster.start("a", "b")
    await cluster.apply(cluster.pushed())
    program = Program("p", [cluster.nodes["a"].url, cluster.nodes["b"].url], cluster.token)
    await cluster.until(lambda: program.has_acked(100), "it pushes")
    assert set((await cluster.places()).values()) == {"a"}
    acked = dict(program.acked)
    await cluster.end("a", signal.SIGKILL)
    await cluster.until_placed("b")
    furthest = program.sent
    await cluster.until(lambda: program.has_acked(furthest), "it goes on")
    for stream, position in acked.items():
        assert position in [row["id"] for row in await cluster.fetch("SELECT id FROM target WHERE stream = $1", stream)]
    await program.finish()
    await cluster.check()


async def test_a_node_told_to_stop_without_its_database_ends_in_time_and_says_what_others_take(
    cluster: Cluster,
) -> None:
    async with proxied(cluster.url) as (proxy, through):
        await cluster.start("a", database=through)
        await cluster.apply(cluster.counting("orders") | cluster.noting("notes"))
        await cluster.until_moved_on()
        await cluster.start("b")
        await cluster.until_even()
        node = cluster.nodes["a"]
        mine = [stream for stream, name in (await cluster.places()).items() if name == "a"]
        proxy.refuse = True
        proxy.cut()
        assert await cluster.end("a") == 1
        (said,) = [line for line in node.log().splitlines() if "other nodes take" in line]
        assert len(mine) == 1
        assert mine[0] in said
        await cluster.until_placed("b")
        await cluster.until_moved_on()
        await cluster.check(crashed={"notes:0"})


async def test_a_datasource_deleted_and_made_again_under_its_name_starts_from_nothing(cluster: Cluster) -> None:
    """Also if the node that ran the old one sleeps through all of it."""
    await cluster.start("a")
    await cluster.apply(cluster.counting("orders"))
    await cluster.until_moved_on()
    await cluster.start("b")
    cluster.nodes["a"].pause()
    await cluster.call("b", "DELETE", "/api/datasources/orders")
    new = cluster.counting("orders")
    new["orders"]["mapping"]["set"]["stream"] = "'again'"
    await cluster.call("b", "POST", "/api/apply", {"datasources": new})
    await cluster.until_placed("b")

    async def a_begins_anew() -> bool:
        return not await cluster.ids_of("a")

    await cluster.until(a_begins_anew, "a is taken for dead")
    await cluster.fetch("DELETE FROM target WHERE stream = 'orders:0'")
    cluster.nodes["a"].go_on()
    await _is_here(cluster, "a")
    # A batch that it had in hand when it fell asleep was its own then, and may be there. Nothing follows it.
    before = await cluster.sizes()
    await _has_reached(cluster, "again", before.get("again", 0) + 100)
    after = await cluster.sizes()
    assert set(after) <= {"again", "orders:0"}
    assert after.get("orders:0") == before.get("orders:0")
    await cluster.fetch("DELETE FROM target WHERE stream = 'orders:0'")
    await cluster.check()


async def _has_reached(cluster: Cluster, stream: str, records: int) -> None:
    async def has() -> bool:
        return (await cluster.sizes()).get(stream, 0) >= records

    await cluster.until(has, f"{records} records of {stream}")


async def test_a_node_that_is_killed_while_it_drains_leaves_the_rest_to_others_and_to_one_that_joins(
    cluster: Cluster, tmp_path: Path
) -> None:
    """One of its streams is in the middle of a write when it dies; the rest have been given away by then."""
    gate, reached = tmp_path / "gate", tmp_path / "gate.reached"
    await cluster.start("a")
    await cluster.apply(
        cluster.counting("orders") | cluster.noting("notes") | cluster.noting("slow", gate=str(gate)),
    )
    await cluster.until_moved_on()
    await cluster.call("a", "POST", "/api/streams/slow:0/move", {"node": "a"})
    await cluster.start("b")
    gate.touch()
    await cluster.until(lambda: reached.exists(), "a write is under way")
    joining = asyncio.create_task(cluster.start("c"))
    await cluster.call("b", "POST", "/api/nodes/a/drain")
    await cluster.until_placed("b", "c", streams={"orders:0", "notes:0"})
    assert (await cluster.places())["slow:0"] == "a"
    await cluster.end("a", signal.SIGKILL)
    gate.unlink()
    await joining
    await cluster.until_placed("b", "c")
    await cluster.until_moved_on()
    await cluster.check(crashed={"slow:0"})


def test_the_audit_finds_what_it_is_there_to_find(tmp_path: Path) -> None:
    """A loss, a repeat, and a node that writes on after its successor has begun."""

    def ledger(*lines: tuple[int, list[int]]) -> Ledger:
        found = Ledger(tmp_path / "ledger.jsonl")
        found.path.write_text("".join(f'{{"stream": "s", "epoch": {epoch}, "ids": {ids}}}\n' for epoch, ids in lines))
        return found

    ledger((1, [0, 1]), (2, [1, 2])).check(crashed={"s"})
    ledger((1, [0, 1]), (2, [2]), (1, [2])).check(crashed={"s"})
    ledger((1, [0]), (1, [1]), (2, [1, 2])).check(interrupted={"s"})
    with pytest.raises(AssertionError, match="lost"):
        ledger((1, [0, 2])).check(crashed={"s"})
    with pytest.raises(AssertionError, match="repeats"):
        ledger((1, [0, 1]), (2, [1, 2])).check()
    with pytest.raises(AssertionError, match="repeats"):
        ledger((1, [0]), (1, [1]), (2, [0]), (2, [1])).check(interrupted={"s"})
    with pytest.raises(AssertionError, match="after a successor"):
        ledger((1, [0]), (2, [1]), (1, [1]), (1, [2])).check(crashed={"s"})
