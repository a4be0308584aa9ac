"""Programs that take turns, on three real nodes with real faults: did two ever believe, and did it ever stop for good?

Every test ends with the same audit (`Fleet.check`) of what the programs wrote down (`tests.acceptance.taker`): nobody
believed in an epoch at or after a moment at which somebody believed in a higher one of the same group; no epoch was
ever two programs'; and whoever was not killed is still alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
import pytest_asyncio

from headgate.clock import boot_s
from headgate.store.embedded import EmbeddedServer
from tests.acceptance.cluster import Cluster
from tests.acceptance.ledger import ROOT
from tests.acceptance.taker import TABLE, Settings
from tests.acceptance.test_many_nodes_faults import Server
from tests.conftest import _fresh
from tests.proxy import Proxy, listening

pytestmark = pytest.mark.asyncio(loop_scope="module")

NODES = ("a", "b", "c")
SHORT_S = 2.0  # The shortest lease of a group.
LONG_S = 8.0  # Longer than a node's.

_BELIEFS = """
WITH beliefs AS (
    SELECT "group", epoch, min(at_s) AS first_s, max(at_s) AS last_s, array_agg(DISTINCT pid) AS pids
    FROM turns GROUP BY "group", epoch
)
SELECT a."group", a.epoch, b.epoch AS later, a.pids, b.pids AS later_pids, a.last_s - b.first_s AS overlap_s
FROM beliefs a JOIN beliefs b ON b."group" = a."group" AND b.epoch > a.epoch AND b.first_s <= a.last_s
UNION ALL
SELECT "group", epoch, epoch, pids, pids, 0.0 FROM beliefs WHERE cardinality(pids) > 1
"""
_NOW = """SELECT epoch, pid, at_s FROM turns WHERE "group" = $1 ORDER BY at_s DESC LIMIT 1"""
_PLACES = """
SELECT c.connectivity, c.activity, c.epoch, c.incarnation, c.answered, c.muted, n.name AS node FROM headgate.consumer c
JOIN headgate.consumer_group g ON g.id = c."group" LEFT JOIN headgate.node n ON n.id = c.node
WHERE g.name = $1 ORDER BY c.number
"""


class Fleet:
    """The programs of some groups, by pid, and the table that they keep."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self._log = folder / "takers.log"
        self._one_at_a_time = asyncio.Lock()
        self._takers: dict[int, subprocess.Popen[bytes]] = {}

    def start(
        self,
        group: str,
        *,
        at: str = "",
        url: str = "",
        partition: int | None = None,
        lease_s: float = SHORT_S,
        fenced: bool = False,
    ) -> int:
        """One more program, which tries the node of this name, or this URL, first. Returns its pid."""
        urls = [node.url for name, node in sorted(self.cluster.nodes.items(), key=lambda item: item[0] != at)]
        where = [url] if url else urls
        given = Settings(where, self.cluster.token, group, partition, lease_s, self.cluster.url, fenced)
        with self._log.open("ab") as log:
            taker = subprocess.Popen(
                [sys.executable, "-m", "tests.acceptance.taker", msgspec.json.encode(given).decode()],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._takers[taker.pid] = taker
        return taker.pid

    async def grow(self, group: str, members: int, **options: Any) -> None:
        """Start programs of one group one after another, each on another node, until the group has so many."""
        for number in range(members):
            self.start(group, at=NODES[number % len(NODES)], **options)
            await self.until_connected(group, number + 1)
        await self.until_active(group)

    async def end(self, pid: int, how: signal.Signals) -> None:
        """End one, and wait until it has ended."""
        taker = self._takers.pop(pid)
        taker.send_signal(how)
        await asyncio.to_thread(taker.wait, 30.0)

    def close(self) -> None:
        """End whatever still runs, each by its own pid."""
        for taker in self._takers.values():
            taker.kill()
            taker.wait()
        self._takers = {}

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        """Rows, straight from the database; any number of coroutines may ask."""
        async with self._one_at_a_time:
            return await self.cluster.fetch(query, *args)

    # Who is active.

    async def active(self, group: str) -> Any:
        """Who believed last, under which epoch."""
        found = await self.fetch(_NOW, group)
        return found[0] if found else None

    async def until_active(self, group: str, above: int = 0) -> Any:
        """Until somebody believes now, under an epoch above this. Returns its row."""
        now_s = boot_s()

        async def is_so() -> bool:
            found = await self.active(group)
            return found is not None and found["at_s"] > now_s and found["epoch"] > above

        await self._until(is_so, f"{group} has an active one above {above}", group)
        return await self.active(group)

    async def until_connected(self, group: str, members: int) -> None:
        """Until so many programs are in touch, through nodes that are there, and nobody is awaited."""

        async def is_so() -> bool:
            found = await self.fetch(_PLACES, group)
            in_touch = [row for row in found if row["connectivity"] == "connected" and row["node"] is not None]
            return len(in_touch) == members and all(row["connectivity"] != "disconnected" for row in found)

        await self._until(is_so, f"{group} has {members} in touch", group)

    async def node_of_active(self, group: str) -> str:
        """The node on which the active one hangs."""
        (row,) = [row for row in await self.fetch(_PLACES, group) if row["activity"] == "active"]
        return str(row["node"])

    async def _until(self, is_so: Any, what: str, group: str) -> None:
        async def is_so_or_away() -> bool:
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                return bool(await is_so())
            return False

        try:
            await self.cluster.until(is_so_or_away, what)
        except AssertionError as error:
            rows, beliefs = await self.fetch(_PLACES, group), await self.fetch(_BELIEFS)
            error.add_note(f"{rows}\ntwo believed: {beliefs}\n{self._log.read_text()[-3000:]}")
            raise

    async def check(self) -> None:
        """Nobody believed beside somebody else, and whoever was not killed is alive. This ends them."""
        await asyncio.sleep(0.2)  # For the last rows.
        assert [dict(row) for row in await self.fetch(_BELIEFS)] == []
        assert [pid for pid, taker in self._takers.items() if taker.poll() is not None] == [], self._log.read_text()
        self.close()


@asynccontextmanager
async def _fleet(folder: Path, url: str) -> AsyncIterator[Fleet]:
    cluster = Cluster(folder, url)
    fleet = Fleet(cluster, folder)
    try:
        await cluster.fetch(TABLE)
        await cluster.start(*NODES)
        yield fleet
    finally:
        fleet.close()
        await cluster.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """Three nodes for all tests; each has groups of its own."""
    async for url in _fresh(server, "template_headgate"):
        async with _fleet(tmp_path_factory.mktemp("fleet"), url) as found:
            yield found


async def test_programs_that_are_killed_stopped_and_told_to_end_leave_their_turn_to_one_other(fleet: Fleet) -> None:
    """kill -9; SIGSTOP past the lease, and SIGCONT; SIGTERM. In a simple group and in one of a partition."""
    groups = {"simple": None, "partition": 1}
    await asyncio.gather(*(fleet.grow(group, 3, partition=partition) for group, partition in groups.items()))

    async def kill(group: str) -> None:
        before = await fleet.until_active(group)
        await fleet.end(before["pid"], signal.SIGKILL)
        after = await fleet.until_active(group, before["epoch"])
        assert after["pid"] != before["pid"]

    async def stop(group: str) -> None:
        before = await fleet.until_active(group)
        os.kill(before["pid"], signal.SIGSTOP)
        after = await fleet.until_active(group, before["epoch"])
        assert after["pid"] != before["pid"]
        os.kill(before["pid"], signal.SIGCONT)
        await fleet.until_connected(group, 2)

    async def tell(group: str) -> None:
        before = await fleet.until_active(group)
        await fleet.end(before["pid"], signal.SIGTERM)
        after = await fleet.until_active(group, before["epoch"])
        assert after["pid"] != before["pid"]

    for fault in (kill, stop, tell):
        await asyncio.gather(*map(fault, groups))
    await fleet.check()


async def test_a_program_that_is_killed_is_followed_at_once_if_it_is_fenced_and_only_then(fleet: Fleet) -> None:
    """With a lease of an hour: in the other group, which is hit first, nobody follows while the test lasts."""
    join = {"lease_s": 3600.0}
    await asyncio.gather(fleet.grow("plain", 2, **join), fleet.grow("fenced", 2, fenced=True, **join))
    waited_for, before = await fleet.until_active("plain"), await fleet.until_active("fenced")
    await fleet.end(waited_for["pid"], signal.SIGKILL)
    await fleet.end(before["pid"], signal.SIGKILL)
    after = await fleet.until_active("fenced", before["epoch"])
    assert after["pid"] != before["pid"]
    assert (await fleet.active("plain"))["epoch"] == waited_for["epoch"]
    statuses = [(row["connectivity"], row["activity"]) for row in await fleet.fetch(_PLACES, "plain")]
    assert statuses == [("disconnected", "active"), ("connected", "waiting")]
    await fleet.check()


async def test_a_partition_moves_as_programs_come_and_go_and_is_never_two_programs(fleet: Fleet) -> None:
    """Number p mod n: every new one, and every one that goes, makes somebody step down."""
    await fleet.grow("moving", 1, partition=5)
    for members in (2, 3, 4):
        before = await fleet.until_active("moving")
        fleet.start("moving", at=NODES[members % 3], partition=5)
        await fleet.until_active("moving", before["epoch"])
        await fleet.until_connected("moving", members)
    for how in (signal.SIGKILL, signal.SIGTERM):
        before = await fleet.until_active("moving")
        await fleet.end(before["pid"], how)
        await fleet.until_active("moving", before["epoch"])
    await fleet.check()


async def test_nodes_that_are_stopped_and_killed_take_no_program_down_with_them(fleet: Fleet) -> None:
    """A node that was taken for dead begins anew, and must not go on telling its old programs that all is well."""
    cluster = fleet.cluster
    await asyncio.gather(
        fleet.grow("long", 2, partition=1, lease_s=LONG_S),
        fleet.grow("short", 2),
        fleet.grow("first", 2, partition=0),
    )
    groups = ("long", "short", "first")

    stopped = await fleet.node_of_active("long")
    (incarnation,) = await cluster.ids_of(stopped)
    cluster.nodes[stopped].pause()

    async def is_taken_for_dead() -> bool:
        return not await cluster.ids_of(stopped)

    async def begins_anew() -> bool:
        return await cluster.ids_of(stopped) not in ([], [incarnation])

    await cluster.until(is_taken_for_dead, f"{stopped} is taken for dead")
    cluster.nodes[stopped].go_on()
    await cluster.until(begins_anew, f"{stopped} begins anew")
    for group in groups:
        await fleet.until_connected(group, 2)
        await fleet.until_active(group)

    killed = await fleet.node_of_active("short")
    await cluster.end(killed, signal.SIGKILL)
    for group in groups:
        await fleet.until_connected(group, 2)
        await fleet.until_active(group)
    await fleet.check()
    await cluster.start(killed)


@asynccontextmanager
async def before_node(url: str) -> AsyncIterator[tuple[Proxy, str]]:
    proxy = Proxy(url.removeprefix("http://"))
    async with listening(proxy) as address:
        yield proxy, f"http://{address}"


async def test_a_program_that_is_cut_off_keeps_its_turn_and_one_that_is_frozen_loses_it(fleet: Fleet) -> None:
    """A connection that ends proves nothing; one on which nothing passes any more is a lease that ends."""
    url = fleet.cluster.nodes["a"].url
    async with before_node(url) as (cut, through_cut), before_node(url) as (frozen, through_frozen):
        for group, through, lease_s in (("cut", through_cut, LONG_S), ("frozen", through_frozen, SHORT_S)):
            fleet.start(group, url=through, lease_s=lease_s)
            await fleet.until_active(group)
            fleet.start(group, at="b", lease_s=lease_s)
            await fleet.until_connected(group, 2)

        first = await fleet.active("cut")
        cut.cut()
        await fleet.until_connected("cut", 2)
        again = await fleet.until_active("cut")
        assert (again["pid"], again["epoch"]) == (first["pid"], first["epoch"])

        first = await fleet.until_active("frozen")
        frozen.freeze()
        after = await fleet.until_active("frozen", first["epoch"])
        assert after["pid"] != first["pid"]
        frozen.thaw()
        await fleet.until_connected("frozen", 2)
    await fleet.check()


async def test_the_audit_finds_what_it_is_there_to_find(fleet: Fleet) -> None:
    """Two that believe at once under two epochs, and two that share one."""

    async def found(*rows: tuple[int, int, float]) -> int:
        for epoch, pid, at_s in rows:
            await fleet.fetch("INSERT INTO turns VALUES ('audited', $1, $2, $3)", epoch, pid, at_s)
        beliefs = await fleet.fetch(_BELIEFS)
        await fleet.fetch("DELETE FROM turns WHERE \"group\" = 'audited'")
        return len(beliefs)

    assert await found((1, 7, 1.0), (1, 7, 2.0), (2, 8, 2.5), (4, 7, 3.0)) == 0
    assert await found((1, 7, 1.0), (1, 7, 3.0), (2, 8, 2.5)) == 1
    assert await found((1, 7, 1.0), (1, 7, 3.0), (2, 8, 2.5), (3, 9, 2.8)) == 2
    assert await found((1, 7, 1.0), (1, 8, 2.0)) == 1


@pytest.fixture
def own_server() -> Iterator[Server]:
    home = Path(tempfile.mkdtemp(prefix="hg"))  # Not in the test's own folder: a socket's path has to be short.
    found = Server(home)
    yield found
    found.stop()
    shutil.rmtree(home, ignore_errors=True)


async def test_a_database_that_restarts_or_is_away_leaves_every_group_with_one_active_again(
    tmp_path: Path, own_server: Server
) -> None:
    """A crash and a restart at once; then longer without a database than anybody's lease."""
    async with _fleet(tmp_path, own_server.url) as fleet:
        await asyncio.gather(fleet.grow("simple", 2), fleet.grow("partition", 2, partition=1))
        await asyncio.to_thread(own_server.crash)
        await asyncio.to_thread(own_server.start)
        for group in ("simple", "partition"):
            await fleet.until_active(group)
        epochs = {group: (await fleet.active(group))["epoch"] for group in ("simple", "partition")}
        await asyncio.to_thread(own_server.stop)
        await asyncio.sleep(5.0)
        await asyncio.to_thread(own_server.start)
        for group, epoch in epochs.items():
            await fleet.until_active(group, epoch)
        await fleet.check()
