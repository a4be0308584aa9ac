"""Everything that takes part in a storm: servers, nodes, datasources, and those who send, operate and look."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from headgate.testing.servers import Servers, url_of
from tests.proxy import Proxy, listening
from tests.storm.auditor import Auditor
from tests.storm.databases import Database, Registry
from tests.storm.journal import Journal
from tests.storm.nodes import Nodes
from tests.storm.operating import Operator
from tests.storm.plan import STEADY, Standby
from tests.storm.senders import Caller, Program, Sender, senders_of
from tests.storm.workload import SECRET, TABLES, Datasource, datasources


@dataclass(frozen=True, slots=True)
class Settings:
    """What a storm is to be."""

    seconds: float
    seed: int
    datasources: int = 60
    gap_s: float = 3.0  # Between two faults, on average.
    lease_s: float = 5.0
    standby: Standby = "none"
    named: frozenset[str] = frozenset()  # Kinds of faults that are left out otherwise.
    keep: bool = False  # The folder, even if nothing is wrong.


@dataclass(frozen=True, slots=True)
class Scene:
    """It is all there, and runs."""

    registry: Registry
    sink: Database
    links: Sequence[Proxy]  # Between the steady node and each host of the registry.
    nodes: Nodes
    operator: Operator
    datasources: dict[str, Datasource]
    senders: Sequence[Sender]
    auditor: Auditor

    @property
    def programs(self) -> dict[str, Program]:
        """Those of the senders that push."""
        return {one.name: one for one in self.senders if isinstance(one, Program)}

    @property
    def callers(self) -> list[Caller]:
        """Those of the senders that call webhooks."""
        return [one for one in self.senders if isinstance(one, Caller)]


@asynccontextmanager
async def set_up(settings: Settings, folder: Path, servers: Servers, journal: Journal) -> AsyncIterator[Scene]:
    """Start everything but the senders. Nodes are killed at the end, if they still run."""
    chance = random.Random(f"{settings.seed}/senders")
    registry = await asyncio.to_thread(Registry, servers, settings.standby)
    sink = await asyncio.to_thread(Database, servers)
    await asyncio.to_thread(sink.primary.execute, TABLES)
    links = [Proxy(host.address) for host in registry.hosts]
    sources = {one.name: one for one in datasources(settings.datasources, folder)}
    async with contextlib.AsyncExitStack() as stack:
        nodes = Nodes(
            folder,
            steady_database=url_of(*[await stack.enter_async_context(listening(link)) for link in links]),
            database=url_of(*registry.hosts),
            lease_s=settings.lease_s,
            note=journal.note,
        )
        stack.push_async_callback(nodes.close)
        await nodes.start(STEADY)
        await asyncio.gather(*(nodes.start(name) for name in nodes.members if name != STEADY))
        operator = Operator(nodes, chance)
        stack.push_async_callback(operator.close)
        await operator.call("PUT", f"/api/secrets/{SECRET}", {"value": sink.primary.url})
        await operator.apply({one.name: one.document(0) for one in sources.values()})
        senders = [
            sender for one in sources.values() for sender in senders_of(one, random.Random(chance.random()), nodes)
        ]
        may_lose = settings.standby == "async"
        auditor = Auditor(sink.primary.url, sources.values(), senders, journal.fail, registry_may_lose=may_lose)
        stack.callback(auditor.close)
        yield Scene(registry, sink, links, nodes, operator, sources, senders, auditor)
