"""A real PostgreSQL that is away, only reads, or has no room: what a node says and answers meanwhile, and after."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from headgate.store.embedded import EmbeddedServer
from headgate.testing.processes import NodeProcess
from headgate.testing.servers import free_port
from tests.waiting import wait_until
from tests.web_node import execute

TOKEN = "hg_" + "x" * 40


@pytest.fixture
def home() -> Iterator[Path]:
    """Where a server of its own lives, below a path that is short enough for its socket."""
    folder = Path(tempfile.mkdtemp(prefix="hg"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def join(home: Path, **settings: str) -> EmbeddedServer:
    return EmbeddedServer.join(home, {"fsync": "off", **settings})


def lines(node: NodeProcess) -> list[dict[str, Any]]:
    """What it has logged."""
    found = []
    for line in node.log().splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def counted(node: NodeProcess, after: int = 0) -> Counter[str]:
    """How often it has logged what."""
    return Counter(str(line["event"]) for line in lines(node)[after:])


class Starting:
    """A node that is being started in the background."""

    def __init__(self, home: Path, database: str) -> None:
        home.mkdir()
        (home / "token").write_text(TOKEN)
        self.home = home
        self.port = free_port()
        self.node: NodeProcess | None = None
        self._thread = threading.Thread(target=self._start, args=(home, database))
        self._thread.start()

    def _start(self, home: Path, database: str) -> None:
        self.node = NodeProcess.start(home, database=database, port=self.port)

    def ask(self, path: str, token: str = "", method: str = "GET") -> httpx.Response | None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with suppress(httpx.TransportError):
            return httpx.request(method, f"http://127.0.0.1:{self.port}{path}", headers=headers)
        return None

    def wait_for(self, path: str, status: int, text: str = "", **more: Any) -> httpx.Response:
        def answer() -> httpx.Response | None:
            found = self.ask(path, **more)
            return found if found is not None and found.status_code == status and text in found.text else None

        found: httpx.Response = wait_until(answer)
        return found

    def started(self) -> NodeProcess:
        self._thread.join()
        assert self.node is not None
        return self.node


def test_a_node_that_starts_before_its_database_waits_says_so_once_and_answers(home: Path, tmp_path: Path) -> None:
    server = join(home / "server")
    url = server.url
    server.leave()
    starting = Starting(tmp_path / "node", url)
    try:
        assert starting.wait_for("/healthz", 200).json() == {"status": "ok"}
        assert starting.wait_for("/readyz", 503).json() == {"status": "unavailable"}
        assert starting.wait_for("/readyz", 503, token="hg_wrong").json() == {"status": "unavailable"}
        starting.wait_for("/readyz", 503, "does not answer", token=TOKEN)
        refused = starting.wait_for("/hooks/orders", 503, method="POST")
        assert (refused.headers["retry-after"], refused.json()["code"]) == ("2", "store_unavailable")
        assert starting.wait_for("/api/datasources", 503).json()["code"] == "store_unavailable"
        server = join(home / "server", default_transaction_read_only="on")
        starting.wait_for("/readyz", 503, "only reads", token=TOKEN)
        server.leave()
        server = join(home / "server")
        node = starting.started()
        starting.wait_for("/readyz", 200, token=node.token)
        assert node.request("GET", "/api/datasources").status_code == 200
        said = counted(node)
        assert (said["waiting for the database"], said["database away"], said["node started"]) == (1, 0, 1)
    finally:
        if starting.node is not None:
            starting.node.end(signal.SIGKILL)
        server.leave()


def test_what_is_wrong_with_the_database_for_good_ends_the_start_with_one_line(server: Any, tmp_path: Path) -> None:
    wrong = server.url.replace("/headgate?", "/no_such_database?")
    with pytest.raises(RuntimeError, match="ended while starting"):
        NodeProcess.start(tmp_path / "node", database=wrong)
    (line,) = (tmp_path / "node/node.log").read_text().splitlines()
    assert "the database refuses the connection" in line
    assert "check HEADGATE_DATABASE" in line


DOCUMENTS = {
    "numbers": {"source": {"type": "generator", "rate": 20}, "sink": {"type": "blackhole"}},
    "hooks": {"source": {"type": "webhook"}, "sink": {"type": "blackhole"}},
}


@contextmanager
def looking(node: NodeProcess) -> Iterator[None]:
    """People look at this node: at its overview, its events, and the records of a datasource."""
    with httpx.Client(base_url=node.url, headers={"Authorization": f"Bearer {node.token}"}, timeout=60) as client:
        paths = ("/api/overview", "/api/events", "/api/datasources/numbers/tap", "/api/datasources/rows/logs")
        with ExitStack() as open_ones:
            for path in paths:
                assert open_ones.enter_context(client.stream("GET", path)).status_code == 200
            yield


def test_an_outage_is_a_line_when_the_database_goes_and_one_when_it_is_back(home: Path, tmp_path: Path) -> None:
    server = join(home / "server")
    node = NodeProcess.start(tmp_path / "node", database=server.url)
    try:
        node.apply(
            {
                **DOCUMENTS,
                "rows": {**DOCUMENTS["numbers"], "sink": {"type": "postgres", "url": server.url, "table": "t"}},
            }
        )
        for name in ("numbers", "hooks", "rows"):
            node.wait_for(name, lambda found: found["worker_status"] == "RUNNING")
        before = len(lines(node))
        with looking(node):
            server.leave()
            wait_until(lambda: node.request("GET", "/readyz").status_code == 503)
            assert node.request("GET", "/healthz").status_code == 200
            assert node.request("GET", "/metrics").status_code == 503
            server = join(home / "server")
            wait_until(lambda: node.request("GET", "/readyz").status_code == 200)
            for name in ("numbers", "hooks", "rows"):
                node.wait_for(name, lambda found: found["worker_status"] == "RUNNING")
            wait_until(lambda: counted(node, before)["database back"] > 0)
        said = counted(node, before)
        print(said)
        assert said.pop("database away") == 1
        assert said.pop("database back") == 1
        assert said.pop("failed", 0) <= 2  # The stream into the same server: it waits for its sink, then for its epoch.
        assert said.pop("running", 0) <= 1
        assert not said
    finally:
        node.end(signal.SIGKILL)
        server.leave()


def test_a_database_that_only_reads_makes_the_node_unready_and_is_two_lines(home: Path, tmp_path: Path) -> None:
    server = join(home / "server")
    node = NodeProcess.start(tmp_path / "node", database=server.url)

    def set_read_only(value: str) -> None:
        asyncio.run(execute(server.url, "SET default_transaction_read_only = off"))
        asyncio.run(_configure(server.url, f"ALTER SYSTEM SET default_transaction_read_only = {value}"))

    try:
        node.apply(DOCUMENTS)
        node.wait_for("hooks", lambda found: found["worker_status"] == "RUNNING")
        before = len(lines(node))
        set_read_only("on")
        wait_until(lambda: "takes no writes" in node.request("GET", "/readyz").text)
        wait_until(lambda: node.request("POST", "/hooks/hooks", json={}).status_code == 503)
        set_read_only("off")
        wait_until(lambda: node.request("GET", "/readyz").status_code == 200)
        wait_until(lambda: node.request("POST", "/hooks/hooks", json={}).status_code == 202)
        said = counted(node, before)
        assert (said["database takes no writes"], said["database takes writes again"], said["database away"]) == (
            1,
            1,
            0,
        )
    finally:
        node.end(signal.SIGKILL)
        server.leave()


async def _configure(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("SET default_transaction_read_only = off")
    await connection.execute(statement)
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()


# A full disk.

ROOM_MB = 48


@contextmanager
def small_disk(owner: os.stat_result) -> Iterator[Path]:
    """A file system of a few megabytes that belongs to the server's user."""
    folder = Path(tempfile.mkdtemp(prefix="hgroom"))
    options = f"size={ROOM_MB}m,uid={owner.st_uid},gid={owner.st_gid},mode=0700"
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True)
    if made.returncode != 0:
        folder.rmdir()
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=False)
        folder.rmdir()


def fill(folder: Path) -> Path:
    """Use up all the room that there is."""
    file = folder / "filling"
    with suppress(OSError), file.open("wb", buffering=0) as out:
        while True:
            out.write(bytes(65536))
    with suppress(OSError), file.open("ab", buffering=0) as out:
        while True:
            out.write(bytes(512))
    return file


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_full_disk_makes_the_node_unready_until_there_is_room(server: EmbeddedServer, tmp_path: Path) -> None:
    """The beats need no new page, so the node keeps its trust: what cannot be written is the next payload."""
    data = Path(server.url.partition("host=")[2].partition("&")[0])
    name = f"full{os.getpid()}"
    with small_disk(data.stat()) as disk:
        asyncio.run(execute(server.url, f"CREATE TABLESPACE {name} LOCATION '{disk}'"))
        asyncio.run(
            execute(
                server.url, f"CREATE DATABASE {name} TEMPLATE template_headgate TABLESPACE {name} STRATEGY FILE_COPY"
            )
        )
        node = NodeProcess.start(tmp_path / "node", database=server.url.replace("/headgate?", f"/{name}?"))

        def hook() -> int:
            return node.request("POST", "/hooks/hooks", content=json.dumps(os.urandom(50_000).hex())).status_code

        try:
            node.apply(DOCUMENTS)
            node.wait_for("hooks", lambda found: found["worker_status"] == "RUNNING")
            wait_until(lambda: hook() == 202)
            before = len(lines(node))
            filling = fill(disk)
            wait_until(lambda: hook() == 503)
            wait_until(lambda: "No space left" in node.request("GET", "/readyz").text)
            assert httpx.get(f"{node.url}/readyz").json() == {"status": "unavailable"}
            filling.unlink()
            wait_until(lambda: node.request("GET", "/readyz").status_code == 200)
            wait_until(lambda: hook() == 202)
            said = counted(node, before)
            print(said)
            assert (said["database takes no writes"], said["database takes writes again"]) == (1, 1)
            assert said["database away"] == 0
        finally:
            node.end(signal.SIGKILL)
            asyncio.run(execute(server.url, f"DROP DATABASE {name} WITH (FORCE)"))
            asyncio.run(execute(server.url, f"DROP TABLESPACE {name}"))
