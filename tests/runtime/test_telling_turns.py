"""The notifier's turn: one target's fault is no other's, and nothing that is on its way is sent once more."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.errors import NotFound, StoreError
from headgate.ids import new_id
from headgate.runtime.notifications.notifier import Notifier
from headgate.store.notifications import Message, Notifications, Written


class Table:
    """Messages for some targets, of which a few cannot be postponed: the database goes away just then."""

    def __init__(self, *targets: str, known: tuple[str, ...] = (), lasting: bool = True) -> None:
        self.waiting = [Message(number, new_id(), one, {}, 0, 1.0) for number, one in enumerate(targets)]
        self.document = {"targets": {one: {} for one in known}}
        self.lasting = lasting
        self.removed: list[str] = []
        self.postponed: list[tuple[str, str]] = []

    async def claim(self, node: object) -> Written:
        return Written(None, 1, None, None)

    async def read(self) -> Written:
        return Written(self.document, 2, None, None)

    async def reckon(self, *given: object) -> int:
        return 0

    async def due(self) -> list[Message]:
        found, self.waiting = self.waiting, []
        return found

    async def remove(self, message: Message) -> None:
        self.removed.append(message.target)

    async def postpone(self, message: Message, again_in_s: float, reason: str) -> None:
        if not self.lasting:
            raise StoreError("the database is away")
        self.postponed.append((message.target, reason))


async def turn(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    async def send(self: Notifier, written: Written, name: str, body: Mapping[str, Any]) -> None:
        if name == "odd":
            raise ValueError("nobody thought of this, nor of pass-word")
        if name in ("gone", "new"):
            raise NotFound("there is no such target")
        for _ in range(10):
            await asyncio.sleep(0)

    monkeypatch.setattr(Notifier, "_send", send)
    node = SimpleNamespace(trust_left_s=lambda: 1.0, incarnation=new_id(), installation=new_id())
    await Notifier(cast(Notifications, table), cast(Any, node))._turn()


async def test_what_nobody_thought_of_is_tried_again_and_its_words_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("odd", "slow")
    await turn(table, monkeypatch)
    assert table.removed == ["slow"]
    assert [target for target, _ in table.postponed] == ["odd"]
    assert "pass-word" not in table.postponed[0][1]


async def test_a_turn_that_fails_ends_after_all_that_it_has_begun_to_send(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("odd", "slow", lasting=False)
    with pytest.raises(StoreError):
        await turn(table, monkeypatch)
    assert table.removed == ["slow"]


async def test_a_message_goes_with_its_target_and_not_with_a_document_that_is_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Table("gone", "new", known=("new",))
    await turn(table, monkeypatch)
    assert table.removed == ["gone"]
