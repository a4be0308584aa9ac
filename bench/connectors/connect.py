"""Kafka Connect, which Kafka → PostgreSQL is measured against: its standalone worker with Debezium's JDBC sink.

Maven resolves the jars, as it does for the broker (tests/connectors/kafka_server.py). Connect has no mapping that could
make these six fields, so it has a topic of its own in which they are made already, and the JDBC sink wants a schema,
which its JSON converter is given once (`schema.content`): it is spared an envelope around every message. It reaches
PostgreSQL by the same Unix socket as all others, with junixsocket.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from bench.connectors import peers
from bench.connectors.bare import RECORDS, bodies, row_of
from bench.dump.contest import PeerFailed
from bench.dump.scene import ROOT, directory
from bench.rig import NODE_CORE, pin
from headgate.testing.servers import free_port
from tests.connectors.kafka_server import VERSION, Broker

DEBEZIUM = "3.3.1.Final"
FOLDER = ROOT / ".bench/connect"
JARS = (
    ("org.apache.kafka", "connect-runtime", VERSION, "jar"),
    ("org.apache.kafka", "connect-json", VERSION, "jar"),
    ("io.debezium", "debezium-connector-jdbc", DEBEZIUM, "jar"),
    ("org.postgresql", "postgresql", "42.7.4", "jar"),
    ("com.kohlschutter.junixsocket", "junixsocket-core", "2.10.1", "pom"),
    ("org.slf4j", "slf4j-simple", "1.7.36", "jar"),
)
JVM = ("-Xmx1g", "-XX:ActiveProcessorCount=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
BATCH = 5000
TABLE = "kafka_connect"
TYPES = ("int64", "string", "string", "int64", "string", "string")
TIME = {"name": "io.debezium.time.ZonedTimestamp", "version": 1}  # What the sink takes for a timestamptz.


def classpath() -> str:
    """The jars. They are resolved once. Raises PeerFailed."""
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
        f"<type>{kind}</type></dependency>"
        for group, name, version, kind in JARS
    )
    pom = (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>headgate</groupId><artifactId>connect</artifactId><version>1</version>"
        f"<dependencies>{wanted}</dependencies></project>"
    )
    file, found = FOLDER / "pom.xml", FOLDER / "classpath"
    if found.exists() and file.read_text() == pom and all(map(os.path.exists, found.read_text().split(":"))):
        return found.read_text()
    if shutil.which("java") is None or shutil.which("mvn") is None:
        raise PeerFailed("Kafka Connect is not measured: it needs java and mvn on the PATH")
    print("resolving Kafka Connect into .bench/connect", flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    found.unlink(missing_ok=True)
    file.write_text(pom)
    command = ["mvn", "-q", "-B", "-f", file, "dependency:build-classpath", f"-Dmdep.outputFile={found}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise PeerFailed(f"Maven cannot resolve Kafka Connect: {(done.stdout or done.stderr).strip()[:300]}")
    return found.read_text()


def kafka_rate(broker: Broker, url: str, folder: Path) -> float:
    """Rows per second that Connect brings from a topic into PostgreSQL, from the warm-up to the last one: batches of
    the same size, and the node's core. Raises PeerFailed."""
    jars, topic = classpath(), broker.make_topic()
    messages = [{"value": made(body)} for body in bodies()]
    broker.produce(topic, messages, **{"queue.buffering.max.messages": RECORDS + 1})
    files = []
    for name, settings in {"worker": worker(broker, folder), "sink": sink(url, topic)}.items():
        files.append(folder / f"{name}.properties")
        files[-1].write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    asyncio.run(peers.make_table(url, TABLE))
    command = ["java", *JVM, "-cp", jars, "org.apache.kafka.connect.cli.ConnectStandalone", *files]
    words = folder / "connect.log"
    with words.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as process:
        try:
            pin(process.pid, NODE_CORE)
            return asyncio.run(peers.rate(url, TABLE, process, words))
        finally:
            process.kill()


def made(body: bytes) -> bytes:
    """A message with the six fields as they are to be in the table."""
    return msgspec.json.encode(dict(zip(peers.COLUMNS, row_of(msgspec.json.decode(body)), strict=True)))


def worker(broker: Broker, folder: Path) -> dict[str, Any]:
    """Of the process."""
    fields = [
        {"field": name, "type": kind, "optional": True, **(TIME if name == "placed_at" else {})}
        for name, kind in zip(peers.COLUMNS, TYPES, strict=True)
    ]
    return {
        "bootstrap.servers": broker.brokers,
        "listeners": f"http://127.0.0.1:{free_port()}",
        "offset.storage.file.filename": folder / "connect.offsets",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
        "value.converter.schema.content": json.dumps({"type": "struct", "fields": fields}),
        "consumer.auto.offset.reset": "earliest",
        "consumer.max.poll.records": BATCH,
    }


def sink(url: str, topic: str) -> dict[str, Any]:
    """Of the connector."""
    database, socket = url.partition("?")[0].rpartition("/")[2], f"{directory(url)}/.s.PGSQL.5432"
    factory = "org.newsclub.net.unix.AFUNIXSocketFactory$FactoryArg"
    jdbc = f"jdbc:postgresql://localhost/{database}?socketFactory={factory}&socketFactoryArg={socket}"
    return {
        "name": "sink",
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "tasks.max": 1,
        "topics": topic,
        "connection.url": jdbc,  # With `reWriteBatchedInserts` it is slower.
        "connection.username": "headgate",
        "connection.password": "none",
        "insert.mode": "insert",
        "primary.key.mode": "none",
        "schema.evolution": "none",
        "collection.name.format": TABLE,
        "batch.size": BATCH,
    }
