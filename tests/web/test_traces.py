"""What a collector of OpenTelemetry gets of a node: runs, batches, calls and chunks by name, the metrics, no values."""

from __future__ import annotations

import asyncio
import gzip
import signal
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from typer.testing import CliRunner

from headgate.cli import app
from headgate.config import load
from headgate.errors import ConfigError
from headgate.spans import NOBODY, Spans, spans
from headgate.telemetry import traces
from headgate.telemetry.points import labels_of
from tests.waiting import LONG_S, wait_until
from tests.web_node import BLACKHOLE, Databases, Web, execute, started

VALUE = "Hemlock-4711"  # In records, and nowhere else.


class Collector:
    """A small OTLP receiver."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, bytes]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.bodies.append((self.path, body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans(self, name: str, **wanted: Any) -> list[Any]:
        """Spans of this name whose attributes are these."""
        found = []
        for path, body in list(self.bodies):
            if path == "/v1/traces":
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    found += [one for scope in resource.scope_spans for one in scope.spans if one.name == name]
        return [one for one in found if all(attributes(one).get(key) == value for key, value in wanted.items())]

    def metrics(self) -> dict[str, Any]:
        """The latest of each name."""
        found = {}
        for path, body in list(self.bodies):
            if path == "/v1/metrics":
                for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    found |= {one.name: one for scope in resource.scope_metrics for one in scope.metrics}
        return found


def attributes(one: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in one.attributes}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


@pytest.fixture(scope="module")
def web(collector: Collector, databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    quick = {"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_METRIC_EXPORT_INTERVAL": "500", "HEADGATE_NODE_NAME": "traced"}
    home = tmp_path_factory.mktemp("node")
    with started(home, databases.make(), HEADGATE_OTLP=collector.url, **quick) as node:
        yield node


def test_runs_and_batches_are_told_by_name_and_number(web: Web, collector: Collector, name: str) -> None:
    web.publish(name, source={"type": "webhook"}, mapping={"set": {"n": "1 / n"}})
    web.opened(name)
    for number in (1, 0):  # The second cannot be mapped.
        web.call("POST", f"/hooks/{name}", {"n": number, "note": VALUE})
        web.wait_for(name, lambda d, n=number: d["metrics"]["records_read"] == 2 - n)
    (batch, *_) = wait_until(lambda: collector.spans("batch", **{"headgate.datasource": name}))
    told = attributes(batch)
    assert (told["headgate.stream"], told["headgate.written"]) == (f"{name}:0", 1)
    web.call("POST", f"/api/datasources/{name}/stop")
    (run,) = wait_until(lambda: collector.spans("run", **{"headgate.stream": f"{name}:0"}))
    assert attributes(run)["headgate.epoch"] == told["headgate.epoch"]
    assert [link.span_id for link in batch.links] == [run.span_id]
    assert batch.trace_id != run.trace_id
    assert run.status.code == 0


def test_a_run_that_fails_tells_its_cause_and_not_its_words(web: Web, collector: Collector, name: str) -> None:
    web.call("PUT", f"/api/secrets/{name}", {"value": f"postgresql://ada:{VALUE}@127.0.0.1:1/none"})
    web.publish(name, sink={"type": "postgres", "url": {"$secret": name}, "table": "t"}, enabled=False)
    web.call("POST", f"/api/datasources/{name}/start")
    (run, *_) = wait_until(lambda: collector.spans("run", **{"headgate.stream": f"{name}:0"}))
    assert attributes(run)["error.type"] == "network"
    assert (run.status.code, run.status.message, list(run.events)) == (2, "", [])


def test_calls_are_told_by_the_path_as_the_api_knows_it(web: Web, collector: Collector, name: str) -> None:
    web.publish(name, source={"type": "generator", "rate": 1}, sink=BLACKHOLE, enabled=False)
    web.show(name)
    route = "/api/datasources/{name}"
    (call, *_) = wait_until(lambda: collector.spans(f"GET {route}", **{"headgate.datasource": name}))
    assert attributes(call)["http.response.status_code"] == 200
    web.ask("GET", f"/api/datasources/{VALUE}")
    web.ask("GET", f"/api/{VALUE}?code={VALUE}")
    assert wait_until(lambda: collector.spans("GET unknown"))
    with web.client.stream("GET", "/api/logs") as live:  # It goes on, and is told when it has begun.
        assert live.status_code == 200
        assert wait_until(lambda: collector.spans("GET /api/logs"))


def test_chunks_of_dumps_are_told_by_number(web: Web, collector: Collector, databases: Databases) -> None:
    source, target = databases.make(), databases.make()
    for statement in (
        "CREATE TABLE trees (id integer PRIMARY KEY, note text)",
        f"INSERT INTO trees SELECT n, '{VALUE}' FROM generate_series(1, 40) n",
    ):
        asyncio.run(execute(source, statement))
    words = ["dump", source, target, "--table", "trees", "--chunk-rows", "10", "--on", web.node.url]
    done = CliRunner().invoke(app, [*words, "--token", web.node.token])
    assert done.exit_code == 0, done.output
    found = wait_until(lambda: (all := collector.spans("chunk", **{"headgate.rows": 10})) and len(all) >= 4 and all)
    assert {attributes(one)["headgate.table"].rpartition(".")[2] for one in found} == {"trees"}
    assert len({attributes(one)["headgate.chunk"] for one in found}) == len(found)


def test_the_metrics_are_those_of_prometheus(web: Web, collector: Collector, name: str) -> None:
    web.publish(name)
    web.running(name)
    read = ("headgate_records_read", f"{name}:0")

    def points() -> dict[str, float]:
        found = collector.metrics().get(read[0])
        return {} if found is None else {attributes(p)["stream"]: p.as_double for p in found.sum.data_points}

    wait_until(lambda: points().get(read[1], 0) > 0)
    page = {line.split("{")[0].split(" ")[0] for line in web.ask("GET", "/metrics").text.splitlines() if line[0] != "#"}
    plain = {one.removesuffix("_total") for one in page if "_bucket" not in one and "handover" not in one}
    wait_until(lambda: plain <= set(collector.metrics()))
    assert collector.metrics()["headgate_group_handover_seconds"].histogram.data_points[0].explicit_bounds


def test_no_value_of_a_record_or_secret_reaches_the_collector(web: Web, collector: Collector) -> None:
    """After all that the tests above have moved."""
    assert len(collector.bodies) > 5
    assert [path for path, body in collector.bodies if VALUE.encode() in body] == []


def test_a_collector_that_goes_away_is_said_once_and_holds_nothing_up(
    web: Web, collector: Collector, name: str
) -> None:
    collector.close()
    web.publish(name)
    web.running(name)
    wait_until(lambda: "traces do not get through" in web.node.log(), timeout_s=LONG_S)
    before = web.show(name)["metrics"]["records_written"]
    web.wait_for(name, lambda d: d["metrics"]["records_written"] > before)
    assert web.node.log().count("traces do not get through") == 1
    assert web.node.end(signal.SIGTERM) == 0


# Without a node.


def test_nothing_is_kept_while_nobody_traces() -> None:
    off = Spans()
    assert not off.is_on
    assert off.begin("run", stream="a:0") is NOBODY
    off.tell("chunk", 1.0)
    assert not spans.is_on


def test_it_is_wanted_only_where_somebody_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in traces.STANDARD:
        monkeypatch.delenv(name, raising=False)
    named = load(otlp="http://127.0.0.1:4318")
    assert not traces.is_wanted(load())
    assert traces.is_wanted(named)
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not traces.is_wanted(named)
    monkeypatch.delenv("OTEL_SDK_DISABLED")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"headgate\[otel\]"):
        traces.is_wanted(named)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    assert not traces.is_wanted(load())


@pytest.mark.parametrize("url", ["collector:4318", "ftp://x", "http://", "http://ada:secret@x:4318"])
def test_an_address_that_is_none_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(otlp=url)
    assert "secret" not in str(refused.value).replace("OTEL_EXPORTER_OTLP_HEADERS", "")


def test_labels_are_read_as_they_were_written() -> None:
    assert labels_of('{a="x",b="q\\"\\\\ \\n"}') == {"a": "x", "b": 'q"\\ \n'}
    assert labels_of("") == {}
