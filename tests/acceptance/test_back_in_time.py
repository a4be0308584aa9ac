"""A registry that goes back in time, and one that is a copy: real servers, real nodes, and sinks that remember."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.processes import NodeProcess
from headgate.testing.servers import Server, Servers
from tests.acceptance.test_faults import fetch
from tests.commands import headgate
from tests.waiting import wait_until

QUICK = {"HEADGATE_LEASE_S": "3"}
POSITIONS = "SELECT installation, stream, epoch FROM headgate_position WHERE epoch > 0 ORDER BY stream"


@pytest.fixture
def servers() -> Iterator[Servers]:
    with Servers() as servers:
        yield servers


class Place:
    """A node on a server, which writes into a sink elsewhere."""

    def __init__(self, server: Server, home: Path, sink: str, url: str = "") -> None:
        self.server, self.home, self.sink = server, home, sink
        self.node = NodeProcess.start(home, database=url or server.url, environment=QUICK)
        self.called = 0

    def begin(self) -> None:
        """Two streams: one that is read by position, and one whose payloads are in the registry."""
        sink = {"type": "postgres", "url": self.sink}
        self.node.apply(
            {
                "numbers": {
                    "source": {"type": "generator", "rate": 2000},
                    "mapping": {"set": {"id": "id"}},
                    "sink": {**sink, "table": "numbers"},
                },
                "calls": {
                    "source": {"type": "webhook"},
                    "mapping": {"set": {"id": "id"}},
                    "sink": {**sink, "table": "calls"},
                },
            }
        )
        self.grows("numbers")

    def call(self, count: int) -> list[int]:
        """Send payloads until this many were accepted; returns what they were."""
        accepted: list[int] = []

        def sent() -> bool:
            answer = self.node.request("POST", "/hooks/calls", json={"id": self.called})
            if answer.status_code == 202:
                accepted.append(self.called)
            else:
                assert answer.status_code == 503, answer.text
            self.called += 1
            return len(accepted) == count

        wait_until(sent)
        return accepted

    def rows(self, table: str) -> list[int]:
        """What the sink has."""
        return rows(self.sink, table)

    def grows(self, table: str, by: int = 200) -> None:
        """Wait until a table has grown."""
        before = len(self.rows(table))
        wait_until(lambda: len(self.rows(table)) > before + by)

    def has_no_gap_and_no_repetition(self) -> None:
        """The sink has every number once."""
        found = self.rows("numbers")
        assert found == list(range(found[0], found[0] + len(found)))

    def events(self, type: str) -> list[dict[str, Any]]:
        """What the registry has recorded of this."""
        query = f"SELECT payload::text AS payload FROM headgate.datasource_events WHERE type = '{type}' ORDER BY id"
        return [json.loads(row["payload"]) for row in fetch(self.server.url, query)]


def rows(sink: str, table: str) -> list[int]:
    if not fetch(sink, f"SELECT to_regclass('{table}') AS t")[0]["t"]:
        return []
    return [row["id"] for row in fetch(sink, f"SELECT id FROM {table} ORDER BY id")]


def takes_the_place(standby: Server, primary: Server) -> None:
    """The standby is promoted, and reached where the primary was."""
    primary.kill()
    standby.stop()
    standby.port = primary.port
    standby.start()
    standby.promote()


def test_a_standby_that_lagged_takes_over_and_all_goes_on(servers: Servers, tmp_path: Path, empty_url: str) -> None:
    """Epochs, positions and ids of payloads are set back under a running node, which is the witness."""
    primary = servers.make()
    place = Place(primary, tmp_path / "home", empty_url)
    place.begin()
    first = place.call(20)
    wait_until(lambda: set(first) <= set(place.rows("calls")))
    standby = servers.standby_of(primary)
    standby.wait_until_caught_up(primary)
    standby.leave()
    for action in ("stop", "start"):  # The sinks see epochs that the standby never hears of,
        place.node.call("POST", f"/api/datasources/numbers/{action}")
    lost = place.call(20)  # and payloads whose ids it will draw again.
    wait_until(lambda: set(lost) <= set(place.rows("calls")))
    place.grows("numbers", 1000)
    takes_the_place(standby, primary)
    place.server = standby
    wait_until(lambda: place.events("registry_went_back"))
    place.grows("numbers", 500)
    later = place.call(20)
    wait_until(lambda: set(later) <= set(place.rows("calls")))
    place.has_no_gap_and_no_repetition()
    found = place.rows("calls")
    assert len(found) == len(set(found)), "a payload came twice"
    (event,) = place.events("registry_went_back")
    assert event["era"] == 1
    assert place.node.call("GET", "/readyz")["status"] == "ok"
    place.node.end()


def test_a_backup_that_is_restored_is_known_by_the_home(servers: Servers, tmp_path: Path, empty_url: str) -> None:
    """The node was down; its home remembers what it knew."""
    primary = servers.make()
    place = Place(primary, tmp_path / "home", empty_url)
    place.begin()
    backup = servers.back_up(primary)
    place.grows("numbers", 1000)
    calls = place.call(10)
    wait_until(lambda: set(calls) <= set(place.rows("calls")))
    place.node.end()
    primary.stop()
    place.server = servers.restore(backup, port=primary.port)
    place.node = NodeProcess.start(place.home, database=place.server.url, environment=QUICK, token=place.node.token)
    place.grows("numbers", 500)
    later = place.call(10)
    wait_until(lambda: set(later) <= set(place.rows("calls")))
    place.has_no_gap_and_no_repetition()
    assert [event["era"] for event in place.events("registry_went_back")] == [1]
    place.node.end()


class Waiting:
    """A node that is started where it may not work yet."""

    def __init__(self, server: Server, home: Path, token: str) -> None:
        self.home = home
        self._server, self._token = server, token
        self.node: NodeProcess | None = None
        self._thread = threading.Thread(target=self._start, daemon=True)
        self._thread.start()

    def _start(self) -> None:
        self.node = NodeProcess.start(self.home, database=self._server.url, environment=QUICK, token=self._token)

    def says(self, text: str) -> None:
        """Wait until its log says this."""
        log = self.home / "node.log"
        wait_until(lambda: log.exists() and text in log.read_text())

    def up(self) -> NodeProcess:
        """The node, once it works."""
        self._thread.join(180)
        assert self.node is not None
        return self.node


def test_a_clone_never_touches_the_sinks_of_its_original(servers: Servers, tmp_path: Path, empty_url: str) -> None:
    """Somebody starts a copy of production elsewhere. It waits, until a person says that it is a copy."""
    primary = servers.make()
    place = Place(primary, tmp_path / "home", empty_url)
    place.begin()
    backup = servers.back_up(primary)
    place.grows("numbers")
    before = fetch(empty_url, POSITIONS)
    clone = servers.restore(backup)
    waiting = Waiting(clone, tmp_path / "clone", place.node.token)
    waiting.says("went back in time, or is a copy")
    place.grows("numbers", 500)  # The original goes on,
    assert fetch(empty_url, POSITIONS) == before
    refused = headgate(tmp_path, "export", HEADGATE_DATABASE=clone.url)
    assert refused.returncode != 0
    assert "headgate installation fork" in refused.stderr
    shown = headgate(tmp_path, "installation", "show", "--json", HEADGATE_DATABASE=clone.url)
    assert json.loads(shown.stdout)["ok"] is False
    unsure = headgate(tmp_path, "installation", "fork", HEADGATE_DATABASE=clone.url)
    assert unsure.returncode == 4, unsure.stderr
    done = headgate(tmp_path, "installation", "fork", "--yes", HEADGATE_DATABASE=clone.url)
    assert done.returncode == 0, done.stderr
    other = waiting.up()
    found = other.call("GET", "/api/datasources")["items"]
    assert {one["name"] for one in found} == {"numbers", "calls"}
    assert not any(one["enabled"] for one in found)
    place.grows("numbers", 500)
    installations = fetch(empty_url, "SELECT DISTINCT installation FROM headgate_position WHERE epoch > 0")
    assert [row["installation"] for row in installations] == [before[0]["installation"]]
    place.has_no_gap_and_no_repetition()
    other.end()
    place.node.end()


def test_what_nobody_witnessed_is_adopted_by_a_person(servers: Servers, tmp_path: Path, empty_url: str) -> None:
    """All nodes and their homes are gone with the old server; a backup is all there is."""
    primary = servers.make()
    place = Place(primary, tmp_path / "home", empty_url)
    place.begin()
    backup = servers.back_up(primary)
    place.grows("numbers", 1000)
    place.node.end()
    primary.stop()
    place.server = servers.restore(backup)
    waiting = Waiting(place.server, tmp_path / "new", place.node.token)
    waiting.says("went back in time, or is a copy")
    done = headgate(tmp_path, "installation", "adopt", "--yes", "--json", HEADGATE_DATABASE=place.server.url)
    assert json.loads(done.stdout)["era"] == 1
    place.node = waiting.up()
    place.grows("numbers", 500)
    place.has_no_gap_and_no_repetition()
    place.node.end()


def test_a_snapshot_of_the_volume_is_known_by_its_shorter_log(servers: Servers, tmp_path: Path, empty_url: str) -> None:
    """Its lineage is that of the original, so only a witness can tell."""
    primary = servers.make()
    place = Place(primary, tmp_path / "home", empty_url)
    place.begin()
    backup = servers.back_up(primary)
    place.grows("numbers", 2000)
    place.node.end()
    primary.stop()
    place.server = servers.restore(backup, recovers=False, port=primary.port)
    place.node = NodeProcess.start(place.home, database=place.server.url, environment=QUICK, token=place.node.token)
    place.grows("numbers", 500)
    place.has_no_gap_and_no_repetition()
    assert [event["era"] for event in place.events("registry_went_back")] == [1]
    place.node.end()


def test_without_a_witness_a_sink_that_is_ahead_says_what_to_do(
    servers: Servers, tmp_path: Path, empty_url: str
) -> None:
    """A snapshot of the volume, started by somebody who never knew it: it must not fence the sink by itself."""
    primary = servers.make()
    place = Place(primary, tmp_path / "home", empty_url)
    place.begin()
    backup = servers.back_up(primary)
    for action, status in (("stop", "STOPPED"), ("start", "RUNNING")) * 2:
        place.node.call("POST", f"/api/datasources/numbers/{action}")
        place.node.wait_for("numbers", lambda found, status=status: found["worker_status"] == status)
    place.grows("numbers", 500)
    place.node.end()
    primary.stop()
    place.server = servers.restore(backup, recovers=False)
    node = NodeProcess.start(tmp_path / "new", database=place.server.url, environment=QUICK, token=place.node.token)
    found = node.wait_for("numbers", lambda one: one["health"] == "error")
    assert "which this registry never granted" in json.dumps(found)
    done = headgate(tmp_path, "installation", "adopt", "--yes", HEADGATE_DATABASE=place.server.url)
    assert done.returncode == 0, done.stderr
    place.node = node
    place.grows("numbers", 500)
    place.has_no_gap_and_no_repetition()
    node.end()
