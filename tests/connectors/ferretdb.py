"""A FerretDB of the tests' own: MongoDB's protocol before SQLite. `make ferretdb` builds it where there is Go."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONG_S = 60.0


def program() -> str | None:
    """Where it is: on the PATH, or where `make ferretdb` has put it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headgate"
    built = sorted(cache.glob("ferretdb-*"))
    return shutil.which("ferretdb") or (str(built[-1]) if built else None)


@contextmanager
def ferretdb(command: str) -> Iterator[str]:
    """The URL of a running one, for the time of a block."""
    folder = Path(tempfile.mkdtemp(prefix="hgfe"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "handler": "sqlite",
        "sqlite-url": f"file:{folder}/",
        "state-dir": str(folder),
        "listen-addr": f"127.0.0.1:{port}",
        "debug-addr": "-",
        "telemetry": "disable",
        "log-level": "error",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [command, *(f"--{name}={value}" for name, value in options.items())], stdout=log, stderr=log
        )
    try:
        _wait_for(port, process)
        yield f"mongodb://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LONG_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("FerretDB did not start")
