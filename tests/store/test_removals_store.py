"""What is to be removed from sinks: written when streams are purged, taken by one node, kept until it is done."""

from __future__ import annotations

from uuid import UUID

from headgate.core.removals import LEFT_ALONE_S
from headgate.store.datasources import Content
from headgate.store.events import Event, Events
from headgate.store.removals import Removals
from tests.store.conftest import ME, Rows


def content(table: str, *, secret: str = "warehouse") -> Content:
    sink = {"type": "postgres", "url": {"$secret": secret}, "table": table}
    return Content({"type": "generator"}, None, sink, {}, (secret,), table)


async def publish(rows: Rows, *tables: str, name: str = "orders") -> None:
    async with rows.datasources.change(ME) as change:
        found = await change.find(name)
        assert found is not None
        for table in tables:
            await change.publish_content(found.id, content(table), ME)


async def delete(rows: Rows, name: str = "orders") -> UUID:
    async with rows.datasources.change(ME) as change:
        found = await change.find(name)
        assert found is not None
        await change.delete(found.id)
    return found.id


async def run(rows: Rows, stream: UUID) -> UUID:
    node = await rows.node()
    await rows.acquire(node, stream)
    return node


async def make_due(rows: Rows) -> None:
    await rows.database.execute("UPDATE headgate.removal SET due_at = now()")


async def test_a_purged_stream_leaves_a_removal_for_each_sink_that_its_datasource_ever_had(rows: Rows) -> None:
    stream = await rows.stream("orders")
    await publish(rows, "first", "second", "first")
    node = await run(rows, stream)
    datasource = await delete(rows)
    assert await rows.datasources.purge() == 0  # Its holder has yet to let go.
    await rows.nodes.end(node)
    assert await rows.datasources.purge() == 1
    found = await rows.database.fetch("SELECT *, due_at - since AS wait FROM headgate.removal ORDER BY version")
    # Version 1 is into a blackhole; of the two that are alike, the newest stands for both.
    assert [(row["stream"], row["datasource"], row["version"]) for row in found] == [
        (stream, datasource, version) for version in (1, 3, 4)
    ]
    assert {row["wait"].total_seconds() for row in found} == {LEFT_ALONE_S}


async def test_a_stream_that_never_ran_leaves_nothing(rows: Rows) -> None:
    await rows.stream("orders")
    await delete(rows)
    assert await rows.datasources.purge() == 1
    assert not await rows.database.fetch("SELECT FROM headgate.removal")


async def test_what_is_due_is_taken_by_one_and_comes_back_if_nobody_ends_it(rows: Rows) -> None:
    stream, removals = await rows.stream("orders"), Removals(rows.database)
    await rows.nodes.end(await run(rows, stream))
    datasource = await delete(rows)
    await rows.datasources.purge()
    assert await removals.take() == []  # It is left alone for a while.
    await make_due(rows)
    (taken,) = await removals.take()
    assert (taken.datasource, taken.name, taken.version, list(taken.streams)) == (datasource, "orders", 1, [stream])
    assert taken.attempts == 1
    assert await removals.take() == []
    await make_due(rows)  # Whoever took it died, and two minutes are over.
    assert (await removals.take())[0].attempts == 2
    await removals.put_off(taken, 3600.0, "away")
    assert await removals.take() == []
    (waiting,) = await removals.waiting()
    assert (waiting.name, waiting.streams, waiting.attempts, waiting.reason) == ("orders", 1, 2, "away")
    await removals.end(taken, Event(datasource, "orders", "sink_cleaned", {}, "headgate"))
    assert await removals.waiting() == []
    assert [event.type for event in await Events(rows.database).last(datasource)] == ["sink_cleaned"]


async def test_a_stream_that_comes_late_is_removed_too(rows: Rows) -> None:
    """A node that has not heard of the delete yet may still make a stream for a program that pushes."""
    stream, removals = await rows.stream("clicks", source="push"), Removals(rows.database)
    datasource = await delete(rows, "clicks")
    await rows.datasources.purge()
    (late,) = (await rows.streams.label([(datasource, "host-7")])).values()
    node = await rows.node()
    await rows.acquire(node, late)
    await rows.nodes.end(node)
    assert await rows.datasources.purge() == 1
    await make_due(rows)
    assert [list(one.streams) for one in await removals.take()] == [[late]]
    assert stream != late


async def test_who_uses_a_secret_is_known_until_the_sink_is_clean(rows: Rows) -> None:
    stream, removals = await rows.stream("orders"), Removals(rows.database)
    await publish(rows, "orders")

    async def users() -> list[tuple[str, int, str, bool]]:
        async with rows.datasources.change(ME) as change:
            return [(u.name, u.version, u.status, u.is_running) for u in await change.secret_users("warehouse")]

    assert await users() == [("orders", 2, "published", False)]
    node = await run(rows, stream)
    await rows.database.execute("UPDATE headgate.stream SET version = 2")
    assert await users() == [("orders", 2, "published", True)]
    await delete(rows)
    assert await users() == [("orders", 2, "deleted", False)]
    await rows.nodes.end(node)
    await rows.datasources.purge()
    assert await users() == [("orders", 2, "deleted", False)]
    await make_due(rows)
    for taken in await removals.take():
        await removals.end(taken, None)
    assert await users() == []
