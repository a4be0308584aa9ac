"""Real nodes that die, sleep and are cut off, with a lease that no test waits for: what is taken over at once?

The lease is five minutes. So whatever moves has moved because its node was found dead before its lease was over, or
because its node said that it had stopped; and whatever must wait for the lease does not move at all.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cluster import Cluster
from tests.pooler import needs_pooler, pooled
from tests.proxy import proxied

LEASE_S = 300.0
SEEN_BEATS = 5  # Of an observer: several times as long as it takes to end a node that is gone.


@pytest.fixture
async def cluster(tmp_path: Path, url: str) -> AsyncIterator[Cluster]:
    found = Cluster(tmp_path, url)
    try:
        await found.fetch("CREATE TABLE target (stream text, id bigint)")
        yield found
    finally:
        await found.close()


async def begin(cluster: Cluster, database: str | None = None) -> dict[str, Any]:
    """Node `a` runs a stream into the table and one into the file, and `b` watches it. Returns the rows."""
    await cluster.start("a", database=database, lease_s=LEASE_S)
    await cluster.apply(cluster.counting("orders") | cluster.noting("notes", 10))
    await cluster.until_moved_on(10)
    await cluster.pin("a")
    await cluster.start("b", lease_s=LEASE_S)
    await beats(cluster, "a", 3)  # Before the eyes of b.
    return await cluster.streams()


async def beats(cluster: Cluster, name: str, times: int) -> None:
    """Until this node has beaten so many times more."""
    before = await _beat(cluster, name)

    async def has_beaten() -> bool:
        return await _beat(cluster, name) >= before + times

    await cluster.until(has_beaten, f"{name} beats {times} times")


async def _beat(cluster: Cluster, name: str) -> int:
    return sum(row["beat"] for row in await cluster.fetch("SELECT beat FROM headgate.node WHERE name = $1", name))


async def is_ended(cluster: Cluster, name: str) -> bool:
    rows = await cluster.fetch("SELECT ended FROM headgate.node WHERE name = $1", name)
    return any(row["ended"] for row in rows)


@needs_pooler
async def test_of_nodes_that_die_or_sleep_only_what_is_fenced_and_known_to_be_dead_moves(
    cluster: Cluster, tmp_path: Path
) -> None:
    """One is killed; one is killed behind a pooler, where nobody can know; and one sleeps."""
    async with pooled(cluster.url, tmp_path) as through:
        await cluster.start("b", "killed", "asleep", lease_s=LEASE_S)
        await cluster.start("unknown", database=through, lease_s=LEASE_S)
        for name in ("killed", "asleep", "unknown"):
            await cluster.apply(cluster.counting(f"{name}-orders") | cluster.noting(f"{name}-notes", 10))
            for stream in (f"{name}-orders:0", f"{name}-notes:0"):
                await cluster.call("b", "POST", f"/api/streams/{stream}/move", {"node": name})
                await cluster.until_placed(name, streams={stream})
        await cluster.until_moved_on(10)
        before = await cluster.streams()
        cluster.nodes["asleep"].pause()
        await cluster.end("unknown", signal.SIGKILL)
        await cluster.end("killed", signal.SIGKILL)
        await cluster.until_placed("b", streams={"killed-orders:0"})
        await cluster.until_moved_on_of("killed-orders:0")
        await beats(cluster, "b", SEEN_BEATS)
        after = await cluster.streams()
        assert {name for name in before if after[name] != before[name]} == {"killed-orders:0"}
        assert after["killed-orders:0"]["epoch"] > before["killed-orders:0"]["epoch"]
        nodes = {one["name"]: one for one in (await cluster.call("b", "GET", "/api/nodes"))["items"]}
        statuses = {"b": "up", "killed": "ended", "asleep": "silent", "unknown": "silent"}
        assert {name: one["status"] for name, one in nodes.items()} == statuses
        explained = await cluster.call("b", "GET", "/api/groups/killed-notes:0/workers/explain")
        assert any("was found dead" in line for line in explained["lines"])
        cluster.nodes["asleep"].go_on()
        for name in ("killed", "unknown"):  # An operator knows better.
            await cluster.call("b", "DELETE", f"/api/nodes/{nodes[name]['id']}?yes=true")
        await cluster.until_placed("b", "asleep")
        await cluster.until_moved_on(10)
        after = await cluster.streams()
        assert all(after[name]["owner"] == row["owner"] for name, row in before.items() if row["node"] == "asleep")
        await cluster.check(crashed={"killed-notes:0", "unknown-notes:0"})


async def test_a_session_that_is_cut_and_back_at_once_moves_nothing(cluster: Cluster) -> None:
    async with proxied(cluster.url) as (proxy, through):
        before = await begin(cluster, through)
        for _ in range(4):
            await beats(cluster, "a", 1)
            proxy.cut()
        await beats(cluster, "a", 2)
        await beats(cluster, "b", SEEN_BEATS)
        await cluster.until_moved_on(10)
        assert await cluster.streams() == before
        assert [row["locked"] for row in await cluster.fetch("SELECT locked FROM headgate.node")] == [True, True]
        await cluster.check()


async def test_a_node_that_is_cut_off_and_lives_is_refused_and_gives_up_what_nobody_fences(cluster: Cluster) -> None:
    """It reaches the sinks all the time. Its lease is far from over when it hears that it was ended."""
    async with proxied(cluster.url) as (proxy, through):
        before = await begin(cluster, through)
        proxy.refuse = True
        proxy.cut()
        await cluster.until_placed("b", streams={"orders:0"})
        await cluster.until_moved_on_of("orders:0")
        assert (await cluster.streams())["notes:0"] == before["notes:0"]
        proxy.refuse = False

        async def is_given_up() -> bool:
            row = (await cluster.streams())["notes:0"]
            return row["run"] is not None and row["epoch"] > before["notes:0"]["epoch"]

        await cluster.until(is_given_up, "somebody runs what it gave up")
        await cluster.until_moved_on(10)
        assert not await is_ended(cluster, "a")
        await cluster.check(crashed={"notes:0"})
