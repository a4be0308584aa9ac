"""What an editor asks: a document as text and as values, one made from the other, and everything that is wrong with it.

A browser reads no YAML. It sends what somebody has changed, and shows what comes back: the same document in both forms.
"""

from __future__ import annotations

import json

import msgspec
from litestar import post

from headgate.datasources.documents import apart, parse_yaml, write_plain
from headgate.errors import ConfigError, Problem
from headgate.runtime.node import Node
from headgate.web import subjects
from headgate.web.api import harness
from headgate.web.auth import Needs, Req
from headgate.web.bodies import Object, datasources
from headgate.web.bodies import editing as bodies

MOST_BYTES = 1024 * 1024


@post(
    "/api/datasources/{name:str}/document",
    guards=[Needs("operate", subjects.datasource)],
    status_code=200,
    tags=["datasources"],
    summary="A document as YAML and as values, and everything that is wrong with it",
    request_max_body_size=MOST_BYTES,
    opt=harness.RUNS_TESTS,
)
async def edited(node: Node, request: Req, name: str, data: bodies.DocumentChanged) -> bodies.EditedDocument:
    """Either `yaml` or `document`; the other is made from it. Nothing is kept. Text that cannot be read, or that JSON
    cannot say, comes back as it is, without a document."""
    if (data.yaml is None) == (data.document is None):
        raise ConfigError([Problem("", "must have either yaml or document")])
    try:
        document = data.document if data.document is not None else await _read(data.yaml or "")
    except ConfigError as error:
        return bodies.EditedDocument(yaml=data.yaml or "", document=None, problems=_told(error.problems))
    try:
        found = list(await harness.problems(node, request, name, document, connect=False))
    except ConfigError as error:
        found = list(error.problems)
    text = data.yaml if data.yaml is not None else await apart(_written, document)
    is_plain = await apart(_is_plain, document)
    return bodies.EditedDocument(yaml=text, document=document if is_plain else None, problems=_told(found))


async def _read(text: str) -> Object:
    found = await apart(parse_yaml, text, "line")
    if not isinstance(found, dict):
        raise ConfigError([Problem("", "must be a mapping of source, sink and so on")])
    strange = [key for key in found if not isinstance(key, str)]
    if strange:
        raise ConfigError([Problem(str(strange[0]), "a key must be text", "quote it")])
    return found


def _written(document: Object) -> str:
    try:
        return write_plain(document)
    except RecursionError:
        raise ConfigError([Problem("", "is nested too deeply")]) from None


def _is_plain(document: Object) -> bool:
    """Whether JSON says the same: YAML knows more kinds of values and keys. Its problems name those."""
    try:
        msgspec.json.encode(document)
        return bool(json.loads(json.dumps(document)) == document)
    except (TypeError, ValueError, RecursionError):
        return False


def _told(problems: list[Problem]) -> list[datasources.Problem]:
    return [datasources.Problem(path=one.path, message=one.message, hint=one.hint) for one in problems]


ROUTES = [edited]
