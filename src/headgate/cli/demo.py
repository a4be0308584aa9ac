"""The demo: datasources to look at, which `headgate up --demo` loads and `headgate up --no-demo` removes again.

They write into the node's database as a user of the demo, who may do nothing else there. What somebody has changed is
the demo's no longer: it is neither loaded again nor removed.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING, Any

import structlog

from headgate.cli import demo_broker
from headgate.datasources.documents import Document, content_of, read_yaml
from headgate.datasources.stakes import refused_secret
from headgate.errors import HeadgateError, NotFound, Refused
from headgate.store.demo_user import drop_demo_tables, forget_left, held, remove_demo_user, url_of_demo_user

if TYPE_CHECKING:
    from headgate.datasources.registry import Registry
    from headgate.store.database import Database

ACTOR = "demo"
SECRET = "demo-database"
OWN = "own-database"  # What people's own sinks in this database are given: it is of the same user.
STATUS = "demo-status"
LOOK_S = 0.5
PATIENCE_S = 300.0  # Streams stop within seconds, and are purged every half minute.

log = structlog.get_logger()


def demo_text() -> str:
    """The demo's document."""
    return resources.files("headgate").joinpath("demo.yaml").read_text("utf-8")


def documents_for(node: str) -> dict[str, Document]:
    """The demo's datasources, one of which asks the node at this address. One with a certificate that nobody knows
    is not asked."""
    found = dict(read_yaml(demo_text(), "demo.yaml"))
    asking = found.pop(STATUS)
    if node.startswith("http://"):
        source: dict[str, Any] = {**asking.content.source, "url": f"{node}/healthz"}
        content = content_of(source, asking.content.mapping, asking.content.sink, asking.content.options)
        found[STATUS] = replace(asking, content=content)
    return found


async def load_demo(registry: Registry, url: str, node: str, broker: str | None = None) -> None:
    """Load what is absent. What says where the node or the broker is, is told where that is now."""
    found = await registry.secrets.read([SECRET, OWN])
    known = [found.get(SECRET), found.get(OWN)]
    installation = await registry.datasources.installation()
    url = await url_of_demo_user(url, installation, known)
    if found.get(SECRET) != url:
        await registry.set_secret(SECRET, url, ACTOR)
    documents, again = documents_for(node), {STATUS}
    more = await demo_broker.usable(registry, broker, installation, {SECRET: url}, ACTOR) if broker is not None else {}
    if broker is not None and more:
        secret = demo_broker.broker_of(broker).secret
        if (await registry.secrets.read([secret])).get(secret) != broker:
            await registry.set_secret(secret, broker, ACTOR)
        documents, again = {**documents, **more}, {*again, *more}
    present = {found.name for found in await registry.datasources.all()}
    ours = again.intersection(await made_by_demo(registry))
    wanted = {name: one for name, one in documents.items() if name not in present or name in ours}
    await registry.adopt(wanted, ACTOR, is_admin=True)


def names() -> list[str]:
    """Of all the demo's datasources."""
    return [*read_yaml(demo_text(), "demo.yaml"), demo_broker.WRITES, demo_broker.READS]


async def made_by_demo(registry: Registry) -> list[str]:
    """Those of the demo's datasources that nobody else has changed."""
    found = []
    for name in names():
        datasource = await registry.datasources.find(name)
        if datasource is None:
            continue
        published = await registry.datasources.version(datasource.id, datasource.published_version)
        draft = await registry.datasources.draft(datasource.id)
        if draft is None and published is not None and published.author == ACTOR:
            found.append(name)
    return found


async def unload_demo(registry: Registry, database: Database, url: str) -> None:
    """Remove what the demo has made: its datasources, and, if nobody else uses them, its secrets, tables and user."""
    for name in await made_by_demo(registry):
        if name == demo_broker.WRITES:
            await _tell_what_stays(registry)
        await registry.delete(name, ACTOR, yes=True)
    async with registry.datasources.change(ACTOR) as change:
        others = [user for user in await change.secret_users(SECRET) if user.status != "deleted"]
    if others:
        raise refused_secret(SECRET, others)
    async with asyncio.timeout(PATIENCE_S):
        while await held(database, names()):
            await asyncio.sleep(LOOK_S)
    await forget_left(database, [demo_broker.WRITES])  # The broker's position stays, with what was written there.
    installation = await registry.datasources.installation()
    if await registry.secrets.known([OWN]):
        await drop_demo_tables(url, installation)
    elif await remove_demo_user(database, url, installation, names()):
        with contextlib.suppress(NotFound):
            await registry.delete_secret(SECRET, ACTOR, yes=True)
    await _forget_brokers(registry)
    log.info("the demo is removed")


async def _forget_brokers(registry: Registry) -> None:
    """Delete the secrets that the demo has set, but none that something uses."""
    for name in {one.secret for one in demo_broker.brokers()}:
        if any((one.name, one.author) == (name, ACTOR) for one in await registry.secrets.all()):
            try:
                await registry.delete_secret(name, ACTOR)
            except Refused as error:
                log.info("a secret of the demo stays", why=error.message)


async def _tell_what_stays(registry: Registry) -> None:
    datasource = await registry.get(demo_broker.WRITES)
    published = await registry.datasources.version(datasource.id, datasource.published_version)
    if published is not None and (stays := demo_broker.what_stays(published.content.sink)):
        log.info("something of the demo stays in its broker", what=stays)


async def unload_and_tell(registry: Registry, database: Database, url: str) -> None:
    """The same while a node runs: what cannot be removed is said."""
    try:
        await unload_demo(registry, database, url)
    except TimeoutError:
        log.warning("the demo's tables stay: its streams have not stopped in time (headgate up --no-demo tries again)")
    except HeadgateError as error:
        log.warning("the demo is not removed as a whole", error=error.message)
