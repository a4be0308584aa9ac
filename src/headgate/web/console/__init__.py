"""The console: server-rendered pages, live by SSE, with nothing from elsewhere."""

from __future__ import annotations

from typing import Any

ROUTES: list[Any] = []
