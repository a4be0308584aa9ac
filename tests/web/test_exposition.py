"""The text for Prometheus: what a parser reads in it, and that it is made in slices."""

from __future__ import annotations

import asyncio
import gzip
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headgate.core.figures import HEALTHS
from headgate.core.records import Totals
from headgate.telemetry import exposition, metrics
from headgate.telemetry.metrics import (
    COUNTERS,
    GAUGES,
    STATUSES,
    TOTALS,
    DatasourceFigures,
    DumpFigures,
    GroupFigures,
    NodeCollector,
    PushFigures,
    StreamFigures,
)
from headgate.web.headers import takes_gzip
from tests.web_node import Web

MANY = 5000


def figures(number: int, stream: str = "") -> StreamFigures:
    counts = {name: float(number * 100 + place) for place, name in enumerate(COUNTERS)}
    stream = stream or f"ds-{number}:0"
    totals = Totals(number + 6, number + 3, 2, 1)
    return StreamFigures(f"ds-{number}", stream, "RUNNING", counts, totals, 0.5, 0.1, 7, 700, 0.25, 1_000_000.0)


def collector(
    *streams: StreamFigures, resting: tuple[StreamFigures, ...] = (), elsewhere: frozenset[str] = frozenset()
) -> NodeCollector:
    async def here() -> AsyncIterator[StreamFigures]:
        for one in streams:
            yield one

    async def at_rest() -> tuple[StreamFigures, ...]:
        return resting

    async def taken() -> frozenset[str]:
        return elsewhere

    async def groups() -> Mapping[str, int]:
        return dict.fromkeys(("groups", "inactive", "connected", "disconnected", "forgotten", "ignored", "moving"), 2)

    async def dumps() -> Mapping[str, int]:
        return {"running": 1, "rows": 10, "bytes": 1000}

    async def datasources() -> DatasourceFigures:
        return DatasourceFigures([("ds-7", "no_node")], ["bad"], {"pushed": Totals(100_000, 99_990, 0, 10)})

    return NodeCollector(
        here,
        at_rest,
        taken,
        datasources,
        lambda: True,
        lambda: len(streams),
        lambda: 4.5,
        lambda: 0.001,
        lambda: Counter({("orders", 202): 3}),
        lambda: PushFigures(1, 12_345_678, Counter(left=2)),
        GroupFigures(groups, deque([0.02, 0.02, 45.0]), lambda: 1, Counter(version=1)),
        DumpFigures(dumps),
    )


async def slices(of: NodeCollector) -> list[bytes]:
    await of.refresh()
    return [one async for one in exposition.written(await of.families())]


def read(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_a_parser_reads_every_metric_with_its_type_and_its_value() -> None:
    text = b"".join(await slices(collector(figures(7)))).decode()
    types = {family.name: family.type for family in text_string_to_metric_families(text)}
    assert {name: kind for name, kind in types.items() if name in GAUGES} == dict.fromkeys(GAUGES, "gauge")
    assert {types[name] for name, _ in (*TOTALS.values(), *COUNTERS.values())} == {"counter"}
    assert types["headgate_group_handover_seconds"] == "histogram"
    found, labels = read(text), (("datasource", "ds-7"), ("stream", "ds-7:0"))
    for place, (name, _) in enumerate(COUNTERS.values()):
        assert found[f"{name}_total", labels] == 700.0 + place
    for name, number in {"read": 13.0, "written": 10.0, "filtered": 2.0, "dead_lettered": 1.0}.items():
        assert found[f"headgate_records_{name}_total", labels] == number
    assert found["headgate_records_written_total", (("datasource", "pushed"),)] == 99_990.0
    assert found["headgate_lag_seconds", labels] == 0.5
    assert found["headgate_last_event_delay_seconds", labels] == 0.1
    assert (found["headgate_backlog_records", labels], found["headgate_backlog_bytes", labels]) == (7.0, 700.0)
    for health in HEALTHS:
        named = (("datasource", "ds-7"), ("status", health))
        assert found["headgate_datasource_health", named] == float(health == "no_node")
    assert found["headgate_version_rejected", (("datasource", "bad"),)] == 1.0
    assert found["headgate_registry_file_broken", ()] == 1.0
    for status in STATUSES:
        named = (("datasource", "ds-7"), ("status", status), ("stream", "ds-7:0"))
        assert found["headgate_worker_status", named] == float(status == "RUNNING")
    assert found["headgate_webhooks_total", (("answer", "202"), ("datasource", "orders"))] == 3.0
    assert found["headgate_push_records_total", ()] == 12_345_678.0
    assert found["headgate_push_ends_total", (("code", "left"),)] == 2.0
    assert found["headgate_group_handover_seconds_bucket", (("le", "0.03"),)] == 2.0
    assert found["headgate_group_handover_seconds_bucket", (("le", "+Inf"),)] == 3.0
    assert found["headgate_group_handover_seconds_count", ()] == 3.0
    assert found["headgate_dumps", (("status", "running"),)] == 1.0
    assert found["headgate_dump_rows_total", ()] == 10.0


async def test_the_text_of_many_streams_is_made_in_slices_and_others_run_in_between() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    found = await slices(collector(*(figures(number) for number in range(MANY))))
    counting.cancel()
    lines = [one.count(b"\n") for one in found]
    series = MANY * (len(TOTALS) + len(COUNTERS) + 6 + len(STATUSES))
    assert sum(lines) > series
    assert max(lines) <= exposition.SLICE + 1  # A head has two lines.
    assert turns >= series / exposition.SLICE


async def test_the_labels_of_a_stream_are_made_once_for_all_its_series(monkeypatch: pytest.MonkeyPatch) -> None:
    """And while its figures are gathered, in slices: made for all streams in one go they held the event loop."""
    made: list[str] = []

    def escaped(value: str) -> str:
        made.append(value)
        return exposition.escaped(value)

    monkeypatch.setattr(metrics, "escaped", escaped)
    streams = [figures(number) for number in range(50)]
    assert len(made) == 2 * 50
    await slices(collector(*streams))
    assert len(made) == 2 * 50 + 1  # And the one datasource that has a health.


async def test_a_stream_that_came_here_since_is_reported_once() -> None:
    text = b"".join(await slices(collector(figures(1), resting=(figures(2, "ds-1:0"), figures(3))))).decode()
    counted = {labels: value for (name, labels), value in read(text).items() if name == "headgate_batches_total"}
    assert [int(value) // 100 for value in sorted(counted.values())] == [1, 3]


async def test_whatever_a_label_holds_a_parser_reads_it_back() -> None:
    name = 'a"b\\c\nd:é'
    text = b"".join(await slices(collector(figures(1, name)))).decode()
    assert ("headgate_batches_total", (("datasource", "ds-1"), ("stream", name))) in read(text)


@pytest.mark.parametrize(
    ("header", "takes"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("", False),
        ("*", False),
        ("identity", False),
    ],
)
def test_gzip_is_for_callers_that_take_it(header: str, takes: bool) -> None:
    assert takes_gzip(header) is takes


def test_a_node_answers_both_plain_and_zipped(web: Web, name: str) -> None:
    web.publish(name)
    web.running(name)
    plain = web.ask("GET", "/metrics", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    with web.client.stream("GET", "/metrics", headers={"Accept-Encoding": "gzip"}) as answer:
        packed = b"".join(answer.iter_raw())
    assert answer.headers["content-encoding"] == "gzip"
    for text in (plain.text, gzip.decompress(packed).decode()):
        assert ("headgate_batches_total", (("datasource", name), ("stream", f"{name}:0"))) in read(text)
