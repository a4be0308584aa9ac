"""Connectors, with the JSON Schema of their options."""

from __future__ import annotations

from litestar import get

from headgate.datasources.registry import describe_connector, list_connectors
from headgate.web.auth import Needs
from headgate.web.bodies import datasources


@get("/api/connectors", guards=[Needs("learn")], tags=["connectors"], summary="All connectors", sync_to_thread=False)
def list_all() -> datasources.Connectors:
    """Built-in ones and plug-ins alike."""
    return datasources.Connectors(items=[datasources.Connector(**one) for one in list_connectors()])


@get("/api/connectors/{name:str}", guards=[Needs("learn")], tags=["connectors"], summary="One", sync_to_thread=False)
def show(name: str) -> datasources.ConnectorOptions:
    """With the schema of its options."""
    return datasources.ConnectorOptions(**describe_connector(name))


ROUTES = [list_all, show]
