"""A real pgbouncer that hands out sessions per transaction, between a client and the server of a URL."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headgate.errors import StoreError
from headgate.store.database import connect
from tests.proxy import proxied
from tests.waiting import until

needs_pooler = pytest.mark.skipif(
    shutil.which("pgbouncer") is None, reason="pgbouncer is not installed (make packages, as root)"
)


@asynccontextmanager
async def pooled(url: str, folder: Path) -> AsyncIterator[str]:
    """The URL through the pooler. It reaches the server by a proxy, since that listens in the file system only."""
    name = url.partition("@/")[2].partition("?")[0]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with proxied(url) as (proxy, _):
        users = folder / "users.txt"
        users.write_text('"headgate" ""\n')
        config = folder / "pgbouncer.ini"
        config.write_text(
            f"[databases]\n{name} = host=127.0.0.1 port={proxy.port} dbname={name} user=headgate\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nauth_file = {users}\n"
            "pool_mode = transaction\nunix_socket_dir =\nignore_startup_parameters = extra_float_digits\n"
        )
        for path in (folder, *folder.parents[:2]):
            path.chmod(0o755)
        command = ["pgbouncer", str(config)]
        if os.geteuid() == 0:
            command[1:1] = ["-u", "headgate"]
        pooler = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            through = f"postgresql://headgate@127.0.0.1:{port}/{name}?sslmode=disable&pooler=transaction"

            async def is_up() -> bool:
                try:
                    (await connect(through)).terminate()
                except StoreError:
                    return False
                return True

            await until(is_up)
            yield through
        finally:
            pooler.terminate()
            pooler.wait()
