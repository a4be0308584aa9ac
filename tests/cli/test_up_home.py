"""What `headgate up` says, to whom, and what it leaves in its home."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from headgate.cli import home as homes
from headgate.store.embedded import EmbeddedServer
from headgate.testing.processes import NodeProcess
from tests.commands import headgate
from tests.waiting import wait_until
from tests.web_node import Databases, execute


@pytest.fixture(scope="module")
def databases(server: EmbeddedServer) -> Iterator[Databases]:
    made = Databases(server)
    yield made
    made.drop()


@dataclass
class First:
    """A node whose output is a file, as a service manager has it."""

    node: NodeProcess
    database: str


@pytest.fixture(scope="module")
def shared(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[First]:
    database = databases.make()
    node = NodeProcess.start(tmp_path_factory.mktemp("up") / "home", database=database, flags=("--demo",))
    yield First(node, database)
    node.end(signal.SIGKILL)


@pytest.fixture
def first(shared: First) -> NodeProcess:
    return shared.node


@pytest.fixture
def database(shared: First) -> str:
    return shared.database


class Terminal:
    """A node on a terminal, and what it has shown there."""

    def __init__(self, home: Path, database: str) -> None:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("HEADGATE_")}
        variables = {
            "HEADGATE_HOME": str(home),
            "HEADGATE_DATABASE": database,
            "HEADGATE_MASTER_KEY": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        }
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headgate.cli", "up", "--port", "0", "--demo"],
            env={**inherited, **variables},
            stdout=theirs,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        self._said = b""
        threading.Thread(target=self._read, daemon=True).start()
        try:
            wait_until(lambda: "  then " in self.said or self.process.poll() is not None)
        except BaseException:
            self.end()
            raise

    @property
    def said(self) -> str:
        return self._said.decode().replace("\r\n", "\n")

    def _read(self) -> None:
        try:
            while found := os.read(self._ours, 65536):
                self._said += found
        except OSError:  # The other side is closed.
            return

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def test_what_is_no_terminal_is_told_which_file_has_the_token(first: NodeProcess) -> None:
    assert first.token.startswith("hg_")
    assert first.token not in first.log()
    assert f"  token    in {first.home / 'token'}\n" in first.log()
    assert f"  console  {first.url}  (headgate console makes a link)\n" in first.log()
    assert "?code=" not in first.log()
    assert stat.S_IMODE((first.home / "token").stat().st_mode) == 0o600


def test_the_call_that_the_demo_suggests_works_as_it_stands(first: NodeProcess) -> None:
    (line,) = [line for line in first.log().splitlines() if line.startswith("  try ")]
    command = line.removeprefix("  try").strip().replace("curl ", "curl -sS -o /dev/null -w '%{http_code}' ", 1)
    assert subprocess.run(command, shell=True, capture_output=True, text=True).stdout == "202"


def test_a_terminal_is_shown_the_token_once(databases: Databases, tmp_path: Path) -> None:
    database = databases.make()
    terminal = Terminal(tmp_path / "fresh", database)
    terminal.end()
    token = (tmp_path / "fresh" / "token").read_text().strip()
    assert terminal.said.count(f"  token    {token}  (shown once; ") == 1
    assert terminal.said.count(token) == 1
    assert "/?code=hgc_" in terminal.said
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o700
    again = Terminal(tmp_path / "fresh", database)
    again.end()
    assert f"  token    in {tmp_path / 'fresh' / 'token'}\n" in again.said
    assert token not in again.said
    assert "/?code=hgc_" in again.said


def test_a_link_is_made_at_any_time_and_signs_in(first: NodeProcess) -> None:
    made = headgate(first.home, "console")
    assert (made.returncode, made.stderr) == (0, "")
    link = made.stdout.strip()
    assert link.startswith(f"{first.url}/?code=hgc_")
    assert first.token not in link
    assert httpx.get(link, headers={"Sec-Fetch-Site": "none"}).status_code == 303
    assert httpx.get(link, headers={"Sec-Fetch-Site": "none"}).status_code == 401
    assert json.loads(headgate(first.home, "console", "--json").stdout)["expires_s"] == 600


def test_a_second_node_in_the_same_home_leaves_the_first_one_where_it_is(first: NodeProcess, database: str) -> None:
    """Neither hides the other, and each takes only its own address away, however it ends."""
    second = NodeProcess.start(first.home, database=database)
    try:
        assert [place.url for place in homes.places(first.home)] == [first.url, second.url]
        assert json.loads((first.home / "node.json").read_text())["url"] == first.url
        assert headgate(first.home, "nodes", "list").returncode == 0
        assert second.end() == 0
        assert [place.url for place in homes.places(first.home)] == [first.url]
        second = NodeProcess.start(first.home, database=database)
        second.end(signal.SIGKILL)
        found = headgate(first.home, "nodes", "list")
        assert (found.returncode, found.stderr) == (0, "")
    finally:
        second.end(signal.SIGKILL)


def test_a_node_of_another_installation_gets_no_token_and_is_not_called_well(
    first: NodeProcess, database: str, databases: Databases, tmp_path: Path
) -> None:
    url = databases.make()
    asyncio.run(execute(url, "UPDATE headgate.registry SET installation = gen_random_uuid()"))  # It is a copy.
    other = NodeProcess.start(tmp_path / "other", database=url)
    try:
        (first.home / "node.json").rename(tmp_path / "node.json")
        homes.add(first.home, homes.Place(other.url, other.process.pid))
        found = headgate(first.home, "nodes", "list")
        assert found.returncode == 4
        assert found.stderr.startswith(f"headgate: {other.url} is a node of another installation than ")
        checked = headgate(first.home, "doctor", "--database", database)
        assert checked.returncode == 1
        assert f"✗ node        {other.url} is a node of another installation than the database" in checked.stdout
        named = headgate(first.home, "doctor", "--database", database, "--url", other.url, "--token", other.token)
        assert named.returncode == 1
        assert "is a node of another installation" in named.stdout
    finally:
        other.end(signal.SIGKILL)
        (tmp_path / "node.json").replace(first.home / "node.json")
    checked = headgate(first.home, "doctor", "--database", database)
    assert f"✓ node        {first.url}: ok" in checked.stdout
