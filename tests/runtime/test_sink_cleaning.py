"""A deleted datasource leaves nothing in its sink: whichever node does it, whenever the sink is there."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg
import pytest

from headgate.connectors.api import Connector
from headgate.connectors.postgres import CONNECTOR as POSTGRES
from headgate.runtime.streams.removals import Remover
from headgate.store.removals import Removals
from tests.proxy import proxied
from tests.runtime.conftest import BLACKHOLE, IDS, Harness, generator, postgres

WAREHOUSE: Any = {"$secret": "warehouse"}


async def deleted(hg: Harness, name: str = "orders", sink: dict[str, Any] | None = None) -> tuple[UUID, UUID]:
    """A datasource that has written something, and was deleted. Returns its id and its stream's."""
    await hg.apply(**{name: {"source": generator(), "mapping": IDS, "sink": sink or postgres(hg.url, name)}})
    await hg.until(name, status="RUNNING", detail="running")
    stream = (await hg.node.streams.find(f"{name}:0")).id
    found = await hg.node.registry.get(name)
    await hg.node.registry.delete(name, "tester", yes=True)

    async def is_purged() -> bool:
        await hg.node.registry.datasources.purge()
        return not await hg.sql("SELECT FROM headgate.stream WHERE id = $1", stream)

    await hg.until_true(is_purged)
    return found.id, stream


async def work(hg: Harness) -> int:
    """Ten minutes, or the time until the next try, have passed."""
    await hg.sql("UPDATE headgate.removal SET due_at = now()")
    return await hg.node.remover.work()


async def left(hg: Harness, stream: UUID) -> int:
    """How many rows the sink has of a stream."""
    return len(await hg.sql("SELECT FROM headgate_position WHERE stream = $1", stream))


async def happened(hg: Harness, datasource: UUID) -> list[tuple[str, dict[str, Any]]]:
    return [(row.type, row.payload) for row in await hg.node.registry.events.last(datasource) if "clean" in row.type]


async def waiting(hg: Harness) -> list[tuple[str, str | None]]:
    return [(one.name, one.reason) for one in await Removals(hg.node.database).waiting()]


async def test_what_a_datasource_left_in_its_sink_goes_after_it(hg: Harness) -> None:
    await hg.apply(others={"source": generator(), "mapping": IDS, "sink": postgres(hg.url, "others")})
    await hg.until("others", status="RUNNING", detail="running")
    datasource, stream = await deleted(hg)
    assert await hg.node.remover.work() == 0  # Not before the last holder has no trust any more.
    assert await left(hg, stream) == 1
    assert await work(hg) == 1
    assert await left(hg, stream) == 0
    assert len(await hg.sql("SELECT FROM headgate_position WHERE epoch > 0")) == 1
    assert len(await hg.ids("orders")) > 0  # Its records stay.
    assert await happened(hg, datasource) == [("sink_cleaned", {"version": 1, "streams": 1, "sink": "postgres"})]
    assert await work(hg) == 0


async def test_a_sink_that_keeps_nothing_is_not_asked(hg: Harness) -> None:
    """Nor is what its options name looked for: a secret that is gone, say."""
    datasource, _ = await deleted(hg, sink=BLACKHOLE)
    await hg.sql('UPDATE headgate.datasource_version SET sink = \'{"type": "blackhole", "x": {"$secret": "no"}}\'')
    assert await work(hg) == 1
    assert await happened(hg, datasource) == []
    assert await waiting(hg) == []


async def test_a_sink_that_is_away_is_tried_again_and_given_up_after_a_week(hg: Harness) -> None:
    async with proxied(hg.url) as (proxy, through):
        datasource, stream = await deleted(hg, sink=postgres(through, "orders"))
        proxy.refuse = True
        assert await work(hg) == 1
        ((name, reason),) = await waiting(hg)
        assert name == "orders"
        assert reason is not None
        assert "PostgreSQL at 127.0.0.1" in reason
        assert await hg.node.remover.work() == 0  # Not at once.
        proxy.refuse = False
        await work(hg)
        assert (await left(hg, stream), await waiting(hg)) == (0, [])
        datasource, stream = await deleted(hg, "clicks", sink=postgres(through, "clicks"))
        proxy.refuse = True
        await hg.sql("UPDATE headgate.removal SET since = now() - interval '6 days 23 hours'")
        await work(hg)
        assert len(await waiting(hg)) == 1
        await hg.sql("UPDATE headgate.removal SET since = now() - interval '7 days'")
        await work(hg)
    assert await waiting(hg) == []
    ((type, payload),) = await happened(hg, datasource)
    assert (type, payload["version"], payload["streams"]) == ("sink_not_cleaned", 1, 1)
    assert "PostgreSQL at 127.0.0.1" in payload["reason"]
    assert await left(hg, stream) == 1


async def test_a_secret_that_is_gone_is_waited_for_and_another_value_counts(hg: Harness) -> None:
    registry = hg.node.registry
    await registry.set_secret("warehouse", hg.url, "tester")
    _, stream = await deleted(hg, sink=postgres(WAREHOUSE, "orders"))
    await registry.delete_secret("warehouse", "tester", yes=True)
    await work(hg)
    ((_, reason),) = await waiting(hg)
    assert reason is not None
    assert "secret 'warehouse' does not exist" in reason
    assert await left(hg, stream) == 1
    await registry.set_secret("warehouse", f"{hg.url}&application_name=again", "tester")
    await work(hg)
    assert (await left(hg, stream), await waiting(hg)) == (0, [])


async def test_no_secret_is_in_the_reason(hg: Harness) -> None:
    await hg.node.registry.set_secret("warehouse", hg.url, "tester")
    await deleted(hg, sink=postgres(WAREHOUSE, "orders"))
    await hg.node.registry.set_secret("warehouse", "postgresql://ada:recognisable@127.0.0.1:1/x", "tester")
    await work(hg)
    ((_, reason),) = await waiting(hg)
    assert reason is not None
    assert "recognisable" not in reason


async def test_a_node_that_dies_in_between_is_followed_by_another(hg: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has forgotten the stream and could not write that down."""
    _, stream = await deleted(hg)
    ended: list[Any] = []

    async def dies(*args: Any) -> None:
        ended.append(args)
        raise asyncpg.ConnectionDoesNotExistError

    with monkeypatch.context() as patched:
        patched.setattr(Removals, "end", dies)
        with pytest.raises(asyncpg.ConnectionDoesNotExistError):
            await work(hg)
    assert (len(ended), await left(hg, stream), len(await waiting(hg))) == (1, 0, 1)
    assert await waiting(hg) == [("orders", "a node has begun, and has not finished")]
    other = Remover(Removals(hg.node.database), hg.node.registry, lambda: hg.node.installation)
    assert await other.work() == 0  # It waits, and longer each time: a sink must not end one node after another.
    await hg.sql("UPDATE headgate.removal SET due_at = now()")
    assert await other.work() == 1
    assert await waiting(hg) == []


async def test_a_connector_that_is_not_here_any_more_is_a_reason(hg: Harness, plug: Any) -> None:
    plug(Connector("elsewhere", "The same under another name", sink=POSTGRES.sink))
    await deleted(hg, sink={**postgres(hg.url, "orders"), "type": "elsewhere"})
    plug(Connector("elsewhere", "Without a sink"))
    await work(hg)
    ((_, reason),) = await waiting(hg)
    assert reason is not None
    assert "elsewhere is not a sink" in reason
