"""Kafka without a broker: what messages become, schemas, positions in words, and the mock cluster of the client.

The mock cluster knows reading and plain writing only. Transactions are in `test_kafka_broker.py`.
"""

from __future__ import annotations

import base64
import io
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from typing import Any

import fastavro
import msgspec
import pytest
from pydantic import ValidationError

from headgate.connectors.api import Sink, Source
from headgate.connectors.guard import Bound, Guard, OutOfReach
from headgate.connectors.kafka import CONNECTOR
from headgate.connectors.kafka.options import KafkaSinkOptions, KafkaSourceOptions
from headgate.connectors.kafka.places import tell_move
from headgate.connectors.kafka.schemas import Schemas, weigh
from headgate.connectors.kafka.sink import PlainKafkaSink
from headgate.connectors.kafka.source import KafkaSource
from headgate.core.reach import AddressRule, Reach
from headgate.core.records import Unreadable
from headgate.errors import Cause, ConnectorError, NotConnected
from headgate.testing.contract import SinkContract, SourceInPartsContract
from headgate.testing.contract.patience import soon
from headgate.testing.factories import make_context
from tests.connectors.kafka_server import MockCluster

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "line", "type": ["null", "shop.Line"], "default": None},
    ],
}
LINE = {"type": "record", "name": "Line", "namespace": "shop", "fields": [{"name": "sku", "type": "string"}]}


@pytest.fixture(scope="module")
def mock() -> MockCluster:
    return MockCluster()


@pytest.fixture(autouse=True)
def _no_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mock cluster answers no question about ids of topics: do not wait for it."""
    monkeypatch.setattr("headgate.connectors.kafka.session.DESCRIBE_S", 0.05)


def make_source(mock: MockCluster, topic: str, part: str = "0", **options: Any) -> KafkaSource:
    options = {"brokers": mock.brokers, "topic": topic, **options}
    return KafkaSource(KafkaSourceOptions(**options), make_context(part=part))


async def read(source: KafkaSource, count: int) -> list[tuple[Any, Any]]:
    """Records with their metadata."""
    try:
        await soon(source.open(None))
        found: list[tuple[Any, Any]] = []
        while len(found) < count:
            batch = await soon(source.read())
            assert batch.meta is not None
            found += zip(batch.records, batch.meta, strict=True)
        return found
    finally:
        await source.close()


class TestMockKafkaSource(SourceInPartsContract):
    ends = False

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def data(cls, mock: MockCluster) -> None:
        cls.mock, cls.topic = mock, mock.make_topic()
        messages = ({"value": b'{"id": %d}' % id, "partition": id % 4} for id in range(24))
        mock.produce(cls.topic, list(messages))

    def make_part(self, part: str) -> Source:
        return make_source(self.mock, self.topic, part, batch=4)

    def expected_parts(self) -> dict[str, list[Any]]:
        return {str(part): [{"id": id} for id in range(part, 24, 4)] for part in range(4)}


class TestMockPlainKafkaSink(SinkContract):
    @pytest.fixture(autouse=True)
    def place(self, mock: MockCluster) -> None:
        self.mock, self.topic = mock, mock.make_topic()

    def make_sink(self) -> Sink:
        options = KafkaSinkOptions(brokers=self.mock.brokers, topic=self.topic, delivery="at_least_once")
        return PlainKafkaSink(options, make_context())

    async def read_back(self) -> list[dict[str, Any]] | None:
        found = [msgspec.json.decode(one.value()) for one in self.mock.read(self.topic)]
        return sorted(found, key=lambda record: record["id"])


# What messages become.


async def test_a_message_comes_with_its_key_headers_time_and_place(mock: MockCluster) -> None:
    topic = mock.make_topic()
    message = {"key": "k1", "headers": [("a", b"1"), ("a", b"2"), ("none", None)], "timestamp": 1_700_000_000_500}
    mock.produce(topic, [{"value": b'{"id": 1}', "partition": 2, **message}])
    source = make_source(mock, topic, "2")
    await source.open(None)
    batch = await soon(source.read())
    await source.close()
    assert batch.meta == [
        {
            "key": "k1",
            "headers": {"a": "2", "none": ""},
            "timestamp": 1_700_000_000.5,
            "partition": 2,
            "offset": 0,
            "is_tombstone": False,
        }
    ]
    assert batch.event_time_s == 1_700_000_000.5
    assert batch.size_bytes == 9
    assert batch.place is not None
    assert batch.place(0) == f"topic {topic}, partition 2, offset 0"


@pytest.mark.parametrize(
    ("options", "record", "key"),
    [
        ({}, None, '{"id":7}'),
        ({"tombstones": "key"}, {"key": '{"id":7}'}, '{"id":7}'),
        ({"tombstones": "key", "key_format": "json"}, {"id": 7}, {"id": 7}),
        ({"key_format": "bytes"}, None, base64.b64encode(b'{"id":7}').decode()),
    ],
)
async def test_a_tombstone_is_told_by_its_metadata(
    mock: MockCluster, options: dict[str, Any], record: Any, key: Any
) -> None:
    topic = mock.make_topic()
    rows = [{"value": b'{"id": 7}', "key": "x"}, {"value": None, "key": b'{"id":7}'}, {"value": b'{"id": 8}'}]
    mock.produce(topic, [{**row, "partition": 0} for row in rows])
    (first, _), (found, meta), (last, _) = await read(make_source(mock, topic, **options), 3)
    assert (first, found, last) == ({"id": 7}, record, {"id": 8})
    assert meta["is_tombstone"]
    assert meta["key"] == key


async def test_skipped_tombstones_are_passed_for_good(mock: MockCluster) -> None:
    topic = mock.make_topic()
    rows = [{"value": None}, {"value": None}, {"value": b"1"}, {"value": None}]
    mock.produce(topic, [{**row, "key": b"k", "partition": 0} for row in rows])
    source = make_source(mock, topic, tombstones="skip", batch=2)
    await source.open(None)
    batch = await soon(source.read())
    await source.close()
    assert batch.records == [1]
    assert batch.position["offset"] == 3


async def test_a_message_that_is_broken_or_too_large_is_unreadable_and_the_others_are_read(mock: MockCluster) -> None:
    topic = mock.make_topic()
    mock.produce(topic, [{"value": value, "partition": 0} for value in (b"{", b'"%s"' % (b"x" * 200), b"3")])
    broken, large, good = await read(make_source(mock, topic, max_message_bytes=100), 3)
    assert isinstance(broken[0], Unreadable)
    assert isinstance(large[0], Unreadable)
    assert "at most 100 are taken" in large[0].reason
    assert good[0] == 3


async def test_text_and_bytes(mock: MockCluster) -> None:
    topic = mock.make_topic()
    mock.produce(topic, [{"value": b"caf\xc3\xa9 \xff", "partition": 0}])
    assert (await read(make_source(mock, topic, format="text"), 1))[0][0] == {"body": "café \ufffd"}
    encoded = base64.b64encode(b"caf\xc3\xa9 \xff").decode()
    assert (await read(make_source(mock, topic, format="bytes"), 1))[0][0] == {"body": encoded}


async def test_it_begins_at_the_end_if_asked_to(mock: MockCluster) -> None:
    topic = mock.make_topic()
    mock.produce(topic, [{"value": b"1", "partition": 0}])
    source = make_source(mock, topic, start="latest")
    await source.open(None)
    mock.produce(topic, [{"value": b"2", "partition": 0}])
    assert (await soon(source.read())).records == [2]
    await source.close()


async def test_what_waits_is_known_while_it_is_read(mock: MockCluster) -> None:
    topic = mock.make_topic()
    mock.produce(topic, [{"value": b"1", "partition": 0} for _ in range(20)])
    source = make_source(mock, topic, batch=1)
    await source.open(None)
    first = await soon(source.read())
    backlog = await source.backlog()
    assert len(first.records) == 1
    assert backlog is not None
    assert backlog.records == 19
    await source.close()


# Schemas.


class Registry:
    """A registry of schemas, with a password, that counts what it is asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {"/schemas/types": []}
        self.asked: list[str] = []
        self.status = 200
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                expected = "Basic " + base64.b64encode(b"ada:secret").decode()
                is_known = self.headers["Authorization"] == expected
                found = registry.answers.get(self.path)
                status = 401 if not is_known else 404 if found is None else registry.status
                body = found if isinstance(found, bytes) else msgspec.json.encode(found)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def options(self, password: str = "secret") -> dict[str, Any]:
        return {"url": self.url, "username": "ada", "password": password}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def registry() -> Iterator[Registry]:
    served = Registry()
    yield served
    served.close()


def avro(id: int, schema: Any, record: Any) -> bytes:
    """In the layout that producers use: a zero byte, the id of the schema, the value."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, named_schemas={}), record)
    return struct.pack(">bI", 0, id) + out.getvalue()


async def test_avro_is_read_by_the_schema_that_it_names_which_is_fetched_once(
    mock: MockCluster, registry: Registry
) -> None:
    from datetime import UTC, datetime
    from decimal import Decimal

    topic = mock.make_topic()
    registry.answers["/schemas/ids/7"] = {
        "schema": msgspec.json.encode(ORDER).decode(),
        "references": [{"name": "shop.Line", "subject": "shop.Line", "version": 1}],
    }
    registry.answers["/subjects/shop.Line/versions/1"] = {"schema": msgspec.json.encode(LINE).decode()}
    whole = {**ORDER, "fields": [*ORDER["fields"][:3], {"name": "line", "type": ["null", LINE]}]}
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    rows = [{"id": id, "total": Decimal("12.50"), "at": at, "line": {"sku": f"s{id}"}} for id in range(3)]
    values = [avro(7, whole, row) for row in rows]
    other = struct.pack(">bI", 0, 8) + b"\x02"
    values += [other, other, b"no prefix", values[0][:9], b""]
    mock.produce(topic, [{"value": value, "partition": 0} for value in values])
    source = make_source(mock, topic, format="avro", schema_registry=registry.options())
    await source.check()
    found = [record for record, _ in await read(source, len(values))]
    assert found[:3] == [
        {"id": id, "total": "12.50", "at": "2026-01-02T03:04:05Z", "line": {"sku": f"s{id}"}} for id in range(3)
    ]
    reasons = [one.reason for one in found[3:]]
    assert reasons[0] == reasons[1] == "the registry has no such schema"
    assert "does not begin with the id" in reasons[2]
    assert reasons[3] == "the message is not what its schema says"
    asked = registry.asked.count
    assert (asked("/schemas/ids/7"), asked("/schemas/ids/8"), asked("/subjects/shop.Line/versions/1")) == (1, 1, 1)


async def test_of_json_with_a_schema_the_prefix_is_taken_off(mock: MockCluster) -> None:
    topic = mock.make_topic()
    values = [struct.pack(">bI", 0, 1) + b'{"id": 1}', b'{"id": 2}', struct.pack(">bI", 0, 1) + b"{"]
    mock.produce(topic, [{"value": value, "partition": 0} for value in values])
    found = [record for record, _ in await read(make_source(mock, topic, format="json_schema"), 3)]
    assert found[0] == {"id": 1}
    assert [one.reason for one in found[1:]] == [
        "the message does not begin with the id of a schema",
        "the body is not JSON",
    ]


async def test_a_key_may_be_avro_too(mock: MockCluster, registry: Registry) -> None:
    topic = mock.make_topic()
    schema = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
    registry.answers["/schemas/ids/3"] = {"schema": msgspec.json.encode(schema).decode()}
    mock.produce(topic, [{"value": None, "key": avro(3, schema, {"id": 5}), "partition": 0}])
    options = {"key_format": "avro", "tombstones": "key", "schema_registry": registry.options()}
    [(record, meta)] = await read(make_source(mock, topic, **options), 1)
    assert record == meta["key"] == {"id": 5}


async def test_what_a_registry_answers_steers_the_worker_and_nothing_of_it_is_trusted(registry: Registry) -> None:
    source = KafkaSourceOptions(brokers="a:1", topic="t", schema_registry=registry.options())
    schemas = Schemas(source.schema_registry, make_context().guard)
    refused = KafkaSourceOptions(brokers="a:1", topic="t", schema_registry=registry.options("wrong"))
    with pytest.raises(ConnectorError) as caught:
        await Schemas(refused.schema_registry, make_context().guard).get(1)
    assert caught.value.cause is Cause.AUTH
    assert "wrong" not in str(caught.value)
    registry.answers |= {"/schemas/ids/1": b"{" * 10, "/schemas/ids/2": b" " * 2_000_000}
    with pytest.raises(NotConnected):
        await schemas.get(1)
    with pytest.raises(Exception, match="too large"):
        await schemas.get(2)
    registry.status = 503
    with pytest.raises(NotConnected):
        await schemas.get(1)
    registry.close()
    with pytest.raises(NotConnected):
        await schemas.get(4)


def _nested(depth: int) -> Any:
    schema: Any = "int"
    for number in range(depth):
        schema = {"type": "record", "name": f"R{number}", "fields": [{"name": "f", "type": schema}]}
    return schema


def _doubled(times: int) -> Any:
    """A value of no bytes that is 2^times values."""
    schema: Any = {"type": "record", "name": "R0", "fields": [{"name": "f", "type": "null"}]}
    for number in range(1, times):
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"R{number - 1}"}]
        schema = {"type": "record", "name": f"R{number}", "fields": fields}
    return schema


LIST = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}


@pytest.mark.parametrize(
    "schema",
    [
        LIST,
        {**LIST, "namespace": "a", "fields": [{"name": "next", "type": ["null", "a.L"]}]},
        {"type": "array", "items": "null"},
        {"type": "array", "items": {"type": "record", "name": "E", "fields": []}},
        {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
        {"type": "array", "items": _doubled(16)},
        _nested(100),
        _doubled(40),
        {"type": "what"},
        {"fields": []},
        7,
    ],
)
async def test_a_schema_by_which_a_small_message_costs_much_is_refused(registry: Registry, schema: Any) -> None:
    """Each of these is a stack that ends, or memory without end, in a message of a few bytes."""
    registry.answers["/schemas/ids/1"] = {"schema": msgspec.json.encode(schema).decode()}
    options = KafkaSourceOptions(brokers="a:1", topic="t", schema_registry=registry.options())
    with pytest.raises(Exception, match="schema 1 is not a valid schema"):
        await Schemas(options.schema_registry, make_context().guard).get(1)


def test_schemas_that_people_have_are_weighed() -> None:
    wide = [{"name": f"f{n}", "type": ["null", "string"]} for n in range(300)]
    record = {"type": "record", "name": "W", "fields": wide}
    assert weigh(record).least_bytes == 300
    weigh({"type": "array", "items": record})
    weigh({"type": "map", "values": ["null", record]})
    weigh({"type": "enum", "name": "E", "symbols": ["A"]})


# Options, positions, reach.


@pytest.mark.parametrize("brokers", ["", "host", "host:", ":9092", "http://host:9092", "u@host:1", "a:1,b"])
def test_brokers_that_are_no_addresses_are_refused(brokers: str) -> None:
    with pytest.raises(ValidationError):
        KafkaSourceOptions(brokers=brokers, topic="t")


def test_everything_that_options_name_is_judged() -> None:
    tls = {"ca": "/ca.pem", "certificate": "/c.pem", "key": "/k.pem"}
    registry = {"url": "http://schemas:8081"}
    options = KafkaSourceOptions(brokers="a:1, [::1]:2", topic="t", tls=tls, schema_registry=registry)
    assert CONNECTOR.source is not None
    named = sorted(str(place) for place in CONNECTOR.source.reaches(options))
    assert named == ["/c.pem", "/ca.pem", "/k.pem", "::1:2", "a:1", "schemas:8081"]


async def test_a_broker_that_names_others_out_of_reach_is_not_followed() -> None:
    two = MockCluster(brokers=2)
    first, second = (int(one.rpartition(":")[2]) for one in two.brokers.split(","))
    guard = Guard((Bound(Reach(addresses=(AddressRule(network=ip_network("127.0.0.1/32"), port=first),))),))
    options = KafkaSourceOptions(brokers=f"127.0.0.1:{first}", topic=two.make_topic())
    source = KafkaSource(options, make_context(part="0", guard=guard))
    with pytest.raises(OutOfReach, match=f"127.0.0.1:{second}"):
        await soon(source.open(None))
    await source.close()
    named = KafkaSource(KafkaSourceOptions(brokers=two.brokers, topic="t"), make_context(part="0", guard=guard))
    with pytest.raises(OutOfReach, match=f"127.0.0.1:{second}"):
        await soon(named.check())


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"offset": 9, "topic_id": "a"}, {"offset": 4}, "records 5 to 9 are read again"),
        (None, 4, "records 0 to 4 are skipped"),
        (4, None, "records 0 to 4 are read again"),
        (4, {"offset": 4, "leader_epoch": 2}, "nothing changes"),
        (4, {"offset": -1}, "no run could continue after this: it is no position of such a source"),
        (4, {"offset": True}, "no run could continue after this: it is no position of such a source"),
        (4, {"offset": 1, "more": 1}, "no run could continue after this: it is no position of such a source"),
        (4, "7", "no run could continue after this: it is no position of such a source"),
    ],
)
def test_a_move_is_told_in_records(before: Any, after: Any, told: str) -> None:
    assert tell_move(before, after) == told


async def test_a_position_of_another_source_is_an_error_of_configuration(mock: MockCluster) -> None:
    source = make_source(mock, mock.make_topic())
    with pytest.raises(ConnectorError) as caught:
        await source.open({"line": 3})
    assert caught.value.cause is Cause.CONFIG
    await source.close()


async def test_a_cluster_that_is_away_is_not_connected() -> None:
    source = KafkaSource(KafkaSourceOptions(brokers="127.0.0.1:1", topic="t"), make_context(part="0"))
    for ask in (source.check, source.parts, lambda: source.open(None)):
        with pytest.raises(NotConnected):
            await soon(ask())
    await source.close()


async def test_without_its_library_the_connector_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [one for one in sys.modules if one.startswith("headgate.connectors.kafka.s")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    assert CONNECTOR.source is not None
    with pytest.raises(ConnectorError, match="confluent_kafka") as caught:
        CONNECTOR.source.build(KafkaSourceOptions(brokers="a:1", topic="t"), make_context())
    assert caught.value.cause is Cause.CONFIG
    assert caught.value.hint == "pip install 'headgate[kafka]'"


@pytest.mark.parametrize(("delivery", "is_transactional"), [("exactly_once", True), ("at_least_once", False)])
def test_only_a_sink_with_transactions_counts_as_fenced(delivery: str, is_transactional: bool) -> None:
    assert CONNECTOR.sink is not None
    options = KafkaSinkOptions(brokers="a:1", topic="t", delivery=delivery)
    assert CONNECTOR.sink.with_options(options).transactional is is_transactional
