"""Connectors, with the JSON Schema of their options."""

from __future__ import annotations

from typing import Any

from litestar import get

from headgate.datasources.registry import describe_connector, list_connectors
from headgate.web.auth import needs


@get("/api/connectors", guards=[needs("viewer")], tags=["connectors"], summary="All connectors", sync_to_thread=False)
def list_all() -> dict[str, Any]:
    """Built-in ones and plug-ins alike."""
    return {"items": list_connectors()}


@get("/api/connectors/{name:str}", guards=[needs("viewer")], tags=["connectors"], summary="One", sync_to_thread=False)
def show(name: str) -> dict[str, Any]:
    """With the schema of its options."""
    return describe_connector(name)


ROUTES = [list_all, show]
