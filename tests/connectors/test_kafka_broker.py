"""Kafka against a real broker: the contract of both sides, transactions, their fence, and what breaks."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from headgate.connectors.api import ForgettingSink, Outgoing, Progress, Sink, Source
from headgate.connectors.kafka import producing
from headgate.connectors.kafka.options import KafkaSinkOptions, KafkaSourceOptions
from headgate.connectors.kafka.positions import PARTITIONS
from headgate.connectors.kafka.sink import KafkaSink, PlainKafkaSink
from headgate.connectors.kafka.source import KafkaSource
from headgate.testing.contract import ForgettingSinkContract, SinkContract, SourceInPartsContract
from headgate.testing.factories import make_context, make_grant
from tests.connectors.kafka_server import Cluster, some_broker

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def broker() -> Iterator[Cluster]:
    with some_broker() as cluster:
        yield cluster


def make_source(cluster: Cluster, topic: str, part: str = "0", **options: Any) -> KafkaSource:
    options = {"brokers": cluster.brokers, "topic": topic, **options}
    return KafkaSource(KafkaSourceOptions(**options), make_context(part=part))


def make_sink(cluster: Cluster, topic: str, **options: Any) -> KafkaSink:
    options = {"brokers": cluster.brokers, "topic": topic, **options}
    return KafkaSink(KafkaSinkOptions(**options), make_context())


def records_in(cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    """What those see who read only what is committed."""
    found = [msgspec.json.decode(one.value()) for one in cluster.read(topic) if one.value() is not None]
    return sorted(found, key=lambda record: record["id"])


class TestSource(SourceInPartsContract):
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


class TestSink(ForgettingSinkContract):
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


class TestPlainSink(SinkContract):
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


async def test_a_writer_stopped_at_any_call_repeats_and_loses_nothing(broker: Cluster) -> None:
    """Its successor opens and writes while it is stopped, and goes on when it has woken and ended."""
    kept = broker.make_topic(PARTITIONS, cleanup_policy="compact")
    limit = asyncio.Semaphore(3)

    async def one(stop: tuple[str, str, str]) -> None:
        async with limit:
            await _outlive(broker, kept, stop)

    await asyncio.gather(*map(one, STOPS))


async def _outlive(broker: Cluster, kept: str, stop: tuple[str, str, str]) -> None:
    topic, stream = await asyncio.to_thread(broker.make_topic), uuid4()
    old = await _start(broker.brokers, topic, kept, str(stream), *stop)
    await _until_stopped(old.pid)
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
    broker: Cluster, call: str, moment: str
) -> None:
    topic, stream = broker.make_topic(), uuid4()
    kept = f"positions-{topic}"
    old = await _start(broker.brokers, topic, kept, str(stream), "open", call, moment, "trust")
    await _until_stopped(old.pid)
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


async def _until_stopped(pid: int) -> None:
    """Until the process has stopped itself."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
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
    sink = make_sink(broker, topic, positions_topic=f"positions-{topic}", transaction_timeout_s=1.0)
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
