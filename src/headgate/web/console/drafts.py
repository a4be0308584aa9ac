"""Where documents are written: the draft of a datasource, and a new datasource in five steps.

The pages hold a document and show it twice, as a form and as YAML; `api/editing.py` makes one from the other.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response, get

from headgate.connectors import plugins
from headgate.core.access import Caller, may
from headgate.datasources.documents import apart, write_plain
from headgate.errors import HeadgateError
from headgate.runtime.node import Node
from headgate.web.api import views
from headgate.web.auth import Needs
from headgate.web.console.acts import command
from headgate.web.console.datasource import OPERATE, shown
from headgate.web.console.frame import framed
from headgate.web.console.session import Req, signed_in

# The usual first choices; others follow by name. What is for trying out comes last.
FIRST = ("webhook", "postgres", "kafka", "http", "files", "push")
LAST = ("generator", "stdout", "blackhole")


@get("/datasources/{name:str}/draft", include_in_schema=False, needs=OPERATE)
async def draft_page(node: Node, request: Req, name: str) -> Response[Any]:
    """Edit, test and publish."""
    return await signed_in(request, lambda holder: _draft(node, holder, name))


@get("/new", include_in_schema=False, needs=Needs("operate_listed"))
async def new_page(node: Node, request: Req) -> Response[Any]:
    """A new datasource, in five steps."""
    return await signed_in(request, _new)


async def _draft(node: Node, holder: Caller, name: str) -> Response[str]:
    found = await node.registry.get(name)
    draft = await node.registry.datasources.draft(found.id)
    version = draft or await node.registry.datasources.version(found.id, found.published_version)
    document = {} if version is None else views.document(version)
    fixtures = [one.name for one in await node.harness.shelf.names(found)]
    return await shown(
        node,
        holder,
        name,
        "draft.html",
        tab="draft",
        document=msgspec.json.encode(document, enc_hook=str).decode(),
        yaml=await apart(write_plain, document),
        hash="" if version is None else version.content.hash,
        is_draft=draft is not None,
        number=None if version is None else version.number,
        is_webhook=document.get("source", {}).get("type") == "webhook",
        fixtures=fixtures,
        publish_command=command("ds", "publish", found.name),
        commands=[command("ds", verb, found.name) for verb in ("edit", "validate", "test", "publish")],
    )


async def _new(holder: Caller) -> Response[str]:
    return framed(
        holder,
        "new.html",
        at="overview",
        sources=_gallery("source"),
        sinks=_gallery("sink"),
        is_admin=may(holder, "administer"),
    )


def _gallery(side: str) -> list[tuple[str, str]]:
    """The connectors that have this side, with what each does."""
    found = {}
    for name in plugins.names():
        try:
            connector = plugins.get(name)
        except HeadgateError:
            continue  # Its library is not installed; `headgate connectors list` says what helps.
        if getattr(connector, side) is not None:
            found[name] = connector.summary
    return sorted(found.items(), key=lambda one: (_rank(one[0]), one[0]))


def _rank(name: str) -> int:
    if name in FIRST:
        return FIRST.index(name)
    return len(FIRST) + LAST.index(name) + 1 if name in LAST else len(FIRST)
