"""Data behind another address: what is known by its mark goes on where it stands, and what is not begins as before."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from headgate.connectors.api import Batch, Connector, Context, Options, Position, SourceKind, identity
from headgate.errors import NotConnected
from tests.runtime.conftest import IDS, Harness, generator, postgres

MARKED = "SELECT 1 FROM headgate.stream WHERE {}_mark IS NOT NULL"


async def row(hg: Harness) -> Any:
    (found,) = await hg.sql("SELECT * FROM headgate.stream")
    return found


async def until_marked(hg: Harness, side: str = "sink") -> None:
    await hg.until_true(lambda: hg.sql(MARKED.format(side)))


def with_host(url: str) -> str:
    """The same database, with a host more."""
    return url.replace("?host=", "?host=/nowhere,")


# Sinks.


async def test_another_list_of_hosts_for_the_same_database_changes_nothing_but_the_list(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(hg.url)})
    await until_marked(hg)
    await hg.until_rows(more_than=10)
    before = await row(hg)
    await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(with_host(hg.url))})
    await hg.until("orders", running=2)
    await hg.until_rows(more_than=len(await hg.ids()))
    after = await row(hg)
    assert after["sink_identity"] != before["sink_identity"]
    assert (after["generation"], after["sink_mark"]) == (before["generation"], before["sink_mark"])
    assert (ids := await hg.ids()) == list(range(len(ids)))
    await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(hg.url)})
    await hg.until("orders", running=3)
    assert (await row(hg))["generation"] == before["generation"]


async def test_a_row_of_an_older_release_is_recognised_when_a_host_is_added(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(hg.url)})
    await hg.until_rows(more_than=10)
    await hg.node.registry.set_enabled("orders", False, "tester")
    await hg.until("orders", status="STOPPED")
    await hg.sql("UPDATE headgate.stream SET sink_mark = NULL")
    await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(with_host(hg.url))})
    await hg.node.registry.set_enabled("orders", True, "tester")
    await hg.until("orders", running=2)
    await until_marked(hg)
    assert (await row(hg))["generation"] == 0
    assert (ids := await hg.ids()) == list(range(len(ids)))


async def test_another_database_is_another_sink_as_ever(hg: Harness, empty_url: str) -> None:
    await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(hg.url)})
    await until_marked(hg)
    await hg.until_rows(more_than=10)
    before = await row(hg)
    await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(empty_url)})
    await hg.until("orders", running=2)
    await hg.until_true(lambda: _is_another_mark(hg, before["sink_mark"]))
    assert (await row(hg))["generation"] == before["generation"] + 1


async def _is_another_mark(hg: Harness, mark: str) -> bool:
    return (await row(hg))["sink_mark"] not in (None, mark)


# Sources.


class PlaceOptions(Options):
    """Where, and which of what is there."""

    address: str = identity(is_address=True)
    topic: str = identity("all")


class Counting:
    """Counts from its position. What is at an address says what it is, if it is there."""

    marks: ClassVar[dict[str, str | None]] = {}

    def __init__(self, options: PlaceOptions, context: Context) -> None:
        self._address = options.address
        self._at = 0

    async def check(self) -> None:
        """It could be opened."""

    async def parts(self) -> Sequence[str]:
        return [""]

    async def mark(self) -> str | None:
        if self._address not in self.marks:
            raise NotConnected(f"{self._address} is away")
        return self.marks[self._address]

    async def open(self, position: Position) -> None:
        self._at = position or 0

    async def read(self) -> Batch:
        await asyncio.sleep(0.01)
        self._at += 1
        return Batch([{"id": self._at}], self._at)

    async def ack(self, position: Position) -> None:
        """Nobody needs to know."""

    async def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def counting(plug: Any, monkeypatch: pytest.MonkeyPatch) -> type[Counting]:
    plug(Connector("counting", "Counts", source=SourceKind(PlaceOptions, Counting, is_marked=True)))
    monkeypatch.setattr(Counting, "marks", {"here": "one", "there": "one", "elsewhere": "two"})
    return Counting


def reading(address: str, url: str) -> dict[str, Any]:
    return {"source": {"type": "counting", "address": address}, "mapping": IDS, "sink": postgres(url)}


async def test_a_source_that_has_moved_is_read_on_and_another_one_from_its_beginning(
    hg: Harness, counting: type[Counting]
) -> None:
    await hg.apply(orders=reading("here", hg.url))
    await until_marked(hg, "source")
    await hg.until_rows(more_than=5)
    await hg.apply(orders=reading("there", hg.url))
    await hg.until("orders", running=2)
    assert "position_reset" not in await hg.events("orders")
    assert (ids := await hg.ids()) == list(range(1, len(ids) + 1))
    await hg.apply(orders=reading("elsewhere", hg.url))
    await hg.until("orders", running=3)
    assert "position_reset" in await hg.events("orders")


async def test_nothing_is_decided_before_the_data_have_said_what_they_are(
    hg: Harness, counting: type[Counting]
) -> None:
    await hg.apply(orders=reading("here", hg.url))
    await until_marked(hg, "source")
    await hg.until_rows(more_than=5)
    await hg.apply(orders=reading("away", hg.url))
    state = await hg.until("orders", status="ERROR")
    assert state["error"]["message"] == "away is away"
    assert (await row(hg))["position"] is not None
    counting.marks["away"] = "one"
    await hg.until("orders", running=2)
    assert "position_reset" not in await hg.events("orders")
    assert (ids := await hg.ids()) == list(range(1, len(ids) + 1))
