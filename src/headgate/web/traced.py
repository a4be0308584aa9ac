"""Calls of the API, as spans: which path, whose method, what was answered, how long it took."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from typing import Any

from headgate.spans import spans
from headgate.web.doors.asgi import Scope, Send

LIVE = b"text/event-stream"
OF_API = ("/api/", "/registry/")


class Traced:
    """Where an answer goes; it tells the call when the answer is out. Of one that goes on, when it has begun."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._began_s = time.perf_counter()
        self._status = 0
        self._is_told = not scope["path"].startswith(OF_API)

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            if any(value.startswith(LIVE) for name, value in message["headers"] if name.lower() == b"content-type"):
                self._tell()
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._tell()

    def _tell(self) -> None:
        """By the path as the API knows it: what a caller has made up is no name of ours."""
        if self._is_told:
            return
        self._is_told = True
        method, path = self._scope["method"], self._scope.get("path_template") or "unknown"
        names = {"http.request.method": method, "http.route": path, "http.response.status_code": self._status}
        found = self._scope.get("path_params") or {}
        if path.startswith("/api/datasources/") and self._status < 400 and "name" in found:
            names["datasource"] = str(found["name"])
        cause = str(self._status) if self._status >= 500 else ""
        spans.tell(f"{method} {path}", time.perf_counter() - self._began_s, cause, **names)
