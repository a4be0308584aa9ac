"""The number of streams changes under load while nodes are killed and put to sleep: is every record there, and once?"""

from __future__ import annotations

import asyncio
import random
import signal
from typing import Any

from tests.acceptance.cluster import LEASE_S, Cluster

PARTS = 8


def orders(cluster: Cluster, n: int) -> dict[str, Any]:
    """A source of eight parts, read by so many streams."""
    (document,) = cluster.counting("orders", rate=800).values()
    return {"orders": {**document, "source": {**document["source"], "parts": PARTS, "batch": 20}, "streams": n}}


async def row(cluster: Cluster) -> Any:
    return (await cluster.fetch("SELECT dealt, dealing, streams FROM headgate.datasource"))[0]


async def until_dealt(cluster: Cluster, n: int) -> None:
    async def is_so() -> bool:
        found = await row(cluster)
        return bool(found["dealt"] == n and not found["dealing"])

    await cluster.until(is_so, f"dealt to {n}", 90.0)


async def until_dealing(cluster: Cluster) -> None:
    async def is_so() -> bool:
        found = await row(cluster)
        return bool(found["dealing"])

    await cluster.until(is_so, "told to stop")


async def until_all_parts_grow(cluster: Cluster) -> None:
    """Until each part has got further."""

    async def heads() -> dict[int, int]:
        rows = await cluster.fetch("SELECT id % $1 AS part, max(id) AS head FROM target GROUP BY 1", PARTS)
        return {found["part"]: found["head"] for found in rows}

    before = await heads()

    async def is_so() -> bool:
        now = await heads()
        return len(now) == PARTS and all(head > before.get(part, -1) for part, head in now.items())

    await cluster.until(is_so, "every part grows")


async def check(cluster: Cluster) -> None:
    """Each index once, and in each part none is missing."""
    parts = """SELECT id % $1 AS part, count(*) AS rows, count(DISTINCT id) AS ids, min(id) AS low, max(id) AS high
               FROM target GROUP BY 1"""
    rows = await cluster.fetch(parts, PARTS)
    assert len(rows) == PARTS
    for found in rows:
        assert found["rows"] == found["ids"], f"part {found['part']} has repeats"
        assert (found["low"], found["high"]) == (found["part"], found["part"] + PARTS * (found["ids"] - 1)), "a gap"


async def test_killed_nodes_lose_and_repeat_nothing_while_the_number_of_streams_changes(cluster: Cluster) -> None:
    """kill -9: when all were told to stop, and at moments that the seed picks."""
    draw = random.Random(8)
    await cluster.start("a", "b", "c")
    await cluster.apply(orders(cluster, 3))
    await until_dealt(cluster, 3)
    await until_all_parts_grow(cluster)
    for n, moment in ((5, "told to stop"), (2, "soon")):
        await cluster.apply(orders(cluster, n))
        if moment == "told to stop":
            await until_dealing(cluster)
        else:
            await asyncio.sleep(draw.random())
        victim = draw.choice(["b", "c"])
        await cluster.end(victim, signal.SIGKILL)
        await until_dealt(cluster, n)
        await cluster.start(victim)
        await until_all_parts_grow(cluster)
        await check(cluster)


async def test_a_node_that_sleeps_through_a_deal_changes_nothing_when_it_wakes(cluster: Cluster) -> None:
    await cluster.start("a", "b")
    await cluster.apply(orders(cluster, 4))
    await until_dealt(cluster, 4)
    await cluster.until_placed("a", "b")
    await until_all_parts_grow(cluster)
    cluster.nodes["b"].pause()
    await cluster.call("a", "POST", "/api/apply", {"datasources": orders(cluster, 2)})
    await until_dealt(cluster, 2)
    await until_all_parts_grow(cluster)
    cluster.nodes["b"].go_on()
    await asyncio.sleep(LEASE_S)
    await until_all_parts_grow(cluster)
    await check(cluster)
