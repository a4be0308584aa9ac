"""`headgate up --processes N`: real processes, ended in every way.

The lease is a minute, and no test waits that long: what is freed meanwhile was freed by the parent.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from fake_node import Run

from headgate.cli import home as homes
from headgate.cli.home import Place
from headgate.testing.processes import NodeProcess
from tests.waiting import LONG_S, wait_until

LEASE_S = "60"

NODES = "SELECT id, name, address, process FROM headgate.node ORDER BY name"
STREAMS = (
    "SELECT s.id, n.name AS node, n.process, s.run FROM headgate.stream s LEFT JOIN headgate.node n ON n.id = s.owner"
)


class Family:
    """A parent with its children, and a witness of their database."""

    def __init__(self, parent: NodeProcess, url: str) -> None:
        self.parent = parent
        self._url = url
        self._pids = set(self.children().values())

    def rows(self, query: str = NODES) -> list[Any]:
        async def fetch() -> list[Any]:
            connection = await asyncpg.connect(self._url)
            try:
                return list(await connection.fetch(query))
            finally:
                await connection.close()

        return asyncio.run(fetch())

    def names(self) -> list[str]:
        return [row["name"] for row in self.rows()]

    def children(self) -> dict[str, int]:
        """The pids of the nodes that run now, by name."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.parent.process.pid:
                    variables = (folder / "environ").read_bytes().decode().split("\0")
                    found |= {one.partition("=")[2]: int(folder.name) for one in variables if one.startswith(NAME)}
            except OSError:  # It has ended meanwhile.
                continue
        return found

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.children()[name], how)

    def run_streams(self, count: int) -> None:
        """Have so many streams, and wait until they run."""
        document = {"source": {"type": "generator", "rate": 10}, "sink": {"type": "blackhole"}}
        self.parent.apply({f"clicks-{number}": document for number in range(count)})
        self.wait_until(lambda: len(self.rows(STREAMS)) == count and self.do_all_run())

    def do_all_run(self) -> bool:
        return all(row["run"] is not None for row in self.rows(STREAMS))

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        try:
            wait_until(is_so)
        except AssertionError as error:
            error.add_note(self.parent.log()[-3000:])
            raise

    def is_anything_left(self) -> bool:
        return any(is_running(pid) for pid in self._pids)

    def close(self) -> None:
        self._pids |= set(self.children().values())
        self.parent.end(signal.SIGKILL)
        for pid in filter(is_running, self._pids):
            os.kill(pid, signal.SIGKILL)


NAME = "HEADGATE_NODE_NAME="


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Callable[..., Family]]:
    started: list[Family] = []

    def start(*flags: str, count: int = 3, environment: dict[str, str] | None = None) -> Family:
        parent = NodeProcess.start(
            tmp_path / "home",
            database=url,
            flags=("--processes", str(count), "--name", "ada", *flags),
            environment={"HEADGATE_LEASE_S": LEASE_S, **(environment or {})},
        )
        started.append(Family(parent, url))
        return started[-1]

    yield start
    for family in started:
        family.close()


def headgate(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself."""
    command = [sys.executable, "-m", "headgate.cli", *arguments]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=LONG_S
    )


def test_each_process_is_a_node_of_its_own_and_what_there_is_to_say_is_said_once(
    start: Callable[..., Family],
) -> None:
    family = start("--demo", "--advertise", "http://localhost:{port}/")
    rows = family.rows()
    assert [row["name"] for row in rows] == ["ada-1", "ada-2", "ada-3"]
    assert len({row["process"] for row in rows} - {None}) == 3
    for row in rows:
        answer = httpx.get(row["address"] + "api/nodes", headers={"Authorization": f"Bearer {family.parent.token}"})
        assert len(answer.json()["items"]) == 3
    said = family.parent.log()
    for line in ("Headgate is up: ", "  console ", "  token ", "  try ", "  then "):
        assert said.count(line) == 1
    for row in rows:
        assert f"  node     {row['name']}  {row['address'].replace('localhost', '127.0.0.1').rstrip('/')}\n" in said
    assert len(family.rows("SELECT * FROM headgate.token")) == 1
    family.parent.wait_for("demo-clicks", lambda found: found["worker_status"] == "RUNNING")


def test_the_streams_of_a_killed_process_go_to_the_others_at_once_and_it_comes_back(
    start: Callable[..., Family],
) -> None:
    family = start()
    family.run_streams(6)
    owner = next(row["node"] for row in family.rows(STREAMS) if row["node"])
    (killed,) = [row for row in family.rows() if row["name"] == owner]
    family.kill(killed["name"])
    family.wait_until(lambda: killed["id"] not in {row["id"] for row in family.rows()})
    family.wait_until(family.do_all_run)
    assert killed["process"] not in {row["process"] for row in family.rows(STREAMS)}

    def is_back() -> bool:
        found = [row for row in family.rows() if row["name"] == killed["name"] and row["address"] is not None]
        return bool(found) and found[0]["process"] != killed["process"] and found[0]["address"] == killed["address"]

    family.wait_until(is_back)
    assert family.parent.end() == 0
    assert family.rows() == []


def test_commands_on_this_machine_find_a_node_that_answers(start: Callable[..., Family]) -> None:
    family = start(count=2)
    first, second = [row["address"] for row in family.rows()]
    file = family.parent.home / "node.json"
    places = [Place(url, family.parent.process.pid) for url in (first, second)]
    family.wait_until(lambda: homes.places(family.parent.home) == places)
    family.kill("ada-1", signal.SIGTERM)
    family.wait_until(lambda: homes.places(family.parent.home) == places[1:])
    family.parent.end()
    assert not file.exists()


def test_a_parent_that_is_told_to_stop_leaves_nothing_behind(start: Callable[..., Family]) -> None:
    family = start()
    family.run_streams(6)
    assert family.parent.end() == 0
    assert not family.is_anything_left()
    assert family.rows() == []
    assert {row["run"] for row in family.rows(STREAMS)} == {None}
    assert family.parent.log().count("stopping: ") == 1


def test_a_signal_to_all_processes_at_once_drains_them(start: Callable[..., Family]) -> None:
    """Service managers do that. It is no second signal to the children."""
    family = start()
    family.run_streams(6)
    for pid in [family.parent.process.pid, *family.children().values()]:
        os.kill(pid, signal.SIGTERM)
    assert family.parent.process.wait(LONG_S) == 0
    assert not family.is_anything_left()
    assert family.rows() == []
    assert "a node died" not in family.parent.log()


def test_a_second_signal_ends_all_at_once(start: Callable[..., Family]) -> None:
    family = start(count=2)
    family.kill("ada-2", signal.SIGSTOP)  # It cannot drain.
    family.parent.process.send_signal(signal.SIGTERM)
    family.wait_until(lambda: "stopping: " in family.parent.log())
    assert family.parent.end() == 130
    family.wait_until(lambda: not family.is_anything_left())


def test_the_children_of_a_killed_parent_drain_and_end(start: Callable[..., Family]) -> None:
    family = start()
    family.run_streams(3)
    family.parent.end(signal.SIGKILL)
    family.wait_until(lambda: not family.is_anything_left())
    assert family.rows() == []


def test_a_process_that_was_told_to_stop_is_not_started_again_and_the_last_one_ends_the_parent(
    start: Callable[..., Family],
) -> None:
    family = start(count=2)
    family.run_streams(2)
    family.kill("ada-1", signal.SIGTERM)
    family.wait_until(lambda: "it is not started again" in family.parent.log())
    family.wait_until(lambda: {row["node"] for row in family.rows(STREAMS) if row["run"]} == {"ada-2"})
    assert family.names() == ["ada-2"]
    family.kill("ada-2", signal.SIGTERM)
    assert family.parent.process.wait(LONG_S) == 0


def test_a_process_that_keeps_dying_is_started_ever_more_slowly(start: Callable[..., Family], tmp_path: Path) -> None:
    cause = tmp_path / "cause"
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        f"if os.environ.get('HEADGATE_NODE_NAME') == 'ada-2' and os.path.exists({str(cause)!r}):\n"
        "    os._exit(9)\n"
    )
    family = start(count=2, environment={"PYTHONPATH": str(tmp_path)})
    cause.touch()
    family.kill("ada-2")

    def deaths() -> list[Any]:
        lines = [json.loads(line) for line in family.parent.log().splitlines() if "a node died" in line]
        return [(line["node"], line["ended"], line["wait_s"]) for line in lines]

    family.wait_until(lambda: len(deaths()) >= 4)
    cause.unlink()
    assert [how for _, how, _ in deaths()[:4]] == ["SIGKILL", "exit code 9", "exit code 9", "exit code 9"]
    waits_s = [wait_s for _, _, wait_s in deaths()]
    assert waits_s == sorted(waits_s)
    family.wait_until(lambda: family.names() == ["ada-1", "ada-2"])


def test_the_embedded_database_is_kept_running_and_ends_with_the_last_process(tmp_path: Path) -> None:
    home = tmp_path / "home"
    parent = NodeProcess.start(home, flags=("--processes", "2", "--name", "ada", "--demo"))
    family = Family(parent, "")
    try:
        parent.wait_for("demo-clicks", lambda found: found["worker_status"] == "RUNNING")
        first = postmaster(home)
        assert first is not None
        os.kill(first, signal.SIGKILL)

        def goes_on() -> bool:
            answer = parent.request("GET", "/api/datasources/demo-clicks")
            return answer.is_success and answer.json()["worker_status"] == "RUNNING"

        family.wait_until(lambda: postmaster(home) not in (None, first))
        family.wait_until(goes_on)
        parent.end(signal.SIGKILL)
        family.wait_until(lambda: not family.is_anything_left() and postmaster(home) is None)
    finally:
        family.close()


def postmaster(home: Path) -> int | None:
    try:
        pid = int((home / "postgres/data/postmaster.pid").read_text().split()[0])
    except (OSError, IndexError):  # There is none, or it is just being written.
        return None
    return pid if is_running(pid) else None


@pytest.mark.parametrize("count", ["0", "-1", "65", "many", ""])
def test_a_wrong_number_of_processes_is_a_usage_error(run: Run, count: str) -> None:
    result = run("up", "--processes", count)
    assert result.exit_code == 2
    assert "'--processes'" in result.stderr


def test_one_address_for_several_processes_is_refused(tmp_path: Path) -> None:
    result = headgate(tmp_path, "up", "--processes", "2", "--advertise", "http://here.example.org")
    assert result.returncode == 3
    assert result.stderr.startswith("headgate: --advertise is one address")
    assert result.stderr.count("\n") == 1


def test_a_port_that_is_taken_is_found_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = headgate(tmp_path, "up", "--processes", "2", "--port", str(port - 1))
    assert (result.returncode, result.stdout) == (3, "")
    assert re.match(r"headgate: port \d+ on 127.0.0.1 is taken", result.stderr)
    assert headgate(tmp_path, "up", "--processes", "2", "--port", "65535").returncode == 3


def test_what_is_wrong_with_the_settings_is_said_once(tmp_path: Path, url: str) -> None:
    (tmp_path / "registry.yaml").write_text("datasources: [")
    environment = {"HEADGATE_DATABASE": url, "HEADGATE_REGISTRY": "yaml:registry.yaml"}
    result = headgate(tmp_path, "up", "--processes", "3", "--port", "0", **environment)
    assert result.returncode == 3
    assert result.stderr.count("registry.yaml") == 1
