"""RabbitMQ, against a real server: queues, exchanges, streams and super streams, and what becomes of them in faults.

What is published to be read, and what was written, goes through pika, a client that is not ours.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import pika
import pytest
from pydantic import SecretStr

from headgate.connectors import plugins
from headgate.connectors.api import Outgoing, Progress, Sink, Source, Totals, Unreadable
from headgate.connectors.rabbitmq import amqp as amqp_module
from headgate.connectors.rabbitmq import streams as streams_module
from headgate.connectors.rabbitmq.exchange_sink import ExchangeSink
from headgate.connectors.rabbitmq.options import RabbitmqSinkOptions, RabbitmqSourceOptions, stream_address
from headgate.connectors.rabbitmq.queue_source import QueueSource
from headgate.connectors.rabbitmq.stream_sink import StreamSink
from headgate.connectors.rabbitmq.stream_source import StreamSource
from headgate.errors import BadRecords, Cause, ConnectorError, Fenced, NotConnected, RetryLater
from headgate.testing.contract import AckedSourceContract, SinkContract, SourceContract, SourceInPartsContract
from headgate.testing.contract.patience import soon
from headgate.testing.factories import make_context, make_grant
from headgate.testing.processes import NodeProcess
from headgate.testing.rabbitmq import RabbitMq, is_installed
from tests.examples_of_docs import datasources_of
from tests.waiting import until

COUNT = 40
STREAM = {"x-queue-type": "stream"}

_numbers = itertools.count()


@pytest.fixture(scope="module")
def rabbit() -> Iterator[RabbitMq]:
    if not is_installed():
        pytest.skip("rabbitmq-server is not installed (make packages)")
    with RabbitMq() as rabbit:
        yield rabbit


class Peer:
    """Another program that uses the same server."""

    def __init__(self, rabbit: RabbitMq, vhost: str = "/") -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(rabbit.url(vhost)))
        self.channel = self._connection.channel()
        self.channel.confirm_delivery()

    def declare(self, kind: dict[str, Any] | None = None, **more: Any) -> str:
        """A new durable queue, or a stream."""
        name = f"q{next(_numbers)} ä"
        self.channel.queue_declare(name, durable=True, arguments=kind or {}, **more)
        return name

    def publish(self, queue: str, *bodies: Any, exchange: str = "", **properties: Any) -> None:
        for body in bodies:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.channel.basic_publish(exchange, queue, data, pika.BasicProperties(**properties), mandatory=True)

    def queued(self, queue: str) -> list[Any]:
        """What is ready in a queue. It stays there."""
        found = []
        while (got := self.channel.basic_get(queue))[0] is not None:
            found.append(json.loads(got[2]))
            tag = got[0].delivery_tag
        if found:
            self.channel.basic_nack(tag, multiple=True, requeue=True)
        return found

    def streamed(self, stream: str) -> list[Any]:
        """All that a stream has, up to a message that is published for this."""
        end = {"end": next(_numbers)}
        self.publish(stream, end)
        found = []
        channel = self._connection.channel()
        channel.basic_qos(prefetch_count=1000)
        for method, _, body in channel.consume(stream, arguments={"x-stream-offset": "first"}, inactivity_timeout=90):
            assert method is not None, f"only {found}"
            channel.basic_ack(method.delivery_tag)
            if json.loads(body) == end:
                break
            found.append(json.loads(body))
        channel.close()
        return [one for one in found if "end" not in one]

    def close(self) -> None:
        with suppress(pika.exceptions.AMQPError):
            self._connection.close()


@pytest.fixture
def peer(rabbit: RabbitMq) -> Iterator[Peer]:
    peer = Peer(rabbit)
    yield peer
    peer.close()


def source_of(rabbit: RabbitMq, **options: Any) -> Any:
    url = options.pop("url", None) or (rabbit.url() if "queue" in options else rabbit.stream_url())
    part = options.pop("part", "")
    made = RabbitmqSourceOptions(url=url, **options)
    return (QueueSource if made.queue else StreamSource)(made, make_context(part=part))


def sink_of(rabbit: RabbitMq, **options: Any) -> Any:
    url = options.pop("url", None) or (rabbit.stream_url() if "stream" in options else rabbit.url())
    made = RabbitmqSinkOptions(url=url, **options)
    return (StreamSink if made.stream else ExchangeSink)(made, make_context())


def outgoing(first: int, end: int, commits: int = 1, written: int | None = None) -> Outgoing:
    records = [{"id": id} for id in range(first, end)]
    totals = Totals(read=0, written=end if written is None else written)
    return Outgoing(records, Progress(commits=commits, position=end, totals=totals))


def ids(first: int, end: int) -> list[dict[str, int]]:
    return [{"id": id} for id in range(first, end)]


def super_stream(peer: Peer, name: str) -> None:
    """With three partitions, as RabbitMQ's own tools make one."""
    peer.channel.exchange_declare(name, durable=True, arguments={"x-super-stream": True})
    for order in range(3):
        peer.channel.queue_declare(f"{name}-{order}", durable=True, arguments=STREAM)
        peer.channel.queue_bind(f"{name}-{order}", name, str(order), arguments={"x-stream-partition-order": order})


async def read(source: Source, count: int) -> list[Any]:
    records: list[Any] = []
    while len(records) < count:
        records += (await soon(source.read())).records
    return records


# The contract.


class TestRabbitmqQueueSource(AckedSourceContract):
    """A durable queue, seven messages at a time."""

    @pytest.fixture(autouse=True)
    def data(self, rabbit: RabbitMq, peer: Peer) -> None:
        self._rabbit, self._queue = rabbit, peer.declare()
        peer.publish(self._queue, *self.expected())

    def make_source(self) -> Source:
        return source_of(self._rabbit, queue=self._queue, batch=7)

    def expected(self) -> list[Any]:
        return ids(0, COUNT)


class TestRabbitmqStreamSource(SourceContract):
    """A stream, seven messages at a time."""

    ends = False

    @pytest.fixture(autouse=True)
    def data(self, rabbit: RabbitMq, peer: Peer) -> None:
        self._rabbit, self._stream = rabbit, peer.declare(STREAM)
        peer.publish(self._stream, *self.expected())

    def make_source(self) -> Source:
        return source_of(self._rabbit, stream=self._stream, batch=7)

    def expected(self) -> list[Any]:
        return ids(0, COUNT)


class TestRabbitmqSuperStreamSource(SourceInPartsContract):
    """Three partitions, which are streams."""

    ends = False

    @pytest.fixture(autouse=True)
    def data(self, rabbit: RabbitMq, peer: Peer) -> None:
        self._rabbit, self._name = rabbit, f"super{next(_numbers)}"
        super_stream(peer, self._name)
        for part, records in self.expected_parts().items():
            peer.publish(part, *records)

    def make_part(self, part: str) -> Source:
        return source_of(self._rabbit, super_stream=self._name, part=part, batch=7)

    def expected_parts(self) -> dict[str, list[Any]]:
        return {f"{self._name}-{order}": ids(100 * order, 100 * order + 16) for order in range(3)}


class TestRabbitmqQueueSink(SinkContract):
    @pytest.fixture(autouse=True)
    def place(self, rabbit: RabbitMq, peer: Peer) -> None:
        self._rabbit, self._peer, self._queue = rabbit, peer, peer.declare()

    def make_sink(self) -> Sink:
        return sink_of(self._rabbit, queue=self._queue)

    async def read_back(self) -> list[dict[str, Any]] | None:
        return sorted(self._peer.queued(self._queue), key=lambda one: one["id"])


class TestRabbitmqStreamSink(SinkContract):
    @pytest.fixture(autouse=True)
    def place(self, rabbit: RabbitMq, peer: Peer) -> None:
        self._rabbit, self._peer, self._stream = rabbit, peer, peer.declare(STREAM)

    def make_sink(self) -> Sink:
        return sink_of(self._rabbit, stream=self._stream)

    async def read_back(self) -> list[dict[str, Any]] | None:
        return sorted(self._peer.streamed(self._stream), key=lambda one: one["id"])


# Reading.


async def test_what_a_message_says_is_seen_by_the_mapping_whichever_way_it_came(rabbit: RabbitMq, peer: Peer) -> None:
    queue, stream = peer.declare(), peer.declare(STREAM)
    for name in (queue, stream):
        peer.publish(name, {"id": 1}, headers={"a": 1, "b": ["x", None]}, message_id="m-1", timestamp=1_700_000_000)
    sources = source_of(rabbit, queue=queue), source_of(rabbit, stream=stream)
    found = []
    for source in sources:
        await source.open(None)
        found.append(await soon(source.read()))
        await source.close()
    of_queue, of_stream = (batch.meta[0] for batch in found)
    assert of_queue["headers"] == {"a": 1, "b": ["x", None]}
    assert of_queue["message_id"] == of_stream["message_id"] == "m-1"
    assert (of_queue["routing_key"], of_queue["redelivered"]) == (queue, False)
    assert of_stream["headers"]["a"] == 1
    assert (of_stream["stream"], of_stream["offset"]) == (stream, 0)
    assert found[0].event_time_s == 1_700_000_000
    assert found[0].place(0) == f"queue {queue}, delivery 1"
    assert found[1].place(0) == f"stream {stream}, offset 0"


async def test_redeliveries_are_counted_where_the_queue_counts_them(rabbit: RabbitMq, peer: Peer) -> None:
    for kind, counts in (({"x-queue-type": "quorum"}, [0, 1, 2]), ({}, [0, 1, 1])):
        queue = peer.declare(kind)
        peer.publish(queue, {"id": 1})
        found = []
        for _ in range(3):
            source = source_of(rabbit, queue=queue)
            await source.open(None)
            found.append((await soon(source.read())).meta[0]["redeliveries"])
            await source.close()
        assert found == counts


async def test_a_message_that_is_broken_or_too_large_is_one_dead_letter(rabbit: RabbitMq, peer: Peer) -> None:
    queue, stream = peer.declare(), peer.declare(STREAM)
    bodies = [{"id": 0}, b"{", b'"' + b"x" * 300_000 + b'"', {"id": 3}]
    for name in (queue, stream):
        peer.publish(name, *bodies)
    for source in (
        source_of(rabbit, queue=queue, max_message_bytes=200_000),
        source_of(rabbit, stream=stream, max_message_bytes=200_000),
    ):
        await source.open(None)
        good, broken, large, last = await read(source, 4)
        assert (good, last) == ({"id": 0}, {"id": 3})
        assert broken == Unreadable(b"{", "the body is not JSON")
        assert isinstance(large, Unreadable)
        assert "300,002 bytes" in large.reason
        assert len(large.body) == 64 * 1024
        await source.close()


async def test_a_stream_of_bytes_is_read_raw_and_is_no_amqp(rabbit: RabbitMq, peer: Peer) -> None:
    """Written as some clients do, without a word of AMQP."""
    stream = peer.declare(STREAM)
    address = stream_address(SecretStr(rabbit.stream_url()))
    wire = await streams_module.connected(address, make_context().guard)
    confirmed: list[int] = []
    wire.confirmed = lambda ids, code: confirmed.extend(ids)
    await wire.declare_publisher(stream, "")
    wire.publish([(1, b'{"id": 1}')])
    while not confirmed:
        await soon(wire.wait_for_more())
    await wire.close()
    for encoding in ("raw", "amqp"):
        source = source_of(rabbit, stream=stream, encoding=encoding)
        await source.open(None)
        (record,) = await read(source, 1)
        assert record == {"id": 1} if encoding == "raw" else isinstance(record, Unreadable)
        await source.close()


async def test_much_is_held_back_and_all_of_it_is_read(
    rabbit: RabbitMq, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amqp_module, "HELD_BYTES", 50_000)
    monkeypatch.setattr(streams_module, "HELD_BYTES", 50_000)
    queue, stream = peer.declare(), peer.declare(STREAM)
    records = [{"id": id, "text": "x" * 10_000} for id in range(100)]
    for name in (queue, stream):
        peer.publish(name, *records)
    for source in (source_of(rabbit, queue=queue, batch=2), source_of(rabbit, stream=stream, batch=2)):
        await source.open(None)
        first = await read(source, 2)
        wire = source._amqp if isinstance(source, QueueSource) else source._streams
        held = lambda wire=wire: wire.held_bytes  # noqa: E731
        for _ in range(50):
            await asyncio.sleep(0.01)
            assert held() < 50_000 + 300_000  # What was on its way when the reading stopped.
        assert first + await read(source, len(records) - len(first)) == records
        assert await source.backlog() is not None
        await source.close()


async def test_the_backlog_is_what_waits(rabbit: RabbitMq, peer: Peer) -> None:
    queue, stream = peer.declare(), peer.declare(STREAM)
    for name in (queue, stream):
        peer.publish(name, *ids(0, 20))
    for source in (source_of(rabbit, queue=queue, batch=5, prefetch=7), source_of(rabbit, stream=stream, batch=5)):
        await source.open(None)
        left = 20 - len(await read(source, 5))

        async def is_known(source: Any = source, left: int = left) -> bool:
            found = await soon(source.backlog())
            return found is not None and found.records == left

        await until(is_known)
        await source.close()


async def test_a_queue_that_is_deleted_ends_the_run_and_is_then_a_mistake(rabbit: RabbitMq, peer: Peer) -> None:
    queue = peer.declare()
    source = source_of(rabbit, queue=queue)
    await source.open(None)
    reading = asyncio.ensure_future(source.read())
    await asyncio.sleep(0)
    peer.channel.queue_delete(queue)
    with pytest.raises(NotConnected, match="the queue was deleted"):
        await soon(reading)
    await source.close()
    with pytest.raises(ConnectorError, match="no queue") as caught:
        await source.open(None)
    assert caught.value.cause is Cause.CONFIG
    await source.close()


async def test_a_stream_that_is_deleted_ends_the_run_and_is_then_a_mistake(rabbit: RabbitMq, peer: Peer) -> None:
    stream = peer.declare(STREAM)
    source = source_of(rabbit, stream=stream)
    await source.open(None)
    reading = asyncio.ensure_future(source.read())
    await asyncio.sleep(0)
    peer.channel.queue_delete(stream)
    with pytest.raises(NotConnected, match="deleted"):
        await soon(reading)
    await source.close()
    with pytest.raises(ConnectorError, match="does not exist") as caught:
        await source.open(None)
    assert caught.value.cause is Cause.CONFIG
    await source.close()


async def test_an_exclusive_queue_of_somebody_else_is_a_mistake(rabbit: RabbitMq, peer: Peer) -> None:
    queue = f"x{next(_numbers)}"
    peer.channel.queue_declare(queue, exclusive=True)
    with pytest.raises(ConnectorError, match="exclusive") as caught:
        await source_of(rabbit, queue=queue).check()
    assert caught.value.cause is Cause.CONFIG
    assert "exclusive to another connection" in caught.value.hint


@pytest.mark.parametrize("missing", ["fail", "go_on"])
async def test_what_was_removed_before_it_was_read_is_never_passed_silently(
    rabbit: RabbitMq, peer: Peer, missing: str
) -> None:
    stream = peer.declare({**STREAM, "x-max-length-bytes": 100_000, "x-stream-max-segment-size-bytes": 50_000})
    for first in range(0, 100, 10):
        peer.publish(stream, *({"id": id, "text": "x" * 10_000} for id in range(first, first + 10)))
    source = source_of(rabbit, stream=stream, missing=missing)
    try:
        if missing == "fail":
            with pytest.raises(ConnectorError, match="what followed offset 3 was removed; it begins with") as caught:
                await source.open(3)
            assert caught.value.cause is Cause.CONFIG
        else:
            await source.open(3)
            (first, *_) = await read(source, 1)
            assert first["id"] > 3
    finally:
        await source.close()
    whole = source_of(rabbit, stream=stream)  # From nothing on, what is there is all.
    await whole.open(None)
    await read(whole, 1)
    await whole.close()


async def test_a_stream_that_ends_before_the_position_is_another_one(rabbit: RabbitMq, peer: Peer) -> None:
    stream = peer.declare(STREAM)
    for published in (0, 3):
        peer.publish(stream, *ids(0, published))
        source = source_of(rabbit, stream=stream)
        with pytest.raises(ConnectorError, match="it ends before offset 17"):
            await source.open(17)
        await source.close()


# Mistakes.


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_wrong_password_and_an_unknown_virtual_host_are_told_apart(rabbit: RabbitMq, is_stream: bool) -> None:
    url, name = (rabbit.stream_url, {"stream": "s"}) if is_stream else (rabbit.url, {"queue": "q"})
    for wrong, cause in (({"password": "wr0ng!"}, Cause.AUTH), ({"vhost": "nowhere"}, Cause.CONFIG)):
        with pytest.raises(ConnectorError) as caught:
            await source_of(rabbit, url=url(**wrong), **name).check()
        assert caught.value.cause is cause
        assert "wr0ng!" not in str(caught.value)


async def test_a_virtual_host_may_have_any_name(rabbit: RabbitMq) -> None:
    vhost = "a/b ä %2F"
    rabbit.add_vhost(vhost)
    peer = Peer(rabbit, vhost)
    queue, stream = peer.declare(), peer.declare(STREAM)
    peer.publish(queue, {"id": 1})
    peer.publish(stream, {"id": 1})
    for source in (
        source_of(rabbit, queue=queue, url=rabbit.url(vhost)),
        source_of(rabbit, stream=stream, url=rabbit.stream_url(vhost)),
    ):
        await source.open(None)
        assert await read(source, 1) == [{"id": 1}]
        await source.close()
    peer.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queue": "q", "stream": "s"}, "exactly one"),
        ({}, "exactly one"),
        ({"stream": "s"}, "must begin with rabbitmq-stream://"),
        ({"queue": "q", "url": "http://x/"}, "must begin with amqp://"),
        ({"queue": "q", "url": "amqp://u:pa#ss@x/"}, "is not a URL"),
        ({"queue": "q", "url": "amqp://x/?ssl=no"}, "not known: ssl"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        RabbitmqSourceOptions(**{"url": "amqp://u:pa55@x/", **options})
    assert "pa55" not in str(caught.value)


async def test_a_probe_says_whether_it_answers(rabbit: RabbitMq) -> None:
    kind = plugins.get("rabbitmq").source
    assert kind is not None
    assert kind.probe is not None
    for name, url in (("queue", rabbit.url()), ("stream", rabbit.stream_url())):
        await kind.probe(RabbitmqSourceOptions(url=url, **{name: "x"}), make_context().guard)
        away = url.replace(f":{rabbit.port}/", ":1/").replace(f":{rabbit.stream_port}/", ":1/")
        with pytest.raises(NotConnected):
            await kind.probe(RabbitmqSourceOptions(url=away, **{name: "x"}), make_context().guard)


# Writing to exchanges.


async def test_a_message_that_no_queue_gets_stops_the_stream_if_all_have_one_key(rabbit: RabbitMq, peer: Peer) -> None:
    sink = sink_of(rabbit, exchange="amq.direct", routing_key="nobody")
    await sink.open(make_grant())
    with pytest.raises(ConnectorError, match="to no queue") as caught:
        await soon(sink.write(outgoing(0, 3)))
    assert caught.value.cause is Cause.CONFIG
    await sink.close()


async def test_a_record_that_no_queue_gets_is_a_bad_one_and_the_others_are_published_once(
    rabbit: RabbitMq, peer: Peer
) -> None:
    queue = peer.declare()
    peer.channel.queue_bind(queue, "amq.direct", f"{queue}.1")
    sink = sink_of(rabbit, exchange="amq.direct", routing_key=f"{queue}.{{kind}}")
    await sink.open(make_grant())
    batch = Outgoing([{"id": id, "kind": int(id != 3)} for id in range(6)], Progress(commits=1))
    with pytest.raises(BadRecords) as caught:
        await soon(sink.write(batch))
    assert [one.index for one in caught.value.bad] == [3]
    rest = Outgoing([one for one in batch.records if one["kind"]], Progress(commits=1))
    await soon(sink.write(rest))
    assert [one["id"] for one in peer.queued(queue)] == [0, 1, 2, 4, 5]
    with pytest.raises(BadRecords, match="kind is absent"):
        await soon(sink.write(Outgoing([{"id": 7}], Progress(commits=2))))
    await sink.close()


async def test_a_queue_that_is_full_is_waited_for_and_nothing_is_twice(rabbit: RabbitMq, peer: Peer) -> None:
    queue = peer.declare({"x-max-length": 4, "x-overflow": "reject-publish"})
    sink = sink_of(rabbit, queue=queue)
    await sink.open(make_grant())
    batch, found = outgoing(0, 10), []
    for _ in range(20):
        try:
            await soon(sink.write(batch))
            break
        except RetryLater:
            while (got := peer.channel.basic_get(queue, auto_ack=True))[0] is not None:
                found.append(json.loads(got[2]))
    found += peer.queued(queue)
    assert sorted(found, key=lambda one: one["id"]) == ids(0, 10)
    await sink.close()


async def test_a_queue_that_is_gone_stops_the_stream(rabbit: RabbitMq, peer: Peer) -> None:
    queue = peer.declare()
    sink = sink_of(rabbit, queue=queue)
    await sink.open(make_grant())
    peer.channel.queue_delete(queue)
    with pytest.raises(ConnectorError, match="is gone") as caught:
        await soon(sink.write(outgoing(0, 3)))
    assert caught.value.cause is Cause.CONFIG
    await sink.close()


async def test_an_alarm_is_waited_for(rabbit: RabbitMq, peer: Peer) -> None:
    queue, stream = peer.declare(), peer.declare(STREAM)
    sinks = sink_of(rabbit, queue=queue), sink_of(rabbit, stream=stream)
    waiting, counts = [], []
    for sink in sinks:
        await sink.open(make_grant())
    try:
        rabbit.be_short_of_disk(True)
        for sink in sinks:
            count, write = 0, None
            while write is None or write.done():  # The alarm takes a moment to reach all connections.
                write = asyncio.ensure_future(sink.write(outgoing(count, count + 1, count + 1)))
                count += 1
                await asyncio.wait([write], timeout=0.5)
            waiting.append(write)
            counts.append(count)
        late = sink_of(rabbit, stream=stream)
        with pytest.raises(NotConnected, match="short of memory or disk"):
            await late.open(make_grant(epoch=2))
        await late.close()
    finally:
        rabbit.be_short_of_disk(False)
    await soon(asyncio.gather(*waiting))
    for sink in sinks:
        await sink.close()
    assert peer.queued(queue) == ids(0, counts[0])
    assert peer.streamed(stream) == ids(0, counts[1])


# Writing to streams: nothing is lost, and nothing is twice.


async def test_other_batches_after_a_crash_leave_nothing_twice(rabbit: RabbitMq, peer: Peer) -> None:
    """The first run writes more than the registry learns of; the next ones read the same again, cut otherwise."""
    stream = peer.declare(STREAM)
    for epoch, written, batches in (
        (1, 0, [(0, 3), (3, 4), (4, 12)]),  # Killed; the registry has only the first.
        (2, 3, [(3, 20)]),  # Killed; the registry has nothing more.
        (3, 3, [(3, 5), (5, 30)]),
        (4, 30, [(30, 40)]),
    ):
        sink = sink_of(rabbit, stream=stream)
        await sink.open(make_grant(epoch=epoch, progress=Progress(commits=1, totals=Totals(written=written))))
        for first, end in batches:
            await soon(sink.write(outgoing(first, end)))
        await sink.close()
    assert peer.streamed(stream) == ids(0, 40)


async def test_other_records_after_a_crash_are_all_written(rabbit: RabbitMq, peer: Peer) -> None:
    """A queue, or several parts, may give others, or in another order: none of them may pass for one that is there."""
    stream = peer.declare(STREAM)
    runs: list[list[int]] = [[0, 1, 2, 3], [2, 1, 0, 3, 4], [7, 8]]
    for epoch, numbers in enumerate(runs, start=1):
        sink = sink_of(rabbit, stream=stream)
        await sink.open(make_grant(epoch=epoch))
        totals = Totals(written=len(numbers))
        await soon(sink.write(Outgoing([{"id": id} for id in numbers], Progress(commits=1, totals=totals))))
        await sink.close()
    found = [one["id"] for one in peer.streamed(stream)]
    assert set(found) == {0, 1, 2, 3, 4, 7, 8}
    assert found == [0, 1, 2, 3, 2, 0, 4, 7, 8]  # 1 and 3 came at their places again.


async def test_an_older_run_changes_nothing_once_a_newer_one_has_published(rabbit: RabbitMq, peer: Peer) -> None:
    stream = peer.declare(STREAM)
    old, new = sink_of(rabbit, stream=stream), sink_of(rabbit, stream=stream)
    await old.open(make_grant(epoch=1))
    await soon(old.write(outgoing(0, 3)))
    await new.open(make_grant(epoch=2, progress=Progress(commits=1, totals=Totals(written=3))))
    await soon(new.write(outgoing(3, 5)))
    await soon(old.write(outgoing(3, 9)))  # The server says yes and drops it; the registry refuses its checkpoint.
    assert peer.streamed(stream) == ids(0, 5)
    late = sink_of(rabbit, stream=stream)
    with pytest.raises(Fenced):
        await late.open(make_grant(epoch=1))
    for sink in (old, new, late):
        await sink.close()


async def test_another_era_begins_without_the_ids_of_the_last(rabbit: RabbitMq, peer: Peer) -> None:
    """The registry went back in time, and counts from an earlier number: what it writes is new all the same."""
    stream = peer.declare(STREAM)
    for epoch, first, written in ((5, 0, 10), (1 << 40, 10, 5), ((1 << 40) + 1, 15, 10)):
        sink = sink_of(rabbit, stream=stream)
        await sink.open(make_grant(epoch=epoch, progress=Progress(totals=Totals(written=written - 5))))
        await soon(sink.write(outgoing(first, first + 5, written=written)))
        await sink.close()
    assert peer.streamed(stream) == [*ids(0, 5), *ids(10, 20)]


async def test_a_connection_that_is_cut_in_a_write_costs_nothing(rabbit: RabbitMq, peer: Peer) -> None:
    """The server has the messages, and the connection ends with its confirmation."""
    stream = peer.declare(STREAM)
    sink = sink_of(rabbit, stream=stream)
    await sink.open(make_grant())
    for commits in range(1, 4):
        wire = sink._streams
        wire.confirmed = lambda ids, code, wire=wire: wire.cut()
        await soon(sink.write(outgoing(1000 * (commits - 1), 1000 * commits, commits)))
        assert sink._streams is not wire
    await sink.close()
    assert peer.streamed(stream) == ids(0, 3000)


@pytest.mark.parametrize("calls", range(8))
async def test_a_writer_that_dies_at_any_call_leaves_nothing_twice(
    rabbit: RabbitMq, peer: Peer, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """Its connection ends after this many of its frames were sent, as the kernel ends it, and a newer run goes on from
    what the registry knew, with other batches."""
    stream, left = peer.declare(STREAM), calls
    send = streams_module.Streams._send

    def sending(self: Any, key: int, payload: bytes) -> None:
        nonlocal left
        if left == 0:
            raise asyncio.CancelledError
        left -= 1
        send(self, key, payload)

    monkeypatch.setattr(streams_module, "FRAME_BYTES", 4096)
    writer = sink_of(rabbit, stream=stream)
    await writer.open(make_grant(epoch=1))
    monkeypatch.setattr(streams_module.Streams, "_send", sending)
    for commits in (1, 2):
        with suppress(asyncio.CancelledError):
            await soon(writer.write(outgoing(200 * (commits - 1), 200 * commits, commits)))
    monkeypatch.setattr(streams_module.Streams, "_send", send)
    assert writer._streams is not None
    writer._streams.cut()
    heir = sink_of(rabbit, stream=stream)
    await heir.open(make_grant(epoch=2))
    for first, end in ((0, 150), (150, 500)):
        await soon(heir.write(outgoing(first, end)))
    await heir.close()
    await writer.close()
    assert peer.streamed(stream) == ids(0, 500)


async def test_a_record_that_fits_into_no_frame_is_a_bad_one(rabbit: RabbitMq, peer: Peer) -> None:
    stream = peer.declare(STREAM)
    sink = sink_of(rabbit, stream=stream)
    await sink.open(make_grant())
    with pytest.raises(BadRecords, match="in a frame"):
        await soon(sink.write(Outgoing([{"id": 0}, {"text": "x" * 1_100_000}], Progress(commits=1))))
    assert peer.streamed(stream) == []
    await sink.close()


# The page.


async def test_the_examples_of_the_page_run(
    rabbit: RabbitMq, peer: Peer, start_node: Callable[..., NodeProcess], url: str
) -> None:
    peer.channel.queue_declare("orders", durable=True)
    super_stream(peer, "clicks")
    peer.publish("orders", *({"id": id, "total": 2 * id} for id in range(10)), b"no JSON")
    for order in range(3):
        peer.publish(f"clicks-{order}", *ids(10 * order, 10 * order + 10))
    node = start_node()
    secrets = {"rabbitmq": rabbit.url(), "streams": rabbit.stream_url(), "warehouse": url}
    for name, value in secrets.items():
        node.call("PUT", f"/api/secrets/{name}", {"value": value})
    for datasources in datasources_of("howto/rabbitmq.md"):
        node.apply(datasources)
    node.wait_for("orders", lambda found: found["metrics"].get("records_written", 0) == 10)
    node.wait_for("clicks", lambda found: found["metrics"].get("records_written", 0) == 30)
    connection = await asyncpg.connect(url)
    assert [tuple(row) for row in await connection.fetch("SELECT * FROM orders ORDER BY id")] == [
        (id, 2 * id, 0) for id in range(10)
    ]
    found = await connection.fetch('SELECT id, shard, "offset" FROM clicks ORDER BY id')
    assert [tuple(row) for row in found] == [(id, f"clicks-{id // 10}", id % 10) for id in range(30)]
    await connection.close()
    (letter,) = node.call("GET", "/api/dead-letters?datasource=orders")["items"]
    assert letter["place"] == "queue orders, delivery 11"
    await until(lambda: peer.channel.queue_declare("orders", passive=True).method.message_count == 0)
    node.call("POST", "/api/datasources/orders/stop")
    node.wait_for("orders", lambda found: found["worker_status"] == "STOPPED")
    assert peer.queued("orders") == []  # The letter is kept by Headgate, so the message is done.


# Faults.


async def opened(side: Any, of: Any) -> None:
    """As a worker does it: a server that has just started closes some connections again."""
    while True:
        await side.close()
        try:
            await side.open(of)
            return
        except NotConnected:
            await asyncio.sleep(0.1)


async def test_a_server_that_is_killed_and_comes_back_has_lost_nothing(rabbit: RabbitMq) -> None:
    peer = Peer(rabbit)
    names = {kind: peer.declare(STREAM if "stream" in kind else None) for kind in ("q", "stream", "to q", "to stream")}
    for name in (names["q"], names["stream"]):
        peer.publish(name, *ids(0, 20), delivery_mode=2)
    queue, stream = source_of(rabbit, queue=names["q"], batch=5), source_of(rabbit, stream=names["stream"], batch=5)
    sinks = sink_of(rabbit, queue=names["to q"]), sink_of(rabbit, stream=names["to stream"])
    for source in (queue, stream):
        await source.open(None)
        assert (await read(source, 5))[:5] == ids(0, 5)
    for sink in sinks:
        await sink.open(make_grant(epoch=1))
        await soon(sink.write(outgoing(0, 10)))
    rabbit.remember_streams()
    rabbit.kill()
    for source in (queue, stream):
        with pytest.raises(NotConnected):
            await read(source, 20)
        await source.close()
        with pytest.raises(NotConnected):
            await source.open(None)
        await source.close()
    with pytest.raises(NotConnected):
        await sinks[0].write(outgoing(10, 20, 2))
    writing = asyncio.ensure_future(sinks[1].write(outgoing(10, 20, 2)))
    await asyncio.to_thread(rabbit.start)
    with suppress(NotConnected):  # The server may need longer to come back than a write waits.
        await asyncio.wait_for(writing, 60)
    known = Progress(commits=1, totals=Totals(written=10))
    for sink in sinks:
        await soon(opened(sink, make_grant(epoch=2, progress=known)))
        await soon(sink.write(outgoing(10, 20, 2)))
        await sink.close()
    await soon(opened(queue, None))
    assert await read(queue, 20) == ids(0, 20)
    await queue.close()
    await soon(opened(stream, 4))
    assert await read(stream, 15) == ids(5, 20)
    await stream.close()
    peer = Peer(rabbit)
    assert peer.queued(names["to q"]) == ids(0, 20)
    assert peer.streamed(names["to stream"]) == ids(0, 20)
    peer.close()
