"""Nodes that are killed are told of once, and once when they are back, also if it was the sender that was killed."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

from tests.receivers import Receiver, receiver
from tests.web.test_cluster import joined, names
from tests.web_node import Web

CLAIM = """
UPDATE headgate.notifications SET sender = (SELECT id FROM headgate.node WHERE name = '{}'),
    sender_until = now() + interval '60 seconds'
"""


def told(hook: Receiver, kind: str) -> Counter[str]:
    """How often a beginning or an end was told, by node."""
    return Counter(one["subject"] for body in hook.bodies(kind=kind) for one in body["incidents"])


def test_a_lost_node_is_told_once_also_if_the_sender_dies_with_the_message_in_hand(web: Web, tmp_path: Path) -> None:
    with receiver() as hook, joined(web, tmp_path / "b", "lost-b") as b:
        with joined(web, tmp_path / "c", "lost-c") as c:
            rules = {"nodes": {"when": "node_lost", "for": "0s", "to": ["hook"]}}
            targets = {"hook": {"type": "webhook", "url": hook.url}}
            web.call("PUT", "/api/notifications", {"targets": targets, "rules": rules})
            web.execute(CLAIM.format("lost-c"))
            hook.status = 503
            b.node.end(signal.SIGKILL)
            web.until(lambda: hook.refused, lambda found: found > 0)  # The sender has told nobody yet,
            c.node.end(signal.SIGKILL)  # and dies.
        hook.status = 200
        web.execute("UPDATE headgate.message SET due_at = now()")
        web.until(lambda: told(hook, "opened"), lambda found: set(found) == {"lost-b", "lost-c"})
        with joined(web, tmp_path / "b2", "lost-b"):
            web.until(lambda: told(hook, "over"), lambda found: bool(found))
            assert told(hook, "over") == {"lost-b": 1}
            found = web.call("GET", "/api/notifications")
            assert [one["subject"] for one in found["incidents"]] == ["lost-c"]
            assert found["waiting"] == []
        web.until(lambda: told(hook, "opened")["lost-b"], lambda number: number == 2)  # It was killed once more.
        assert told(hook, "opened") == {"lost-b": 2, "lost-c": 1}
        assert names(web)


def test_a_node_that_leaves_in_good_order_is_not_lost(web: Web, tmp_path: Path) -> None:
    with receiver() as hook:
        rules = {"nodes": {"when": "node_lost", "for": "0s", "to": ["hook"]}}
        targets = {"hook": {"type": "webhook", "url": hook.url}}
        with joined(web, tmp_path / "d", "left-d") as d:
            web.call("PUT", "/api/notifications", {"targets": targets, "rules": rules})
            d.node.end(signal.SIGTERM)
            web.until(lambda: names(web), lambda found: "left-d" not in found)
        with joined(web, tmp_path / "e", "lost-e") as e:
            e.node.end(signal.SIGKILL)
            web.until(lambda: told(hook, "opened")["lost-e"], lambda number: number == 1)
        assert "left-d" not in told(hook, "opened")
        assert web.rows("SELECT name FROM headgate.lost_node WHERE name = 'left-d'") == []
