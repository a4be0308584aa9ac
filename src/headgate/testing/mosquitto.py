"""A Mosquitto for tests: in a temporary folder, on a free port of 127.0.0.1, ended by its process.

Sessions and messages are in memory until it is told to `save` them; `kill` loses what came later.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from headgate.testing.servers import free_port

START_S = 120.0
HOST = "127.0.0.1"
_KEEPING = ("persistence true", "max_queued_messages 100000")


def program() -> str | None:
    """Where it is; Debian keeps it where only root looks."""
    return shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class Mosquitto:
    """A broker. Everybody may connect, or with `settings` somebody."""

    def __init__(self, *settings: str) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="hgmq"))
        lines = [
            f"listener {self.port} {HOST}",
            *(settings or ("allow_anonymous true",)),
            *(one for one in _KEEPING if one.split()[0] not in {setting.split()[0] for setting in settings}),
            f"persistence_location {self.folder}/",
        ]
        if os.getuid() == 0:
            lines.append("user root")
        (self.folder / "conf").write_text("".join(f"{line}\n" for line in lines))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Mosquitto:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def url(self) -> str:
        """Without a user."""
        return f"mqtt://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self._process is not None, "it runs"
        return self._process.pid

    def start(self) -> None:
        """Run it, and wait until it accepts connections."""
        with (self.folder / "log").open("ab") as log:
            command = [program() or "mosquitto", "-c", str(self.folder / "conf")]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_S
        while True:
            with suppress(OSError), socket.create_connection((HOST, self.port), 1.0):
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Mosquitto did not start:\n{(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def save(self) -> None:
        """Have it write everything to disk."""
        path = self.folder / "mosquitto.db"
        before = path.stat().st_ino if path.exists() else 0  # It writes another file, and renames that.
        assert self._process is not None, "it runs"
        self._process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + START_S
        while not path.exists() or path.stat().st_ino == before:
            if time.monotonic() > deadline:
                raise RuntimeError("Mosquitto did not save")
            time.sleep(0.02)

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
