"""The demo shows a broker if it is told of one: orders go into it and come back, and no kill of the node loses any."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import nats
import pika
import pytest

from headgate.store.embedded import EmbeddedServer
from headgate.testing.mosquitto import Mosquitto, program
from headgate.testing.processes import NodeProcess
from headgate.testing.rabbitmq import RabbitMq, is_installed
from headgate.testing.servers import free_port
from tests.commands import headgate
from tests.connectors.nats_server import NatsServer
from tests.connectors.redis_server import RedisServer
from tests.waiting import wait_until
from tests.web_node import Databases, _fetch

PASSWORD = "vault-of-mangoes-77"


@pytest.fixture
def database(server: EmbeddedServer) -> Iterator[str]:
    made = Databases(server)
    yield made.make()
    made.drop()


def a_redis(stack: ExitStack) -> str:
    """With a password, which nobody may see."""
    server = RedisServer("--requirepass", PASSWORD)
    stack.callback(server.stop)
    return server.url.replace("//", f"//:{PASSWORD}@")


def a_mosquitto(stack: ExitStack) -> str:
    if program() is None:
        pytest.skip("mosquitto is not installed (make packages)")
    return stack.enter_context(Mosquitto()).url


def a_rabbitmq(stack: ExitStack) -> str:
    """With the queue that somebody has to declare."""
    if not is_installed():
        pytest.skip("rabbitmq-server is not installed (make packages)")
    url = stack.enter_context(RabbitMq(has_streams=False)).url()
    connection = pika.BlockingConnection(pika.URLParameters(url))
    connection.channel().queue_declare("headgate-demo", durable=True)
    connection.close()
    return url


def a_nats(stack: ExitStack) -> str:
    """With the stream that somebody has to add."""
    server = NatsServer()
    stack.callback(server.stop)

    async def add() -> None:
        client = await nats.connect(server.url)
        await client.jetstream().add_stream(name="headgate-demo", subjects=["headgate-demo"])
        await client.close()

    asyncio.run(add())
    return server.url


@pytest.fixture(params=[a_redis, a_mosquitto, a_rabbitmq, a_nats], ids=["redis", "mqtt", "rabbitmq", "nats"])
def broker(request: pytest.FixtureRequest) -> Iterator[str]:
    start: Callable[[ExitStack], str] = request.param
    with ExitStack() as stack:
        yield start(stack)


def ids(database: str) -> list[int]:
    rows = asyncio.run(_fetch(database, "SELECT id FROM demo_broker ORDER BY id"))
    return [row["id"] for row in rows]


def names(node: NodeProcess) -> set[str]:
    return {one["name"] for one in node.call("GET", "/api/datasources")["items"]}


def secrets(node: NodeProcess) -> set[str]:
    return {one["name"] for one in node.call("GET", "/api/secrets")["items"]}


def test_orders_go_through_a_broker_and_a_killed_node_loses_none(tmp_path: Path, database: str, broker: str) -> None:
    home = tmp_path / "home"
    node = NodeProcess.start(home, database=database, flags=("--demo", "--demo-broker", broker))
    token = node.token
    try:
        node.wait_for("demo-from-broker", lambda d: d["metrics"]["records_written"] > 10)
        everything = json.dumps([node.call("GET", path) for path in ("/api/export", "/api/secrets")])
        node.end(signal.SIGKILL)
        before = ids(database)[-1]
        node = NodeProcess.start(home, database=database, flags=("--demo",), token=token)  # Leaves it as it is.
        node.wait_for("demo-to-broker", lambda d: d["metrics"]["records_written"] > before + 10)
        node.call("POST", "/api/datasources/demo-to-broker/stop")
        node.wait_for("demo-to-broker", lambda d: d["worker_status"] != "RUNNING")
        last = node.call("GET", "/api/datasources/demo-to-broker")["metrics"]["records_written"] - 1
        wait_until(lambda: ids(database)[-1] >= last)
        first = ids(database)[0]
        assert first == 0 or broker.startswith("mqtt")  # Which keeps nothing for a reader that never came.
        assert ids(database) == list(range(first, ids(database)[-1] + 1))
        assert node.end(signal.SIGTERM) == 0, node.log()
        assert PASSWORD not in everything + node.log()
        node = NodeProcess.start(home, database=database, flags=("--no-demo",), token=token)
        wait_until(lambda: "the demo is removed" in node.log())
        assert names(node) == set()
        assert secrets(node) == set()
        assert "something of the demo stays in its broker" in node.log()
    finally:
        node.end(signal.SIGKILL)


def test_another_broker_takes_the_place_of_the_first_without_a_failure(tmp_path: Path, database: str) -> None:
    with ExitStack() as stack:
        first, other = a_redis(stack), a_mosquitto(stack)
        node = NodeProcess.start(tmp_path, database=database, flags=("--demo", "--demo-broker", first))
        stack.callback(node.end, signal.SIGKILL)
        token = node.token
        node.wait_for("demo-from-broker", lambda d: d["metrics"]["records_written"] > 5)
        assert node.end(signal.SIGTERM) == 0, node.log()
        flags = ("--demo", "--demo-broker", other)
        node = NodeProcess.start(tmp_path, database=database, flags=flags, token=token)
        stack.callback(node.end, signal.SIGKILL)
        before = node.wait_for("demo-from-broker", lambda d: d["running_version"] == 2)["metrics"]["records_written"]
        node.wait_for("demo-from-broker", lambda d: d["metrics"]["records_written"] > before + 5)
        assert "quarantined" not in node.log()
        assert {"demo-redis", "demo-mqtt"} < secrets(node)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1", "--demo-broker must begin with one of redis://"),
        (f"redis://:{PASSWORD}@127.0.0.1/x", "must end with the number of a database"),
        (f"mqtt://ada:{PASSWORD}@127.0.0.1:{{port}}", "127.0.0.1:{port}"),
        (f"nats://ada:{PASSWORD}@127.0.0.1:{{port}}", "127.0.0.1:{port}"),
    ],
)
def test_a_broker_that_cannot_be_used_costs_one_line(tmp_path: Path, database: str, url: str, why: str) -> None:
    port = str(free_port())
    url, why = url.replace("{port}", port), why.replace("{port}", port)
    node = NodeProcess.start(tmp_path, database=database, flags=("--demo", "--demo-broker", url))
    try:
        assert names(node) == {"demo-clicks", "demo-orders", "demo-poison", "demo-status"}
        said = [line for line in node.log().splitlines() if "the demo goes without its broker" in line]
        assert len(said) == 1
        assert why in said[0]
        assert PASSWORD not in node.log()
        assert secrets(node) == {"demo-database"}
    finally:
        node.end(signal.SIGKILL)


def test_a_secret_that_somebody_else_has_set_is_neither_taken_nor_deleted(tmp_path: Path, database: str) -> None:
    node = NodeProcess.start(tmp_path, database=database)
    token = node.token
    try:
        node.call("PUT", "/api/secrets/demo-redis", {"value": "redis://mine.example"})
        assert node.end(signal.SIGTERM) == 0
        flags = ("--demo", "--demo-broker", "redis://127.0.0.1:1")
        node = NodeProcess.start(tmp_path, database=database, flags=flags, token=token)
        assert "the secret demo-redis, which would have its URL, is somebody else's" in node.log()
        assert node.end(signal.SIGTERM) == 0
        node = NodeProcess.start(tmp_path, database=database, flags=("--no-demo",), token=token)
        wait_until(lambda: "the demo is removed" in node.log())
        assert secrets(node) == {"demo-redis"}
    finally:
        node.end(signal.SIGKILL)


def test_a_broker_goes_with_the_demo_only(tmp_path: Path) -> None:
    found = headgate(tmp_path, "up", "--demo-broker", "redis://127.0.0.1")
    assert found.returncode == 3
    assert "say --demo, too" in found.stderr
