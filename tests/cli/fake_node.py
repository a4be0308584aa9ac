"""A small real HTTP server in the place of a node: it answers what it was told to, and remembers what it was asked."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from typer.testing import Result

Run = Callable[..., Result]
INSTALLATION = "6a0c1f0e-0000-4000-8000-00000000000a"


class Asked(NamedTuple):
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    token: str


class FakeNode:
    """Answers by (method, path). A list of bodies is a stream of events, after which the connection ends."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}
        self.asked: list[Asked] = []
        self.default: tuple[int, Any] | None = None
        self.installation: str | None = INSTALLATION  # What it says to who asks whose node it is.
        self.knocks: list[str] = []  # The token that came with each such question.
        self.redirects: dict[str, str] = {}
        node = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                pass

            def answer(self) -> None:
                node.handle(self)

            do_GET = do_POST = do_PUT = do_DELETE = answer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def on(self, method: str, path: str, body: Any = None, status: int = 200) -> None:
        """Answer this from now on."""
        self.answers[method, path] = (status, body)

    def refuse(self, status: int, detail: str = "", hint: str = "", problems: Any = ()) -> None:
        """Answer everything with this problem."""
        problem = {"type": "about:blank", "title": "No", "status": status, "detail": detail, "hint": hint}
        self.default = (status, {**problem, "problems": list(problems)})

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        raw = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if parts.path in self.redirects:
            request.send_response(307)
            request.send_header("Location", self.redirects[parts.path])
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        if parts.path == "/api/installation" and self.installation is not None:
            self.knocks.append(token)
            self._answer(request, 200, {"installation": self.installation})
            return
        self.asked.append(Asked(request.command, parts.path, query, json.loads(raw) if raw else None, token))
        missing = {"title": "Not Found", "status": 404, "detail": f"no {parts.path}", "hint": "look again"}
        status, body = self.default or self.answers.get((request.command, parts.path), (404, missing))
        self._answer(request, status, body)

    def _answer(self, request: BaseHTTPRequestHandler, status: int, body: Any) -> None:
        request.send_response(status)
        if isinstance(body, list):
            request.send_header("Content-Type", "text/event-stream")
            request.end_headers()
            for item in body:
                request.wfile.write(f": alive\n\nid: 1\ndata: {json.dumps(item)}\n\n".encode())
            return
        text = b"" if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        kind = "application/json" if status < 400 else "application/problem+json"
        request.send_header("Content-Type", kind if not isinstance(body, str) else "text/yaml")
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        request.wfile.write(text)


def free_url() -> str:
    """Where nobody answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def minutes_ago(minutes: float) -> str:
    return (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat()


def summary(name: str = "orders", **changes: Any) -> dict[str, Any]:
    """A datasource in a list."""
    found = {
        "id": "5f1c8e7e-0000-4000-8000-000000000001",
        "name": name,
        "enabled": True,
        "paused": False,
        "health": "ok",
        "why": "",
        "worker_status": "RUNNING",
        "detail": "reading",
        "published_version": 3,
        "running_version": 3,
        "published_status": "published",
        "has_draft": False,
        "source_type": "webhook",
        "sink_type": "postgres",
        "metrics": {"records_read": 12345, "records_written": 12340, "records_filtered": 3, "records_dead_lettered": 2},
        "error": None,
        "node": "alpha",
        "quarantine": None,
        "reason": None,
    }
    return {**found, **changes}


def version(number: int = 3, **changes: Any) -> dict[str, Any]:
    """A version with its document."""
    document = {"source": {"type": "webhook"}, "sink": {"type": "postgres", "table": "orders"}}
    found = {
        "number": number,
        "status": "published",
        "hash": f"hash{number}",
        "author": "ada",
        "reason": None,
        "created_at": minutes_ago(3),
        "document": document,
    }
    return {**found, **changes}


def full(name: str = "orders", **changes: Any) -> dict[str, Any]:
    """A datasource on its own."""
    letters = dict.fromkeys(("open", "replayed", "superseded", "discarded", "expired", "waiting"), 0)
    found = {"draft": None, "published": version(), "states": [], "letters": letters}
    return {**summary(name), **found, **changes}
