"""The same numbers in every view, on every node, whatever becomes of the streams and of those who run them."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from headgate.client import PushClient
from tests.commands import headgate
from tests.waiting import LONG_S, wait_until
from tests.web.test_cluster import joined, stop, stream, this
from tests.web_node import Databases, Web, started

NAMES = ("read", "written", "filtered", "dead_lettered")
NOWHERE = {"type": "postgres", "url": "postgresql://nobody@127.0.0.1:1/none", "table": "t"}
# Of these records some are left out, and some cannot be mapped.
MIXED = {
    "source": {"type": "generator", "count": 3000, "fields": {"id": "sequence", "kind": ["a", "7", "x"]}},
    "mapping": {"where": "kind != 'a'", "set": {"id": "id", "size": "int(kind)"}},
}


def totals(found: dict[str, Any]) -> dict[str, int]:
    return {name: found["metrics"][f"records_{name}"] for name in NAMES}


def scraped(*webs: Web) -> dict[str, dict[str, list[float]]]:
    """By datasource and total, all series that these nodes report."""
    found: dict[str, dict[str, list[float]]] = {}
    for web in webs:
        for family in text_string_to_metric_families(web.ask("GET", "/metrics").text):
            for sample in family.samples:
                if kind := re.fullmatch(r"headgate_records_(\w+)_total", sample.name):
                    found.setdefault(sample.labels["datasource"], {}).setdefault(kind[1], []).append(sample.value)
    return found


def sample(web: Web, name: str, **labels: str) -> float | None:
    """One series of one node."""
    for family in text_string_to_metric_families(web.ask("GET", "/metrics").text):
        for one in family.samples:
            if one.name == name and one.labels == labels:
                return float(one.value)
    return None


def command(web: Web, *arguments: str) -> str:
    """What a command prints that asks this node."""
    return headgate(web.node.home, *arguments, "--url", web.node.url, HEADGATE_TOKEN=web.node.token).stdout


def top(web: Web, name: str) -> dict[str, Any]:
    """What `headgate top` says."""
    (row,) = [row for row in json.loads(command(web, "top", "--json"))["items"] if row["name"] == name]
    return dict(row)


def listed(web: Web, name: str) -> dict[str, Any]:
    (found,) = [one for one in web.call("GET", "/api/datasources")["items"] if one["name"] == name]
    return dict(found)


def overviewed(web: Web, name: str) -> dict[str, Any]:
    """It may be a moment old."""

    def found() -> list[dict[str, Any]]:
        return [one for one in web.call("GET", "/api/overview?follow=false")["datasources"] if one["name"] == name]

    return dict(wait_until(found)[0])


def check_views(web: Web, name: str, expected: dict[str, int], *others: Web) -> None:
    """Every view has these totals, and they add up."""
    assert expected["read"] == expected["written"] + expected["filtered"] + expected["dead_lettered"]
    for one in (web, *others):
        assert [totals(view) for view in (one.show(name), listed(one, name))] == [expected] * 2
        # What all who look share is read once a second.
        one.until(lambda one=one: totals(overviewed(one, name)), lambda found: found == expected)
    series = {total: [float(number)] for total, number in expected.items()}
    web.until(lambda: scraped(web, *others).get(name), lambda found: found == series)


def test_totals_add_up_and_are_the_same_everywhere_after_a_stop_a_restart_and_a_kill(
    databases: Databases, tmp_path: Path
) -> None:
    database = databases.make()
    with started(tmp_path, database) as web:
        web.publish("mixed", **MIXED)
        found = web.wait_for("mixed", lambda found: found["health"] == "ended")
        expected = totals(found)
        assert expected["read"] == 3000
        assert min(expected.values()) > 0
        check_views(web, "mixed", expected)
        row = top(web, "mixed")
        assert {total: row[total] for total in NAMES} == expected
        words = f"3,000 read: {expected['written']:,} written, {expected['filtered']:,} filtered"
        assert f"{words}, {expected['dead_lettered']:,} dead-lettered" in command(web, "ds", "show", "mixed")
        web.publish("steady", source={"type": "generator", "rate": 500})
        web.wait_for("steady", lambda found: found["metrics"]["records_written"] > 100)
        stop(web, "steady")
        steady = totals(web.show("steady"))
        check_views(web, "steady", steady)
        web.node.end(signal.SIGKILL)
    with started(tmp_path, database) as web:
        check_views(web, "mixed", expected)
        check_views(web, "steady", steady)
        web.call("POST", "/api/datasources/steady/start")
        found = web.wait_for("steady", lambda found: found["metrics"]["records_written"] > steady["written"])
        assert found["metrics"]["records_read"] > steady["read"]
        before = web.wait_for("steady", lambda found: found["metrics"]["records_written"] > steady["written"] + 500)
        web.node.end(signal.SIGKILL)
    with started(tmp_path, database) as web:
        # A plain sink may be asked again for what was written after the last checkpoint, which is a second old at most.
        assert web.show("steady")["metrics"]["records_written"] >= steady["written"]
        web.wait_for("steady", lambda found: found["metrics"]["records_written"] > before["metrics"]["records_written"])


def test_a_stream_that_moves_counts_on_and_one_node_reports_it(databases: Databases, tmp_path: Path) -> None:
    with started(tmp_path / "first", databases.make()) as first:
        first.publish("orders", source={"type": "generator", "rate": 200})
        first.running("orders")
        with joined(first, tmp_path / "second", "second") as second:
            written = 0
            for home in ("second", this(first)["name"]):
                first.call("POST", "/api/streams/orders:0/move", {"node": home})
                first.until(lambda: stream(first, "orders:0"), lambda found, home=home: found["node"] == home)
                for web in (first, second):  # The one that does not run it is a checkpoint behind.
                    web.wait_for("orders", lambda found, home=home: found["node"] == home)
                    found = web.wait_for(
                        "orders", lambda found, written=written: found["metrics"]["records_written"] >= written
                    )
                    written = found["metrics"]["records_written"]
                (series,) = first.until(
                    lambda: scraped(first, second)["orders"]["written"], lambda found: len(found) == 1
                )
                assert series >= written
            # A node that does not run it has its rate at the first look.
            found = second.wait_for("orders", lambda found: found["metrics"]["read_per_s"] is not None)
            assert 20.0 < found["metrics"]["read_per_s"] < 2000.0
            stop(first, "orders")
            check_views(first, "orders", totals(first.show("orders")), second)


def test_a_stream_that_was_stopped_and_starts_elsewhere_is_counted_once(databases: Databases, tmp_path: Path) -> None:
    """The node that ran it last has just been asked for it, and would say the same for some seconds more."""
    with started(tmp_path / "first", databases.make()) as first, joined(first, tmp_path / "second", "second") as second:
        first.publish("orders", source={"type": "generator", "rate": 200})
        first.running("orders")
        for before, after, name in ((first, second, "second"), (second, first, this(first)["name"])):
            home = this(before)["name"]
            first.call("POST", "/api/streams/orders:0/move", {"node": home})
            first.until(lambda: stream(first, "orders:0"), lambda found, home=home: found["node"] == home)
            stop(first, "orders")
            series = before.until(lambda before=before: scraped(before).get("orders"), lambda found: found is not None)
            assert len(series["written"]) == 1
            assert "orders" not in scraped(after)
            first.call("POST", "/api/datasources/orders/start")
            first.call("POST", "/api/streams/orders:0/move", {"node": name})
            after.until(lambda after=after: scraped(after), lambda found: "orders" in found)
            assert "orders" not in scraped(before)


async def push(web: Web, streams: int, records: int) -> None:
    """Programs that push, and go."""
    async with (
        asyncio.timeout(LONG_S),
        PushClient(web.node.url, datasource="pushed", token=web.node.token) as client,
    ):
        for number in range(streams):
            stream = await client.stream(f"agent-{number}")
            for id in range(records):
                await stream.send(id, {"id": id})
            await stream.finish()


def test_what_programs_have_pushed_counts_when_they_have_gone(databases: Databases, tmp_path: Path) -> None:
    with started(tmp_path / "first", databases.make()) as first, joined(first, tmp_path / "second", "second") as second:
        first.publish("pushed", source={"type": "push"})
        first.until(lambda: listed(second, "pushed"), lambda found: found["health"] == "ok")
        asyncio.run(push(first, streams=3, records=400))
        expected = {"read": 1200, "written": 1200, "filtered": 0, "dead_lettered": 0}
        first.wait_for("pushed", lambda found: totals(found) == expected)
        check_views(first, "pushed", expected, second)
        # Not a series for each program that ever was.
        assert (sample(first, "headgate_records_written_total", datasource="pushed")) == 1200.0
        asyncio.run(push(second, streams=4, records=500))
        # Of three streams 400 records were durable before, and are not taken twice.
        expected = {"read": 2000, "written": 2000, "filtered": 0, "dead_lettered": 0}
        first.wait_for("pushed", lambda found: totals(found) == expected)
        check_views(first, "pushed", expected, second)


# Health.


def test_after_a_kill_nothing_is_ok_until_it_runs_again(databases: Databases, tmp_path: Path) -> None:
    database, many = databases.make(), [f"ds-{number}" for number in range(50)]
    with started(tmp_path, database) as web:
        document = {"source": {"type": "generator", "rate": 20}, "sink": {"type": "blackhole"}}
        web.call("POST", "/api/apply", {"datasources": dict.fromkeys(many, document)})
        for name in many:
            web.running(name)
        epochs = {name: web.show(name)["states"][0]["epoch"] for name in many}
        web.node.end(signal.SIGKILL)
    with started(tmp_path, database) as web:
        items = web.call("GET", "/api/datasources")["items"]
        # Each one that is ok by now has begun anew.
        for one in items:
            if one["health"] == "ok":
                assert web.show(one["name"])["states"][0]["epoch"] > epochs[one["name"]]
            else:
                assert one["health"] == "starting"
                assert one["why"]
        for name in many:
            web.wait_for(name, lambda found: found["health"] == "ok")
            assert web.show(name)["states"][0]["epoch"] > epochs[name]


def health_of(web: Web, name: str) -> set[str]:
    """The healths that metrics say this datasource has."""
    return {
        one.labels["status"]
        for family in text_string_to_metric_families(web.ask("GET", "/metrics").text)
        for one in family.samples
        if one.name == "headgate_datasource_health" and one.labels["datasource"] == name and one.value == 1.0
    }


def test_health_tells_what_rests_apart_with_the_reason_and_one_node_reports_it(
    databases: Databases, tmp_path: Path
) -> None:
    with started(tmp_path / "first", databases.make()) as first, joined(first, tmp_path / "second", "second") as second:
        first.publish("stopped")
        first.call("POST", "/api/datasources/stopped/stop")
        first.publish("ended", source={"type": "generator", "count": 3})
        draft = {"source": {"type": "generator"}, "sink": {"type": "blackhole"}}
        first.call("POST", "/api/datasources", {"name": "unpublished", **draft})
        first.publish("failing", sink=NOWHERE)
        expected = {
            "stopped": "somebody stopped it",
            "ended": "its source has ended",
            "unpublished": "nothing has been published",
        }
        for name, why in expected.items():
            for web in (first, second):
                found = web.wait_for(name, lambda found, name=name: found["health"] == name)
                assert found["why"] == why
        second.wait_for("failing", lambda found: (found["error"] or {}).get("next_try_at_s"))
        said = command(first, "ds", "list")
        for name, why in expected.items():
            assert f"{name}: {why}" in said
        assert re.search(r"! failing: network: .*\(headgate explain failing\)", said)
        for name in expected:
            first.until(lambda name=name: health_of(first, name), lambda found, name=name: found == {name})
            assert health_of(second, name) == set()
        # Without a node that takes streams it is not starting.
        for web in (first, second):
            web.call("POST", f"/api/nodes/{this(web)['id']}/drain")
        first.publish("waiting")
        found = second.wait_for("waiting", lambda found: found["health"] == "no_node")
        assert found["why"] == "all nodes are draining"


def test_a_rejected_version_is_a_metric(databases: Databases, tmp_path: Path) -> None:
    with started(tmp_path / "home", databases.make()) as web:
        web.publish("orders", source={"type": "files", "path": str(tmp_path / "absent.jsonl")})
        web.publish("good")
        web.running("good")
        web.publish("good", source={"type": "files", "path": str(tmp_path / "absent.jsonl")})
        web.wait_for("good", lambda found: found["published_status"] == "rejected")
        web.until(lambda: sample(web, "headgate_version_rejected", datasource="good"), lambda found: found == 1.0)
        assert sample(web, "headgate_version_rejected", datasource="orders") is None


# What waits.


def test_the_backlog_and_the_lag_of_a_webhook_grow_while_its_sink_is_away(web: Web, name: str) -> None:
    web.publish(name, source={"type": "webhook"}, sink=NOWHERE)
    web.wait_for(name, lambda found: found["worker_status"] == "ERROR")
    for number in range(3):
        web.until(
            lambda number=number: web.ask("POST", f"/hooks/{name}", content=b'{"id": %d}' % number).status_code,
            lambda status: status == 202,
        )
    found = web.wait_for(name, lambda found: found["metrics"]["backlog_records"] == 3)["metrics"]
    assert found["backlog_bytes"] == 27
    first = found["lag_s"]
    assert web.wait_for(name, lambda found: found["metrics"]["lag_s"] > first + 0.5)
    labels = {"datasource": name, "stream": f"{name}:0"}
    web.until(lambda: sample(web, "headgate_backlog_records", **labels), lambda found: found == 3.0)
    assert (sample(web, "headgate_lag_seconds", **labels) or 0.0) > 0.0
    web.publish(name, source={"type": "webhook"})
    found = web.wait_for(name, lambda found: found["metrics"]["records_written"] == 3)["metrics"]
    web.wait_for(name, lambda found: (found["metrics"]["backlog_records"], found["metrics"]["lag_s"]) == (0, 0.0))


def test_the_lag_of_a_stream_whose_sink_is_away_grows_whatever_its_source(web: Web, name: str) -> None:
    """What it had in hand when it failed waits on, through all tries."""
    table = f"t_{name.replace('-', '_')}"
    sink = {"type": "postgres", "url": web.database, "table": table}
    web.publish(name, source={"type": "generator", "rate": 100}, sink=sink)
    web.wait_for(name, lambda found: found["metrics"]["records_written"] > 10)
    web.execute(f"ALTER TABLE {table} RENAME TO {table}_away")
    web.execute(f"CREATE VIEW {table} AS SELECT * FROM {table}_away LIMIT 0")
    web.wait_for(name, lambda found: found["health"] == "error")
    lag_s = web.wait_for(name, lambda found: found["metrics"]["lag_s"] > 0)["metrics"]["lag_s"]
    web.wait_for(name, lambda found: found["metrics"]["lag_s"] > lag_s + 0.5)
    web.execute(f"DROP VIEW {table}")
    web.execute(f"ALTER TABLE {table}_away RENAME TO {table}")
    web.call("POST", f"/api/datasources/{name}/restart")
    web.wait_for(name, lambda found: found["health"] == "ok" and found["metrics"]["lag_s"] < lag_s)


def test_a_file_that_is_not_read_to_its_end_has_a_backlog_in_bytes(web: Web, name: str, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text('{"id": 1}\n' * 10)
    web.publish(name, source={"type": "files", "path": str(file), "follow": True})
    found = web.wait_for(name, lambda found: found["metrics"]["backlog_bytes"] is not None)["metrics"]
    assert (found["backlog_records"], found["backlog_bytes"]) == (None, 0)


# The registry file.


def test_a_broken_registry_file_is_seen_on_every_node_and_by_the_doctor(databases: Databases, tmp_path: Path) -> None:
    file = tmp_path / "registry.yaml"
    good = "datasources:\n  from-file: {source: {type: generator, rate: 50}, sink: {type: blackhole}}\n"
    file.write_text(good)
    variables = {"HEADGATE_REGISTRY": f"yaml:{file}", "HEADGATE_NODE_NAME": "first"}
    with (
        started(tmp_path / "first", databases.make(), **variables) as first,
        joined(first, tmp_path / "second", "second") as second,
    ):
        first.running("from-file")
        assert sample(first, "headgate_registry_file_broken") == 0.0
        assert sample(second, "headgate_registry_file_broken") is None
        file.write_text("datasources: [\n")
        for web in (first, second):
            notices = web.until(lambda web=web: web.call("GET", "/api/datasources")["notices"], bool)
            assert "the registry file of first is not usable; what runs goes on" in notices[0]
        first.until(lambda: sample(first, "headgate_registry_file_broken"), lambda found: found == 1.0)
        assert any("registry file" in line for line in second.call("GET", "/readyz")["degraded"])
        assert "! the registry file of first is not usable" in command(second, "ds", "list")
        assert "✗ registry    first:" in command(second, "doctor", "--database", first.database)
        file.write_text(good + "\n")
        first.until(lambda: second.call("GET", "/api/datasources")["notices"], lambda found: not found)
        first.until(lambda: sample(first, "headgate_registry_file_broken"), lambda found: found == 0.0)
