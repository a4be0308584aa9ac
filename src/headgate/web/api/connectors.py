"""Connectors, with the JSON Schema of their options, and that of whole documents."""

from __future__ import annotations

from functools import cache

import msgspec
from litestar import Response, get

from headgate.connectors import installed, plugins
from headgate.datasources import schema
from headgate.web.auth import Needs
from headgate.web.bodies import datasources

SCHEMA = "application/schema+json"


@get("/api/connectors", guards=[Needs("learn")], tags=["connectors"], summary="All connectors", sync_to_thread=False)
def list_all() -> datasources.Connectors:
    """Built-in ones and plug-ins alike."""
    items = [
        datasources.Connector(
            name=one.name, summary=one.summary, sides=list(one.sides), promises=one.promises, install=one.install
        )
        for one in installed.lines()
    ]
    return datasources.Connectors(items=items)


@get("/api/connectors/{name:str}", guards=[Needs("learn")], tags=["connectors"], summary="One", sync_to_thread=False)
def show(name: str) -> datasources.ConnectorOptions:
    """With the schema of its options."""
    found = plugins.get(name)
    return datasources.ConnectorOptions(
        name=found.name,
        summary=found.summary,
        runs=found.runs,
        source=None if found.source is None else found.source.model.model_json_schema(),
        sink=None if found.sink is None else found.sink.model.model_json_schema(),
        transactional=None if found.sink is None else found.sink.transactional,
        schemes=None if found.reader is None and found.writer is None else list(found.schemes),
        promises=installed.promises_of(found),
        install=installed.missing(name),
    )


@get(
    "/api/documents/schema",
    guards=[Needs("learn")],
    tags=["connectors"],
    summary="The JSON Schema of a file of datasources",
    media_type=SCHEMA,
    sync_to_thread=True,
)
def document_schema(one: bool = False) -> Response[bytes]:
    """With the options of every connector that this node has; `one`: of one datasource without its name."""
    return Response(_schema(one), media_type=SCHEMA)


@cache
def _schema(one: bool) -> bytes:
    """Made once: it takes a while, and what is installed stays."""
    return msgspec.json.encode(schema.document_schema() if one else schema.file_schema())


ROUTES = [list_all, show, document_schema]
