"""How datasources look in answers, made from what the store returns. Nothing secret passes through here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict
from uuid import UUID

from headgate.clock import unix_s
from headgate.connectors.webhook import CONNECTOR as WEBHOOK
from headgate.core.access import ANYONE, Caller, may
from headgate.core.figures import Figures, InboxBacklog, Reported, figures, together
from headgate.core.push import PUSH
from headgate.core.records import NOTHING, add
from headgate.datasources.documents import Document
from headgate.datasources.health import Facts, judged
from headgate.datasources.planned import Difference
from headgate.runtime.node import Node
from headgate.runtime.streams.handle import Handle
from headgate.slices import SLICE, sliced
from headgate.store import events, logs
from headgate.store.datasources import Datasource, Version
from headgate.store.letters import Numbers
from headgate.store.listed import Unable
from headgate.store.nodes import Node as NodeRow
from headgate.store.states import NO_OTHERS, Listing, StreamState
from headgate.web import bodies
from headgate.web.bodies import datasources, letters
from headgate.web.subjects import sees

EMPTY = InboxBacklog(0, 0, None)
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


def state(row: StreamState, facts: Facts) -> datasources.StreamState:
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
        metrics=_figures(row, facts),
        reading_since_s=row.reported.reading_since_s,
        writing_since_s=row.reported.writing_since_s,
        error=row.error,
        changed_at=row.changed_at,
    )


def summary(facts: Facts, *, has_draft: bool) -> datasources.Summary:
    """A datasource in one line."""
    found, published, verdict = facts.datasource, facts.published, judged(facts)
    first = min(facts.states, key=lambda state: TELLING.index(state.worker_status), default=None)
    return datasources.Summary(
        id=str(found.id),
        name=found.name,
        enabled=found.enabled,
        paused=found.paused,
        health=verdict.health,
        why=verdict.why,
        worker_status=first.worker_status if first else "INIT",
        detail=first.detail if first else "not started",
        published_version=found.published_version,
        running_version=found.running_version,
        published_status=published.status if published else None,
        has_draft=has_draft,
        source_type=published.content.source.get("type") if published else None,
        sink_type=published.content.sink.get("type") if published else None,
        metrics=_all_figures(facts),
        error=first.error if first else None,
        node=first.node_name if first else None,
        quarantine=found.quarantine,
        reason=published.reason if published else None,
    )


def _figures(row: StreamState, facts: Facts) -> Figures:
    """One stream's figures at this moment. Webhooks are read by the first stream."""
    inbox = facts.inbox if row.index == 0 else None
    return figures(row.totals, row.reported, facts.now_s, moves=row.worker_status == "RUNNING", inbox=inbox)


def _all_figures(facts: Facts) -> Figures:
    """The figures of all streams, those that are not listed among them."""
    others, shown = facts.others, [_figures(row, facts) for row in facts.states]
    if facts.inbox is not None and not shown:  # Nobody has read it yet, and there may be payloads all the same.
        shown = [figures(NOTHING, Reported(), facts.now_s, moves=False, inbox=facts.inbox)]
    found = together(shown, others.totals)
    if others is NO_OTHERS:
        return found
    last_s = max(found.last_record_at_s or 0.0, others.last_record_at_s or 0.0) or None
    return replace(found, last_record_at_s=last_s, last_hour=found.last_hour + others.last_hour)


async def summaries(node: Node, caller: Caller, nodes: Sequence[NodeRow] | None = None) -> list[datasources.Summary]:
    """Every datasource that this caller sees in one line, by name. `nodes` are those that were just read."""
    found: list[datasources.Summary] = []
    async for facts, has_draft in all_facts(node, nodes):
        if sees(caller, facts.datasource.name):
            found.append(summary(facts, has_draft=has_draft))
    return found


async def overview(node: Node) -> datasources.Overview:
    """Every datasource and every node, for all who look."""
    nodes = await node.nodes.all()
    shares = [
        datasources.Share(name=one.name, streams=one.streams, registry_problem=one.registry_problem) for one in nodes
    ]
    return datasources.Overview(datasources=await summaries(node, ANYONE, nodes), nodes=shares, at_s=unix_s())


async def notices(node: Node, caller: Caller) -> list[str]:
    """What is wrong apart from datasources, for those who may see it."""
    if not may(caller, "see_all"):
        return []
    found = [(one.name, one.registry_problem) for one in await node.nodes.all() if one.registry_problem]
    return [f"the registry file of {name} is not usable; what runs goes on: {problem}" for name, problem in found]


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
        states=[state(row, facts) for row in facts.states],
        letters=letter_numbers(await node.letters.numbers(found.id)),
    )


def letter_numbers(found: Numbers) -> letters.LetterNumbers:
    """What became of dead letters."""
    return letters.LetterNumbers(**{name: getattr(found, name) for name in found.__slots__})


def event(row: events.Recorded) -> datasources.Event:
    """Something that happened."""
    return datasources.Event(id=row.id, name=row.name, type=row.type, payload=row.payload, actor=row.actor, at=row.at)


def line(row: logs.Kept) -> datasources.Line:
    """A log line."""
    found = row.line
    return datasources.Line(id=row.id, at=found.at, level=found.level, text=found.text, fields=dict(found.fields))


@dataclass(frozen=True, slots=True)
class _Around:
    """What is known of all datasources at once."""

    node: Node
    live: Mapping[UUID, Handle]  # The streams of this node, by id: their figures are newer than the database's.
    nodes: Sequence[NodeRow]
    listing: Listing
    inboxes: Mapping[UUID, InboxBacklog]
    unable: Mapping[UUID, Sequence[Unable]]

    def facts(self, found: Datasource, published: Version | None) -> Facts:
        """What is known of one."""
        source = published.content.source.get("type") if published is not None else None
        states, others = self.listing.of(found.id)
        shown, summed = [], others.totals
        for row in states:
            if (row.label is not None) == (source == PUSH):
                shown.append(self._now(row, found, is_pushed=source == PUSH))
            else:  # Of an earlier source: it counts, and is over.
                summed = add(summed, row.totals)
        inbox = self.inboxes.get(found.id, EMPTY) if source == WEBHOOK.name else None
        if summed is not others.totals:
            others = replace(others, totals=summed)
        return Facts(found, published, shown, self.nodes, unix_s(), self.unable.get(found.id, ()), others, inbox)

    def _now(self, row: StreamState, found: Datasource, *, is_pushed: bool) -> StreamState:
        """A state as it is now: what a node said last holds no longer when the node is gone, or does not beat."""
        handle, node = self.live.get(row.stream), self.node
        if handle is not None and handle.holding.epoch is not None and row.node == node.incarnation:
            totals = max(handle.totals, row.totals, key=lambda one: one.read)
            row = replace(row, totals=totals, reported=handle.stats.reported(totals))
        if found.paused and (row.worker_status, row.detail) == ("STOPPED", "stopped"):
            return replace(row, detail="paused")  # Whether it is paused or stopped, its worker was told the same.
        if row.heartbeat is None and is_pushed:
            return replace(row, worker_status="STOPPED", detail="its node is gone")
        if row.worker_status not in ("STARTING", "RUNNING"):
            return row
        if row.heartbeat is None:
            return replace(row, worker_status="STARTING", detail="its node is gone; another takes it over")
        if row.node is not None and not node.watcher.is_heard(row.node):
            return replace(row, worker_status="STARTING", detail=f"its node, {row.node_name}, does not beat")
        return row


async def _around(node: Node, datasource: UUID | None = None, nodes: Sequence[NodeRow] | None = None) -> _Around:
    states = node.registry.states
    unable: dict[UUID, list[Unable]] = {}
    for row in await node.streams.unable(datasource):
        unable.setdefault(row.datasource, []).append(row)
    return _Around(
        node=node,
        live=_live(node),
        nodes=[one for one in (await node.nodes.all() if nodes is None else nodes) if not one.ended],
        listing=await states.all() if datasource is None else await states.one(datasource),
        inboxes=await node.inbox.unread(node.inboxes.acked, datasource),
        unable=unable,
    )


async def all_facts(node: Node, nodes: Sequence[NodeRow] | None = None) -> AsyncIterator[tuple[Facts, bool]]:
    """Every datasource, with whether it has a draft, in a few queries. Others have the loop every now and then."""
    found = await node.registry.listing.all()
    around = await _around(node, nodes=nodes)
    async for some in sliced(found, SLICE):
        for one in some:
            yield around.facts(one.datasource, one.published), one.has_draft


async def one_facts(node: Node, found: Datasource) -> Facts:
    """One datasource."""
    published = await node.registry.datasources.version(found.id, found.published_version)
    return (await _around(node, found.id)).facts(found, published)


def _live(node: Node) -> dict[UUID, Handle]:
    return {handle.stream: handle for handle in node.manager.handles()} if node.manager else {}


def difference(found: Difference) -> datasources.Difference:
    """A place at which two documents differ."""
    return datasources.Difference(path=found.path, before=found.before, after=found.after)
