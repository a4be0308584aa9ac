"""What is known of each datasource at one moment, for health, figures and notifications, on any node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from headgate.clock import unix_s
from headgate.connectors.webhook import CONNECTOR as WEBHOOK
from headgate.core.figures import Figures, InboxBacklog, Reported, figures, together
from headgate.core.push import PUSH
from headgate.core.records import NOTHING, add
from headgate.datasources.health import Facts, is_settled
from headgate.datasources.listing import Listed
from headgate.runtime.streams.handle import Handle
from headgate.slices import SLICE, sliced
from headgate.store.database import Horizon
from headgate.store.datasources import Datasource, Version
from headgate.store.listed import Unable
from headgate.store.nodes import Node as NodeRow
from headgate.store.states import NO_OTHERS, Listing, StreamState

if TYPE_CHECKING:
    from headgate.runtime.node import Node

EMPTY = InboxBacklog(0, 0, None)
T = TypeVar("T")


def stream_figures(row: StreamState, facts: Facts) -> Figures:
    """One stream's figures at this moment. Webhooks are read by the first stream."""
    inbox = facts.inbox if row.index == 0 else None
    return figures(row.totals, row.reported, facts.now_s, moves=row.worker_status == "RUNNING", inbox=inbox)


def all_figures(facts: Facts) -> Figures:
    """The figures of all streams, those that are not listed among them."""
    others, shown = facts.others, [stream_figures(row, facts) for row in facts.states]
    if facts.inbox is not None and not shown:  # Nobody has read it yet, and there may be payloads all the same.
        shown = [figures(NOTHING, Reported(), facts.now_s, moves=False, inbox=facts.inbox)]
    found = together(shown, others.totals)
    if others is NO_OTHERS:
        return found
    last_s = max(found.last_record_at_s or 0.0, others.last_record_at_s or 0.0) or None
    return replace(found, last_record_at_s=last_s, last_hour=found.last_hour + others.last_hour)


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
    return _Around(
        node=node,
        live=_live(node),
        nodes=[one for one in (await node.nodes.all() if nodes is None else nodes) if not one.ended],
        listing=await states.all() if datasource is None else await states.one(datasource),
        inboxes=await node.inbox.unread(node.inboxes.acked, datasource),
        unable=await _unable(node, datasource),
    )


async def _unable(node: Node, datasource: UUID | None = None) -> dict[UUID, list[Unable]]:
    found: dict[UUID, list[Unable]] = {}
    for row in await node.streams.unable(datasource):
        found.setdefault(row.datasource, []).append(row)
    return found


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


def _different(before: Mapping[UUID, object], now: Mapping[UUID, object]) -> set[UUID]:
    return {id for id in before.keys() | now.keys() if before.get(id) != now.get(id)}


def _put(kept: dict[UUID, T], id: UUID, one: T | None) -> None:
    if one is None:
        kept.pop(id, None)
    else:
        kept[id] = one


class KeptFacts:
    """What is known of each datasource, from look to look.

    Facts are put together again only where they may differ from those of the look before: something was written in the
    database, a stream of this node has moved, or they change by the passing of time alone. Elsewhere, health and
    figures are what they were.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._mark: Horizon | None = None  # Of the last look at the states; None: all of them are read.
        self._states = Listing({}, {})
        self._listed: Mapping[UUID, Listed] = {}
        self._seen: tuple[object, ...] = ()  # What every datasource depends on.
        self._unable: Mapping[UUID, Sequence[Unable]] = {}
        self._inboxes: Mapping[UUID, InboxBacklog] = {}
        self._footprints: dict[UUID, tuple[UUID, tuple[object, ...]]] = {}  # Of the streams of this node.
        self._due: set[UUID] = set()  # What has to be put together again, also if a look ends early.
        self._restless: set[UUID] = set()  # They change with the time.

    def forget(self) -> None:
        """Read all of it again: the registry may be another one than it was."""
        self._mark = None

    async def look(self, nodes: Sequence[NodeRow]) -> tuple[Sequence[Listed], AsyncIterator[tuple[Facts, bool]]]:
        """All datasources; and of those that may have changed the facts, with whether there is a draft."""
        node = self._node
        listed, _, unable, inboxes = await asyncio.gather(
            node.registry.listing.all(),
            self._read_states(nodes),
            _unable(node),
            node.inbox.unread(node.inboxes.acked),
        )
        around = _Around(node, _live(node), [one for one in nodes if not one.ended], self._states, inboxes, unable)
        self._due |= self._restless | _different(self._unable, unable) | _different(self._inboxes, inboxes)
        self._due |= self._moved(around.live)
        self._unable, self._inboxes = unable, inboxes
        known, self._listed = self._listed, {one.datasource.id: one for one in listed}
        self._due |= {id for id, one in self._listed.items() if known.get(id) is not one}
        return listed, self._facts(around)

    async def _read_states(self, nodes: Sequence[NodeRow]) -> None:
        """What has changed since the last look. A node that has come or gone has written nothing into states."""
        heard = [node.id for node in nodes if self._node.watcher.is_heard(node.id)]
        seen = (self._node.incarnation, heard, [(one.id, one.name, one.draining, one.ended) for one in nodes])
        if seen != self._seen:
            self._mark = None
        mark = self._mark
        changes = await self._node.registry.states.since(mark)
        if changes.changed is None:
            self._states = changes.listing
            self._due |= self._listed.keys()
        else:
            for id in changes.changed:
                _put(self._states.states, id, changes.listing.states.get(id))
                _put(self._states.others, id, changes.listing.others.get(id))
            self._due |= changes.changed
        self._mark, self._seen = changes.mark, seen

    def _moved(self, live: Mapping[UUID, Handle]) -> set[UUID]:
        """The datasources of which a stream has moved here, or has come or gone."""
        before = self._footprints
        self._footprints = {id: (handle.datasource, handle.footprint()) for id, handle in live.items()}
        moved = {one[0] for id, one in self._footprints.items() if before.get(id) != one}
        return moved | {before[id][0] for id in before.keys() - live.keys()}

    async def _facts(self, around: _Around) -> AsyncIterator[tuple[Facts, bool]]:
        due = [self._listed[id] for id in self._due & self._listed.keys()]
        self._due &= self._listed.keys()
        self._restless &= self._listed.keys()
        async for some in sliced(due, SLICE):
            for one in some:
                facts = around.facts(one.datasource, one.published)
                (self._restless.discard if is_settled(facts) else self._restless.add)(one.datasource.id)
                yield facts, one.has_draft
                self._due.discard(one.datasource.id)
