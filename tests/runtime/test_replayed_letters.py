"""Replays into a table with one row for each key, on a real node: what is old never takes the place of what is new."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from headgate.runtime.streams.replays import ELSEWHERE, OTHER_KEY
from headgate.store.letters import Filter, Kept
from tests.runtime.conftest import Harness
from tests.runtime.test_dead_letters import ALL, TAKING, Given, Taking

Plug = Callable[..., None]
SET = {"id": "id", "v": "v"}


def document(url: str, mapping: dict[str, Any] | None = None) -> dict[str, Any]:
    sink = {"type": "postgres", "url": url, "table": "public.target", "mode": "upsert"}
    return {"source": {"type": "given"}, "mapping": mapping or {"set": SET, "key": "id"}, "sink": sink}


async def table(url: str, check: str = "v <> 'bad'") -> None:
    await rows(url, f"CREATE TABLE public.target (id int PRIMARY KEY, v text CONSTRAINT rule CHECK ({check}))")


async def rows(url: str, query: str) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(query)]
    finally:
        await connection.close()


async def letters(hg: Harness, number: int) -> list[Kept]:
    """The open letters, in the order in which they came, once there are this many."""
    found: list[Kept] = []

    async def are_there() -> bool:
        found[:] = sorted(await hg.node.letters.page(ALL, "open", 1000), key=lambda one: one.first_at)
        return len(found) == number

    await hg.until_true(are_there)
    return found


async def replay(hg: Harness, *ids: UUID, overwrite: bool = False, any_key: bool = False) -> None:
    """Ask for the replay of these, or of all, and wait until nothing is left of it."""
    found = await hg.node.registry.get("orders")
    which = Filter([found.id], ids=ids or None)
    await hg.node.letters.ask(which, None, overwrite=overwrite, any_key=any_key, actor="tester")
    hg.node.waker.wake("letters")

    async def is_done() -> bool:
        return (await hg.node.letters.numbers(found.id)).waiting == 0

    await hg.until_true(is_done)


async def outcomes(hg: Harness) -> list[str]:
    """Of all letters, in the order in which they came."""
    return [one.outcome for one in sorted(await hg.node.letters.page(ALL, None, 1000), key=lambda one: one.first_at)]


async def test_an_older_letter_does_not_take_the_place_of_a_newer_one_that_was_replayed(
    hg: Harness, plug: Plug, empty_url: str
) -> None:
    await table(empty_url, "v NOT IN ('old', 'new')")
    records = [{"id": 1, "v": "old"}, {"id": 1, "v": "new"}, {"id": 2, "v": "x"}]
    plug(Given(records, at_once=1, ends=False).connector())
    await hg.apply(orders=document(empty_url))
    older, newer = await letters(hg, 2)
    await rows(empty_url, "ALTER TABLE public.target DROP CONSTRAINT rule")
    await replay(hg, newer.id)
    assert await rows(empty_url, "SELECT v FROM public.target WHERE id = 1") == [("new",)]

    async def is_superseded() -> bool:
        return await outcomes(hg) == ["superseded", "replayed"]

    await hg.until_true(is_superseded)
    await replay(hg, older.id)
    assert await rows(empty_url, "SELECT v FROM public.target WHERE id = 1") == [("new",)]


async def test_a_letter_of_another_database_is_replayed_once_and_only_over_newer_rows(
    hg: Harness, plug: Plug, empty_url: str, url: str
) -> None:
    source = Given([{"id": 1, "v": "bad"}, {"id": 2, "v": "x"}], at_once=1, ends=False)
    plug(source.connector())
    await table(empty_url)
    await hg.apply(orders=document(empty_url))
    await letters(hg, 1)
    await table(url, "true")
    await hg.apply(orders=document(url))
    await hg.until("orders", version=2, status="RUNNING")
    source.records.append({"id": 1, "v": "newer"})
    await hg.until("orders", running=2)
    await replay(hg)
    assert (await letters(hg, 1))[0].reason == ELSEWHERE
    assert await rows(url, "SELECT id, v FROM public.target ORDER BY id") == [(1, "newer")]
    await replay(hg, overwrite=True)
    assert await rows(url, "SELECT id, v FROM public.target ORDER BY id") == [(1, "bad")]
    assert await outcomes(hg) == ["replayed"]
    await hg.apply(orders=document(empty_url))
    await hg.until("orders", version=3, status="RUNNING")
    source.records.append({"id": 4, "v": "x"})

    async def is_known() -> bool:
        return await rows(empty_url, "SELECT outcome FROM headgate_dead_letter") == [("replayed",)]

    await hg.until_true(is_known)


async def test_letters_that_only_the_registry_has_are_replayed_into_a_sink_that_keeps_letters(
    hg: Harness, plug: Plug, empty_url: str
) -> None:
    source, sink = Given([{"id": 1, "v": "x", "bad": True}, {"id": 2, "v": "x"}], at_once=1, ends=False), Taking(True)
    plug(source.connector())
    plug(sink.connector())
    await hg.apply(orders={"source": {"type": "given"}, "sink": TAKING})
    await letters(hg, 1)
    await table(empty_url)
    target = document(empty_url, {"set": SET})
    target["sink"]["mode"] = "insert"
    await hg.apply(orders=target)
    await hg.until("orders", version=2, status="RUNNING")
    source.records.append({"id": 3, "v": "x"})
    await hg.until("orders", running=2)
    await replay(hg, any_key=True)
    assert await rows(empty_url, "SELECT id FROM public.target ORDER BY id") == [(1,), (3,)]
    assert await outcomes(hg) == ["replayed"]
    source.records.append({"id": 4, "v": "bad"})  # What comes after it still gets as far as the registry.
    await letters(hg, 1)


async def test_a_letter_is_not_replayed_under_another_key_than_it_failed_with(
    hg: Harness, plug: Plug, empty_url: str
) -> None:
    """Of that other key, nobody knows whether a newer row was written."""
    await table(empty_url)
    source = Given([{"id": 1, "to": 2, "v": "bad"}, {"id": 3, "to": 3, "v": "x"}], at_once=1, ends=False)
    plug(source.connector())
    await hg.apply(orders=document(empty_url))
    await letters(hg, 1)
    await hg.apply(orders=document(empty_url, {"set": {"id": "to", "v": "v + '!'"}, "key": "id"}))
    await hg.until("orders", version=2, status="RUNNING")
    source.records.append({"id": 1, "to": 2, "v": "newer"})
    await hg.until("orders", running=2)
    await replay(hg)
    assert (await letters(hg, 1))[0].reason == OTHER_KEY
    assert await rows(empty_url, "SELECT v FROM public.target WHERE id = 2") == [("newer!",)]
    await replay(hg, overwrite=True)
    assert await rows(empty_url, "SELECT v FROM public.target WHERE id = 2") == [("bad!",)]


async def test_a_stream_goes_on_while_many_letters_are_replayed(
    hg: Harness, plug: Plug, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Letters are replayed between batches, a few at a time, however many there are."""
    monkeypatch.setattr("headgate.runtime.streams.letters.REPLAYED_AT_ONCE", 1)
    source, sink = Given([{"id": n, "bad": n < 50} for n in range(60)], ends=False), Taking(names=True)
    plug(source.connector())
    plug(sink.connector())
    await hg.apply(orders={"source": {"type": "given"}, "mapping": {"set": {"id": "id", "bad": "bad"}}, "sink": TAKING})
    await letters(hg, 50)
    await hg.apply(orders={"source": {"type": "given"}, "mapping": {"set": {"id": "id"}}, "sink": TAKING})
    await hg.until("orders", version=2, status="RUNNING")
    source.records.append({"id": 60})
    await hg.until("orders", running=2)
    replaying = asyncio.ensure_future(replay(hg, any_key=True))
    await hg.until_true(lambda: {"id": 0} in sink.written)
    source.records.append({"id": 61})
    await replaying
    order = [one["id"] for one in sink.written]
    assert order.index(61) < order.index(49)
