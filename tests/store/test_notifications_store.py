"""Notifications in the database: one node sends, and what it knows is saved together with what it tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest

from headgate.core.incidents import Incident, Reckoned, Tell
from headgate.core.lease import Expired
from headgate.ids import new_id
from headgate.store import notifications as module
from headgate.store.events import Events
from headgate.store.notifications import Notifications
from tests.store.conftest import ME, Rows

DOCUMENT = {"targets": {"ops": {}}, "rules": {}}


def telling(number: int) -> Any:
    """A step that finds one more incident, and tells two targets of it."""

    def step(known: Sequence[Incident], now_s: float) -> Reckoned:
        new = Incident("broken", f"orders-{number}", "error", now_s, now_s, ("ops", "mail"))
        return Reckoned((*known, new), tuple(Tell("broken", target, False, (new,)) for target in new.told_to))

    return step


def body(tell: Tell, id: UUID, now_s: float) -> Mapping[str, Any]:
    return {"id": str(id), "subject": tell.incidents[0].subject}


async def test_one_node_sends_and_another_follows_as_soon_as_it_has_ended(rows: Rows) -> None:
    table, left, right = Notifications(rows.database), await rows.node("left"), await rows.node("right")
    assert await table.claim(left) is None  # There is nothing to do.
    assert await table.write(DOCUMENT, ME) == 1
    found = await table.claim(left)
    assert found is not None
    assert (found.document, found.version, found.author) == (DOCUMENT, 1, ME)
    assert await table.claim(right) is None
    assert await table.claim(left) is not None
    assert await rows.nodes.end(left) is not None
    assert await table.claim(right) is not None
    await rows.database.execute("UPDATE headgate.notifications SET sender_until = now() - interval '1 s'")
    assert await table.claim(await rows.node("third")) is not None  # It lives, and does not send.


async def test_a_sender_that_was_followed_or_has_read_another_document_changes_nothing(rows: Rows) -> None:
    table, left, right = Notifications(rows.database), await rows.node("left"), await rows.node("right")
    await table.write(DOCUMENT, ME)
    await table.claim(left)
    assert await table.reckon(left, 1, telling(1), body) == 2
    assert await table.reckon(left, 2, telling(2), body) == 0
    assert await table.reckon(right, 1, telling(2), body) == 0
    assert [one.subject for one in await table.incidents()] == ["orders-1"]
    known = (await table.incidents())[0]
    assert await table.reckon(left, 1, lambda before, now_s: Reckoned((), ()), body) == 0
    assert known.told_to == ("ops", "mail")
    assert await table.incidents() == []
    types = [one.type for one in await Events(rows.database).last(None)]
    assert types == ["notifications_set", "incident_opened"]


async def test_messages_of_a_target_go_in_order_and_are_not_kept_without_end(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 3)
    table, node = Notifications(rows.database), await rows.node()
    await table.write(DOCUMENT, ME)
    await table.claim(node)
    for number in range(5):
        await table.reckon(node, 1, telling(number), body)
    first = {one.target: one for one in await table.due()}
    assert {target: one.body["subject"] for target, one in first.items()} == {"ops": "orders-2", "mail": "orders-2"}
    await table.postpone(first["ops"], 3600.0, "it is away")
    await table.remove(first["mail"])
    assert [(one.target, one.body["subject"]) for one in await table.due()] == [("mail", "orders-3")]
    waiting = {one.target: one for one in await table.waiting()}
    assert (waiting["ops"].messages, waiting["ops"].attempts, waiting["ops"].reason) == (3, 1, "it is away")
    await table.give_up(first["ops"], "it is away", ME)
    last = (await Events(rows.database).last(None))[-1]
    assert (last.type, last.payload["target"]) == ("notification_failed", "ops")


async def test_a_node_is_lost_until_one_of_its_name_joins_unless_that_has_joined_before(rows: Rows) -> None:
    table = Notifications(rows.database)
    await rows.nodes.expire(Expired(await rows.node("left"), 0))
    await rows.nodes.end(await rows.node("right"))  # It left.
    assert await table.lost_nodes() == ["left"]
    await rows.node("left")
    assert await table.lost_nodes() == []
    old = await rows.node("fast")
    await rows.nodes.join(new_id(), "fast", 5.0, None)
    await rows.nodes.expire(Expired(old, 0))
    assert await table.lost_nodes() == []
    await rows.database.execute("INSERT INTO headgate.lost_node (name) VALUES ('fast')")  # Both at the same moment.
    assert await table.lost_nodes() == []
    await rows.nodes.expire(Expired(await rows.node("gone"), 0))
    await rows.database.execute("UPDATE headgate.lost_node SET at = at - interval '2 days'")
    assert await table.lost_nodes() == []
