"""Somebody with a token who works through whichever node answers."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import httpx

from tests.storm.senders import Door

CALL_S = 10.0
PATIENCE_S = 120.0  # All servers and nodes are away for less.
AGAIN_S = 0.5


class Refused(Exception):
    """A node understood, and does not do it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text[:300]}")
        self.status = status


class Unanswered(Exception):
    """No node answered for a long time."""


class Operator:
    """Calls the API. What nobody answers is asked again, so a command may arrive twice: all of them bear that."""

    def __init__(self, door: Door, chance: random.Random) -> None:
        self._door = door
        self._chance = chance
        self._client = httpx.AsyncClient(timeout=CALL_S)

    async def call(self, method: str, path: str, body: Any = None, *, patience_s: float = PATIENCE_S) -> Any:
        """What some node answers."""
        deadline = time.monotonic() + patience_s
        last = ""
        while time.monotonic() < deadline:
            url = self._chance.choice(self._door.urls()) + path
            try:
                headers = {"Authorization": f"Bearer {self._door.token}"}
                answer = await self._client.request(method, url, json=body, headers=headers)
            except httpx.HTTPError as error:
                last = f"{type(error).__name__}: {error}"
            else:
                if answer.is_success:
                    is_lines = answer.headers.get("content-type", "").startswith("text/")
                    return answer.text if is_lines else answer.json() if answer.content else None
                if answer.status_code < 500:
                    raise Refused(answer.status_code, answer.text)
                last = f"{answer.status_code} {answer.text[:300]}"
            await asyncio.sleep(AGAIN_S)
        raise Unanswered(f"{method} {path}: {last}")

    async def apply(self, documents: dict[str, Any]) -> None:
        """Publish these."""
        await self.call("POST", "/api/apply", {"datasources": documents})

    async def datasource(self, name: str) -> dict[str, Any]:
        """One, as it stands."""
        found: dict[str, Any] = await self.call("GET", f"/api/datasources/{name}")
        return found

    async def incarnation(self, name: str) -> str | None:
        """The id of a node by its name, if it is up: a dead one may still be listed under the same name."""
        nodes = (await self.call("GET", "/api/nodes"))["items"]
        return next((node["id"] for node in nodes if node["name"] == name and node["status"] != "silent"), None)

    async def close(self) -> None:
        """No more calls."""
        await self._client.aclose()
