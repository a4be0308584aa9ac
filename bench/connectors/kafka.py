"""Kafka → mapping of six fields → PostgreSQL, against confluent-kafka alone, Bento and Kafka Connect; and generator →
Kafka, exactly once against at least once.

    python -m bench connectors.kafka

The broker is a real one, which needs java and mvn (tests/connectors/kafka_server.py), on the core of the databases.
Kafka Connect is given records whose six fields are made already (`bench.connectors.connect`). A peer counts if the rows
of its table are ours.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from bench.connectors import connect, peers
from bench.connectors.bare import RECORDS, WARM_UP_RECORDS, bare_rate, bodies, node_rate
from bench.dump.contest import PeerFailed
from bench.rig import DATABASE_CORE, Rig, pin, report, running
from bench.scale import fetch
from bench.throughput import MAPPING, records_written
from tests.connectors.kafka_server import Broker

BATCH = 5000
SECONDS = 4.0
ROUNDS = 3
DELIVERIES = ("exactly_once", "at_least_once")


async def batches(broker: Broker, topic: str) -> AsyncIterator[list[bytes]]:
    """As the plain client reads them."""
    settings = {"bootstrap.servers": broker.brokers, "group.id": "bench", "isolation.level": "read_committed"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    read = 0
    while read < RECORDS:
        first = consumer.poll(1.0)
        if first is not None:
            messages = [first, *consumer.consume(BATCH - 1, 0)]
            read += len(messages)
            yield [message.value() for message in messages]
    consumer.close()


def write_rate(rig: Rig, broker: Broker, delivery: str, round: int) -> float:
    """Durable records per second from the generator into a topic, once it is warm."""
    name = f"to-kafka-{delivery.replace('_', '-')}-{round}"
    sink: dict[str, Any] = {"type": "kafka", "brokers": broker.brokers, "topic": broker.make_topic()}
    source = {"type": "generator", "batch": BATCH}
    rig.node.apply({name: {"source": source, "mapping": MAPPING, "sink": {**sink, "delivery": delivery}}})
    rig.node.wait_for(name, lambda found: found["metrics"].get("records_written", 0) > WARM_UP_RECORDS, 60)
    began, first = time.perf_counter(), records_written(rig.node, name)
    time.sleep(SECONDS)
    last, ended = records_written(rig.node, name), time.perf_counter()
    rig.node.call("POST", f"/api/datasources/{name}/stop")
    rig.node.wait_for(name, lambda found: found["worker_status"] == "STOPPED")
    return (last - first) / (ended - began)


def against_peers(rig: Rig, broker: Broker, topic: str, ours: float) -> dict[str, float]:
    """Those that can be had, with the rows that are in our table."""
    runs = {
        "Bento": lambda: peers.kafka_rate(peers.bento(), broker.brokers, topic, rig.sink, rig.node.home),
        "Kafka Connect": lambda: connect.kafka_rate(broker, rig.sink, rig.node.home),
    }
    figures: dict[str, float] = {}
    for (name, run), table in zip(runs.items(), ("bento", connect.TABLE), strict=True):
        try:
            its = run()
        except PeerFailed as error:
            print(error)
            continue
        rows = ", ".join(peers.COLUMNS)
        others = fetch(rig.sink, f"SELECT {rows} FROM {table} EXCEPT SELECT {rows} FROM from_kafka LIMIT 1")
        assert not others, f"{name} has a row that we do not have: {others[0]}"
        figures |= {f"{name}, records/s": its, f"against {name}": ours / its}
    return figures


def main() -> dict[str, float]:
    """Run and print."""
    try:
        broker = Broker()
    except pytest.skip.Exception as error:
        print(f"Kafka is not measured: {error}")
        return {}
    try:
        assert broker.pid is not None
        pin(broker.pid, DATABASE_CORE)
        topic = broker.make_topic()
        broker.produce(topic, [{"value": body} for body in bodies()], **{"queue.buffering.max.messages": RECORDS + 1})
        with running(pinned=True) as rig:
            source = {"type": "kafka", "brokers": broker.brokers, "topic": topic, "batch": BATCH}
            ours = node_rate(rig, "from-kafka", source)
            bare = asyncio.run(bare_rate(rig.sink, batches(broker, topic)))
            peer = against_peers(rig, broker, topic, ours)
            written = {one: [0.0] for one in DELIVERIES}
            for round in range(ROUNDS):  # In turn, because the broker gets quicker, and others use the machine.
                for one in DELIVERIES:
                    written[one].append(write_rate(rig, broker, one, round))
            once, least = (max(written[one]) for one in DELIVERIES)
    finally:
        broker.close()
    return report(
        "Kafka → mapping of six fields → PostgreSQL, and generator → Kafka (python -m bench connectors.kafka)",
        {
            "records/s": ours,
            "bare loop of confluent-kafka, records/s": bare,
            "against the bare loop": ours / bare,
            **peer,
            f"into Kafka exactly once, records/s, best of {ROUNDS}": once,
            f"into Kafka at least once, records/s, best of {ROUNDS}": least,
            "exactly once against at least once": once / least,
        },
    )


if __name__ == "__main__":
    main()
