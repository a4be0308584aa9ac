"""A RabbitMQ of its own: in a temporary folder, on free ports of 127.0.0.1, ended by its process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # Debian's wrapper in /usr/sbin insists on its own folders.
PACKAGES = Path(__file__).parent.parent / "scripts/packages"
START_S = 60.0


def missing() -> str | None:
    """Why there is no RabbitMQ to compare with; installs it if it may."""
    try:
        import pika  # noqa: F401
    except ImportError:
        return "the client library is missing: pip install 'headgate[bench]'"
    if not SERVER.exists():
        subprocess.run([PACKAGES, "rabbitmq-server"], check=False)
    return None if SERVER.exists() else "rabbitmq-server is not installed, and only root can install it"


@contextlib.contextmanager
def broker() -> Iterator[int]:
    """Runs while in use; its port."""
    port, between_nodes, names = _free_ports(3)
    with tempfile.TemporaryDirectory(prefix="hgb") as folder, contextlib.ExitStack() as stack:
        plugins = Path(folder) / "plugins"
        plugins.write_text("[].\n")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": folder,
            "RABBITMQ_NODENAME": f"bench-{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(between_nodes),
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_CONFIG_FILE": f"{folder}/none",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        log = stack.enter_context((Path(folder) / "output").open("wb"))
        epmd = shutil.which("epmd") or "epmd"
        for command in ([epmd], [str(SERVER)]):  # An epmd of our own: else the server leaves one behind.
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, cwd=folder, start_new_session=True
            )
            stack.callback(_end, process)
        _wait_until_up(port, process, Path(folder) / "output")
        yield port


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [one.getsockname()[1] for one in sockets]


def _wait_until_up(port: int, process: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"RabbitMQ did not start:\n{output.read_text(errors='replace')[-3000:]}")
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    """It, and what it has started: both are in a session of their own."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
