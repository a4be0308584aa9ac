"""A real node on a database of its own, and what tests of its HTTP side do with it."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import httpx

from headgate.store.embedded import EmbeddedServer
from headgate.testing.processes import NodeProcess
from tests.waiting import LONG_S, LOOK_S, less_often

T = TypeVar("T")

GENERATOR = {"type": "generator", "rate": 50}
BLACKHOLE = {"type": "blackhole"}

SHORT_S = 5.0

numbers = itertools.count()  # For names that no other test uses.


async def execute(url: str, statement: str) -> None:
    """Straight to a database."""
    connection = await asyncpg.connect(url)
    await connection.execute(statement)
    await connection.close()


async def _fetch(url: str, query: str, *args: Any) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        return list(await connection.fetch(query, *args))
    finally:
        await connection.close()


@dataclass
class Web:
    """A node with its database, and one HTTP connection to it that is kept open."""

    node: NodeProcess
    database: str
    client: httpx.Client
    published: list[str] = field(default_factory=list)

    def ask(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """One request with the node's own token, whatever the answer is."""
        return self.client.request(method, path, **kwargs)

    def call(self, method: str, path: str, body: Any = None, **kwargs: Any) -> Any:
        """One request that must succeed; returns what the JSON says."""
        answer = self.ask(method, path, json=body, **kwargs)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def publish(self, name: str, **parts: Any) -> dict[str, Any]:
        """Publish one datasource: a slow generator into nothing unless told otherwise."""
        document = {"source": GENERATOR, "sink": BLACKHOLE, **parts}
        self.published.append(name)
        self.call("POST", "/api/apply", {"datasources": {name: document}})
        return self.show(name)

    def stop_all(self, prefix: str) -> None:
        """Stop what was published under such names, if the node still answers."""
        names, self.published = self.published, [name for name in self.published if not name.startswith(prefix)]
        with suppress(httpx.TransportError):
            for name in set(names) - set(self.published):
                self.client.post(f"/api/datasources/{name}/stop", timeout=SHORT_S)

    def show(self, name: str) -> dict[str, Any]:
        """One datasource, in full."""
        found: dict[str, Any] = self.call("GET", f"/api/datasources/{name}")
        return found

    def until(self, read: Callable[[], T], is_so: Callable[[T], bool], timeout_s: float = LONG_S) -> T:
        """Read until this holds."""
        deadline, pause_s = time.monotonic() + timeout_s, LOOK_S
        while not is_so(found := read()):
            assert time.monotonic() < deadline, f"it never came to this: {found}\n{self.node.log()[-3000:]}"
            time.sleep(pause_s)
            pause_s = less_often(pause_s)
        return found

    def wait_for(self, name: str, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Until this holds of a datasource."""
        return self.until(lambda: self.show(name), is_so)

    def running(self, name: str) -> dict[str, Any]:
        """Until the published version has proved itself."""
        return self.wait_for(
            name, lambda d: d["detail"] == "running" and d["running_version"] == d["published_version"]
        )

    def opened(self, name: str) -> dict[str, Any]:
        """Until it runs. Without a record, that proves a version only after a while."""
        return self.wait_for(name, lambda d: d["worker_status"] == "RUNNING")

    def rows(self, query: str, *args: Any) -> list[Any]:
        """Straight from the database."""
        return asyncio.run(_fetch(self.database, query, *args))

    def execute(self, statement: str) -> None:
        """Straight to the database."""
        asyncio.run(execute(self.database, statement))

    def token(self, role: str, **more: Any) -> str:
        """A new token of this role."""
        body = {"name": f"{role} {next(numbers)}", "role": role, **more}
        return str(self.call("POST", "/api/tokens", body)["token"])

    def events(self, name: str) -> list[str]:
        """The types of what happened to a datasource."""
        return [event["type"] for event in self.call("GET", f"/api/datasources/{name}/events?limit=1000")["items"]]

    def counted(self, name: str, status: int) -> float:
        """How many webhook calls got this answer, as Prometheus reads it."""
        label = f'headgate_webhooks_total{{answer="{status}",datasource="{name}"}} '
        lines = self.ask("GET", "/metrics").text.splitlines()
        return next((float(line.removeprefix(label)) for line in lines if line.startswith(label)), 0.0)


def bearer(token: str) -> dict[str, str]:
    """The header that carries a token."""
    return {"Authorization": f"Bearer {token}"}


def session_cookie(web: Web, token: str = "") -> str:
    """The cookie of a browser that has signed in, as it sends it back."""
    data = {"token": token or web.node.token}
    answer = httpx.post(f"{web.node.url}/login", data=data, headers={"Origin": web.node.url})
    assert answer.status_code == 303, answer.text
    return answer.headers["set-cookie"].partition(";")[0]


class Databases:
    """Makes databases with the schema, and drops them at the end."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._made: list[str] = []

    def make(self) -> str:
        """The URL of a new one."""
        name = f"w{os.getpid()}_{next(numbers)}"
        asyncio.run(execute(self._server.url, f"CREATE DATABASE {name} TEMPLATE template_headgate STRATEGY FILE_COPY"))
        self._made.append(name)
        return self._server.url.replace("/headgate?", f"/{name}?")

    def drop(self) -> None:
        """All of them."""
        for name in self._made:
            asyncio.run(execute(self._server.url, f"DROP DATABASE {name} WITH (FORCE)"))


@contextmanager
def started(home: Path, database: str, **environment: str) -> Iterator[Web]:
    """A node for the time of a block."""
    node = NodeProcess.start(home, database=database, environment=environment)
    try:
        with httpx.Client(base_url=node.url, headers=bearer(node.token), timeout=LONG_S) as client:
            yield Web(node, database, client)
    finally:
        node.end(signal.SIGKILL)
