"""MQTT, against a real Mosquitto: sessions, topics, and what becomes of them in faults.

What is published to be read, and what was written, goes through paho, a client that is not ours.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from headgate.connectors import plugins
from headgate.connectors.api import Outgoing, Progress, Sink, Source, Unreadable
from headgate.connectors.guard import Bound, Guard, OutOfReach
from headgate.connectors.mqtt import client as client_module
from headgate.connectors.mqtt.options import MqttSinkOptions, MqttSourceOptions
from headgate.connectors.mqtt.sink import MqttSink
from headgate.connectors.mqtt.source import MqttSource
from headgate.core.reach import AddressRule, Reach
from headgate.errors import BadRecords, Cause, ConnectorError, NotConnected
from headgate.testing.contract import AckedSourceContract, SinkContract
from headgate.testing.contract.patience import soon
from headgate.testing.factories import make_context, make_grant
from headgate.testing.mosquitto import HOST, Mosquitto, program
from headgate.testing.processes import NodeProcess
from tests.certificates import Authority
from tests.examples_of_docs import datasources_of

COUNT = 40

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    if program() is None:
        pytest.skip("mosquitto is not installed (make packages)")
    with Mosquitto() as broker:
        yield broker


class Peer:
    """Another program that uses the same broker. What it has subscribed to is in `got`."""

    def __init__(self, broker: Mosquitto) -> None:
        self.got: queue.Queue[Any] = queue.Queue()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.on_message = lambda client, data, message: self.got.put(message)
        self._ready: queue.Queue[Any] = queue.Queue()
        self._client.on_subscribe = lambda *said: self._ready.put(said)
        self._client.connect(HOST, broker.port)
        self._client.loop_start()

    def publish(self, topic: str, *bodies: Any, qos: int = 1, retain: bool = False) -> None:
        for body in bodies:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent = self._client.publish(topic, data, qos, retain)
        sent.wait_for_publish(20)

    def subscribe(self, topic: str) -> None:
        self._client.subscribe(topic, 2)
        self._ready.get(timeout=90)

    def taken(self, count: int) -> list[Any]:
        return [self.got.get(timeout=90) for _ in range(count)]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def peer(broker: Mosquitto) -> Iterator[Peer]:
    peer = Peer(broker)
    yield peer
    peer.close()


def topic() -> str:
    return f"t{next(_numbers)}/ä"


def ids(first: int, end: int) -> list[dict[str, int]]:
    return [{"id": id} for id in range(first, end)]


def source_of(broker: Mosquitto, *topics: str, stream: str = "", **options: Any) -> MqttSource:
    url = options.pop("url", broker.url)
    made = MqttSourceOptions(url=url, topics=list(topics), **options)
    return MqttSource(made, make_context(stream or f"s{next(_numbers)}:0"))


def sink_of(broker: Mosquitto, topic: str, **options: Any) -> MqttSink:
    return MqttSink(MqttSinkOptions(url=broker.url, topic=topic, **options), make_context())


async def read(source: Source, count: int) -> list[Any]:
    records: list[Any] = []
    while len(records) < count:
        records += (await soon(source.read())).records
    return records


async def begin(source: MqttSource) -> None:
    """Have a session, so that what is published from here on is kept."""
    await source.open(None)
    await source.close()


# The contract.


class _SourceContract(AckedSourceContract):
    qos = 1
    version = "5"

    @pytest.fixture(autouse=True)
    async def data(self, broker: Mosquitto, peer: Peer) -> None:
        self._broker, self._topic, self._stream = broker, topic(), f"c{next(_numbers)}:0"
        await begin(self.make_source())
        peer.publish(self._topic, *self.expected(), qos=self.qos)

    def make_source(self) -> Any:
        options = {"batch": 7, "qos": self.qos, "version": self.version}
        return source_of(self._broker, self._topic, stream=self._stream, **options)

    def expected(self) -> list[Any]:
        return ids(0, COUNT)


class TestMqttSource(_SourceContract):
    pass


class TestMqttSourceOfQualityTwo(_SourceContract):
    qos = 2


class TestOldMqttSource(_SourceContract):
    version = "3.1.1"

    def expected(self) -> list[Any]:
        return ids(0, 18)  # Of which Mosquitto delivers 20 before they are acknowledged, and asks nobody how many.


class _SinkContract(SinkContract):
    qos = 1
    version = "5"

    @pytest.fixture(autouse=True)
    def place(self, broker: Mosquitto, peer: Peer) -> None:
        self._broker, self._peer, self._topic = broker, peer, topic()
        self._found: list[Any] = []
        peer.subscribe(self._topic)

    def make_sink(self) -> Sink:
        return sink_of(self._broker, self._topic, qos=self.qos, version=self.version)

    async def read_back(self) -> list[dict[str, Any]] | None:
        """Up to a message that is published for this."""
        self._peer.publish(self._topic, b"end", qos=2)
        while (message := await asyncio.to_thread(self._peer.got.get, timeout=90)).payload != b"end":
            self._found.append(json.loads(message.payload))
        return sorted(self._found, key=lambda one: one["id"])


class TestMqttSink(_SinkContract):
    pass


class TestMqttSinkOfQualityTwo(_SinkContract):
    qos = 2


class TestOldMqttSink(_SinkContract):
    version = "3.1.1"


# Reading.


async def test_a_message_is_acknowledged_once_it_is_durable_and_not_before(broker: Mosquitto, peer: Peer) -> None:
    for qos in (1, 2):
        name = topic()
        source = source_of(broker, name, qos=qos)
        await source.open(None)
        peer.publish(name, *ids(0, 3), qos=qos)
        for again in (False, True):
            batches = [await soon(source.read())]
            while sum(len(one.records) for one in batches) < 3:
                batches.append(await soon(source.read()))
            assert (batches[0].meta or [{}])[0]["redelivered"] is again
            if again:
                await source.ack(batches[-1].position)
            await source.close()
            await source.open(batches[-1].position)
        peer.publish(name, {"id": 99}, qos=qos)
        assert await read(source, 1) == [{"id": 99}]
        await source.close()


async def test_what_was_retained_is_marked_and_comes_with_the_first_run_only(broker: Mosquitto, peer: Peer) -> None:
    name = topic()
    peer.publish(name, {"id": 1}, retain=True)
    source = source_of(broker, name)
    await source.open(None)
    first = await soon(source.read())
    assert first.meta == [{"topic": name, "qos": 1, "retained": True, "redelivered": False}]
    assert first.place is not None
    assert first.place(0) == f"topic {name}, message 1 of this session"
    await source.ack(first.position)
    await source.close()
    await source.open(first.position)
    peer.publish(name, {"id": 2})
    second = await soon(source.read())
    assert second.records == [{"id": 2}]
    assert [one["retained"] for one in second.meta or ()] == [False]
    await source.close()


async def test_what_a_message_says_is_seen_by_the_mapping(broker: Mosquitto, peer: Peer) -> None:
    name, properties = topic(), paho.Properties(paho.PacketTypes.PUBLISH)
    properties.ContentType, properties.UserProperty = "application/json", [("a", "1"), ("b", "ä")]
    properties.CorrelationData = b"\xff\x00"
    source = source_of(broker, name)
    await source.open(None)
    peer._client.publish(name, b"{}", 1, properties=properties)
    (meta,) = (await soon(source.read())).meta or ()
    assert meta["properties"] == {"a": "1", "b": "ä"}
    assert (meta["content_type"], meta["correlation"]) == ("application/json", "/wA=")
    await source.close()


async def test_a_message_that_is_broken_or_too_large_is_one_dead_letter(broker: Mosquitto, peer: Peer) -> None:
    name = topic()
    source = source_of(broker, name, max_message_bytes=100_000)
    await source.open(None)
    large = b'"' + b"x" * 500_000 + b'"'
    peer.publish(name, {"id": 0}, b"{", large, b'"' + b"x" * 150_000 + b'"', {"id": 4})
    good, broken, first, second, last = await read(source, 5)
    assert (good, last) == ({"id": 0}, {"id": 4})
    assert broken == Unreadable(b"{", "the body is not JSON")
    assert isinstance(first, Unreadable)
    assert "500,002 bytes" in first.reason
    assert first.body == large[: 64 * 1024]
    assert isinstance(second, Unreadable)
    await source.close()


async def test_much_is_held_back_and_all_of_it_is_read(
    broker: Mosquitto, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "HELD_BYTES", 50_000)
    name, records = topic(), [{"id": id, "text": "x" * 10_000} for id in range(200)]
    source = source_of(broker, name, batch=2)
    await source.open(None)
    peer.publish(name, *records)
    assert (await read(source, 2))[0] == records[0]
    assert source._mqtt is not None
    await asyncio.sleep(0.1)
    assert source._mqtt.held_bytes < 50_000 + 300_000  # What was on its way when the reading stopped.
    assert len(await read(source, 198)) == 198
    await source.close()


async def test_a_newer_run_takes_the_session_over(broker: Mosquitto, peer: Peer) -> None:
    name, stream = topic(), f"s{next(_numbers)}:0"
    old, new = (source_of(broker, name, stream=stream) for _ in range(2))
    await old.open(None)
    peer.publish(name, *ids(0, 2))
    assert await read(old, 2) == ids(0, 2)
    reading = asyncio.ensure_future(old.read())
    await asyncio.sleep(0)
    await new.open(None)
    with pytest.raises(NotConnected, match=r"taken over|closed the connection"):
        await soon(reading)
    assert await read(new, 2) == ids(0, 2)
    await old.close()
    await new.close()


async def test_the_others_of_a_group_share_the_messages(broker: Mosquitto, peer: Peer) -> None:
    name = topic()
    sources = [source_of(broker, f"$share/workers/{name}", stream=f"w{next(_numbers)}:0") for _ in range(2)]
    for source in sources:
        await source.open(None)
    peer.publish(name, *ids(0, 20))
    halves = await asyncio.gather(*(read(source, 10) for source in sources))
    assert sorted(one["id"] for half in halves for one in half) == list(range(20))
    for source in sources:
        await source.close()


async def test_a_filter_that_is_gone_is_ended_in_the_session(broker: Mosquitto, peer: Peer) -> None:
    names, stream = (topic(), topic()), f"s{next(_numbers)}:0"
    source = source_of(broker, *names, stream=stream)
    await source.open(None)
    peer.publish(names[0], {"id": 1})
    batch = await soon(source.read())
    await source.ack(batch.position)
    await source.close()
    other = source_of(broker, names[1], stream=stream)
    await other.open(batch.position)
    peer.publish(names[0], {"id": 2})
    peer.publish(names[1], {"id": 3})
    assert await read(other, 1) == [{"id": 3}]
    await other.close()


# Writing.


async def test_the_topic_comes_from_the_record(broker: Mosquitto, peer: Peer) -> None:
    name = topic()
    peer.subscribe(f"{name}/#")
    sink = sink_of(broker, f"{name}/{{kind}}", retain=True)
    await sink.open(make_grant())
    await soon(sink.write(Outgoing([{"kind": "a"}, {"kind": 7}], Progress(commits=1))))
    assert [one.topic for one in peer.taken(2)] == [f"{name}/a", f"{name}/7"]
    bad = [{"kind": "ok"}, {"kind": "+"}, {"kind": "x\0"}, {}, {"kind": "x" * 70_000}, {"kind": None}]
    with pytest.raises(BadRecords) as caught:
        await soon(sink.write(Outgoing(bad, Progress(commits=2))))
    assert [one.index for one in caught.value.bad] == [1, 2, 3, 4, 5]
    await sink.close()
    late = Peer(broker)
    late.subscribe(f"{name}/a")
    (retained,) = late.taken(1)
    assert retained.retain
    late.close()


async def test_more_than_may_be_in_flight_is_published(broker: Mosquitto, peer: Peer) -> None:
    name = topic()
    peer.subscribe(name)
    sink = sink_of(broker, name)
    await sink.open(make_grant())
    await soon(sink.write(Outgoing(ids(0, 3000), Progress(commits=1))))
    await sink.close()
    assert [json.loads(one.payload) for one in await asyncio.to_thread(peer.taken, 3000)] == ids(0, 3000)


# Mistakes.


async def test_a_wrong_password_and_a_topic_that_is_not_ours_are_told(tmp_path: Path) -> None:
    if program() is None:
        pytest.skip("mosquitto is not installed (make packages)")
    (tmp_path / "acl").write_text("user ada\ntopic readwrite mine/#\n")
    password = "$7$101$c2FsdHNhbHRzYWx0$"  # Nobody's.
    (tmp_path / "users").write_text(f"ada:{password}\n")
    with Mosquitto(f"password_file {tmp_path}/users", "allow_anonymous false") as broker:
        for version in ("5", "3.1.1"):
            url = f"mqtt://ada:s3cret-w0rd@{HOST}:{broker.port}"
            with pytest.raises(ConnectorError) as caught:
                await source_of(broker, "x", url=url, version=version).check()
            assert caught.value.cause is Cause.AUTH
            assert "s3cret" not in str(caught.value)


async def test_a_subscription_that_is_refused_is_a_mistake(tmp_path: Path) -> None:
    if program() is None:
        pytest.skip("mosquitto is not installed (make packages)")
    (tmp_path / "acl").write_text("topic read mine/#\n")
    with Mosquitto("allow_anonymous true", f"acl_file {tmp_path}/acl") as broker:
        source = source_of(broker, "mine/#")
        await source.open(None)
        await source.close()
        sink = sink_of(broker, "theirs")
        await sink.open(make_grant())
        with pytest.raises(ConnectorError, match="may not") as caught:
            await soon(sink.write(Outgoing([{}], Progress(commits=1))))
        assert caught.value.cause is Cause.AUTH
        await sink.close()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"topics": []}, "at least 1"),
        ({"topics": ["a/#/b"]}, "is no filter"),
        ({"topics": ["a+"]}, "is no filter"),
        ({"topics": ["$share/g"]}, "GROUP"),
        ({"topics": [""]}, "is empty"),
        ({"url": "amqp://u:pa55@x"}, "must begin with mqtt://"),
        ({"qos": 0}, "1 or 2"),
    ],
)
def test_options_that_cannot_be_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        MqttSourceOptions(**{"url": "mqtt://u:pa55@x", "topics": ["a"], **wrong})
    assert "pa55" not in str(caught.value)


@pytest.mark.parametrize("wrong", ["a/+", "a#", "", "{", "a\0"])
def test_a_topic_that_cannot_be_published_to_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"topic|stands alone"):
        MqttSinkOptions(url="mqtt://x", topic=wrong)


async def test_a_probe_says_whether_it_answers(broker: Mosquitto) -> None:
    kind = plugins.get("mqtt").source
    assert kind is not None
    assert kind.probe is not None
    await kind.probe(MqttSourceOptions(url=broker.url, topics=["x"]), make_context().guard)
    with pytest.raises(NotConnected):
        await kind.probe(MqttSourceOptions(url=f"mqtt://{HOST}:1", topics=["x"]), make_context().guard)


async def test_tls_is_verified_and_only_what_may_be_reached_is(tmp_path: Path) -> None:
    if program() is None:
        pytest.skip("mosquitto is not installed (make packages)")
    authority = Authority(tmp_path)
    pair = authority.sign("localhost", "localhost")
    with Mosquitto("allow_anonymous true", f"certfile {pair.cert}", f"keyfile {pair.key}") as broker:
        url = f"mqtts://localhost:{broker.port}"
        await source_of(broker, "x", url=f"{url}?cacertfile={authority.file}").check()
        with pytest.raises(ConnectorError, match="certificate") as caught:
            await source_of(broker, "x", url=url).check()
        assert caught.value.cause is Cause.CONFIG
        elsewhere = Guard((Bound(Reach(addresses=(AddressRule(network=None, host="db.example.com"),))),))
        options = MqttSourceOptions(url=broker.url, topics=["x"])
        with pytest.raises(OutOfReach):
            await MqttSource(options, make_context(guard=elsewhere)).check()


# The page.


async def test_the_example_of_the_page_runs(
    broker: Mosquitto, peer: Peer, start_node: Callable[..., NodeProcess], url: str
) -> None:
    node = start_node()
    for name, value in {"mqtt": broker.url, "warehouse": url}.items():
        node.call("PUT", f"/api/secrets/{name}", {"value": value})
    (datasources,) = datasources_of("howto/mqtt.md")
    for one in range(3):
        peer.publish(f"sensors/{one}", {"value": one}, retain=True)
    node.apply(datasources)
    node.wait_for("sensors", lambda found: found["metrics"].get("records_written", 0) == 3)
    connection = await asyncpg.connect(url)
    found = await connection.fetch("SELECT topic, value FROM sensors ORDER BY topic")
    await connection.close()
    assert [tuple(row) for row in found] == [(f"sensors/{one}", one) for one in range(3)]


# Faults.


async def test_a_broker_that_is_killed_and_comes_back_has_lost_nothing(broker: Mosquitto) -> None:
    peer, (name, written) = Peer(broker), (topic(), topic())
    source, reader, sink = source_of(broker, name, batch=5), source_of(broker, written), sink_of(broker, written)
    await source.open(None)
    await begin(reader)
    peer.publish(name, *ids(0, 20))
    first = await soon(source.read())
    await source.ack(first.position)
    await sink.open(make_grant(epoch=1))
    await soon(sink.write(Outgoing(ids(0, 10), Progress(commits=1))))
    broker.save()
    broker.kill()
    peer.close()
    with pytest.raises(NotConnected):
        await read(source, 100)
    with pytest.raises(NotConnected):
        await soon(sink.write(Outgoing(ids(10, 20), Progress(commits=2))))
    await source.close()
    with pytest.raises(NotConnected):
        await source.open(first.position)
    broker.start()
    await source.open(first.position)
    rest = await read(source, 20 - len(first.records))
    assert [one for one in rest if one not in first.records] == ids(len(first.records), 20)
    await source.close()
    await sink.close()
    await sink.open(make_grant(epoch=2))
    await soon(sink.write(Outgoing(ids(10, 20), Progress(commits=2))))
    await sink.close()
    await reader.open(None)
    assert await read(reader, 20) == ids(0, 20)
    await reader.close()
