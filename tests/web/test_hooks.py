"""Which webhooks there are: what strangers ask for costs neither memory nor a query each."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from headgate.connectors.webhook import WebhookOptions
from headgate.core.lifecycle import Wanted
from headgate.core.reconcile import Entry
from headgate.datasources.registry import Registry
from headgate.errors import ConfigError, HeadgateError, NotFound, Refused
from headgate.web.doors import webhooks
from headgate.web.doors.hooks import Hook, Hooks


class FakeRegistry:
    """Knows what its last sync has found; the database may know more."""

    def __init__(self) -> None:
        self.synced: dict[str, Entry] = {}
        self.published: dict[str, Entry] = {}
        self.options: dict[str, object] = {}
        self.looks = self.loads = 0
        self.revision = 0
        self.datasources = self

    def publish(self, name: str, options: object, *, is_synced: bool = True) -> None:
        """A new version of this name."""
        self.revision += 1
        entry = Entry(uuid4(), name, self.revision, True, False, Wanted(1, None, 0), True)
        self.options[name] = options
        (self.synced if is_synced else self.published)[name] = entry

    def entry(self, name: str) -> Entry | None:
        return self.synced.get(name)

    def names(self) -> set[str]:
        return set(self.synced)

    async def entries_since(self, revision: int) -> list[Entry]:
        self.looks += 1
        await asyncio.sleep(0)
        return list(self.published.values())

    async def get_datasource_config(self, datasource: object, version: int) -> Any:
        self.loads += 1
        await asyncio.sleep(0)
        every = [*self.synced.values(), *self.published.values()]
        options = self.options[next(entry.name for entry in every if entry.datasource == datasource)]
        if isinstance(options, HeadgateError):
            raise options
        return SimpleNamespace(prepared=SimpleNamespace(source_options=options))


@pytest.fixture
def registry() -> FakeRegistry:
    """With nothing in it."""
    return FakeRegistry()


@pytest.fixture
def hooks(registry: FakeRegistry) -> Hooks:
    """Over that registry."""
    return Hooks(cast(Registry, registry), lambda name: True)


async def test_a_thousand_strangers_share_a_look_and_leave_nothing(registry: FakeRegistry, hooks: Hooks) -> None:
    found = await asyncio.gather(*(hooks.find(f"name-{n}") for n in range(1000)), return_exceptions=True)
    assert all(isinstance(one, NotFound) for one in found)
    assert registry.looks == 1
    assert not hooks._known


async def test_a_name_that_was_published_just_now_is_found_by_the_next_look(
    registry: FakeRegistry, hooks: Hooks
) -> None:
    with pytest.raises(NotFound):
        await hooks.find("fresh")
    registry.publish("fresh", WebhookOptions(), is_synced=False)
    assert (await hooks.find("fresh")).name == "fresh"


async def test_a_caller_that_comes_during_a_look_waits_for_the_next(registry: FakeRegistry, hooks: Hooks) -> None:
    early = asyncio.create_task(hooks.find("nobody"))
    while not registry.looks:
        await asyncio.sleep(0)
    late = asyncio.create_task(hooks.find("fresh"))
    registry.publish("fresh", WebhookOptions(), is_synced=False)
    assert (await late).name == "fresh"
    with pytest.raises(NotFound):
        await early
    assert registry.looks == 2


async def test_a_webhook_is_loaded_once_for_all_callers_and_again_when_it_changes(
    registry: FakeRegistry, hooks: Hooks
) -> None:
    registry.publish("orders", WebhookOptions())
    assert hooks.known("orders") is None
    await asyncio.gather(*(hooks.find("orders") for _ in range(100)))
    assert registry.loads == 1
    assert isinstance(hooks.known("orders"), Hook)
    registry.publish("orders", WebhookOptions(max_body_bytes=5))
    assert hooks.known("orders") is None
    assert (await hooks.find("orders")).options.max_body_bytes == 5


async def test_what_is_no_webhook_or_cannot_be_loaded_is_not_asked_for_again_and_again(
    registry: FakeRegistry, hooks: Hooks
) -> None:
    registry.publish("clicks", object())
    registry.publish("broken", ConfigError("its secret is gone"))
    for _ in range(50):
        with pytest.raises(NotFound):
            await hooks.find("clicks")
        with pytest.raises(Refused):
            await hooks.find("broken")
    assert registry.loads == 2


@pytest.mark.parametrize("enabled", [True, False])
async def test_a_stranger_does_not_learn_which_datasources_there_are(
    registry: FakeRegistry, hooks: Hooks, enabled: bool
) -> None:
    registry.publish("payroll", object())
    registry.synced["payroll"] = replace(registry.synced["payroll"], enabled=enabled)
    said = []
    for name in ("payroll", "absent"):
        with pytest.raises(NotFound) as raised:
            await hooks.find(name)
        said.append(raised.value.message.replace(name, "NAME"))
    assert said[0] == said[1]


async def test_names_that_come_and_go_do_not_add_up(registry: FakeRegistry, hooks: Hooks) -> None:
    for number in range(500):
        registry.publish(f"name-{number}", WebhookOptions())
        await hooks.find(f"name-{number}")
        del registry.synced[f"name-{number}"]
    assert len(hooks._known) < 110


async def test_answers_of_webhooks_that_come_and_go_do_not_add_up(
    registry: FakeRegistry, hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "FEW_ANSWERS", 10)
    door = webhooks.WebhookDoor(hooks, cast(Any, None), cast(Any, None), lambda: 1.0)
    registry.publish("stays", WebhookOptions())
    for number in range(50):
        registry.publish(f"name-{number}", WebhookOptions())
        for status in (202, 413):
            door.count(f"name-{number}", status)
        door.count("stays", 202)
        door.count("a stranger's", 404)
        del registry.synced[f"name-{number}"]
        assert len(door._answers) < 20
    assert door.figures() == {("stays", 202): 50, ("", 404): 50}


async def test_answers_of_a_webhook_that_was_published_just_now_are_kept(registry: FakeRegistry, hooks: Hooks) -> None:
    door = webhooks.WebhookDoor(hooks, cast(Any, None), cast(Any, None), lambda: 1.0)
    registry.publish("fresh", WebhookOptions(), is_synced=False)
    registry.revision -= 1
    await hooks.find("fresh")
    door.count("fresh", 202)
    assert door.figures() == {("fresh", 202): 1}
    registry.revision += 1
    assert not door.figures()


def test_of_too_many_unfinished_bodies_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "MOST_HALF_BYTES", 100)
    halves = webhooks._Halves()
    gone: list[str] = []

    class Body:
        """A call whose body comes in pieces."""

        def __init__(self, name: str) -> None:
            self.name = name

        def refuse(self, refused: object) -> None:
            gone.append(self.name)
            halves.drop(cast(Any, self))

    first, second, third = Body("first"), Body("second"), Body("third")
    for body, size in ((first, 40), (second, 40), (first, 10), (third, 20)):
        halves.add(cast(Any, body), size)
    assert gone == ["first"]
    halves.drop(cast(Any, second))
    halves.add(cast(Any, third), 80)
    assert gone == ["first"]
    halves.add(cast(Any, third), 1)
    assert gone == ["first", "third"]
