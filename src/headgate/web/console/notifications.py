"""The page of notifications: what is wrong by the rules, whom they tell, and what a target has not taken yet."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, get_args

from headgate.core.access import Caller, may
from headgate.core.incidents import Incident
from headgate.datasources.notifications import HealthName
from headgate.runtime.node import Node
from headgate.store.notifications import Waiting
from headgate.text import counted
from headgate.web.console import words
from headgate.web.console.acts import Act, command
from headgate.web.console.acts import json as body_of

MOST = 200  # Incidents that are shown.
WHENS: dict[str, str] = {
    "health": "a datasource has one of these healths",
    "dead_letters": "it has more open dead letters than",
    "lag": "it lags by more than",
    "rejected": "its published version was rejected",
    "node_lost": "a node was found dead",
}


async def values(node: Node, holder: Caller) -> dict[str, Any]:
    """What the page shows. The document has secrets by name only."""
    written, incidents = await node.notifications.read(), await node.notifications.incidents()
    waiting = {one.target: one for one in await node.notifications.waiting()}
    document = written.document if isinstance(written.document, dict) else {}
    delete = Act(
        "Tell nobody any more",
        "DELETE /api/notifications",
        command("notifications", "delete"),
        "Delete all rules and targets? What has not been sent yet is not sent any more.",
        "Nobody is told of anything.",
        grave=True,
    )
    return {
        "incidents": [_incident(one) for one in incidents[:MOST]],
        "rules": [_rule(name, one) for name, one in _named(document, "rules")],
        "targets": [_target(name, one, waiting.get(name)) for name, one in _named(document, "targets")],
        "whens": WHENS,
        "healths": {name: words.HEALTH_WORDS.get(name, name) for name in get_args(HealthName)},
        "secrets": [one.name for one in await node.registry.secrets.all()],
        "is_written": bool(document),
        "changed": f"{words.since(written.changed_at.isoformat())}, by {written.author}" if written.changed_at else "",
        "administers": may(holder, "administer"),
        "delete": delete,
        "commands": [
            command("notifications", "list", "--yaml"),
            command("notifications", "set", "FILE"),
            delete.command,
        ],
    }


def _named(document: dict[str, Any], key: str) -> list[tuple[str, dict[str, Any]]]:
    found = document.get(key)
    return [(name, one) for name, one in found.items() if isinstance(one, dict)] if isinstance(found, dict) else []


def _incident(one: Incident) -> dict[str, Any]:
    told = "told" if one.told_at_s else "not told yet"
    return {
        "subject": one.subject,
        "rule": one.rule,
        "why": one.why,
        "since": words.since(datetime.fromtimestamp(one.since_s, UTC).isoformat()),
        "state": "getting better" if one.better_since_s else told,
        "mark": "starting" if one.better_since_s else "error",
    }


def _rule(name: str, one: dict[str, Any]) -> dict[str, Any]:
    """A rule in words. `when` is checked before it is written; the rest is shown as it stands."""
    of = "nodes" if one.get("when") == "node_lost" else ", ".join(map(str, one.get("datasources") or ["all"]))
    limits = [*map(str, one.get("health") or ()), *([f"above {one['above']}"] if "above" in one else ())]
    to = ", ".join(map(str, one.get("to") or ()))
    when = " ".join([str(one.get("when", "")).replace("_", " "), *([f"({', '.join(limits)})"] if limits else ())])
    return {"name": name, "when": when, "of": of, "for": str(one.get("for", "1m")), "to": to}


def _target(name: str, one: dict[str, Any], waiting: Waiting | None) -> dict[str, Any]:
    behind = "" if waiting is None else _behind(waiting)
    done, as_command = f"{name} has taken a test message.", command("notifications", "test", name)
    return {
        "name": name,
        "type": str(one.get("type", "")),
        "behind": behind,
        "test": Act("Test", "POST /api/notifications/test", as_command, done=done, body=body_of({"target": name})),
    }


def _behind(one: Waiting) -> str:
    """What a target has not taken, and why."""
    verb = "waits" if one.messages == 1 else "wait"
    return f"{counted(one.messages, 'message')} {verb}: {one.reason or 'about to be sent'}"
