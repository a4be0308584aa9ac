"""The broker of the demo: made-up orders go into it, and come back into a table.

Nothing is written into a broker that merely happens to be there: `--demo-broker URL` names it. The URL becomes a
secret, and what is loaded stays until the demo is removed. A broker that cannot be used costs the demo its own two
datasources only, and one line says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any
from uuid import UUID

import structlog

from headgate.clock import unix_s
from headgate.connectors.api import Context
from headgate.datasources.documents import Document, content_of, read_yaml
from headgate.datasources.prepared import prepare
from headgate.datasources.registry import Registry
from headgate.errors import ConfigError
from headgate.hidden import remember
from headgate.runtime.streams import sides
from headgate.runtime.streams.shared import SharedThings

NAME = "headgate-demo"  # Of the stream, topic or queue.
FILE = "demo_broker.yaml"
WRITES, READS = "demo-to-broker", "demo-from-broker"
CHECK_S = 15.0  # The rest of the demo waits for it.

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Broker:
    """A kind of broker: how it is read and written, and what stays in it."""

    schemes: tuple[str, ...]
    source: Mapping[str, Any]
    sink: Mapping[str, Any]
    stays: str
    before: str = ""  # What has to be there first: Headgate declares nothing.

    @property
    def type(self) -> str:
        """Of its connector."""
        return str(self.source["type"])

    @property
    def secret(self) -> str:
        """Of its URL. Not one for all: a version that runs must not be given the URL of another kind."""
        return f"demo-{self.type}"


def brokers() -> list[Broker]:
    """All that the demo can show. The document is written for the first."""
    written = read_yaml(demo_text(), FILE)
    source, sink = written[READS].content.source, written[WRITES].content.sink
    exchange = {"type": "rabbitmq", "queue": NAME}
    jetstream = {"type": "nats", "stream": NAME}
    return [
        Broker(("redis", "rediss"), source, sink, f"the stream {NAME}, and a position next to it"),
        Broker(
            ("mqtt", "mqtts"),
            {"type": "mqtt", "topics": [NAME]},
            {"type": "mqtt", "topic": NAME},
            "the session of the reader, for a week",
        ),
        Broker(("amqp", "amqps"), exchange, exchange, f"the queue {NAME}", f"a durable queue {NAME}"),
        Broker(
            ("nats",),
            {**jetstream, "missing": "go_on"},
            {**jetstream, "subject": NAME, "exactly_once": False},
            f"the stream {NAME}",
            f"nats stream add {NAME} --subjects {NAME} --defaults",
        ),
    ]


def demo_text() -> str:
    """The document."""
    return resources.files("headgate").joinpath(FILE).read_text("utf-8")


def broker_of(url: str) -> Broker:
    """What kind of broker is at this URL. Raises ConfigError, without the URL."""
    scheme, known = url.partition("://")[0], brokers()
    for one in known:
        if scheme in one.schemes:
            return one
    schemes = ", ".join(f"{scheme}://" for one in known for scheme in one.schemes)
    raise ConfigError(f"--demo-broker must begin with one of {schemes}")


def documents_of(broker: Broker, installation: UUID) -> dict[str, Document]:
    """The two datasources, for this kind of broker."""
    url = {"url": {"$secret": broker.secret}}
    source, sink = {**broker.source, **url}, {**broker.sink, **url}
    if broker.type == "mqtt":  # Of two clients with one name the broker ends the older.
        source["client_id"] = f"{NAME}-{installation.hex[:8]}"
    found = dict(read_yaml(demo_text(), FILE))
    reads, writes = found[READS].content, found[WRITES].content
    found[READS] = replace(found[READS], content=content_of(source, reads.mapping, reads.sink, reads.options))
    found[WRITES] = replace(found[WRITES], content=content_of(writes.source, writes.mapping, sink, writes.options))
    return found


async def usable(
    registry: Registry, url: str, installation: UUID, secrets: Mapping[str, str], actor: str
) -> dict[str, Document]:
    """The datasources of the broker at this URL, if it answers and has what they need. Else none, and a line says
    why."""
    remember(url)
    more = {}
    try:
        broker = broker_of(url)
        if broker.before:
            more["needs"] = broker.before
        await _keep_off(registry, broker.secret, actor)
        found = documents_of(broker, installation)
        async with asyncio.timeout(CHECK_S):
            for document in found.values():
                await _check(registry, document, {**secrets, broker.secret: url})
    except TimeoutError:
        why = f"it does not answer within {CHECK_S:.0f} s"
    except Exception as error:
        why = sides.failure_of(error).message
    else:
        return found
    log.warning("the demo goes without its broker", why=why, **more)
    return {}


async def _keep_off(registry: Registry, secret: str, actor: str) -> None:
    """A secret of this name that somebody else has set stays."""
    if any(one.name == secret and one.author != actor for one in await registry.secrets.all()):
        raise ConfigError(f"the secret {secret}, which would have its URL, is somebody else's")


async def _check(registry: Registry, document: Document, secrets: Mapping[str, str]) -> None:
    """What a node asks before it runs a version."""
    prepared = prepare(document.content, dict(secrets))
    guarded = (await registry.reaching()).guarded(prepared, document.content, is_trusted=True)
    await sides.check(guarded, Context(document.name, log, unix_s, SharedThings()))


def what_stays(document: Mapping[str, Any]) -> str:
    """What the sink with these options leaves in its broker."""
    return next((one.stays for one in brokers() if one.type == document.get("type")), "")
