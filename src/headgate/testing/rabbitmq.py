"""A RabbitMQ server for tests and benchmarks: in a temporary folder, on free ports of 127.0.0.1, ended by its process.

It has the stream plugin. `kill` ends it as a power cut would, and `start` brings it back with what its disk has.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from headgate.testing.servers import free_port

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # Debian's wrapper in /usr/sbin insists on its own folders.
START_S = 120.0
END_S = 60.0
HOST = "127.0.0.1"


def is_installed() -> bool:
    """Whether there is a server to start."""
    return SERVER.exists()


class RabbitMq:
    """A server. Its user is `guest`, with the same password."""

    def __init__(self, *, has_streams: bool = True, settings: tuple[str, ...] = ()) -> None:
        self.port, self.stream_port = free_port(), free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="hgrmq"))
        self._running: list[subprocess.Popen[bytes]] = []
        self._between_nodes, names = free_port(), free_port()
        (self._folder / "plugins").write_text("[rabbitmq_stream].\n" if has_streams else "[].\n")
        lines = [f"stream.listeners.tcp.1 = {HOST}:{self.stream_port}"] if has_streams else []
        (self._folder / "server.conf").write_text("".join(f"{line}\n" for line in [*lines, *settings]))
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self._folder),
            "RABBITMQ_NODENAME": f"hg{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._between_nodes),
            "RABBITMQ_MNESIA_BASE": f"{self._folder}/data",
            "RABBITMQ_LOG_BASE": f"{self._folder}/log",
            "RABBITMQ_CONFIG_FILE": f"{self._folder}/server.conf",
            "RABBITMQ_CONF_ENV_FILE": f"{self._folder}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{self._folder}/plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": HOST,
        }

    def __enter__(self) -> RabbitMq:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def url(self, vhost: str = "/", user: str = "guest", password: str = "guest") -> str:
        """For queues and exchanges."""
        return f"amqp://{quote(user, '')}:{quote(password, '')}@{HOST}:{self.port}/{quote(vhost, '')}"

    def stream_url(self, vhost: str = "/", user: str = "guest", password: str = "guest") -> str:
        """For streams."""
        return f"rabbitmq-stream://{quote(user, '')}:{quote(password, '')}@{HOST}:{self.stream_port}/{quote(vhost, '')}"

    def start(self) -> None:
        """Run it, and wait until it accepts connections."""
        output = self._folder / "output"
        with ExitStack() as held:
            log = held.enter_context(output.open("wb"))
            epmd = shutil.which("epmd") or "epmd"
            for command in ([epmd], [str(SERVER)]):  # Its own epmd: else the server leaves one behind.
                process = subprocess.Popen(
                    command,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._folder,
                    start_new_session=True,
                )
                self._running.append(process)
        deadline = time.monotonic() + START_S
        ports = [self.port, self.stream_port] if "stream" in (self._folder / "plugins").read_text() else [self.port]
        while not all(map(_accepts, ports)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"RabbitMQ did not start:\n{output.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)

    @property
    def pid(self) -> int:
        """Of its first process."""
        return self._running[-1].pid

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """End it, and remove its data."""
        self._end(signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)

    def evaluate(self, expression: str) -> str:
        """What the server makes of an expression in Erlang. `rabbitmqctl` would take seconds for each."""
        cookie = (self._folder / ".erlang.cookie").read_text().strip()
        command = ["erl_call", "-n", self._environment["RABBITMQ_NODENAME"], "-c", cookie, "-e"]
        found = subprocess.run(
            command, env=self._environment, input=f"{expression}.\n", capture_output=True, text=True, check=True
        )
        if not found.stdout.startswith("{ok"):
            raise RuntimeError(f"RabbitMQ: {found.stdout}{found.stderr}")
        return found.stdout

    def add_vhost(self, name: str) -> None:
        """A virtual host in which `guest` may do everything."""
        vhost, all = _erlang(name), _erlang(".*")
        self.evaluate(f"rabbit_vhost:add({vhost}, {_erlang('tests')})")
        user = f"{_erlang('guest')}, {vhost}, {all}, {all}, {all}, {_erlang('tests')}"
        self.evaluate(f"rabbit_auth_backend_internal:set_permissions({user})")

    def remember_streams(self) -> None:
        """Have it write down that it has streams. It does so by itself, but some seconds after the first one was
        declared: killed before that, it does not look after its streams when it is back."""
        self.evaluate("dets:sync(ra_coordination_directory_reverse)")

    def be_short_of_disk(self, is_short: bool) -> None:
        """Raise the alarm that stops publishers, or end it."""
        self.evaluate(f"rabbit_disk_monitor:set_disk_free_limit({10**15 if is_short else 10**6})")

    def _end(self, number: signal.Signals) -> None:
        """It, and what it has started: each is in its own session."""
        while self._running:
            process = self._running.pop()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            process.wait()
        deadline = time.monotonic() + END_S
        while any(map(_accepts, (self.port, self.stream_port))):  # Its first process may be gone before the others.
            if time.monotonic() > deadline:
                raise RuntimeError("RabbitMQ does not end")
            time.sleep(0.05)


def _accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), 1.0):
        return True
    return False


def _erlang(text: str) -> str:
    """As a binary of Erlang."""
    return f"<<{','.join(map(str, text.encode()))}>>"
