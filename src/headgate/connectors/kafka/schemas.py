"""Schemas from a registry: a message says the id of the schema that it was written with, in its first five bytes.

A schema never changes, so each is fetched once. What a producer puts into a message is not to be trusted: an id that
the registry does not have is remembered, too, and of both no more than a few hundred are kept.

Nor is a schema. Values without bytes (null, an empty record) cost a message nothing, so an array of them may be as long
as anybody likes in ten bytes; a type that contains itself may be nested until the stack ends. Schemas that allow that
are refused (`weigh`).
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import ssl
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from headgate.connectors.guard import Guard
from headgate.connectors.kafka.options import SchemaRegistry
from headgate.errors import Cause, ConnectorError, NotConnected

ASK_S = 10.0
MOST_BYTES = 1024 * 1024  # Of an answer.
MOST_KEPT = 512  # Schemas, and ids that are none.
MOST_REFERENCES = 64
DEEPEST = 48  # Levels of a schema.
MOST_VALUES = 20_000  # In a message, apart from the elements of its arrays.
VALUES_PER_BYTE = 64  # In an element of an array.

_SIZES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}


class SchemaError(Exception):
    """There is no such schema, or none that is used here. The text repeats nothing of a message."""


class Schemas:
    """The Avro schemas of one registry."""

    def __init__(self, options: SchemaRegistry | None, guard: Guard) -> None:
        self._options = options
        self._guard = guard
        self._known: OrderedDict[int, Any] = OrderedDict()

    async def get(self, id: int) -> Any:
        """The schema, ready to read with. `SchemaError` if there is none."""
        found = self._known.get(id)
        if found is None:
            try:
                found = await asyncio.to_thread(self._fetch, id)
            except SchemaError as error:
                found = error
            self._known[id] = found
            if len(self._known) > MOST_KEPT:
                self._known.popitem(last=False)
        if isinstance(found, SchemaError):
            raise found
        return found

    async def check(self) -> None:
        """See that it answers."""
        await asyncio.to_thread(self._ask, "/schemas/types")

    def _fetch(self, id: int) -> Any:
        import fastavro

        answer = self._ask(f"/schemas/ids/{id}")
        if answer.get("schemaType", "AVRO") != "AVRO":
            raise SchemaError(f"schema {id} is not Avro")
        named: dict[str, Any] = {}
        try:
            for text in [*self._referenced(answer, set()), answer["schema"]]:
                schema = msgspec.json.decode(text)
                weigh(schema)
                parsed = fastavro.parse_schema(schema, named_schemas=named)
            weigh(parsed, named)
        except (KeyError, TypeError, ValueError, RecursionError, fastavro.schema.SchemaParseException):
            raise SchemaError(f"schema {id} is not a valid schema") from None
        return parsed

    def _referenced(self, answer: dict[str, Any], seen: set[tuple[str, int]]) -> list[str]:
        """The schemas that a schema names, those that they name before them."""
        found: list[str] = []
        for one in answer.get("references") or ():
            place = str(one["subject"]), int(one["version"])
            if place in seen:
                continue
            seen.add(place)
            if len(seen) > MOST_REFERENCES:
                raise SchemaError("a schema has too many references")
            other = self._ask(f"/subjects/{quote(place[0], safe='')}/versions/{place[1]}")
            found += [*self._referenced(other, seen), other["schema"]]
        return found

    def _ask(self, path: str) -> dict[str, Any]:
        """A JSON object from the registry, through the guard, and not more than a schema can need."""
        if self._options is None:
            raise ConnectorError("schemas need a schema_registry", cause=Cause.CONFIG)
        parts = urlsplit(self._options.url)
        is_tls = parts.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
        where = f"the schema registry {parts.hostname}:{port}"
        connection = http.client.HTTPConnection(parts.hostname or "", port, timeout=ASK_S)
        try:
            connection.sock = self._guard.connect(parts.hostname or "", port, ASK_S)
            if is_tls:
                secured = ssl.create_default_context()
                connection.sock = secured.wrap_socket(connection.sock, server_hostname=parts.hostname)
            connection.request("GET", parts.path.rstrip("/") + path, headers=self._headers())
            response = connection.getresponse()
            body = response.read(MOST_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise NotConnected(f"{where} does not answer: {type(error).__name__}") from None
        finally:
            connection.close()
        return _judged(response.status, body, where)

    def _headers(self) -> dict[str, str]:
        assert self._options is not None
        if self._options.username is None:
            return {"Accept": "application/json"}
        password = self._options.password.get_secret_value() if self._options.password is not None else ""
        pair = base64.b64encode(f"{self._options.username}:{password}".encode()).decode()
        return {"Accept": "application/json", "Authorization": f"Basic {pair}"}


def _judged(status: int, body: bytes, where: str) -> dict[str, Any]:
    if status in (401, 403):
        raise ConnectorError(f"{where} answers {status}", cause=Cause.AUTH, hint="look at schema_registry.username")
    if status == 404:
        raise SchemaError("the registry has no such schema")
    if status != 200:
        raise NotConnected(f"{where} answers {status}")
    if len(body) > MOST_BYTES:
        raise SchemaError("the schema is too large")
    try:
        found = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        raise NotConnected(f"{where} answers no JSON") from None
    return found if isinstance(found, dict) else {}


# Whether a schema can be read with at all.


@dataclass(frozen=True, slots=True)
class Weight:
    """What a value costs."""

    values: int  # How many it is at most, without the elements of arrays.
    least_bytes: int  # How few bytes it may have.
    density: float  # How many values there are at most for each of its bytes, if it has any.


def weigh(schema: Any, named: dict[str, Any] | None = None) -> Weight:
    """What a message of this schema may cost. ValueError if that has no bound. A name that is not known costs one."""
    return _weigh(schema, named or {}, {}, 0)


def _weigh(schema: Any, named: dict[str, Any], weights: dict[str, Weight | None], depth: int) -> Weight:
    if depth > DEEPEST:
        raise ValueError("too deep")
    if isinstance(schema, str):
        return _weigh_name(schema, named, weights, depth)
    if isinstance(schema, list):
        branches = [_weigh(one, named, weights, depth + 1) for one in schema] or [_plain(0)]
        density = max(1 + (one.density if one.least_bytes else one.values) for one in branches)
        return Weight(1 + max(one.values for one in branches), 1 + min(one.least_bytes for one in branches), density)
    kind = schema["type"]
    match kind:
        case "record" | "error":
            return _weigh_record(schema, named, weights, depth)
        case "array" | "map":
            element = _weigh(schema["items" if kind == "array" else "values"], named, weights, depth + 1)
            density = element.density if element.least_bytes else element.values
            if (element.least_bytes == 0 and kind == "array") or density > VALUES_PER_BYTE:
                raise ValueError("elements cost less than they are")
            return Weight(1, 1, 1 + density)
        case "fixed":
            return _plain(int(schema["size"]))
        case "enum":
            return _plain(1)
    return _weigh(kind, named, weights, depth + 1)


def _plain(size: int) -> Weight:
    return Weight(1, size, 1 / size if size else 0.0)


def _weigh_name(name: str, named: dict[str, Any], weights: dict[str, Weight | None], depth: int) -> Weight:
    if name in _SIZES:
        return _plain(_SIZES[name])
    if name in weights:
        found = weights[name]
        if found is None:
            raise ValueError("a type contains itself")
        return found
    return _weigh(named[name], named, weights, depth + 1) if name in named else _plain(1)


def _weigh_record(
    schema: dict[str, Any], named: dict[str, Any], weights: dict[str, Weight | None], depth: int
) -> Weight:
    name = str(schema.get("name"))
    weights[name] = None
    fields = [_weigh(one["type"], named, weights, depth + 1) for one in schema["fields"]]
    values, least_bytes = 1 + sum(one.values for one in fields), sum(one.least_bytes for one in fields)
    if values > MOST_VALUES:
        raise ValueError("too many values")
    # Of parts that have bytes, the whole is no denser than the densest; the others come on top.
    free = 1 + sum(one.values for one in fields if not one.least_bytes)
    density = max((one.density for one in fields if one.least_bytes), default=0.0) + free / max(1, least_bytes)
    found = weights[name] = Weight(values, least_bytes, density)
    return found
