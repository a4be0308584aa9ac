"""Fixtures at rest: encrypted, found by their datasource, rewrapped with the secrets, gone with their datasource."""

from __future__ import annotations

import pytest

from headgate.store.database import Database
from headgate.store.datasources import Content, Datasource, Datasources
from headgate.store.events import Event
from headgate.store.fixtures import Fixtures
from headgate.store.secrets import Keyring, Secrets

OLD, NEW = b"o" * 32, b"n" * 32


@pytest.fixture
async def orders(database: Database) -> Datasource:
    async with Datasources(database).change("ada") as change:
        created = await change.create("orders", True)
        await change.put_draft(created.id, Content({}, None, {}, {}, (), "h"), "ada")
    return created


def event(datasource: Datasource, type: str = "fixture_saved") -> Event:
    return Event(datasource.id, datasource.name, type, {}, "ada")


async def test_a_fixture_is_written_read_and_deleted(database: Database, orders: Datasource) -> None:
    fixtures = Fixtures(database, Keyring([OLD]))
    await fixtures.put(orders.id, {"basic": (2, "text of a record")}, event(orders))
    await fixtures.put(orders.id, {"basic": (3, "another")}, event(orders))
    assert [(one.name, one.inputs, one.author) for one in await fixtures.names(orders.id)] == [("basic", 3, "ada")]
    assert await fixtures.read(orders.id) == {"basic": "another"}
    assert await fixtures.datasources() == {orders.id}
    assert b"another" not in await database.fetchval("SELECT ciphertext FROM headgate.fixture")
    assert await fixtures.delete(orders.id, "basic", event(orders, "fixture_deleted"))
    assert not await fixtures.delete(orders.id, "basic", event(orders, "fixture_deleted"))


async def test_one_row_cannot_be_passed_off_as_another(database: Database, orders: Datasource) -> None:
    fixtures = Fixtures(database, Keyring([OLD]))
    await fixtures.put(orders.id, {"a": (1, "a"), "b": (1, "b")}, event(orders))
    await database.execute(
        "UPDATE headgate.fixture f SET wrapped_key = o.wrapped_key, ciphertext = o.ciphertext"
        " FROM headgate.fixture o WHERE f.name = 'a' AND o.name = 'b'"
    )
    assert await fixtures.read(orders.id) == {"a": None, "b": "b"}


async def test_a_new_master_key_opens_fixtures_too(database: Database, orders: Datasource) -> None:
    await Fixtures(database, Keyring([OLD])).put(orders.id, {"basic": (1, "text")}, event(orders))
    assert await Fixtures(database, None).read(orders.id) == {"basic": None}
    assert await Secrets(database, Keyring([NEW])).rotate() == (0, [f"fixture/{orders.id}/basic"])
    assert await Secrets(database, Keyring([NEW, OLD])).rotate() == (1, [])
    assert await Fixtures(database, Keyring([NEW])).read(orders.id) == {"basic": "text"}


async def test_fixtures_go_with_their_datasource(database: Database, orders: Datasource) -> None:
    fixtures = Fixtures(database, Keyring([OLD]))
    await fixtures.put(orders.id, {"basic": (1, "text")}, event(orders))
    async with Datasources(database).change("ada") as change:
        await change.delete(orders.id)
    assert await fixtures.names(orders.id) == []
