"""A Redis server of a test's own: Debian's package, in a temporary folder, on a free port."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import redis

from headgate.testing.servers import free_port

_numbers = itertools.count()


class RedisServer:
    """A running server that keeps an append-only file. Each test takes keys of its own."""

    def __init__(self, *settings: str) -> None:
        if shutil.which("redis-server") is None:
            pytest.skip("redis-server is not installed (make packages)")
        self.home = Path(tempfile.mkdtemp(prefix="hgrd"))
        self.port = free_port()
        self._command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.home)]
        self._command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always", *settings]
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Run the server, and wait until it answers."""
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 30
        while True:
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.exceptions.AuthenticationError:
                return
            except (redis.exceptions.ConnectionError, redis.exceptions.BusyLoadingError):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.home / "log").read_text()[-2000:]) from None
                time.sleep(0.02)

    def client(self) -> redis.Redis:
        """Another program's client, to look and to change things."""
        return redis.Redis(port=self.port)

    def key(self, name: str = "k") -> str:
        """A key that no other test has."""
        return f"{name}{next(_numbers)}"

    def kill(self) -> None:
        """End the server as a power cut would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End the server, and remove its folder."""
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)
