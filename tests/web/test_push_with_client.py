"""The client that comes along, against real nodes: whatever happens to them, each record is there once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate.client import PushClient, PushError
from headgate.core import backoff
from headgate.runtime.push import listener as push
from tests.waiting import LONG_S
from tests.web.pushing import House, house


@pytest.fixture
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "BARRIER_S", 0.01)
    monkeypatch.setattr(backoff, "FIRST_S", 0.02)


@pytest.fixture
async def here(url: str, tmp_path: Path, in_a_hurry: None) -> AsyncIterator[House]:
    """A node."""
    async with house(url, tmp_path / "home") as found:
        yield found


async def send(client: PushClient, name: str, records: int) -> int | None:
    """One stream, to its end."""
    stream = await client.stream(name)
    for id in range(records):
        await stream.send(id, {"stream": name})
        if id % 100 == 0:
            await stream.flush()  # So that there is time for something to happen.
    return await stream.finish()


BY_STREAM = {"set": {"id": "meta.id", "stream": "stream"}}


async def check(here: House, name: str, streams: list[str], records: int) -> None:
    """Each record of each stream, once."""
    rows = await here.sql(f"SELECT stream, id FROM {name.replace('-', '_')} ORDER BY stream, id")
    assert [tuple(row) for row in rows] == [(stream, id) for stream in streams for id in range(records)]


async def some_more(here: House, name: str, seen: int) -> int:
    """Until there are more rows than there were; how many."""
    return len(await here.until(lambda: here.ids(name), lambda found: len(found) > seen))


async def test_cuts_stops_restarts_and_new_versions_cost_nothing_but_time(here: House) -> None:
    name, streams, seen = await here.publish(mapping=BY_STREAM), ["a", "b", "c"], 0
    async with asyncio.timeout(LONG_S), PushClient(here.url, datasource=name, token=here.token) as client:
        sending = asyncio.gather(*(send(client, stream, 2000) for stream in streams))
        for n in range(4):
            seen = await some_more(here, name, seen)
            for session in list(here.node.push.sessions):
                session.peer.fail("not_ready", "for no reason")
            seen = await some_more(here, name, seen)
            await here.publish(name, mapping={**BY_STREAM, "where": f"meta.id > -{n + 1}"})
            await here.node.registry.set_enabled(name, False, "tester")
            await here.node.registry.set_enabled(name, True, "tester")
            await here.node.registry.restart(name, "tester")
        assert await sending == [1999, 1999, 1999]
    await check(here, name, streams, 2000)
    await here.until_empty()


async def test_a_drained_node_hands_its_clients_to_another(url: str, tmp_path: Path, in_a_hurry: None) -> None:
    async with house(url, tmp_path / "a") as one, house(url, tmp_path / "b") as two:
        name = await one.publish(mapping=BY_STREAM)
        async with asyncio.timeout(LONG_S), PushClient(one.url, datasource=name, token=one.token) as client:
            sending = asyncio.gather(*(send(client, stream, 2000) for stream in ("a", "b")))
            await some_more(one, name, 0)
            await one.node.nodes.set_draining(one.node.incarnation, True)
            await one.until_empty()
            await some_more(one, name, len(await one.ids(name)))  # These can only come through the other.
            assert len(two.node.push.sessions) == 1
            assert await sending == [1999, 1999]
        await check(one, name, ["a", "b"], 2000)


async def test_what_is_wrong_for_good_is_told_to_every_caller(here: House) -> None:
    name = await here.publish()
    async with PushClient(here.url, datasource=name, token="hg_wrong") as client:
        with pytest.raises(PushError) as caught:
            await client.stream("s")
    assert caught.value.code == "unauthorized"
    assert "hg_wrong" not in str(caught.value)
