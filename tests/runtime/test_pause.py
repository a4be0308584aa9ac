"""A pause: nobody reads, whatever node is there; nothing is lost; a start goes on where it was."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from headgate.store.inbox import Limit, Payload
from tests.runtime.conftest import BLACKHOLE, IDS, Harness, generator, postgres


async def until_free(hg: Harness, name: str = "orders") -> None:
    async def is_free() -> bool:
        return (await hg.node.streams.find(f"{name}:0")).owner is None

    await hg.until_true(is_free)


async def accept(hg: Harness, name: str, *bodies: bytes) -> None:
    """As the door does it."""
    found = await hg.node.registry.get(name)
    await hg.node.inbox.append([Payload(found.id, "{}", body) for body in bodies], {found.id: Limit()})
    hg.node.inboxes.look()


async def acted(hg: Harness, name: str = "orders") -> list[tuple[str, str]]:
    """What people did, and who."""
    found = await hg.node.registry.get(name)
    rows = await hg.node.registry.events.last(found.id)
    return [(row.type, row.actor) for row in rows if row.type in ("started", "stopped", "paused")]


async def test_a_paused_datasource_is_not_read_and_a_start_goes_on_without_a_gap_or_a_repeat(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": postgres(hg.url)})
    await hg.until_rows(10)
    paused = await hg.node.registry.pause("orders", "ada")
    assert (paused.enabled, paused.paused) == (True, True)
    await until_free(hg)
    before = await hg.ids()
    assert before == list(range(len(before)))
    await hg.node.registry.pause("orders", "ada")  # Twice changes nothing.
    assert await hg.ids() == before
    started = await hg.node.registry.start("orders", "bob")
    assert (started.enabled, started.paused) == (True, False)
    await hg.until_rows(len(before) + 10)
    found = await hg.ids()
    assert found == list(range(len(found)))
    assert await acted(hg) == [("paused", "ada"), ("started", "bob")]


async def test_payloads_wait_while_it_is_paused_and_are_written_once_it_is_started(hg: Harness) -> None:
    await hg.apply(hooks={"source": {"type": "webhook"}, "mapping": IDS, "sink": postgres(hg.url, "hooks")})
    await hg.until("hooks", status="RUNNING")
    await hg.node.registry.pause("hooks", "ada")
    await until_free(hg, "hooks")
    entry = hg.node.registry.entry("hooks")
    assert entry is not None
    assert (entry.is_open, entry.is_to_run) == (True, False)
    await accept(hg, "hooks", *(b'{"id": %d}' % id for id in range(5)))
    found = await hg.node.registry.get("hooks")
    assert (await hg.node.inbox.unread({}, found.id))[found.id].records == 5
    assert await hg.ids("hooks") == []
    await hg.node.registry.start("hooks", "ada")
    await hg.until_rows(4, "hooks")
    assert await hg.ids("hooks") == list(range(5))


async def test_what_never_ran_can_be_paused_and_its_payloads_are_counted(hg: Harness) -> None:
    await hg.apply(hooks={"enabled": False, "source": {"type": "webhook"}, "sink": BLACKHOLE})
    await hg.node.registry.pause("hooks", "ada")
    await accept(hg, "hooks", b"1", b"2")
    found = await hg.node.registry.get("hooks")
    assert (await hg.node.inbox.unread({}))[found.id].records == 2
    assert await hg.state("hooks") | {"status": "INIT"} == await hg.state("hooks")


async def test_a_pause_survives_a_restart_and_a_move_to_another_node(
    join: Callable[..., Awaitable[Harness]],
) -> None:
    first = await join("first")
    await first.apply(orders={"source": generator(), "sink": BLACKHOLE})
    await first.until("orders", status="RUNNING")
    await first.node.registry.pause("orders", "ada")
    await until_free(first)
    await first.stop()
    second = await join("second")
    await second.apply(others={"source": generator(), "sink": BLACKHOLE})
    await second.until("others", status="RUNNING")  # It has granted what there was to grant.
    assert await second.owners() == {"orders:0": None, "others:0": "second"}
    await second.node.registry.start("orders", "ada")
    await second.until_owners(orders="second")


@pytest.mark.parametrize("act", ["publish", "restart", "apply", "secret"])
async def test_only_a_start_or_a_stop_ends_it(hg: Harness, act: str) -> None:
    sink: Any = {"type": "postgres", "url": {"$secret": "warehouse"}, "table": "target"}
    await hg.node.registry.set_secret("warehouse", hg.url, "tester")
    await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": sink})
    await hg.until("orders", status="RUNNING")
    await hg.node.registry.pause("orders", "ada")
    await until_free(hg)
    match act:
        case "publish" | "apply":
            description = {"description": "another"} if act == "publish" else {}
            await hg.apply(orders={"enabled": True, "source": generator(), "mapping": IDS, "sink": sink, **description})
        case "restart":
            await hg.node.registry.restart("orders", "ada")
        case "secret":
            await hg.node.registry.set_secret("warehouse", hg.url, "tester")
    found = await hg.node.registry.get("orders")
    assert (found.enabled, found.paused) == (True, True)
    entry = {one.name: one for one in await hg.node.registry.datasources.entries_since(0)}["orders"]
    assert not entry.is_to_run


async def test_each_of_start_pause_and_stop_leads_there_from_the_others(hg: Harness) -> None:
    registry = hg.node.registry
    await hg.apply(orders={"source": generator(), "sink": BLACKHOLE})
    acts: dict[str, Callable[[], Awaitable[Any]]] = {
        "started": lambda: registry.start("orders", "ada"),
        "paused": lambda: registry.pause("orders", "ada"),
        "stopped": lambda: registry.set_enabled("orders", False, "ada"),
    }
    wanted = {"started": (True, False), "paused": (True, True), "stopped": (False, False)}
    for act in ("paused", "stopped", "paused", "started", "stopped", "started", "paused"):
        await acts[act]()
        found = await registry.get("orders")
        assert (found.enabled, found.paused) == wanted[act]
        assert (await acted(hg))[-1] == (act, "ada")


async def test_a_paused_datasource_is_deleted_like_any_other(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(), "sink": BLACKHOLE})
    await hg.node.registry.pause("orders", "ada")
    await hg.node.registry.delete("orders", "ada")
    (row,) = await hg.sql("SELECT enabled, paused, is_to_run FROM headgate.datasource")
    assert tuple(row) == (False, False, False)


async def test_the_database_knows_that_what_is_stopped_is_not_paused(hg: Harness) -> None:
    await hg.apply(orders={"source": generator(), "sink": BLACKHOLE})
    with pytest.raises(asyncpg.CheckViolationError):
        await hg.sql("UPDATE headgate.datasource SET enabled = false, paused = true")
