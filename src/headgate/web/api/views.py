"""How datasources look in answers, made from what the store returns. Nothing secret passes through here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import TypedDict
from uuid import UUID

from headgate.clock import unix_s
from headgate.core.access import ANYONE, Caller, may
from headgate.core.figures import Figures
from headgate.core.push import PUSH
from headgate.datasources.documents import Document
from headgate.datasources.health import Facts, health
from headgate.datasources.planned import Difference
from headgate.runtime.node import Node
from headgate.runtime.streams.handle import Handle
from headgate.store import events, logs
from headgate.store.datasources import Datasource, Version
from headgate.store.letters import Numbers
from headgate.store.nodes import Node as NodeRow
from headgate.store.states import StreamState
from headgate.web import bodies
from headgate.web.bodies import datasources, letters
from headgate.web.slices import SLICE, sliced
from headgate.web.subjects import sees

TELLING = ("ERROR", "STARTING", "RUNNING", "INIT", "STOPPED")  # Which stream's state speaks for all of them.


def reads_secrets(caller: Caller) -> bool:
    """Whether an answer may depend on the values of secrets: who may publish sees what runs do with them anyway."""
    return may(caller, "operate_listed")


class Seeing(TypedDict):
    """As whom a document is checked."""

    reads_secrets: bool
    is_admin: bool


def sees_as(caller: Caller) -> Seeing:
    """What the answer to this caller may depend on, and what the caller may name."""
    return {"reads_secrets": reads_secrets(caller), "is_admin": may(caller, "administer")}


def version(found: Version) -> datasources.Version:
    """A version, with its document."""
    return datasources.Version(
        number=found.number,
        status=found.status,
        hash=found.content.hash,
        author=found.author,
        reason=found.reason,
        created_at=found.created_at,
        document=document(found),
    )


def document(found: Version) -> bodies.Object:
    """A version as its author wrote it."""
    plain = Document("", True, found.content).plain()
    del plain["enabled"]
    return plain


def state(row: StreamState) -> datasources.StreamState:
    """One stream's state."""
    return datasources.StreamState(
        stream=str(row.stream),
        index=row.index,
        label=row.label,
        worker_status=row.worker_status,
        detail=row.detail,
        node=row.node_name,
        heartbeat=row.heartbeat,
        version=row.version,
        epoch=row.epoch,
        metrics=row.metrics,
        error=row.error,
        changed_at=row.changed_at,
    )


def summary(facts: Facts, *, has_draft: bool) -> datasources.Summary:
    """A datasource in one line."""
    found, published = facts.datasource, facts.published
    first = min(facts.states, key=lambda state: TELLING.index(state.worker_status), default=None)
    return datasources.Summary(
        id=str(found.id),
        name=found.name,
        enabled=found.enabled,
        health=health(facts),
        worker_status=first.worker_status if first else "INIT",
        detail=first.detail if first else "not started",
        published_version=found.published_version,
        running_version=found.running_version,
        published_status=published.status if published else None,
        has_draft=has_draft,
        source_type=published.content.source.get("type") if published else None,
        sink_type=published.content.sink.get("type") if published else None,
        metrics=_together([state.metrics for state in facts.states]),
        error=first.error if first else None,
        node=first.node_name if first else None,
        quarantine=found.quarantine,
        reason=published.reason if published else None,
    )


async def summaries(node: Node, caller: Caller) -> list[datasources.Summary]:
    """Every datasource that this caller sees in one line, by name."""
    found: list[datasources.Summary] = []
    async for facts, has_draft in all_facts(node):
        if sees(caller, facts.datasource.name):
            found.append(summary(facts, has_draft=has_draft))
    return found


async def overview(node: Node) -> datasources.Overview:
    """Every datasource and every node, for all who look."""
    nodes = [datasources.Share(name=one.name, streams=one.streams) for one in await node.nodes.all()]
    return datasources.Overview(datasources=await summaries(node, ANYONE), nodes=nodes, at_s=unix_s())


async def whole(node: Node, name: str) -> datasources.Datasource:
    """A datasource with its draft, its published version and its streams' states."""
    found = await node.registry.get(name)
    facts = await one_facts(node, found)
    draft = await node.registry.datasources.draft(found.id)
    line = summary(facts, has_draft=draft is not None)
    return datasources.Datasource(
        **{field: getattr(line, field) for field in line.__struct_fields__},
        draft=None if draft is None else version(draft),
        published=None if facts.published is None else version(facts.published),
        states=[state(row) for row in facts.states],
        letters=letter_numbers(await node.letters.numbers(found.id)),
    )


def letter_numbers(found: Numbers) -> letters.LetterNumbers:
    """What became of dead letters."""
    return letters.LetterNumbers(**{name: getattr(found, name) for name in found.__slots__})


def _together(figures: Sequence[Figures]) -> Figures:
    """The figures of all streams: counts add up, the rest is the newest stream's."""
    newest = max(figures, key=lambda one: one.last_record_at_s or 0.0, default=Figures())
    return replace(
        newest,
        records_in=sum(one.records_in for one in figures),
        records_out=sum(one.records_out for one in figures),
        records_failed=sum(one.records_failed for one in figures),
        records_skipped=sum(one.records_skipped for one in figures),
        bytes_in=sum(one.bytes_in for one in figures),
        batches=sum(one.batches for one in figures),
        errors=sum(one.errors for one in figures),
        restarts=sum(one.restarts for one in figures),
        last_hour=sum(one.last_hour for one in figures),
    )


def event(row: events.Recorded) -> datasources.Event:
    """Something that happened."""
    return datasources.Event(id=row.id, name=row.name, type=row.type, payload=row.payload, actor=row.actor, at=row.at)


def line(row: logs.Kept) -> datasources.Line:
    """A log line."""
    found = row.line
    return datasources.Line(id=row.id, at=found.at, level=found.level, text=found.text, fields=dict(found.fields))


def _facts(
    live: Mapping[UUID, Handle],
    node: Node,
    found: Datasource,
    published: Version | None,
    states: Sequence[StreamState],
    nodes: Sequence[NodeRow],
) -> Facts:
    """What is known of a datasource. Streams of this node (`live`) have their newest figures."""
    is_pushed = published is not None and published.content.source.get("type") == PUSH
    shown = [_now(row, live, node, is_pushed=is_pushed) for row in states if (row.label is not None) == is_pushed]
    return Facts(found, published, shown, nodes, unix_s())


def _now(row: StreamState, live: Mapping[UUID, Handle], node: Node, *, is_pushed: bool) -> StreamState:
    """A state as it is now: what a node said last holds no longer when the node is gone."""
    handle = live.get(row.stream)
    if handle is not None and handle.holding.epoch is not None and row.node == node.incarnation:
        row = replace(row, metrics=handle.stats.figures())
    if row.heartbeat is None and is_pushed:
        return replace(row, worker_status="STOPPED", detail="its node is gone")
    if row.heartbeat is None and row.worker_status in ("STARTING", "RUNNING"):
        return replace(row, worker_status="STARTING", detail="its node is gone; another takes it over")
    return row


async def all_facts(node: Node) -> AsyncIterator[tuple[Facts, bool]]:
    """Every datasource, with whether it has a draft, in five queries. Others have the loop every now and then."""
    found = await node.registry.datasources.all()
    published = await node.registry.datasources.published()
    drafts = await node.registry.datasources.with_draft()
    by_datasource: dict[UUID, list[StreamState]] = {}
    for row in await node.registry.states.all():
        by_datasource.setdefault(row.datasource, []).append(row)
    nodes, live = await node.nodes.all(), _live(node)
    async for some in sliced(found, SLICE):
        for one in some:
            states = by_datasource.get(one.id, [])
            yield _facts(live, node, one, published.get(one.id), states, nodes), one.id in drafts


async def one_facts(node: Node, found: Datasource) -> Facts:
    """One datasource."""
    published = await node.registry.datasources.version(found.id, found.published_version)
    states = await node.registry.states.all(found.id)
    return _facts(_live(node), node, found, published, states, await node.nodes.all())


def _live(node: Node) -> dict[UUID, Handle]:
    return {handle.stream: handle for handle in node.manager.handles()} if node.manager else {}


def difference(found: Difference) -> datasources.Difference:
    """A place at which two documents differ."""
    return datasources.Difference(path=found.path, before=found.before, after=found.after)
