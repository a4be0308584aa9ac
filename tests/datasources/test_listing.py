"""The list of all datasources: what makes it be read again, and that nothing else does."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headgate.datasources.documents import read_all
from headgate.datasources.listing import Listed
from headgate.datasources.registry import Registry
from headgate.store.database import Database, Row
from headgate.store.secrets import Secrets
from headgate.store.wake import Waker

DOCUMENT = {"source": {"type": "generator", "rate": 1}, "sink": {"type": "blackhole"}}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the revision was asked for, and how often anything of datasources."""
    found: Counter[str] = Counter()
    fetch = Database.fetch

    async def counted(self: Database, query: str, *args: object) -> list[Row]:
        found["rows" if "datasource" in query else "revision"] += 1
        return await fetch(self, query, *args)

    monkeypatch.setattr(Database, "fetch", counted)
    return found


@pytest.fixture
async def registry(database: Database) -> AsyncIterator[Registry]:
    waker = Waker(database)
    yield Registry(database, Secrets(database, None), waker)
    await waker.close()


async def apply(registry: Registry, **documents: Any) -> None:
    await registry.apply(read_all({"datasources": documents}), "tester", is_admin=True)


def names(found: Any) -> list[str]:
    return [one.datasource.name for one in found]


async def test_while_nothing_changes_one_short_question_is_asked(registry: Registry, asked: Counter[str]) -> None:
    await apply(registry, orders=DOCUMENT, returns=DOCUMENT)
    first = await registry.listing.all()
    assert names(first) == ["orders", "returns"]
    asked.clear()
    for _ in range(5):
        assert await registry.listing.all() is first
    assert asked == {"revision": 5}


async def test_every_change_of_the_registry_is_seen(registry: Registry) -> None:
    async def the_only() -> Listed:
        (one,) = await registry.listing.all()
        return one

    await apply(registry, orders=DOCUMENT)
    one = await the_only()
    assert one.published is not None
    assert (one.datasource.enabled, one.datasource.running_version, one.has_draft) == (True, None, False)
    await registry.prove({one.datasource.id: 1})
    assert (await the_only()).datasource.running_version == 1
    await registry.put_draft("orders", one.published.content, "tester")
    assert (await the_only()).has_draft
    await registry.publish("orders", "tester", is_admin=True)
    assert (await the_only()).datasource.published_version == 2
    await registry.reject(one.datasource.id, 2, "it fails")
    published = (await the_only()).published
    assert published is not None
    assert (published.status, published.reason) == ("rejected", "it fails")
    await registry.set_enabled("orders", False, "tester")
    assert not (await the_only()).datasource.enabled
    await apply(registry, returns=DOCUMENT)
    assert names(await registry.listing.all()) == ["orders", "returns"]
    await registry.delete("orders", "tester")
    assert names(await registry.listing.all()) == ["returns"]


async def test_what_may_be_another_registry_is_read_again(registry: Registry, asked: Counter[str]) -> None:
    await apply(registry, orders=DOCUMENT)
    await registry.listing.all()
    asked.clear()
    registry.forget()
    await registry.listing.all()
    assert asked == {"revision": 1, "rows": 3}
