"""Kafka for tests: the mock cluster of the client library, and a real broker where Java and Maven can be had.

The mock cluster is in this process and knows reading and plain writing. It answers every call of a transaction with
"done" and does nothing, so nothing that is said about transactions may be tested with it.

The broker is one process in KRaft mode. Its jars are resolved once, into Maven's own repository; where they are is kept
in the user's cache, with a formatted folder of logs that each broker gets a copy of, and with an archive of the classes
that it loads, which halves the time of its start. `HEADGATE_TEST_KAFKA` names a broker that runs already, `host:port`;
tests that kill it or that need its other doors skip then.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headgate.connectors.kafka.session import patiently
from headgate.testing.servers import free_port
from tests.connectors.mariadb import make_certificate

VERSION = "4.3.1"
SCALA = "2.13"
START_S = 120.0
JVM = (
    *("-Xmx384m", "-Xms128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"),
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)
CLUSTER_ID = "aGVhZGdhdGVoZWFkZ2F0ZQ"  # It formats the folder of logs that all brokers have a copy of.
QUIET = {"logger": logging.getLogger("kafka of tests")}
QUIET["logger"].disabled = True
USER, PASSWORD = "ada", "to be kept secret"

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>headgate</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies><dependency>
<groupId>org.apache.kafka</groupId><artifactId>kafka_{SCALA}</artifactId><version>{VERSION}</version>
</dependency><dependency>
<groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
</dependency></dependencies></project>
"""


class Cluster:
    """A cluster that tests make topics in, write to and read from with the plain client."""

    def __init__(self, brokers: str) -> None:
        self.brokers = brokers

    def make_topic(self, partitions: int = 1, **config: str) -> str:
        """A new topic, and its name."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        return self.create(f"t{uuid4().hex[:10]}", partitions, settings)

    def create(self, name: str, partitions: int = 1, config: dict[str, str] | None = None) -> str:
        """A topic of this name, if there is none."""
        admin = self.admin()  # It must outlive the answer.
        if name not in admin.list_topics(timeout=90).topics:
            admin.create_topics([NewTopic(name, partitions, 1, config=config or {})])[name].result(90)
        return name

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.brokers, **QUIET})

    def produce(self, topic: str, messages: Sequence[dict[str, Any]], **config: Any) -> None:
        """Write these: each a `value`, and whatever else the client takes."""
        producer = Producer({"bootstrap.servers": self.brokers, **QUIET, **config})
        for message in messages:
            producer.produce(topic, **message)
        assert producer.flush(90) == 0

    def has_ended(self, topic: str, within_s: float = 60.0) -> bool:
        """Whether all its transactions end soon: who commits one is answered before those who read can see it."""
        all, committed = self._consumer("read_uncommitted"), self._consumer("read_committed")
        ends_s = time.monotonic() + within_s
        try:
            for number in all.list_topics(topic, timeout=90).topics[topic].partitions:
                place = TopicPartition(topic, number)
                while _end(committed, place) < _end(all, place):
                    if time.monotonic() > ends_s:
                        return False
                    time.sleep(0.05)
        finally:
            all.close()
            committed.close()
        return True

    def _consumer(self, isolation: str) -> Consumer:
        settings = {"enable.partition.eof": True, "isolation.level": isolation, "fetch.wait.max.ms": 20}
        return Consumer({"bootstrap.servers": self.brokers, "group.id": "test", **settings, **QUIET})

    def read(self, topic: str, isolation: str = "read_committed") -> list[Any]:
        """All messages of a topic, by partition and offset."""
        assert isolation == "read_uncommitted" or self.has_ended(topic), f"a transaction of {topic} does not end"
        consumer = self._consumer(isolation)
        try:
            partitions = list(consumer.list_topics(topic, timeout=90).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, one, 0) for one in partitions])
            found: list[Any] = []
            ends: set[int] = set()
            while len(ends) < len(partitions):
                for message in consumer.consume(1000, 0.05):
                    if message.error() is None:
                        found.append(message)
                    else:
                        ends.add(message.partition())
        finally:
            consumer.close()
        return sorted(found, key=lambda one: (one.partition(), one.offset()))


def _end(consumer: Consumer, place: TopicPartition) -> int:
    """The offset after the last message that it could read."""
    return patiently(lambda: int(consumer.get_watermark_offsets(place, timeout=90, cached=False)[1]))


class MockCluster(Cluster):
    """The client library's own."""

    def __init__(self, brokers: int = 1) -> None:
        self._producer = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": brokers, "log_level": 0})
        found = self._producer.list_topics(timeout=90).brokers.values()
        super().__init__(",".join(f"{one.host}:{one.port}" for one in found))

    def make_topic(self, partitions: int = 4, **config: str) -> str:
        """It is made by asking for it, and has four partitions."""
        name = f"t{uuid4().hex[:10]}"
        while not self._producer.list_topics(name, timeout=90).topics[name].partitions:
            time.sleep(0.01)
        return name


class Broker(Cluster):
    """A real one, which can be killed and started again with what it has on its disk."""

    def __init__(self) -> None:
        cache = _resolved()
        self._command = [*_java(cache), "kafka.Kafka"]
        self.home = Path(tempfile.mkdtemp(prefix="hgkafka"))
        shutil.copytree(cache / "logs", self.home / "logs")
        make_certificate(self.home)
        self._ports = [free_port() for _ in range(4)]
        self._process: subprocess.Popen[bytes] | None = None
        self._configure()
        super().__init__(f"127.0.0.1:{self._ports[0]}")
        self.sasl = f"localhost:{self._ports[1]}"  # Asks for a password, without TLS,
        self.secure = f"localhost:{self._ports[2]}"  # and with.
        self.start()

    @property
    def pid(self) -> int | None:
        """Its process."""
        return None if self._process is None else self._process.pid

    @property
    def certificate(self) -> str:
        """The file with the certificate to trust."""
        return str(self.home / "server.pem")

    def _configure(self) -> None:
        plain, sasl, secure, controller = self._ports
        module = "org.apache.kafka.common.security"
        jaas = {
            "plain": f'{module}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
            "scram-sha-256": f"{module}.scram.ScramLoginModule required;",
        }
        key, pem = ((self.home / name).read_text().replace("\n", "\\n") for name in ("server.key", "server.pem"))
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl},"
            f"SASL_SSL://127.0.0.1:{secure},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://localhost:{sasl},"
            f"SASL_SSL://localhost:{secure}",
            "listener.security.protocol.map": ",".join(
                f"{one}:{one}" for one in ("PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL")
            )
            + ",CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": key,
            "ssl.keystore.certificate.chain": pem,
            "log.dirs": str(self.home / "logs"),
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
            "group.initial.rebalance.delay.ms": "0",
            "log.retention.check.interval.ms": "200",
            "log.cleaner.backoff.ms": "200",
            "log.initial.task.delay.ms": "200",
            "file.delete.delay.ms": "200",
            "broker.session.timeout.ms": "3000",  # After a kill, it is let in again when this has passed.
            "broker.heartbeat.interval.ms": "300",
            "auto.create.topics.enable": "true",  # What a test must not make by asking, would be there.
            "num.network.threads": "2",
            "num.io.threads": "2",
        }
        for mechanism, text in jaas.items():
            for listener in ("sasl_plaintext", "sasl_ssl"):
                settings[f"listener.name.{listener}.{mechanism}.sasl.jaas.config"] = text
        lines = (f"{name}={value}" for name, value in settings.items())
        (self.home / "server.properties").write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        """Start it, or start it again after `kill`, and wait until it answers."""
        command = [*self._command, str(self.home / "server.properties")]
        with (self.home / "out.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.home)
        ends_s = time.monotonic() + START_S
        while True:
            # The client would try to connect a thousand times until then.
            with suppress(OSError, KafkaException), socket.create_connection(("127.0.0.1", self._ports[0]), 1):
                if self.admin().list_topics(timeout=1).brokers:
                    return
            time.sleep(0.05)
            if self._process.poll() is not None or time.monotonic() > ends_s:
                raise RuntimeError((self.home / "out.log").read_text()[-3000:])

    def kill(self) -> None:
        """SIGKILL: it has no time to put anything in order."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """It answers nothing, and its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """It answers again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it, and remove what it has."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self.home, ignore_errors=True)


@contextmanager
def some_broker() -> Iterator[Cluster]:
    """A real broker: one that is named, or one of the test's own. Skips where there is none."""
    named = os.environ.get("HEADGATE_TEST_KAFKA")
    if named:
        yield Cluster(named)
        return
    broker = Broker()
    try:
        yield broker
    finally:
        broker.close()


def own_broker(cluster: Cluster) -> Broker:
    """The same, if it may be killed."""
    if not isinstance(cluster, Broker):
        pytest.skip("the broker of HEADGATE_TEST_KAFKA is not ours to kill")
    return cluster


def _resolved() -> Path:
    """The folder of the cache: `classpath`, `logs`, a formatted folder, and `classes.jsa`. It is filled once."""
    if shutil.which("java") is None or shutil.which("mvn") is None:
        pytest.skip("a real broker needs java and mvn on the PATH, or HEADGATE_TEST_KAFKA")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headgate" / f"kafka-{VERSION}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Several workers may come at once.
        classpath = cache / "classpath"
        if not classpath.exists() or not all(map(os.path.exists, classpath.read_text().split(":"))):
            _resolve(cache, classpath)
        if not (cache / "logs").exists():
            _format(cache)
        if not (cache / "classes.jsa").exists():
            _archive(cache)
        return cache


def _java(cache: Path) -> list[str]:
    archive = cache / "classes.jsa"
    classes = [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []
    return ["java", *JVM, *classes, "-cp", (cache / "classpath").read_text()]


def _resolve(cache: Path, classpath: Path) -> None:
    (cache / "pom.xml").write_text(POM)
    found = cache / "found"
    command = ["mvn", "-q", "-B", "-f", str(cache / "pom.xml"), "dependency:build-classpath"]
    done = subprocess.run([*command, f"-Dmdep.outputFile={found}"], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"Maven cannot resolve Kafka {VERSION}: {(done.stdout or done.stderr).strip()[:200]}")
    found.rename(classpath)


def _minimal(logs: Path, ports: tuple[int, int]) -> str:
    return (
        f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{ports[1]}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{ports[0]},CONTROLLER://127.0.0.1:{ports[1]}\n"
        f"controller.listener.names=CONTROLLER\nlog.dirs={logs}\n"
    )


def _format(cache: Path) -> None:
    aside, settings = cache / "formatting", cache / "format.properties"
    shutil.rmtree(aside, ignore_errors=True)
    settings.write_text(_minimal(aside, (1, 2)))
    tool = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(settings)]
    scram = ["--add-scram", f'SCRAM-SHA-256=[name={USER},password="{PASSWORD}"]']
    done = subprocess.run([*_java(cache), *tool, *scram], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    aside.rename(cache / "logs")


def _archive(cache: Path) -> None:
    """Start a broker and end it in good order: then the JVM writes down what it has loaded. It may do without."""
    with tempfile.TemporaryDirectory(prefix="hgkafka") as folder:
        logs, settings, port = Path(folder) / "logs", Path(folder) / "server.properties", free_port()
        shutil.copytree(cache / "logs", logs)
        settings.write_text(_minimal(logs, (port, free_port())))
        archive = f"-XX:ArchiveClassesAtExit={folder}/classes.jsa"
        command = ["java", *JVM, archive, "-cp", (cache / "classpath").read_text(), "kafka.Kafka", str(settings)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        ends_s = time.monotonic() + START_S
        while process.poll() is None and time.monotonic() < ends_s:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        process.terminate()
        process.wait()
        with suppress(OSError):
            shutil.copyfile(f"{folder}/classes.jsa", cache / "classes.aside")
            (cache / "classes.aside").rename(cache / "classes.jsa")
