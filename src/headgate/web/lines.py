"""Every datasource in one line, as the overview shows them, from look to look. A line is made again only where what is
known of the datasource may have changed; else it is the same object, by which those who compare see it at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from headgate.clock import unix_s
from headgate.runtime.facts import KeptFacts
from headgate.runtime.node import Node
from headgate.store.nodes import Node as NodeRow
from headgate.web.api import views
from headgate.web.bodies.datasources import Overview, Share, Summary


class Lines:
    """Looks at everything, for all who look at the overview."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._facts = KeptFacts(node)
        self._lines: dict[UUID, Summary] = {}
        self._looking = asyncio.Lock()  # One look follows another.

    async def overview(self) -> Overview:
        """Every datasource and every node."""
        async with self._looking:
            nodes = await self._node.nodes.all()
            lines = await self._all(nodes)
        return Overview(datasources=lines, nodes=[_share(one) for one in nodes], at_s=unix_s())

    async def _all(self, nodes: Sequence[NodeRow]) -> list[Summary]:
        listed, changed = await self._facts.look(nodes)
        async for facts, has_draft in changed:
            self._lines[facts.datasource.id] = views.summary(facts, has_draft=has_draft)
        if len(self._lines) > len(listed):
            self._lines = {one.datasource.id: self._lines[one.datasource.id] for one in listed}
        return [self._lines[one.datasource.id] for one in listed]


def _share(one: NodeRow) -> Share:
    return Share(name=one.name, streams=one.streams, registry_problem=one.registry_problem)
