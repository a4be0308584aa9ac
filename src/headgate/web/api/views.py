"""How things look in answers: plain data, made from what the store returns. Nothing secret passes through here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from headgate.clock import unix_s
from headgate.connectors.api import PUSH
from headgate.datasources.documents import Document
from headgate.datasources.health import Facts, health
from headgate.runtime.node import Node
from headgate.runtime.streams.handle import Handle
from headgate.store.datasources import Datasource, Version

TELLING = ("ERROR", "STARTING", "RUNNING", "INIT", "STOPPED")  # Which stream's state speaks for all of them.
SUMMED = (
    "records_in",
    "records_out",
    "records_failed",
    "records_skipped",
    "bytes_in",
    "batches",
    "errors",
    "restarts",
    "last_hour",
)


def version(found: Version | None) -> dict[str, Any] | None:
    """A version, with its document."""
    if found is None:
        return None
    document = Document("", True, found.content).plain()
    del document["enabled"]
    return {
        "number": found.number,
        "status": found.status,
        "hash": found.content.hash,
        "author": found.author,
        "reason": found.reason,
        "created_at": found.created_at.isoformat(),
        "document": document,
    }


def state(row: dict[str, Any]) -> dict[str, Any]:
    """One stream's state."""
    return {
        "stream": str(row["stream"]),
        "index": row["index"],
        "label": row["label"],
        "worker_status": row["worker_status"],
        "detail": row["detail"],
        "node": row["node_name"],
        "heartbeat": row["heartbeat"],
        "version": row["version"],
        "epoch": row["epoch"],
        "metrics": row["metrics"],
        "error": row["error"],
        "changed_at": row["changed_at"].isoformat(),
    }


def summary(facts: Facts, *, has_draft: bool) -> dict[str, Any]:
    """A datasource in one line."""
    found, published = facts.datasource, facts.published
    first = min(facts.states, key=lambda state: TELLING.index(state["worker_status"]), default=None)
    return {
        "id": str(found.id),
        "name": found.name,
        "enabled": found.enabled,
        "health": health(facts),
        "worker_status": first["worker_status"] if first else "INIT",
        "detail": first["detail"] if first else "not started",
        "published_version": found.published_version,
        "running_version": found.running_version,
        "published_status": published.status if published else None,
        "has_draft": has_draft,
        "source_type": published.content.source.get("type") if published else None,
        "sink_type": published.content.sink.get("type") if published else None,
        "metrics": _together([state["metrics"] for state in facts.states]),
        "error": first["error"] if first else None,
        "node": first["node_name"] if first else None,
        "quarantine": found.quarantine,
        "reason": published.reason if published else None,
    }


def _together(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all streams: counts add up, the rest is the newest stream's."""
    if len(metrics) < 2:
        return metrics[0] if metrics else {}
    newest = max(metrics, key=lambda one: one.get("last_record_at_s") or 0.0)
    counts = {name: sum(one.get(name) or 0 for one in metrics) for name in SUMMED}
    return {**newest, **counts}


def event(row: Any) -> dict[str, Any]:
    """Something that happened."""
    return {
        "id": row["id"],
        "name": row["name"],
        "type": row["type"],
        "payload": msgspec.json.decode(row["payload"]),
        "actor": row["actor"],
        "at": row["at"].isoformat(),
    }


def line(row: dict[str, Any]) -> dict[str, Any]:
    """A log line."""
    return {
        "id": row["id"],
        "at": row["at"].isoformat(),
        "level": row["level"],
        "text": row["text"],
        "fields": row["fields"],
    }


def facts(
    live: Mapping[UUID, Handle],
    node: Node,
    found: Datasource,
    published: Version | None,
    states: list[dict[str, Any]],
    nodes: list[Any],
) -> Facts:
    """What is known of a datasource. Streams of this node (`live`) have their newest figures."""
    is_pushed = published is not None and published.content.source.get("type") == PUSH
    states = [row for row in states if (row["label"] is not None) == is_pushed]
    for row in states:
        if row["heartbeat"] is None and is_pushed:
            row["worker_status"], row["detail"] = "STOPPED", "its node is gone"
        elif row["heartbeat"] is None and row["worker_status"] in ("STARTING", "RUNNING"):
            # The last word of a node that is gone.
            row["worker_status"], row["detail"] = "STARTING", "its node is gone; another takes it over"
        handle = live.get(row["stream"])
        if handle is not None and handle.epoch is not None and row["node"] == node.incarnation:
            row["metrics"] = handle.stats.plain()
    return Facts(found, published, states, nodes, unix_s())


async def all_facts(node: Node) -> list[tuple[Facts, bool]]:
    """Every datasource, with whether it has a draft, in four queries."""
    datasources = await node.registry.datasources.all()
    published = await node.registry.datasources.published()
    drafts = await node.registry.datasources.with_draft()
    by_datasource: dict[UUID, list[dict[str, Any]]] = {}
    for row in await node.registry.states.all():
        by_datasource.setdefault(row["datasource"], []).append(row)
    nodes, live = await node.nodes.all(), _live(node)
    return [
        (facts(live, node, found, published.get(found.id), by_datasource.get(found.id, []), nodes), found.id in drafts)
        for found in datasources
    ]


async def one_facts(node: Node, found: Datasource) -> Facts:
    """One datasource."""
    published = await node.registry.datasources.version(found.id, found.published_version)
    states = await node.registry.states.all(found.id)
    return facts(_live(node), node, found, published, states, await node.nodes.all())


def _live(node: Node) -> dict[UUID, Handle]:
    return {handle.stream: handle for handle in node.manager.handles()} if node.manager else {}
