"""Publishes to topics with quality 1 or 2, and waits until the broker has everything. At least once.

The client is named after the stream, so the broker ends the connection of an older run when a newer one logs in. A
message that nobody subscribes to is no error in MQTT: who wants it must have a session, or it must be retained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.connectors.api import Context, Grant, Outgoing, Progress
from headgate.connectors.confirmed import Confirmed
from headgate.connectors.mqtt import packets
from headgate.connectors.mqtt.client import Login, Mqtt, connected, error_of
from headgate.connectors.mqtt.options import MqttSinkOptions, address_of, wrong_topic
from headgate.connectors.payloads import encoded
from headgate.connectors.templates import Template
from headgate.errors import Bad, BadRecords, Cause, ConnectorError, Fenced, RetryLater

IN_FLIGHT = 1000  # Messages that are not acknowledged, if the broker allows as many.
BUSY_S = 1.0
_QUOTA, _BAD_TOPIC, _BAD_PAYLOAD, _TOO_LARGE = 0x97, 0x90, 0x99, 0x95
_BAD = {_BAD_TOPIC: "its topic", _BAD_PAYLOAD: "what it has", _TOO_LARGE: "its size"}


class MqttSink:
    """Publishes one stream."""

    def __init__(self, options: MqttSinkOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._topic = Template(options.topic)
        self._mqtt: Mqtt | None = None
        self._grant: Grant | None = None
        self._done = Confirmed()
        self._waiting: dict[int, int] = {}  # By their ids, the indexes of records that are not acknowledged.
        self._records: Sequence[Any] = ()
        self._refused: dict[int, int] = {}  # Index of a record to the broker's code.

    async def check(self) -> None:
        """Log in under no name."""
        mqtt = await self._connect("")
        await mqtt.close()

    async def open(self, grant: Grant) -> Progress | None:
        """Log in. An older run's connection ends by that."""
        self._grant = grant
        self._mqtt = await self._connect(f"hg-{grant.stream.hex[:20]}")
        self._mqtt.confirmed = self._on_confirmed
        return None

    async def write(self, batch: Outgoing) -> None:
        """Publish, and wait for all acknowledgements."""
        mqtt, grant, options = self._mqtt, self._grant, self._options
        assert mqtt is not None, "the sink is open"
        assert grant is not None
        if grant.trust_left_s() <= 0:
            raise Fenced("the right to publish has ended")
        self._done.begin(batch.progress.commits)
        bodies, topics = encoded(batch.records, options.format), self._topics(batch.records)
        most = mqtt.limits.get(packets.MAXIMUM_BYTES, 256 * 2**20)
        self._check_sizes(bodies, topics, most)
        in_flight = min(mqtt.limits.get(packets.RECEIVE_MAXIMUM, IN_FLIGHT), IN_FLIGHT)
        self._records, self._waiting, self._refused = batch.records, {}, {}
        for index, (topic, body) in enumerate(zip(topics, bodies, strict=True)):
            if batch.records[index] in self._done:
                continue
            while len(self._waiting) >= in_flight:
                await mqtt.wait_for_more()
            id = mqtt.next_id()
            self._waiting[id] = index
            mqtt.send(packets.message(topic, id, options.qos, body, retain=options.retain, is_5=mqtt.is_5))
            await mqtt.drain()
        while self._waiting:
            await mqtt.wait_for_more()
        self._tell_refused(mqtt)

    def _topics(self, records: Sequence[dict[str, Any]]) -> list[str]:
        topics, bad = [], []
        for index, record in enumerate(records):
            try:
                topics.append(self._topic.of(record))
                wrong = wrong_topic(topics[-1])
                topics[-1].encode()
            except UnicodeEncodeError:
                wrong = "the topic is not valid Unicode"
            except ValueError as error:
                wrong = str(error)
            if wrong is not None:
                bad.append(Bad(index, "topic", wrong))
        if bad:
            raise BadRecords(bad)
        return topics

    def _check_sizes(self, bodies: Sequence[bytes], topics: Sequence[str], most: int) -> None:
        sizes = [len(body) + len(topic.encode()) + 16 for body, topic in zip(bodies, topics, strict=True)]
        bad = [Bad(index, None, f"the broker takes {most:,} bytes") for index, one in enumerate(sizes) if one > most]
        if bad:
            raise BadRecords(bad)

    def _on_confirmed(self, id: int, code: int) -> None:
        index = self._waiting.pop(id, None)
        if index is None:
            return
        if code >= 0x80:
            self._refused[index] = code
        else:
            self._done.add(self._records[index])

    def _tell_refused(self, mqtt: Mqtt) -> None:
        """The others are acknowledged, and not sent again with this batch."""
        codes = set(self._refused.values())
        if _QUOTA in codes:
            raise RetryLater(f"{mqtt.name} says that a quota is exceeded", after_s=BUSY_S)
        if others := codes - set(_BAD):
            raise error_of(mqtt.name, min(others), "publishing")
        if codes:
            raise BadRecords(
                [Bad(index, None, f"the broker refuses {_BAD[code]}") for index, code in sorted(self._refused.items())]
            )

    async def close(self) -> None:
        """End the connection."""
        mqtt, self._mqtt = self._mqtt, None
        if mqtt is not None:
            await mqtt.close()

    async def _connect(self, client_id: str) -> Mqtt:
        login = Login(client_id, self._options.version == "5", is_clean=True)
        mqtt = await connected(address_of(self._options.url), self._context.guard, login)
        if mqtt.limits.get(packets.MAXIMUM_QOS, 2) < self._options.qos:
            await mqtt.close()
            raise ConnectorError(f"{mqtt.name} does not take qos {self._options.qos}", cause=Cause.CONFIG)
        if self._options.retain and not mqtt.limits.get(packets.RETAIN_AVAILABLE, 1):
            await mqtt.close()
            raise ConnectorError(f"{mqtt.name} retains nothing", cause=Cause.CONFIG, hint="retain: false")
        return mqtt
