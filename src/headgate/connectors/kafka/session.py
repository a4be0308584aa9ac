"""What all clients of a cluster share: their settings, a thread for calls that wait, and questions to the cluster.

librdkafka connects by itself, to the brokers that are named and to those which these name. It takes no socket of ours.
So where addresses are judged, the cluster is first asked for its brokers, which it answers through one that is named,
and every one of them is judged before a client may use them. A file of TLS is read through the guard, and handed over
as text.
"""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from headgate.connectors.api import Context
from headgate.connectors.guard import Guard
from headgate.connectors.kafka import options as kafka_options
from headgate.connectors.kafka.errors import meaning, steer_worker, weight
from headgate.errors import Cause, ConnectorError, NotConnected

T = TypeVar("T")

ASK_S = 10.0  # For an answer of the cluster.
DESCRIBE_S = 3.0  # For the id and the settings of a topic. A cluster that does not tell them is used without.
SLICE_S = 0.2  # Of a wait in a thread: a close waits no longer.
NEAR = 3

_silent = logging.getLogger("headgate.connectors.kafka.client")  # What matters of it comes as errors, too.
_silent.disabled = True


def settings(options: kafka_options.Cluster, guard: Guard) -> dict[str, Any]:
    """Of every client: where the brokers are, and how to authenticate."""
    found: dict[str, Any] = {
        "bootstrap.servers": ",".join(one.strip() for one in options.brokers.split(",")),
        "client.id": "headgate",
        "logger": _silent,
        "log.connection.close": False,
        "enable.metrics.push": False,
        "socket.keepalive.enable": True,
        "reconnect.backoff.max.ms": 2000,
    }
    protocol = "SSL" if options.uses_tls else "PLAINTEXT"
    if options.sasl is not None:
        protocol = f"SASL_{protocol}"
        found["sasl.mechanism"] = options.sasl.mechanism
        found["sasl.username"] = options.sasl.username
        found["sasl.password"] = options.sasl.password.get_secret_value()
    if isinstance(options.tls, kafka_options.Tls):
        found |= _tls(options.tls, guard)
    return found | {"security.protocol": protocol}


def _tls(tls: kafka_options.Tls, guard: Guard) -> dict[str, Any]:
    names = {"ssl.ca.pem": tls.ca, "ssl.certificate.pem": tls.certificate, "ssl.key.pem": tls.key}
    found: dict[str, Any] = {name: _text_of(path, guard) for name, path in names.items() if path is not None}
    if tls.key_password is not None:
        found["ssl.key.password"] = tls.key_password.get_secret_value()
    if not tls.verify:
        found |= {"enable.ssl.certificate.verification": False, "ssl.endpoint.identification.algorithm": "none"}
    return found


def _text_of(path: str, guard: Guard) -> str:
    try:
        with os.fdopen(guard.open(path)) as file:
            return file.read(1_000_000)
    except (OSError, UnicodeDecodeError):
        raise ConnectorError(f"{path} cannot be read", cause=Cause.CONFIG) from None


class Work:
    """A thread in which one client is used: its calls wait, one after another.

    A call that is cancelled while it runs goes on to its end, so it must keep what it took where the next one finds it.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._is_ended = False

    async def do(self, work: Callable[..., T], *args: Any) -> T:
        """Its result."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    async def end(self, work: Callable[[], None]) -> None:
        """The last call, once. It is made whether or not this is cancelled."""
        if not self._is_ended:
            self._is_ended = True
            last = self._thread.submit(work)
            self._thread.shutdown(wait=False)
            await asyncio.shield(asyncio.wrap_future(last))


def patiently(ask: Callable[[], T], within_s: float = ASK_S) -> T:
    """What a call answers that waits. A partition that is new, or moves, has no leader for a moment."""
    ends_s = time.monotonic() + within_s
    while True:
        try:
            return ask()
        except KafkaException as error:
            if time.monotonic() > ends_s or not _passes(error.args[0]):
                raise
            time.sleep(0.05)


def _passes(error: KafkaError) -> bool:
    return error.retriable() or error.code() in _PASSING


_PASSING = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._WAIT_COORD,
}


class Faults:
    """What a client has reported from the background, of that which ends a run: the error that tells most."""

    def __init__(self) -> None:
        self.worst: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """The client's callback."""
        if weight(error) > weight(self.worst):
            self.worst = error

    def check(self, where: str) -> None:
        """Raise it."""
        if self.worst is not None:
            raise meaning(self.worst, where)


@dataclass(frozen=True, slots=True)
class Topic:
    """What the cluster says of a topic."""

    name: str
    partitions: int
    id: str | None  # None: this cluster knows no ids of topics.


class ClusterSession:
    """Questions to a cluster, shared by all streams of this node that use it."""

    def __init__(self, options: kafka_options.Cluster, guard: Guard) -> None:
        self.where = f"at {options.brokers}"
        self._guard = guard
        self._named = options.addresses
        self._faults = Faults()
        with steer_worker(self.where):
            config = settings(options, guard) | {"error_cb": self._faults}
            self._admin = AdminClient(config)
            # Only a consumer's questions make no topic.
            group = {"group.id": "headgate", "allow.auto.create.topics": False}
            self._consumer: Consumer | None = Consumer(config | group)
        self._work = Work("kafka")
        self._describes = True
        self._id: str | None = None

    async def open(self) -> ClusterSession:
        """See who the brokers are, and that all of them may be reached."""
        try:
            await self._judge(self._named)
            self._id = (await self._ask()).cluster_id
        except BaseException:
            await self.close()
            raise
        return self

    async def _judge(self, brokers: Iterable[tuple[str, int]]) -> None:
        if self._guard.judges_addresses:
            for host, port in brokers:
                with suppress(OSError):  # A name that is not known here is not reached, either.
                    await self._guard.resolve(host, port)

    async def _ask(self, topic: str | None = None) -> Any:
        """What the cluster says of a topic or of all; and whether its brokers are still those that may be reached."""
        found = await self._work.do(self._metadata, topic)
        await self._judge((broker.host, broker.port) for broker in found.brokers.values())
        return found

    def _metadata(self, topic: str | None) -> Any:
        """What a broker answers; an error that a client reports meanwhile comes sooner than a timeout."""
        consumer = self._consumer
        assert consumer is not None

        def ask() -> Any:
            try:
                return consumer.list_topics(timeout=1.0) if topic is None else consumer.list_topics(topic, timeout=1.0)
            except KafkaException:
                consumer.poll(0)  # It calls what was told about errors.
                self._faults.check(self.where)
                raise

        consumer.poll(0)
        self._faults.worst = None  # A connection that was idle for long may have been closed.
        with steer_worker(self.where):
            return patiently(ask)

    @property
    def id(self) -> str | None:
        """Of the cluster."""
        return self._id

    async def topic(self, name: str) -> Topic:
        """What is known of a topic. It is an error that it does not exist."""
        found = (await self._ask(name)).topics[name]
        if found.error is not None and found.error.code() != KafkaError.LEADER_NOT_AVAILABLE:
            if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise await self._unknown(name)
            raise meaning(found.error, self.where)
        if not found.partitions:
            raise NotConnected(f"Kafka {self.where}: topic {name} has no partitions yet")
        return Topic(name, len(found.partitions), await self._topic_id(name))

    async def exists(self, name: str) -> bool:
        """Whether there is such a topic."""
        found = (await self._ask(name)).topics[name]
        return bool(found.partitions) or found.error is None or found.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART

    async def _unknown(self, name: str) -> ConnectorError:
        names = [one for one in (await self._ask()).topics if not one.startswith("__")]
        near = difflib.get_close_matches(name, sorted(names), n=NEAR)
        hint = f"did you mean {' or '.join(near)}?" if near else "make it, or name another"
        return ConnectorError(f"Kafka {self.where}: topic {name} does not exist", cause=Cause.CONFIG, hint=hint)

    async def _topic_id(self, name: str) -> str | None:
        topics = TopicCollection([name])
        described = await self._described(lambda admin: admin.describe_topics(topics, request_timeout=DESCRIBE_S)[name])
        found = "" if described is None else str(described.topic_id)
        return found if found.strip("A") else None

    async def _described(self, ask: Callable[[AdminClient], Future[Any]]) -> Any:
        """What the cluster says; None: it does not answer such questions, or not to us."""
        if not self._describes:
            return None
        try:
            return await asyncio.wrap_future(ask(self._admin))
        except KafkaException as error:
            self._describes = error.args[0].code() != KafkaError._TIMED_OUT
            return None

    async def end_of(self, topic: str, partition: int) -> int:
        """The offset after the last record, of open and ended transactions alike."""
        place, all = {TopicPartition(topic, partition): OffsetSpec.latest()}, IsolationLevel.READ_UNCOMMITTED  # type: ignore[no-untyped-call]

        def ask() -> int:
            [asked] = self._admin.list_offsets(place, isolation_level=all, request_timeout=ASK_S).values()
            return int(asked.result().offset)

        with steer_worker(self.where):
            return await self._work.do(patiently, ask)

    async def config_of(self, topic: str) -> dict[str, str] | None:
        """How a topic is set up; None: we may not know."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found = await self._described(
            lambda admin: admin.describe_configs([resource], request_timeout=DESCRIBE_S)[resource]
        )
        return None if found is None else {name: entry.value for name, entry in found.items()}

    async def make_topic(self, name: str, partitions: int, config: dict[str, str]) -> None:
        """Make it, unless somebody else just did."""
        wanted = NewTopic(name, partitions, -1, config=config)
        try:
            asked = self._admin.create_topics([wanted], operation_timeout=ASK_S, request_timeout=ASK_S)[name]
            await asyncio.wrap_future(asked)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise meaning(error.args[0], self.where) from None
        ends_s = time.monotonic() + ASK_S
        while not await self.exists(name):  # The broker that is asked may not have heard of it yet.
            if time.monotonic() > ends_s:
                raise NotConnected(f"Kafka {self.where}: topic {name} was made, and is not there")
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """End both clients, which wait for their threads."""
        consumer, self._consumer = self._consumer, None

        def end() -> None:
            if consumer is not None:
                consumer.close()
                del self._admin

        await self._work.end(end)

    def terminate(self) -> None:
        """It is left to its threads."""


class UsesCluster:
    """A source or sink that asks a cluster, through a session that others of its node use, too."""

    def __init__(self, options: kafka_options.Cluster, context: Context) -> None:
        self._cluster_options = options
        self._guard = context.guard
        self._shared = context.shared
        self._share = "kafka " + hashlib.sha256(f"{_names(options)} {context.guard}".encode()).hexdigest()
        self._held: ClusterSession | None = None

    async def _cluster(self) -> ClusterSession:
        if self._held is None:
            self._held = await self._shared.get(self._share, self._make_session)
        return self._held

    async def _make_session(self) -> ClusterSession:
        return await ClusterSession(self._cluster_options, self._guard).open()

    async def _leave_cluster(self) -> None:
        if self._held is not None:
            self._held = None
            await self._shared.give_back(self._share)

    async def mark(self) -> str | None:
        """The id of the cluster: it is the same at whatever address."""
        was_held = self._held is not None
        try:
            return (await self._cluster()).id
        finally:
            if not was_held:
                await self._leave_cluster()


def _names(options: kafka_options.Cluster) -> list[str]:
    """All by which a session differs from others, with its secrets."""
    sasl, tls = options.sasl, options.tls
    found = [options.brokers, repr(sasl), repr(tls)]
    secrets = [
        None if sasl is None else sasl.password,
        tls.key_password if isinstance(tls, kafka_options.Tls) else None,
    ]
    return found + ["" if one is None else one.get_secret_value() for one in secrets]
