"""Secrets as the registry writes and deletes them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headgate.datasources.documents import read_one
from headgate.datasources.registry import Registry
from headgate.errors import ConfigError, NotFound, Refused
from headgate.store.database import Database
from headgate.store.secrets import Keyring, Secrets, new_master_key
from headgate.store.wake import Waker


@pytest.fixture
async def registry(database: Database) -> AsyncIterator[Registry]:
    waker = Waker(database)
    yield Registry(database, Secrets(database, Keyring.load(new_master_key(), None)), waker)
    await waker.close()


async def test_a_secret_is_replaced_by_another_of_its_name(registry: Registry) -> None:
    await registry.set_secret("warehouse", "one", "a test")
    await registry.set_secret("warehouse", "two", "a test")
    assert await registry.secrets.read(["warehouse"]) == {"warehouse": "two"}


async def test_the_database_never_has_the_value(registry: Registry, database: Database) -> None:
    await registry.set_secret("warehouse", "hunter2-is-plain", "a test")
    rows = await database.fetch(
        "SELECT s::text FROM headgate.secret s UNION SELECT e::text FROM headgate.datasource_events e"
    )
    text = " ".join(row[0] for row in rows)
    assert "warehouse" in text
    assert "hunter2-is-plain" not in text
    assert b"hunter2-is-plain".hex() not in text


async def test_without_a_master_key_nothing_is_written(database: Database) -> None:
    registry = Registry(database, Secrets(database, None), Waker(database))
    with pytest.raises(ConfigError, match="master key"):
        await registry.set_secret("warehouse", "x", "a test")
    with pytest.raises(ConfigError, match="master key"):
        await registry.secrets.rotate()


async def test_a_secret_that_is_used_is_not_deleted_unless_somebody_insists(registry: Registry) -> None:
    await registry.set_secret("warehouse", "postgresql://x/y", "a test")
    sink = {"type": "postgres", "url": {"$secret": "warehouse"}, "table": "t"}
    plain = {"source": {"type": "generator"}, "sink": {"type": "blackhole"}}
    used = {"source": {"type": "generator"}, "sink": sink}
    await registry.apply({"orders": read_one("orders", used)}, "a test", is_admin=True)
    await registry.apply({"clicks": read_one("clicks", plain)}, "a test", is_admin=True)
    await registry.put_draft("clicks", read_one("clicks", used).content, "a test")
    with pytest.raises(Refused) as refused:
        await registry.delete_secret("warehouse", "a test")
    assert refused.value.message == "secret 'warehouse' is in use: clicks, orders"
    assert [str(one) for one in refused.value.problems] == [
        "clicks: version 2 is the draft",
        "orders: version 1 is published",
    ]
    assert refused.value.counts == {"datasources": 2, "running": 0}
    assert "--yes" in refused.value.hint
    await registry.delete_secret("warehouse", "ada", yes=True)
    for name in ("clicks", "orders"):
        (last,) = await registry.events.last((await registry.get(name)).id, 1)
        assert (last.type, last.payload, last.actor) == ("secret_deleted", {"secret": "warehouse"}, "ada")


async def test_a_secret_that_is_used_is_not_deleted_and_one_that_is_not_there_is_not_found(registry: Registry) -> None:
    await registry.set_secret("warehouse", "postgresql://x/y", "a test")
    sink = {"type": "postgres", "url": {"$secret": "warehouse"}, "table": "t"}
    document = read_one("orders", {"source": {"type": "generator"}, "sink": sink})
    await registry.apply({"orders": document}, "a test", is_admin=True)
    with pytest.raises(Refused, match="in use"):
        await registry.delete_secret("warehouse", "a test")
    await registry.delete("orders", "a test")
    await registry.delete_secret("warehouse", "a test")
    with pytest.raises(NotFound):
        await registry.delete_secret("warehouse", "a test")
