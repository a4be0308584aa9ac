"""Datasources that several streams read: over nodes, through changes of their number, and with versions that fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeAlias

import pytest

from headgate.connectors import generator as generators
from headgate.connectors import plugins as connectors
from headgate.connectors.api import Batch, Connector, SourceKind
from headgate.core import lifecycle
from headgate.datasources import health
from headgate.errors import Cause, ConfigError, ConnectorError, Refused
from headgate.store import dealing
from tests.runtime.conftest import BLACKHOLE, IDS, Harness, generator, postgres

Join: TypeAlias = Callable[..., Awaitable[Harness]]
Plug: TypeAlias = Callable[..., None]


def parted(hg: Harness, n: int, *, parts: int | None = 8, table: str = "target", **options: Any) -> dict[str, Any]:
    """A generator of so many parts into a table, read by n streams."""
    source = generator(**{"parts": parts, "rate": 400, **options})
    return {"source": source, "mapping": IDS, "sink": postgres(hg.url, table), "streams": n}


async def dealt(hg: Harness, name: str = "orders") -> int:
    return (await hg.node.registry.get(name)).dealt


async def until_dealt(hg: Harness, n: int, name: str = "orders") -> None:
    """Until so many streams are dealt, and all of them run or rest."""

    async def is_so() -> bool:
        found = await hg.node.registry.get(name)
        states, _ = (await hg.node.registry.states.one(found.id)).of(found.id)
        settled = [one for one in states if one.worker_status == "RUNNING" or one.detail == "finished"]
        return found.dealt == n and not found.dealing and len(settled) == len(states) == n

    await hg.until_true(is_so)


async def more_rows(hg: Harness, table: str = "target") -> None:
    await hg.until_rows(len(await hg.ids(table)) + 20, table)


async def stopped(hg: Harness, name: str = "orders") -> None:
    """Until nobody has any of its streams."""
    await hg.node.registry.set_enabled(name, False, "tester")

    async def is_free() -> bool:
        return not any((await hg.owners()).values())

    await hg.until_true(is_free)


def assert_once(ids: list[int], parts: int = 8) -> None:
    """Each index came once, and in each part none is missing."""
    assert not [index for index, times in Counter(ids).items() if times > 1], "came twice"
    for part in range(parts):
        mine = [index for index in ids if index % parts == part]
        assert mine == list(range(part, part + parts * len(mine), parts)), f"a gap in part {part}"


async def positions(hg: Harness) -> list[Any]:
    return [one.position for one in await hg.node.streams.all()]


# Changes of n.


async def test_a_datasource_is_read_by_as_many_streams_as_it_asks_for_from_the_start(join: Join) -> None:
    left, right = await join("left"), await join("right")
    await left.apply(orders=parted(left, 4))
    await until_dealt(left, 4)
    await more_rows(left)
    assert Counter((await left.owners()).values()) == {"left": 2, "right": 2}
    await stopped(right)
    assert_once(await left.ids())
    assert [set(position) for position in await positions(left)] == [{"0", "4"}, {"1", "5"}, {"2", "6"}, {"3", "7"}]
    assert (await left.events("orders")).count("streams_dealt") == 1


async def test_n_changes_while_it_runs_over_two_nodes_and_each_record_comes_once(join: Join) -> None:
    left, right = await join("left"), await join("right")
    await left.apply(orders=parted(left, 1))
    await more_rows(left)
    for n in (4, 3, 1):
        await left.apply(orders=parted(left, n))
        await until_dealt(right, n)
        await more_rows(left)
        assert len(await left.owners()) == n
    await stopped(left)
    assert_once(await left.ids())
    assert "revoked" not in {kind for kind, _ in await left.history("orders")}


async def test_a_stream_that_is_not_settled_is_run_once_more_before_the_parts_are_dealt(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink is ahead of the registry, as after a crash, when all streams have already been told to stop."""
    monkeypatch.setattr(dealing, "PAUSE", timedelta(0))
    left = await join("left")
    await left.apply(orders=parted(left, 2, batch=1))
    await until_dealt(left, 2)
    await more_rows(left)
    await stopped(left)
    await left.stop()
    behind = 'commits = commits - 3, position = \'{"1": 1, "3": 3, "5": 5, "7": 7}\', settled = false WHERE index = 1'
    await left.sql(f"UPDATE headgate.stream SET {behind}")
    await left.sql("UPDATE headgate.datasource SET enabled = true, streams = 3, dealing = true")
    right = await join("right")
    await until_dealt(right, 3)
    await more_rows(right)
    await stopped(right)
    assert_once(await right.ids())
    acquired = [kind for kind, actor in await right.history("orders") if actor == "right" and kind == "acquired"]
    assert len(acquired) == 2, "once to settle the position, and once after the deal"


async def test_a_source_that_ends_is_read_whole_by_any_number_of_streams(join: Join) -> None:
    left = await join("left")
    finite = {"count": 1003, "rate": None}
    await left.apply(orders=parted(left, 3, **finite))
    await until_dealt(left, 3)
    await left.until_rows(1002)
    await left.apply(orders=parted(left, 2, **finite))
    await until_dealt(left, 2)
    await left.until("orders", status="STOPPED", detail="finished")
    assert await left.ids() == list(range(1003))


async def test_streams_without_parts_rest_and_the_datasource_is_well(join: Join) -> None:
    left = await join("left")
    await left.apply(orders=parted(left, 4, parts=2))
    await until_dealt(left, 4)
    found = await left.node.registry.get("orders")
    states: list[Any] = []
    while [state.detail for state in states[2:]] != ["finished", "finished"]:  # Written a moment after the deal.
        await asyncio.sleep(0.02)
        states, _ = (await left.node.registry.states.one(found.id)).of(found.id)
    published = await left.node.registry.datasources.version(found.id, 1)
    assert health.health(health.Facts(found, published, states, await left.node.nodes.all(), 0.0)) == "ok"
    await more_rows(left)
    await stopped(left)
    assert_once(await left.ids(), parts=2)


async def test_a_source_with_one_unnamed_part_is_the_first_streams_and_keeps_its_plain_position(join: Join) -> None:
    left = await join("left")
    await left.apply(orders=parted(left, 3, parts=None))
    await until_dealt(left, 3)
    await more_rows(left)
    await left.apply(orders=parted(left, 1, parts=None))
    await until_dealt(left, 1)
    await more_rows(left)
    await stopped(left)
    ids = await left.ids()
    assert ids == list(range(len(ids)))
    assert await positions(left) == [len(ids) - 1]


async def test_another_source_begins_anew_in_every_stream(join: Join) -> None:
    left = await join("left")
    await left.apply(orders=parted(left, 3, table="a"))
    await until_dealt(left, 3)
    await more_rows(left, "a")
    await left.apply(orders=parted(left, 2, table="b", parts=5, seed=7))
    await until_dealt(left, 2)
    await more_rows(left, "b")
    await stopped(left)
    assert_once(await left.ids("a"))
    assert_once(await left.ids("b"), parts=5)


# Versions.


class Moody(generators.Generator):
    """A generator that fails, or has nothing, while it is told so."""

    fails = False
    is_silent = False
    names: tuple[str, ...] | None = None

    async def parts(self) -> Any:
        return self.names or await super().parts()

    async def open(self, position: Any) -> None:
        if self.fails:
            raise ConnectorError("not like this", cause=Cause.CONFIG)
        await super().open(position)

    async def read(self) -> Batch:
        while self.is_silent:
            await asyncio.sleep(0.01)
        return await super().read()


@pytest.fixture
def moody(plug: Plug) -> type[Moody]:
    kind = type("Moody", (Moody,), {})
    plug(Connector("moody", "as it likes", source=SourceKind(generators.GeneratorOptions, kind, in_parts=True)))
    return kind


def moody_one(hg: Harness, n: int, table: str = "target", **options: Any) -> dict[str, Any]:
    document = parted(hg, n, table=table)
    return {**document, "source": {**document["source"], "type": "moody", **options}}


async def test_a_version_that_is_rejected_deals_nothing_and_disturbs_no_other_stream(
    join: Join, moody: type[Moody]
) -> None:
    left = await join("left")
    await left.apply(orders=moody_one(left, 2))
    await until_dealt(left, 2)
    await more_rows(left)
    other = (await left.node.streams.find("orders:1")).run
    moody.fails = True
    await left.apply(orders=moody_one(left, 4))

    async def is_rejected() -> bool:
        return "rejected" in await left.events("orders")

    await left.until_true(is_rejected)
    moody.fails = False
    await more_rows(left)
    assert await dealt(left) == 2
    assert (await left.node.streams.find("orders:1")).run == other
    assert (await left.events("orders")).count("streams_dealt") == 1
    await stopped(left)
    assert_once(await left.ids())


async def test_the_first_stream_proves_a_version_and_the_others_follow(join: Join, moody: type[Moody]) -> None:
    left = await join("left")
    await left.apply(orders=moody_one(left, 2, "a"))
    await until_dealt(left, 2)
    await more_rows(left, "a")
    moody.is_silent = True
    await left.apply(orders=moody_one(left, 2, "b", batch=4999))

    async def versions(wanted: list[int]) -> bool:
        found = await left.node.registry.get("orders")
        states, _ = (await left.node.registry.states.one(found.id)).of(found.id)
        return [state.version for state in states if state.worker_status == "RUNNING"] == wanted

    await left.until_true(lambda: versions([2, 1]))
    assert (await left.node.registry.get("orders")).running_version == 1
    moody.is_silent = False
    await left.until_true(lambda: versions([2, 2]))
    await more_rows(left, "b")
    await stopped(left)
    assert_once(sorted(await left.ids("a") + await left.ids("b")))


async def test_parts_that_appear_are_read_after_a_restart_and_keep_their_readers(
    join: Join, moody: type[Moody]
) -> None:
    moody.names = ("0", "1", "2")
    left = await join("left")
    await left.apply(orders=moody_one(left, 2))
    await until_dealt(left, 2)
    await more_rows(left)
    moody.names = ("7", "2", "3", "1", "0")  # A source should not, but may, list them in another order.
    await left.node.registry.restart("orders", "tester")

    async def has_all() -> bool:
        return {index % 8 for index in await left.ids()} == {0, 1, 2, 3, 7}

    await left.until_true(has_all)
    await stopped(left)
    assert [set(position) for position in await positions(left)] == [{"0", "2", "3"}, {"1", "7"}]
    for part in (0, 1, 2, 3, 7):
        mine = [index for index in await left.ids() if index % 8 == part]
        assert mine == list(range(part, part + 8 * len(mine), 8))


# What an operator does.


async def test_an_edit_of_a_map_changes_the_parts_that_it_names(join: Join) -> None:
    left = await join("left")
    await left.apply(orders=parted(left, 2, parts=4))
    await until_dealt(left, 2)
    await more_rows(left)
    await stopped(left)
    before = (await left.node.streams.find("orders:1")).position
    with pytest.raises(Refused, match="read by stream 0"):
        await left.node.streams.edit("orders:1", {"2": 10}, "ada")
    with pytest.raises(Refused, match="has no part '9'"):
        await left.node.streams.edit("orders:1", {"9": 10}, "ada")
    with pytest.raises(Refused, match="is a map"):
        await left.node.streams.edit("orders:1", 10, "ada")
    edited = await left.node.streams.edit("orders:1", {"3": 3}, "ada")
    assert edited.stream.position == {"1": before["1"], "3": 3}
    assert (await left.node.streams.undo_edit("orders:1", "ada")).stream.position == before
    await left.node.streams.edit("orders:1", {"3": None}, "ada")
    await left.node.registry.set_enabled("orders", True, "tester")
    await until_dealt(left, 2)

    async def is_past() -> bool:
        return Counter(await left.ids())[before["3"]] == 2

    await left.until_true(is_past)
    await stopped(left)
    counts = Counter(await left.ids())
    assert {index for index, times in counts.items() if times == 2} == set(range(3, before["3"] + 1, 4))
    assert_once(sorted(counts), parts=4)


async def test_an_edit_is_not_undone_when_parts_have_changed_hands_since(join: Join) -> None:
    left = await join("left")
    await left.apply(orders=parted(left, 1, parts=4))
    await more_rows(left)
    await stopped(left)
    await left.node.streams.edit("orders:0", {"3": 3}, "ada")
    await left.node.registry.set_enabled("orders", True, "tester")
    await left.apply(orders=parted(left, 2, parts=4))
    await until_dealt(left, 2)
    await left.apply(orders=parted(left, 1, parts=4))
    await until_dealt(left, 1)
    await stopped(left)
    with pytest.raises(Refused, match="reads other parts"):
        await left.node.streams.undo_edit("orders:0", "ada")
    with pytest.raises(Refused, match="is not in use"):
        await left.node.streams.edit("orders:1", {"3": 3}, "ada")


async def test_a_source_that_cannot_be_read_in_parts_is_refused_with_more_than_one(join: Join) -> None:
    left = await join("left")
    document = {"source": {"type": "files", "path": "/tmp/none"}, "sink": BLACKHOLE, "streams": 2}
    with pytest.raises(ConfigError, match=r"datasources\.orders\.streams: files cannot be read in parts"):
        await left.apply(orders=document)


class Deaf:
    """A sink that writes, and while it is told so does not hear that it has."""

    is_deaf = False

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def write(self, batch: Any) -> None:
        await self._inner.write(batch)
        while self.is_deaf:
            await asyncio.sleep(0.01)


async def test_a_stream_whose_last_write_was_cut_off_is_not_settled_when_it_is_given_back(
    join: Join, plug: Plug, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, real = type("Deaf", (Deaf,), {}), connectors.get("postgres")
    assert real.sink is not None
    build = real.sink.build
    plug(replace(real, sink=replace(real.sink, build=lambda options, context: kind(build(options, context)))))
    monkeypatch.setattr(lifecycle.transitions, "CANCEL_S", 0.2)
    left = await join("left")
    await left.apply(orders=parted(left, 1))
    await more_rows(left)
    kind.is_deaf = True
    await asyncio.sleep(0.2)  # Until a write is under way: at this pace, long enough for some.
    await stopped(left)
    assert [row["settled"] for row in await left.sql("SELECT settled FROM headgate.stream")] == [False]
    kind.is_deaf = False
    await left.node.registry.set_enabled("orders", True, "tester")
    await left.apply(orders=parted(left, 3))
    await until_dealt(left, 3)
    await more_rows(left)
    await stopped(left)
    assert all(row["settled"] for row in await left.sql("SELECT settled FROM headgate.stream"))
    assert_once(await left.ids())
