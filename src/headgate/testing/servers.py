"""Real PostgreSQL servers on TCP ports: a primary, its standbys, and what was restored from a backup of it.

The programs are those of the embedded server, run as it runs them, so nothing needs to be installed and root may use
this too. Everything is on 127.0.0.1, trusts every client, and does not survive the loss of the machine. All calls
block, and all but `Server.query` return when what they name is done.

*A machine that fails* is all processes of a server: `kill` ends them at once, `pause` stops them where they stand, with
their connections open. *A standby that lags* has left its primary (`leave`): what the primary commits then is lost when
the standby is promoted. *A backup* is a folder; `restore` starts a copy of it, as often as one likes: with
`recovers=True` as a backup tool does it, which begins a new timeline, else as a snapshot of a volume does, which says
that it is the server it was taken from. Started next to its original, either is a clone.

    with Servers() as servers:
        primary = servers.make()
        standby = servers.standby_of(primary, synchronous=True)
        node = NodeProcess.start(home, database=url_of(primary, standby))
        primary.kill()
        standby.promote()
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType

from headgate.store.embedded import LOCALE, NAME, Programs, find_programs

HOST = "127.0.0.1"
LONG_S = 120.0  # On a machine that may be busy. Only what fails takes so long.
LOOK_S = 0.02

_SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "60",
    "shared_buffers": "16MB",
    "fsync": "off",
    "wal_level": "logical",
    "wal_keep_size": "256MB",  # A standby that has left may follow again.
    "wal_retrieve_retry_interval": "100ms",
    "max_wal_size": "512MB",
    "log_min_messages": "warning",
    "timezone": "UTC",
}
_PROC = Path("/proc")


class Server:
    """One server, which keeps its folder and port for as long as there are `Servers`. Made by those."""

    def __init__(self, name: str, root: Path, programs: Programs, settings: Mapping[str, str]) -> None:
        self.name = name
        self.port = free_port()  # Another one counts from the next start.
        self._data = root / name
        self._log = root / f"{name}.log"
        self._programs = programs
        self._settings = {**_SETTINGS, **settings}
        # Other versions may not have the embedded server's locale.
        self._locale = LOCALE if programs == find_programs(root / "none") else ("--encoding=UTF8", "--locale=C")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Its host and port, as in a URL."""
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        """For clients of this server alone."""
        return url_of(self)

    # Running it.

    def start(self) -> None:
        """Start it, or start it again after `stop` or `kill`, as what it was: a primary or a standby."""
        settings = [f"--{key}={value}" for key, value in {**self._settings, "port": str(self.port)}.items()]
        (self._data / "postmaster.pid").unlink(missing_ok=True)  # Its processes have ended, and pids are reused.
        with ExitStack() as held:
            fd, log = _open(self._data, held), _open_log(self._log, held)
            command = [str(self._programs.folder / "postgres"), *self._programs.data_option(self._data, fd), *settings]
            surroundings = self._programs.surroundings(log, (fd,))
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **surroundings)
        self._wait(self._is_ready, "accepts no connection")

    def stop(self) -> None:
        """Shut it down in good order. Its connections are broken."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(LONG_S)
            self._process = None

    def kill(self) -> None:
        """End all its processes with SIGKILL, running or paused, as when its machine loses power."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGSTOP)  # It starts no other process from here on,
        children = _children(self._process.pid)
        for pid in children:
            _signal(pid, signal.SIGKILL)
        self._process.kill()  # and is the last to go, or the others would say to their clients that it is gone.
        self._process.wait()
        self._process = None
        _wait_until(lambda: not any(map(_is_alive, children)), f"{self.name} does not end")

    def pause(self) -> None:
        """Stop all its processes where they stand: connections stay open, new ones are accepted and not answered."""
        for _ in range(2):  # The first process, which begins all others, is stopped before they are listed again.
            for pid in self._family():
                _signal(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a paused server run again."""
        for pid in self._family():
            _signal(pid, signal.SIGCONT)

    def _family(self) -> list[int]:
        """The server's first process, and its children, which are all there are."""
        assert self._process is not None, f"{self.name} does not run"
        return [self._process.pid, *_children(self._process.pid)]

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.name} ended at its start:\n{self.log()[-3000:]}")
        with suppress(FileNotFoundError):
            return "\nready" in (self._data / "postmaster.pid").read_text()
        return False

    # Asking it.

    def query(self, text: str, database: str = NAME) -> str:
        """What `psql` prints of one statement, without headings: columns are separated by `|`."""
        command = ["psql", "-XAtqw", "-v", "ON_ERROR_STOP=1", "-h", HOST, "-p", str(self.port), "-U", NAME]
        return self._programs_output([*command, "-d", database, "-c", text])

    def execute(self, text: str, database: str = NAME) -> None:
        """One statement whose answer does not matter."""
        self.query(text, database)

    @property
    def timeline(self) -> int:
        """The timeline that it writes, or a standby replays."""
        if self.is_standby:
            return int(self.query("SELECT received_tli FROM pg_stat_wal_receiver") or "0")
        return int(self.query("SELECT pg_walfile_name(pg_current_wal_lsn())")[:8], 16)

    @property
    def is_standby(self) -> bool:
        """Whether it only replays what another writes."""
        return self.query("SELECT pg_is_in_recovery()") == "t"

    def log(self) -> str:
        """What it has printed."""
        return self._log.read_text(errors="replace")

    # Primary and standby.

    def promote(self) -> None:
        """Make a standby a primary, with the next timeline. Returns when it takes writes."""
        self.execute("SELECT pg_promote(true, 60)")
        self._wait(lambda: not self.is_standby, "is not promoted")
        self._wait(lambda: self.query("SHOW transaction_read_only") == "off", "takes no writes")

    def follow(self, primary: Server, *, synchronous: bool = False) -> None:
        """Replay what this primary writes; again, after `leave`. `synchronous`: the primary waits for it."""
        source = f"host={HOST} port={primary.port} user={NAME} application_name={self.name}"
        self._set("primary_conninfo", source)
        self.wait_until_it_streams(primary)
        if synchronous:
            primary.wait_for(self)

    def leave(self) -> None:
        """Hear nothing of the primary any more: the standby lags from here on."""
        self._set("primary_conninfo", "")
        self._wait(lambda: self.query("SELECT count(*) FROM pg_stat_wal_receiver") == "0", "still follows")

    def wait_for(self, *standbys: Server) -> None:
        """Make these standbys synchronous: a commit is answered when each has it. None: all are asynchronous."""
        names = ", ".join(standby.name for standby in standbys)
        self._set("synchronous_standby_names", f"FIRST {len(standbys)} ({names})" if standbys else "")
        count = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        self._wait(lambda: int(self.query(count)) == len(standbys), f"has other synchronous standbys than {names}")

    def wait_until_it_streams(self, primary: Server) -> None:
        """Until the primary sends this standby what it writes."""
        where = f"state = 'streaming' AND application_name = '{self.name}'"
        streams = f"SELECT count(*) FROM pg_stat_replication WHERE {where}"
        self._wait(lambda: primary.query(streams) == "1", f"does not follow {primary.name}")

    def wait_until_caught_up(self, primary: Server) -> None:
        """Until this standby has replayed all that the primary had written when this was called."""
        written = primary.query("SELECT pg_current_wal_insert_lsn()")
        replayed = f"SELECT pg_last_wal_replay_lsn() >= '{written}'::pg_lsn"
        self._wait(lambda: self.query(replayed) == "t", f"lags behind {primary.name}")

    def _set(self, setting: str, value: str) -> None:
        for statement in (f"ALTER SYSTEM SET {setting} = '{value}'", "SELECT pg_reload_conf()"):
            self.execute(statement, "postgres")

    # Its data.

    def initialise(self) -> None:
        """Make an empty database cluster; called by `Servers`."""
        options = [f"--username={NAME}", "--auth=trust", "--no-instructions", "--no-sync", *self._locale]
        self._make(lambda target: ["initdb", *target, *options])

    def copy(self, primary: Server) -> None:
        """Take a base backup of a running server as the data of this one; called by `Servers`."""
        source = f"host={HOST} port={primary.port} user={NAME} application_name={self.name}"
        options = ["-d", source, "--checkpoint=fast", "--wal-method=stream", "--no-sync", "--write-recovery-conf"]
        self._make(lambda target: ["pg_basebackup", *target, *options])
        settings = self._data / "postgresql.auto.conf"
        lines = settings.read_text().splitlines(keepends=True)
        settings.write_text("".join(line for line in lines if not line.startswith("synchronous_standby_names")))

    def clear(self) -> None:
        """Remove its data; called by `Servers`."""
        assert self._process is None, f"{self.name} runs"
        shutil.rmtree(self._data, ignore_errors=True)

    def restore(self, backup: Server, *, recovers: bool) -> None:
        """Take a copy of a backup's folder as the data of this one; called by `Servers`."""
        shutil.copytree(backup._data, self._data, symlinks=True)
        for path in (self._data, *self._data.rglob("*")):
            if self._programs.account:
                os.chown(path, *self._programs.account, follow_symlinks=False)
        (self._data / "standby.signal").unlink()
        if recovers:
            (self._data / "recovery.signal").touch()
            with (self._data / "postgresql.auto.conf").open("a") as settings:
                settings.write("restore_command = 'false'\n")  # Nothing was archived after the backup.

    def _make(self, command: Callable[[tuple[str, str]], list[str]]) -> None:
        self._data.mkdir(mode=0o700)
        with ExitStack() as held:
            fd, log = _open(self._data, held), _open_log(self._log, held)
            if self._programs.account:
                os.fchown(fd, *self._programs.account)
            target = self._programs.data_option(self._data, fd)
            if not self._programs.run(command(target), "", log, (fd,)):
                raise RuntimeError(f"{self.name} cannot be made:\n{self.log()[-3000:]}")

    def _programs_output(self, command: list[str]) -> str:
        program, *arguments = command
        env = {"PATH": os.defpath, "PGCONNECT_TIMEOUT": "10"}
        found = subprocess.run(
            [self._programs.folder / program, *arguments], capture_output=True, text=True, env=env, cwd="/"
        )
        if found.returncode != 0:
            raise RuntimeError(f"{self.name}: {found.stderr.strip()}")
        return found.stdout.removesuffix("\n")

    def _wait(self, is_so: Callable[[], bool], problem: str) -> None:
        _wait_until(is_so, f"{self.name} {problem}", self.log)


class Servers:
    """Makes servers, and ends them and removes their data at the end."""

    def __init__(self, settings: Mapping[str, str] | None = None, programs: Path | None = None) -> None:
        """`settings` hold for all of them, such as `{"fsync": "on"}`. `programs` is the folder of another version than
        the embedded one."""
        self._root = Path(tempfile.mkdtemp(prefix="hg"))
        self._settings = settings or {}
        self._programs = find_programs(self._root / "none")
        if programs is not None:
            self._programs = self._programs._replace(folder=programs)
        self.all: list[Server] = []

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill what runs, and remove all data."""
        for server in self.all:
            server.kill()
        shutil.rmtree(self._root, ignore_errors=True)

    def make(self) -> Server:
        """A new primary with an empty database `headgate`, running. Its system identifier is new too."""
        server = self._server("primary")
        server.initialise()
        server.start()
        server.execute(f"CREATE DATABASE {NAME}", "postgres")
        return server

    def standby_of(self, primary: Server, *, synchronous: bool = False) -> Server:
        """A streaming standby, running and following. `synchronous`: the primary waits for it, and for no other."""
        standby = self._server("standby")
        self.remake(standby, primary, synchronous=synchronous)
        return standby

    def remake(self, server: Server, primary: Server, *, synchronous: bool = False) -> None:
        """Make a server that does not run a standby of this primary, from nothing, in its old place."""
        server.clear()
        server.copy(primary)
        server.start()
        server.wait_until_it_streams(primary)
        if synchronous:
            primary.wait_for(server)

    def back_up(self, primary: Server) -> Server:
        """A base backup of a running server. It is never started itself: `restore` starts copies of it."""
        backup = self._server("backup")
        backup.copy(primary)
        return backup

    def restore(self, backup: Server, *, recovers: bool = True, port: int | None = None) -> Server:
        """A server with what the backup has, running; at another port unless one is given."""
        server = self._server("restored")
        server.restore(backup, recovers=recovers)
        if port is not None:
            server.port = port
        server.start()
        server._wait(lambda: not server.is_standby, "does not end its recovery")
        return server

    def _server(self, kind: str) -> Server:
        server = Server(f"{kind}{len(self.all)}", self._root, self._programs, self._settings)
        self.all.append(server)
        return server


def url_of(*hosts: Server | str, database: str = NAME, user: str = NAME, query: str = "") -> str:
    """A URL with these hosts in this order. A host may be an address, such as that of `black_hole`."""
    places = ",".join(host if isinstance(host, str) else host.address for host in hosts)
    return f"postgresql://{user}@{places}/{database}{query and '?' + query}"


@contextmanager
def black_hole() -> Iterator[str]:
    """The address of a host that accepts connections and never answers."""
    with socket.create_server((HOST, 0)) as listening:
        yield f"{HOST}:{listening.getsockname()[1]}"


def free_port() -> int:
    """A port that nobody listens at now. It is none that the system gives to connections, which could take it while its
    server is down."""
    for _ in range(1000):
        port = random.randrange(10_000, 32_000)
        with suppress(OSError), socket.create_server((HOST, port), reuse_port=False):
            return port
    raise RuntimeError("no port is free")


# Processes and files.


def _children(pid: int) -> list[int]:
    """Processes that this one has begun. Each child of a server has its own session, so no group helps."""
    found = []
    for path in _PROC.glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name is in parentheses and may hold anything; state and parent come after it.
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.parent.name))
    return found


def _is_alive(pid: int) -> bool:
    with suppress(OSError):
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _open(folder: Path, held: ExitStack) -> int:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    held.callback(os.close, fd)
    return fd


def _open_log(path: Path, held: ExitStack) -> int:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    held.callback(os.close, fd)
    return fd


def _wait_until(is_so: Callable[[], bool], problem: str, log: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + LONG_S
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{problem}:\n{log()[-3000:]}")
        time.sleep(LOOK_S)
