"""The documented alerts, evaluated against what real nodes report."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from headgate.core.figures import Reported
from headgate.core.records import Totals
from headgate.datasources.health import status_at_rest
from headgate.store.states import Resting
from tests.web.test_cluster import joined, this
from tests.web_node import Databases, Web, started

GUIDE = Path(__file__).parent.parent.parent / "docs" / "operating" / "monitoring.md"
KEY = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopA="
FINITE = {"type": "generator", "rate": 1000, "count": 3}
TERM = re.compile(r'max by \(datasource, stream\) \((\w+)\{status="(\w+)"\}\) == (\d)')


def documented(alert: str) -> str:
    """The expression of an alert, from the guide."""
    (text,) = [block for block in re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.S) if "alert:" in block]
    (found,) = [rule["expr"] for rule in yaml.safe_load(text)["groups"][0]["rules"] if rule["alert"] == alert]
    return " ".join(found.split())


def firing(expression: str, *scrapes: str) -> set[str]:
    """The streams for which such an expression holds: two maxima by stream, joined by `and` or `unless`."""
    first, word, second = re.split(r" (and|unless) on \(datasource, stream\) ", expression)
    one, other = (_holds(term, scrapes) for term in (first, second))
    return one & other if word == "and" else one - other


def _holds(term: str, scrapes: tuple[str, ...]) -> set[str]:
    found = TERM.fullmatch(term)
    assert found, f"this test cannot evaluate {term!r}"
    name, status, value = found.groups()
    most: dict[str, float] = {}
    for text in scrapes:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and sample.labels["status"] == status:
                    stream = sample.labels["stream"]
                    most[stream] = max(most.get(stream, 0.0), sample.value)
    return {stream for stream, found in most.items() if found == float(value)}


def scrape(web: Web) -> str:
    return web.ask("GET", "/metrics").text


def streams(text: str) -> list[str]:
    return re.findall(r'headgate_worker_status{datasource="[^"]+",status="ERROR",stream="([^"]+)"}', text)


def quarantined(web: Web, name: str) -> None:
    """A datasource whose secret is gone."""
    web.call("PUT", f"/api/secrets/{name}", {"value": "postgresql://nobody@127.0.0.1:1/none"})
    web.publish(name, sink={"type": "postgres", "url": {"$secret": name}, "table": "t"})
    web.execute(f"DELETE FROM headgate.secret WHERE name = '{name}'")
    web.call("POST", f"/api/datasources/{name}/restart")
    web.wait_for(name, lambda found: found["detail"] == "quarantined")


def every_kind(web: Web) -> None:
    """One that runs, one that was stopped, one that is finished and one that is quarantined."""
    web.publish("running")
    web.publish("stopped")
    web.publish("finished", source=FINITE)
    for name in ("running", "stopped"):
        web.running(name)
    web.call("POST", "/api/datasources/stopped/stop")
    web.wait_for("stopped", lambda found: found["worker_status"] == "STOPPED")
    web.wait_for("finished", lambda found: found["detail"] == "finished")
    quarantined(web, "quarantined")


def test_the_alert_of_a_failing_stream_fires_for_a_quarantined_one_and_for_no_other(
    databases: Databases, tmp_path: Path
) -> None:
    with started(tmp_path, databases.make(), HEADGATE_MASTER_KEY=KEY) as web:
        every_kind(web)
        wanted = {"running:0", "stopped:0", "finished:0", "quarantined:0"}
        failing, waiting = documented("HeadgateStreamFailing"), documented("HeadgateStreamNotRunning")
        text = web.until(
            lambda: scrape(web),
            lambda text: (
                (set(streams(text)), firing(failing, text), firing(waiting, text)) == (wanted, {"quarantined:0"}, set())
            ),
        )
        # The one that is stopped should not run; the others should.
        assert "headgate_datasources_active 3.0" in text
        # What it counted stays, and the run that was quarantined is an error.
        assert re.search(r'headgate_records_written_total{datasource="finished",stream="finished:0"} 3.0', text)
        assert re.search(r'headgate_errors_total{datasource="quarantined",stream="quarantined:0"} [1-9]', text)
        # Silence of a stream at rest is no news.
        assert "finished:0" not in re.findall(r'headgate_freshness_seconds{.*stream="([^"]+)"}', text)


def test_a_stream_at_rest_is_reported_by_one_node_and_by_another_when_that_one_is_gone(
    databases: Databases, tmp_path: Path
) -> None:
    every = ["finished:0", "quarantined:0", "running:0", "stopped:0"]
    failing, waiting = documented("HeadgateStreamFailing"), documented("HeadgateStreamNotRunning")

    def seen(web: Web) -> tuple[list[str], set[str], set[str]]:
        """All streams that a node reports, and those for which an alert fires."""
        text = scrape(web)
        return streams(text), firing(failing, text), firing(waiting, text)

    # Figures of streams at rest may be some seconds old, so every state is waited for.
    with started(tmp_path / "first", databases.make(), HEADGATE_MASTER_KEY=KEY) as first:
        with joined(first, tmp_path / "second", "second", HEADGATE_MASTER_KEY=KEY) as second:
            id = this(first)["id"]
            first.call("POST", f"/api/nodes/{id}/drain")
            every_kind(first)
            first.until(lambda: seen(second), lambda found: found == (every, {"quarantined:0"}, set()))
            first.until(lambda: seen(first), lambda found: found == ([], set(), set()))
        # Nobody takes over what the other node ran.
        first.until(lambda: seen(first), lambda found: found == (every, {"quarantined:0"}, {"running:0"}))


@pytest.mark.parametrize(
    ("enabled", "is_quarantined", "status", "detail", "expected"),
    [
        (True, False, "ERROR", "quarantined", "ERROR"),
        (False, False, "ERROR", "quarantined", "STOPPED"),
        (True, True, "STOPPED", "stopped", "ERROR"),
        (True, False, "STOPPED", "finished", "STOPPED"),
        (True, False, "STOPPED", "stopped", "STARTING"),
        (True, False, "RUNNING", "running", "STARTING"),
        (False, False, "RUNNING", "running", "STOPPED"),
    ],
)
def test_a_stream_at_rest_has_the_status_that_people_would_give_it(
    enabled: bool, is_quarantined: bool, status: str, detail: str, expected: str
) -> None:
    resting = Resting(
        UUID(int=9),
        "orders",
        UUID(int=1),
        "0",
        False,
        True,
        status,
        detail,
        Totals(),
        Reported(),
        enabled,
        is_quarantined,
    )
    assert status_at_rest(resting) == expected
