"""Streams that are moved between real nodes, under load, while nodes come, sleep and die: is every record there, once?

Every test ends with the audit of `Cluster.check`. Nobody crashes in a move, so not even the plain sink, which fences
nobody, may see a record twice; where a node is killed or sleeps, only what it was writing itself.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from tests.acceptance.cluster import Cluster


async def begin(cluster: Cluster, pairs: int = 2, *names: str) -> None:
    """Nodes of these names that run so many streams into the table, and as many into the file."""
    await cluster.start(*(names or ("a",)))
    documents: dict[str, object] = {}
    for number in range(pairs):
        documents |= cluster.counting(f"orders-{number}") | cluster.noting(f"notes-{number}")
    await cluster.apply(documents)
    await cluster.until_moved_on()


async def move(cluster: Cluster, via: str, to: str, streams: Collection[str]) -> None:
    """As an operator does."""
    for stream in streams:
        await cluster.call(via, "POST", f"/api/streams/{stream}/move", {"node": to})


async def on(cluster: Cluster, node: str) -> set[str]:
    """The streams that this node has."""
    return {name for name, row in (await cluster.streams()).items() if row["node"] == node}


async def test_nodes_that_join_under_load_get_their_share_and_what_stays_is_not_touched(cluster: Cluster) -> None:
    await begin(cluster, 3)
    before = await cluster.streams()
    await cluster.start("b", "c")
    await cluster.until_even()
    await cluster.until_moved_on()
    after = await cluster.streams()
    assert Counter(row["node"] for row in after.values()) == {"a": 2, "b": 2, "c": 2}
    stayed = await on(cluster, "a")
    assert {name for name in before if (after[name]["run"], after[name]["epoch"]) == _run(before[name])} == stayed
    assert all(after[name]["epoch"] > before[name]["epoch"] for name in before.keys() - stayed)
    assert not await cluster.fetch("SELECT FROM headgate.stream_history WHERE kind = 'revoked'")
    await cluster.check()


def _run(row: object) -> tuple[object, object]:
    return row["run"], row["epoch"]  # type: ignore[index]


async def test_streams_that_are_moved_to_and_fro_under_load_lose_and_repeat_nothing(cluster: Cluster) -> None:
    """Wishes that change while they are being fulfilled, too: the last one counts."""
    await begin(cluster, 2, "a", "b")
    streams = set(await cluster.streams())
    for via, to in (("a", "b"), ("b", "a"), ("a", "b")):
        await move(cluster, via, to, streams)
        await cluster.until_placed(to)
        await cluster.until_moved_on(10)
    for to in ("a", "b", "a", "b", "a"):
        await move(cluster, "b", to, streams)
    await cluster.until_placed("a")
    await cluster.until_moved_on()
    assert not await cluster.fetch("SELECT FROM headgate.stream_history WHERE kind = 'revoked'")
    await cluster.check()


async def test_a_node_that_is_killed_while_streams_are_handed_over_to_it_leaves_them_where_they_can_run(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Some have arrived, and one is still in the middle of a write where it was."""
    gate, reached = tmp_path / "gate", tmp_path / "gate.reached"
    await cluster.start("a", "b")
    await cluster.apply(cluster.counting("orders") | cluster.noting("notes") | cluster.noting("slow", gate=str(gate)))
    await move(cluster, "a", "a", await cluster.streams())
    await cluster.until_placed("a")
    await cluster.until_moved_on()
    gate.touch()
    await cluster.until(lambda: reached.exists(), "a write is under way")
    await move(cluster, "a", "b", await cluster.streams())
    await cluster.until_placed("b", streams={"orders:0"})
    arrived = await on(cluster, "b")
    assert "slow:0" not in arrived
    await cluster.end("b", signal.SIGKILL)
    gate.unlink()
    await cluster.until_placed("a")
    await cluster.until_moved_on()
    await cluster.check(crashed={"notes:0"})


async def test_a_holder_that_sleeps_while_it_is_told_to_step_down_loses_its_streams_when_its_lease_ends(
    cluster: Cluster,
) -> None:
    """And wakes up with nothing."""
    await begin(cluster, 2, "a", "b")
    streams = set(await cluster.streams())
    await move(cluster, "b", "a", streams)
    await cluster.until_placed("a")
    await cluster.until_moved_on()
    (incarnation,) = await cluster.ids_of("a")
    cluster.nodes["a"].pause()
    await move(cluster, "b", "b", streams)

    async def is_told() -> bool:
        told = await cluster.fetch("SELECT count(*) FROM headgate.wish WHERE stepping")
        return bool(told[0]["count"] == len(streams)) or set((await cluster.places()).values()) == {"b"}

    await cluster.until(is_told, "a is told to step down")
    await cluster.until_placed("b")
    await cluster.until_moved_on()
    taken = await cluster.streams()
    cluster.nodes["a"].go_on()

    async def begins_anew() -> bool:
        return await cluster.ids_of("a") not in ([], [incarnation])

    await cluster.until(begins_anew, "a begins anew")
    await cluster.until_moved_on()
    assert await cluster.streams() == taken
    await cluster.check(crashed={name for name in streams if name.startswith("notes")})
