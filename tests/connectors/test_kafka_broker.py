"""Kafka against a real broker: the contract of both sides, transactions, their fence, and what breaks."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import msgspec
import pytest
import yaml
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic

from headgate.connectors.api import ForgettingSink, Outgoing, Progress, Sink, Source
from headgate.connectors.kafka import positions, producing
from headgate.connectors.kafka.options import KafkaSinkOptions, KafkaSourceOptions
from headgate.connectors.kafka.sink import KafkaSink, PlainKafkaSink
from headgate.connectors.kafka.source import KafkaSource
from headgate.errors import BadRecords, Cause, ConnectorError, NotConnected
from headgate.testing.contract import ForgettingSinkContract, SinkContract, SourceInPartsContract
from headgate.testing.contract.patience import soon
from headgate.testing.factories import make_context, make_grant
from tests.connectors.kafka_server import PASSWORD, USER, Broker, Cluster, own_broker, some_broker

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def broker() -> Iterator[Cluster]:
    with some_broker() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _few_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tests have a topic of positions each. A node has it as it is."""
    monkeypatch.setattr(positions, "PARTITIONS", 2)


def make_source(cluster: Cluster, topic: str, part: str = "0", **options: Any) -> KafkaSource:
    options = {"brokers": cluster.brokers, "topic": topic, **options}
    return KafkaSource(KafkaSourceOptions(**options), make_context(part=part))


def make_sink(cluster: Cluster, topic: str, **options: Any) -> KafkaSink:
    options = {"brokers": cluster.brokers, "topic": topic, "positions_topic": f"positions-{topic}", **options}
    return KafkaSink(KafkaSinkOptions(**options), make_context())


def records_in(cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    """What those see who read only what is committed."""
    found = [msgspec.json.decode(one.value()) for one in cluster.read(topic) if one.value() is not None]
    return sorted(found, key=lambda record: record["id"])


# The broker dies. This comes first: the fewer partitions there are, the sooner a broker is back.


async def test_a_broker_that_is_killed_and_comes_back_loses_and_repeats_nothing(broker: Cluster) -> None:
    """From a topic into another, as a run does it: what fails is opened again, under the next epoch.

    Now and then Kafka 4.3 forgets to end a transaction in both of its topics. It takes a partition that has no leader,
    as all have while their broker comes back, for one that was deleted. Then nothing can be said of us.
    """
    for _ in range(3):
        if await _outlives_a_kill(own_broker(broker)):
            return
    pytest.fail("Kafka forgot a transaction each time")


async def _outlives_a_kill(broker: Broker) -> bool:
    here, there = broker.make_topic(), broker.make_topic()
    kept, total = f"positions-{there}", 4000
    broker.produce(here, [{"value": b'{"id": %d}' % id} for id in range(total)])
    is_time, epoch = asyncio.Event(), 0

    async def one_run() -> bool:
        source, sink = make_source(broker, here, batch=50), make_sink(broker, there, positions_topic=kept)
        try:
            progress = await sink.open(make_grant(epoch=epoch))
            assert progress is not None
            await source.open(progress.position)
            written = 0 if progress.position is None else progress.position["offset"] + 1
            while written < total:
                batch = await source.read()
                progress = Progress(0, progress.commits + 1, batch.position)
                await sink.write(Outgoing(batch.records, progress))
                written += len(batch.records)
                if written > 500:
                    is_time.set()
            return True
        finally:
            await source.close()
            await sink.close()

    async def kill() -> None:
        await is_time.wait()
        await asyncio.to_thread(broker.kill)
        away = make_source(broker, here)
        with pytest.raises(NotConnected):
            await away.check()
        await away.close()
        await asyncio.to_thread(broker.start)

    killing, is_done = asyncio.ensure_future(kill()), False
    while not is_done:
        epoch += 1
        try:
            is_done = await one_run()
        except NotConnected as error:
            if positions.HANGS in error.message:
                await killing
                return False
    await killing
    if not broker.has_ended(there):
        return False
    assert [one["id"] for one in records_in(broker, there)] == list(range(total))
    return True


# The contract.


class TestKafkaSource(SourceInPartsContract):
    """Three partitions, each written by transactions that commit and abort, with another compression each."""

    ends = False

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def data(cls, broker: Cluster) -> None:
        cls.cluster = broker
        cls.topic = broker.make_topic(3)
        for part in range(3):
            for number in range(4):
                values = [{"value": b'{"id": %d}' % (10 * part + number), "partition": part}]
                broker.produce(cls.topic, values, **{"compression.type": CODECS[(part + number) % len(CODECS)]})

    def make_part(self, part: str) -> Source:
        return make_source(self.cluster, self.topic, part, batch=3)

    def expected_parts(self) -> dict[str, list[Any]]:
        return {str(part): [{"id": 10 * part + number} for number in range(4)] for part in range(3)}


class TestKafkaSink(ForgettingSinkContract):
    @pytest.fixture(autouse=True)
    def place(self, broker: Cluster) -> None:
        self.cluster = broker
        self.topic = broker.make_topic(2)
        self.positions = f"positions-{self.topic}"

    def make_sink(self) -> ForgettingSink:
        return make_sink(self.cluster, self.topic, positions_topic=self.positions)

    async def read_back(self) -> list[dict[str, Any]] | None:
        return records_in(self.cluster, self.topic)

    def make_refused_records(self) -> list[dict[str, Any]] | None:
        return [*self.make_records(10, 3), {"id": 13, "text": "x" * 2_000_000}]


class TestPlainKafkaSink(SinkContract):
    @pytest.fixture(autouse=True)
    def place(self, broker: Cluster) -> None:
        self.cluster = broker
        self.topic = broker.make_topic(2)

    def make_sink(self) -> Sink:
        options = KafkaSinkOptions(brokers=self.cluster.brokers, topic=self.topic, delivery="at_least_once")
        return PlainKafkaSink(options, make_context())

    async def read_back(self) -> list[dict[str, Any]] | None:
        return records_in(self.cluster, self.topic)


# The fence.

STOPS = [
    ("open", "read", "after"),
    ("open", "take", "before"),
    ("open", "take", "after"),
    ("open", "commit", "before"),
    ("open", "commit", "after"),
    ("write", "begin", "before"),
    ("write", "send", "after"),
    ("write", "commit", "before"),
    ("write", "commit", "after"),
]


async def test_a_writer_stopped_at_any_call_repeats_and_loses_nothing(
    broker: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor opens and writes while it is stopped, and goes on when it has woken and ended."""
    monkeypatch.undo()  # The processes have all partitions.
    kept = broker.make_topic(positions.PARTITIONS, cleanup_policy="compact")
    limit = asyncio.Semaphore(3)

    async def one(stop: tuple[str, str, str]) -> None:
        async with limit:
            await _outlive(broker, kept, stop)

    await asyncio.gather(*map(one, STOPS))


async def _outlive(broker: Cluster, kept: str, stop: tuple[str, str, str]) -> None:
    topic, stream = await asyncio.to_thread(broker.make_topic), uuid4()
    old = await _start(broker.brokers, topic, kept, str(stream), *stop)
    await _until_stopped(old)
    new = make_sink(broker, topic, positions_topic=kept)
    try:
        progress = await new.open(make_grant(epoch=2, stream=stream))
        assert progress is not None
        # What the old run has committed, if it came so far, is what its successor knows of.
        first = progress.position or 0
        assert first == (10 if stop == ("write", "commit", "after") else 0), stop
        await new.write(Outgoing(_rows(first, 20), Progress(0, progress.commits + 1, 20)))
        os.kill(old.pid, signal.SIGCONT)
        said = (await old.communicate())[0].decode().strip()
        assert said == ("written" if first else "Fenced"), stop
        await new.write(Outgoing(_rows(20, 30), Progress(0, progress.commits + 2, 30)))
    finally:
        await new.close()
    found = await asyncio.to_thread(records_in, broker, topic)
    assert [one["id"] for one in found] == list(range(30)), stop
    assert [one["writer"] for one in found] == [1] * first + [2] * (30 - first), stop


def _rows(first: int, end: int) -> list[dict[str, Any]]:
    return [{"id": id, "writer": 2} for id in range(first, end)]


@pytest.mark.parametrize(("call", "moment"), [("take", "before"), ("commit", "before")])
async def test_a_run_stopped_in_its_open_does_not_bring_a_forgotten_stream_back(
    broker: Cluster, monkeypatch: pytest.MonkeyPatch, call: str, moment: str
) -> None:
    monkeypatch.undo()
    topic, stream = broker.make_topic(), uuid4()
    kept = f"positions-{topic}"
    old = await _start(broker.brokers, topic, kept, str(stream), "open", call, moment, "trust")
    await _until_stopped(old)
    await asyncio.sleep(2.1)  # Until nobody trusts its node: only then a stream is forgotten.
    other = make_sink(broker, topic, positions_topic=kept)
    await other.forget(make_grant().installation, [stream])
    await other.close()
    os.kill(old.pid, signal.SIGCONT)
    assert (await old.communicate())[0].decode().strip() == "NotConnected"
    assert [one.value() for one in broker.read(kept) if one.value() is not None] == []
    assert broker.read(topic) == []


async def _start(*arguments: str) -> asyncio.subprocess.Process:
    module = ["-m", "tests.connectors.stopped_kafka", *arguments]
    return await asyncio.create_subprocess_exec(sys.executable, *module, stdout=asyncio.subprocess.PIPE)


async def _until_stopped(process: asyncio.subprocess.Process) -> None:
    """Until the process has stopped itself."""
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert process.returncode is None, "it ended, and did not stop"
        await asyncio.sleep(0.02)


async def test_a_stale_run_that_takes_the_id_late_stops_nobody(broker: Cluster) -> None:
    """It passed the first look before its successor was there. The owner takes the id again at its next write."""
    topic = broker.make_topic()
    kept = f"positions-{topic}"
    owner, stale = (make_sink(broker, topic, positions_topic=kept) for _ in range(2))
    try:
        await owner.open(make_grant(epoch=5))
        await stale._work.do(stale._take, make_grant(epoch=4))
        await owner.write(Outgoing(_rows(0, 10), Progress(0, 1, 10)))
        await owner.write(Outgoing(_rows(10, 20), Progress(0, 2, 20)))
    finally:
        await stale.close()
        await owner.close()
    assert [one["id"] for one in records_in(broker, topic)] == list(range(20))


async def test_a_transaction_that_takes_too_long_is_written_again_once(
    broker: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.make_topic()
    sink = make_sink(broker, topic, transaction_timeout_s=1.0)
    send, waits = producing.Producing._send, [2.5]

    def slow(self: producing.Producing, messages: Any, within_s: float) -> None:
        send(self, messages, 30)
        self._producer.flush(5)
        if messages and waits:
            time.sleep(waits.pop())  # Longer than the brokers wait.

    monkeypatch.setattr(producing.Producing, "_send", slow)
    try:
        await sink.open(make_grant(epoch=1))
        await sink.write(Outgoing(_rows(0, 10), Progress(0, 1, 10)))
        await sink.write(Outgoing(_rows(10, 20), Progress(0, 2, 20)))
    finally:
        await sink.close()
    assert not waits
    assert [one["id"] for one in records_in(broker, topic)] == list(range(20))
    everything = broker.read(topic, "read_uncommitted")
    assert len(everything) == 30  # Those of the first try are there, and aborted.


async def test_a_cancelled_write_commits_nothing_or_all_and_the_stream_goes_on(broker: Cluster) -> None:
    topic = broker.make_topic()
    kept = f"positions-{topic}"
    done = 0
    for epoch, wait_s in enumerate((0.0, 0.001, 0.003, 0.01, 0.03), start=1):
        sink = make_sink(broker, topic, positions_topic=kept)
        progress = await sink.open(make_grant(epoch=epoch))
        assert progress is not None
        done = progress.position or 0
        writing = asyncio.ensure_future(
            sink.write(Outgoing(_rows(done, done + 10), Progress(0, progress.commits + 1, done + 10)))
        )
        await asyncio.sleep(wait_s)
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        await sink.close()
    last = make_sink(broker, topic, positions_topic=kept)
    progress = await last.open(make_grant(epoch=9))
    await last.close()
    assert progress is not None
    assert [one["id"] for one in records_in(broker, topic)] == list(range(progress.position or 0))


# What transactions hide, and what is left of a topic.


async def test_aborted_records_are_not_read_and_do_not_count_as_waiting(broker: Cluster) -> None:
    topic = broker.make_topic()
    producer = Producer({"bootstrap.servers": broker.brokers, "transactional.id": topic})
    producer.init_transactions(90)
    for number, ends in enumerate((producer.commit_transaction, producer.abort_transaction) * 2):
        producer.begin_transaction()
        producer.produce(topic, b'{"id": %d}' % number)
        producer.flush(90)
        ends(90)
    source = make_source(broker, topic)
    try:
        await source.open(None)
        found = []
        while len(found) < 2:
            found += (await soon(source.read())).records
        waiting = asyncio.ensure_future(source.read())
        while (left := await source.backlog()) is None or left.records:
            await asyncio.sleep(0.02)
        waiting.cancel()
    finally:
        await source.close()
    assert found == [{"id": 0}, {"id": 2}]


async def test_a_topic_that_was_made_again_is_not_read_from_an_old_position(broker: Cluster) -> None:
    topic, admin = broker.make_topic(), broker.admin()
    broker.produce(topic, [{"value": b"%d" % number} for number in range(3)])
    [position] = await _positions(make_source(broker, topic), 3)
    admin.delete_topics([topic])[topic].result(90)
    await _until(lambda: topic not in admin.list_topics(timeout=90).topics)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(90)
    await _until(lambda: topic in admin.list_topics(timeout=90).topics)
    broker.produce(topic, [{"value": b"%d" % number} for number in range(10, 16)])
    with pytest.raises(ConnectorError, match="was deleted and made again") as caught:
        await _positions(make_source(broker, topic), 1, position)
    assert caught.value.cause is Cause.CONFIG
    with pytest.raises(ConnectorError, match="beyond the end"):  # As told by a position without an id.
        await _positions(make_source(broker, topic), 1, 99)
    assert await _read(make_source(broker, topic, missing="earliest"), 6, position) == list(range(10, 16))


async def test_records_that_have_expired_are_an_error_or_are_passed(broker: Cluster) -> None:
    topic, admin = broker.make_topic(), broker.admin()
    broker.produce(topic, [{"value": b"%d" % number} for number in range(10)])
    for future in admin.delete_records([TopicPartition(topic, 0, 6)]).values():
        future.result(90)
    with pytest.raises(ConnectorError, match=r"after offset 2 have expired, the oldest is at 6") as caught:
        await _positions(make_source(broker, topic), 1, {"offset": 2})
    assert caught.value.cause is Cause.CONFIG
    assert await _read(make_source(broker, topic, missing="earliest"), 4, 2) == [6, 7, 8, 9]
    assert await _read(make_source(broker, topic), 4, 5) == [6, 7, 8, 9]  # Nothing was missed.
    assert await _read(make_source(broker, topic), 4, None) == [6, 7, 8, 9]
    latest = make_source(broker, topic, missing="latest")
    await latest.open(2)
    broker.produce(topic, [{"value": b"10"}])
    assert (await soon(latest.read())).records == [10]
    await latest.close()


@pytest.mark.parametrize("is_made_again", [False, True], ids=["deleted", "made again"])
async def test_a_topic_that_is_deleted_while_it_is_read_is_noticed(
    broker: Cluster, monkeypatch: pytest.MonkeyPatch, is_made_again: bool
) -> None:
    topic, admin = broker.make_topic(), broker.admin()
    source = make_source(broker, topic)
    await source.open(None)
    reading = asyncio.ensure_future(source.read())
    admin.delete_topics([topic])[topic].result(90)
    if is_made_again:
        await _until(lambda: topic not in admin.list_topics(timeout=90).topics)
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(90)
    monkeypatch.setattr("headgate.connectors.kafka.source.LOOK_S", 0.0)
    with pytest.raises(ConnectorError, match="was deleted and made again" if is_made_again else "does not exist"):
        await soon(reading)
    await source.close()


async def test_partitions_that_are_added_are_found(broker: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, admin = broker.make_topic(2), broker.admin()
    monkeypatch.setattr("headgate.connectors.kafka.source.LOOK_S", 0.0)
    source = make_source(broker, topic)
    await source.open(None)
    reading = asyncio.ensure_future(source.read())
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(90)
    with pytest.raises(NotConnected, match="more partitions"):
        await soon(reading)
    await source.close()
    assert list(await source.parts()) == ["0", "1", "2"]
    await source.close()


async def _positions(source: KafkaSource, count: int, position: Any = None) -> list[Any]:
    """The position after so many records."""
    try:
        await soon(source.open(position))
        while count > 0:
            batch = await soon(source.read())
            count -= len(batch.records)
        return [batch.position]
    finally:
        await source.close()


async def _read(source: KafkaSource, count: int, position: Any) -> list[Any]:
    try:
        await soon(source.open(position))
        found: list[Any] = []
        while len(found) < count:
            found += (await soon(source.read())).records
        return found
    finally:
        await source.close()


async def _until(is_so: Callable[[], bool]) -> None:
    while not await asyncio.to_thread(is_so):
        await asyncio.sleep(0.05)


# Who may come in.


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_with_a_password_and_tls_both_sides_work(broker: Cluster, mechanism: str) -> None:
    own = own_broker(broker)
    topic = broker.make_topic()
    sasl = {"mechanism": mechanism, "username": USER, "password": PASSWORD}
    safely = {"brokers": own.secure, "sasl": sasl, "tls": {"ca": own.certificate}}
    sink = make_sink(broker, topic, **safely)
    await sink.open(make_grant(epoch=1, stream=uuid4()))
    await sink.write(Outgoing([{"id": 1}], Progress(0, 1, 1)))
    await sink.close()
    source = make_source(broker, topic, **safely)
    await source.check()
    assert await _read(source, 1, None) == [{"id": 1}]


async def test_who_is_not_let_in_is_told_so_at_once_and_no_password_is_shown(broker: Cluster) -> None:
    own = own_broker(broker)
    topic = broker.make_topic()
    wrong = {"brokers": own.sasl, "sasl": {"username": USER, "password": "not the password"}}
    for side in (make_source(broker, topic, **wrong), make_sink(broker, topic, **wrong)):
        with pytest.raises(ConnectorError) as caught:
            await soon(side.check())
        assert caught.value.cause is Cause.AUTH
        assert "not the password" not in str(caught.value)
        await side.close()
    untrusted = make_source(broker, topic, **{**wrong, "brokers": own.secure, "tls": True})
    with pytest.raises(ConnectorError) as caught:
        await soon(untrusted.check())
    assert caught.value.cause in (Cause.CONFIG, Cause.AUTH)


async def test_a_topic_that_does_not_exist_is_not_made_and_its_neighbours_are_named(broker: Cluster) -> None:
    topic = broker.make_topic()
    for side in (make_source(broker, f"{topic}s"), make_sink(broker, f"{topic}s")):
        with pytest.raises(ConnectorError, match="does not exist") as caught:
            await soon(side.check())
        assert caught.value.cause is Cause.CONFIG
        assert topic in caught.value.hint
        await side.close()
    assert f"{topic}s" not in broker.admin().list_topics(timeout=90).topics


# What is written.


async def test_keys_headers_and_deletions_are_what_others_read(broker: Cluster) -> None:
    topic = broker.make_topic(4, cleanup_policy="compact")
    sink = make_sink(broker, topic, headers="about")
    await sink.open(make_grant(epoch=1))
    records = [{"id": id, "name": f"n{id}", "about": {"source": "shop"}} for id in range(8)]
    await sink.write(Outgoing(records, Progress(0, 1, 8), key=("id",)))
    await sink.write(Outgoing([{"id": 3}, {"id": 5}], Progress(0, 2, 9), key=("id",), deletes=[0, 1]))
    wrong = [{"id": 1, "about": {"a": 1}}, {"id": "\ud800"}, {"id": 2}]
    with pytest.raises(BadRecords) as caught:
        await sink.write(Outgoing(wrong[:1] + wrong[2:], Progress(0, 3, 10), key=("id",)))
    assert [one.index for one in caught.value.bad] == [0]
    with pytest.raises(BadRecords) as caught:
        await sink.write(Outgoing(wrong[1:], Progress(0, 3, 10), key=("id",), deletes=[0]))
    assert [one.index for one in caught.value.bad] == [0]
    await sink.close()
    found = broker.read(topic)
    assert {one.key(): one.partition() for one in found if one.value() is None}.keys() == {b"3", b"5"}
    assert all(one.headers() == [("source", b"shop")] for one in found if one.value() is not None)
    by_key: dict[bytes, set[int]] = {}
    for one in found:
        by_key.setdefault(one.key(), set()).add(one.partition())
    assert all(len(parts) == 1 for parts in by_key.values())
    assert len(set.union(*by_key.values())) > 1
    tombstones = make_source(broker, topic, str(found[0].partition()), tombstones="key", key_format="json")
    read = await _read(tombstones, sum(one.partition() == found[0].partition() for one in found), None)
    assert all(isinstance(one, dict) for one in read)


async def test_a_record_that_the_topic_does_not_take_is_named(broker: Cluster) -> None:
    topic = broker.make_topic(1, max_message_bytes="5000")
    sink = make_sink(broker, topic)
    await sink.open(make_grant(epoch=1))
    with pytest.raises(BadRecords, match="at most 5,000 are taken") as caught:
        await sink.write(Outgoing([{"id": 0}, {"id": 1, "text": "x" * 5000}], Progress(0, 1, 1)))
    assert [one.index for one in caught.value.bad] == [1]
    await sink.write(Outgoing([{"id": 0}], Progress(0, 1, 1)))
    await sink.close()
    assert records_in(broker, topic) == [{"id": 0}]


async def test_positions_are_kept_only_where_they_stay(broker: Cluster) -> None:
    topic = broker.make_topic()
    for partitions, policy, reason in ((2, "delete", "not compacted"), (3, "compact", "3 partitions")):
        kept = broker.make_topic(partitions, cleanup_policy=policy)
        sink = make_sink(broker, topic, positions_topic=kept)
        with pytest.raises(ConnectorError, match=reason) as caught:
            await sink.check()
        assert caught.value.cause is Cause.CONFIG
        with pytest.raises(ConnectorError, match=reason):
            await sink.open(make_grant(epoch=1))
        await sink.close()


# With a node.


async def test_the_examples_of_the_page_run(broker: Cluster, start_node: Any, url: str) -> None:
    """Orders go from topic to topic, and customers into a table, from which a tombstone deletes."""
    page = (Path(__file__).parents[2] / "docs/howto/kafka.md").read_text()
    orders, _, customers, *_ = (block.partition("```")[0] for block in page.split("```yaml")[1:])
    documents = yaml.safe_load(orders)["datasources"] | {"customers": yaml.safe_load(customers)}
    for document in documents.values():
        for side in (document["source"], document["sink"]):
            if side["type"] == "kafka":
                side["brokers"] = broker.brokers
                broker.create(side["topic"])
    node = start_node()
    node.call("PUT", "/api/secrets/warehouse", {"value": url})
    node.apply(documents)
    broker.produce("orders", [{"value": b'{"id": 17, "total": 12.5}'}])
    rows = [{"key": b'{"id": %d}' % id, "value": b'{"id": %d, "name": "n%d"}' % (id, id)} for id in range(3)]
    broker.produce("customers", [*rows, {"key": b'{"id": 1}', "value": None}])
    node.wait_for("orders", lambda found: found["metrics"].get("records_written", 0) == 1)
    node.wait_for("customers", lambda found: found["metrics"].get("records_written", 0) == 4)
    [found] = broker.read("orders-in-cents")
    assert (found.key(), found.value()) == (b"17", b'{"id":17,"cents":1250}')
    connection = await asyncpg.connect(url)
    assert [tuple(row) for row in await connection.fetch("SELECT id, name FROM customers ORDER BY id")] == [
        (0, "n0"),
        (2, "n2"),
    ]
    await connection.close()
