"""A session with a MongoDB server: what its URL says, how it is opened, and what its errors mean.

    mongodb://user:password@host/database?sample=50000

A collection has no schema, so its columns are a guess from its first documents. The options in the URL:

    sample=N        how many documents to look at, 10,000 by default
    nested=json     a document in a document is one JSON column; the default
    nested=flatten  its fields are columns, such as `address.city`; arrays stay JSON
    doc=json        two columns: `_id`, and `doc` with the whole document as JSON
    micros=…        for a target: what becomes of microseconds (`headgate.connectors.mongodb.values.Micros`)

TLS is the client's: `?tls=true` and its relatives, which are passed on as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from bson.errors import BSONError
from pymongo import AsyncMongoClient, errors

from headgate.connectors.api.bulk import StorageError, StorageGone
from headgate.connectors.guard import Guard, OutOfReach, present
from headgate.connectors.mongodb import values
from headgate.connectors.mongodb.values import Document
from headgate.connectors.places import Place
from headgate.connectors.urls import redacted
from headgate.core.reach import Kind, address_of
from headgate.errors import ConfigError
from headgate.text import one_line

SAMPLE = 10_000
TIMEOUT_MS = 5_000  # A server that does not answer for this long is gone.

_CHOICES = {"sample": "[1-9][0-9]{0,8}", "nested": "json|flatten", "doc": "json", "micros": "refuse|text|truncate"}
_AUTHENTICATION = {18, 8000}
_UNAUTHORIZED = 13
_ASKING = ("MONGODB-AWS", "MONGODB-OIDC", "GSSAPI")  # Ways to authenticate that ask other servers.


@dataclass(frozen=True, slots=True)
class Options:
    """What a URL says, the part that is for us and the part that is for the client."""

    url: str
    database: str
    sample: int = SAMPLE
    flatten: bool = False
    whole: bool = False
    micros: values.Micros = values.Micros.REFUSE


def options_of(url: str) -> Options:
    """Read the URL. Raises `ConfigError`."""
    parts = urlsplit(url)
    database = unquote(parts.path.lstrip("/")).partition(".")[0]
    if not database:
        raise ConfigError(f"{redacted(url)} names no database", hint="mongodb://host/database")
    given = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in given if name in _CHOICES}
    for name, value in ours.items():
        if not re.fullmatch(_CHOICES[name], value):
            raise ConfigError(f"{redacted(url)}: {name}={value} is not understood", hint=_CHOICES[name])
    rest = urlencode([(name, value) for name, value in given if name not in _CHOICES], safe=",:/")
    return Options(
        url=urlunsplit((parts.scheme, parts.netloc, parts.path, rest, "")),
        database=database,
        sample=int(ours.get("sample", SAMPLE)),
        flatten=ours.get("nested") == "flatten",
        whole=ours.get("doc") == "json",
        micros=values.Micros(ours.get("micros", "refuse")),
    )


class Session:
    """A client that connects when it is used first."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._guard = present()
        self.options = options_of(url)
        self._client: AsyncMongoClient[Document] | None = None

    def database(self) -> Any:
        """The database of the URL."""
        if self._client is None:
            with translate_errors(self._url):
                named = self.options.url.lower()
                limits: dict[str, Any] = {
                    name: TIMEOUT_MS
                    for name in ("serverSelectionTimeoutMS", "connectTimeoutMS")
                    if name.lower() not in named
                }
                url, bounded = _within(self._guard, self.options.url)
                self._client = AsyncMongoClient(url, appname="headgate dump", **limits, **bounded)
                if not self._client.write_concern.acknowledged:
                    raise ConfigError(f"{redacted(self._url)}: w=0 would lose documents silently")
        return self._client.get_database(self.options.database, codec_options=values.CODEC)

    async def info(self, table: str) -> Document | None:
        """What the server says of a collection. None: there is none."""
        cursor = await self.database().list_collections(filter={"name": table})
        found: list[Document] = await cursor.to_list()
        return found[0] if found else None

    async def close(self) -> None:
        """End the session."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()


def _within(guard: Guard, url: str) -> tuple[str, dict[str, Any]]:
    """The URL for a client that connects to nothing but what was judged, and what else it must be told.

    A client asks a server for others, and follows. So it is bound to the one host of its URL, which must be written in
    numbers: the client resolves names by itself, and would not tell to what.
    """
    if not guard.judges_addresses:
        return url, {}
    parts = urlsplit(url)
    query = {name.lower(): value for name, value in parse_qsl(parts.query)}
    place = parts.netloc.rpartition("@")
    if parts.scheme != "mongodb" or "," in place[2] or query.get("authmechanism", "").upper() in _ASKING:
        raise _cannot_be_bound(url)
    port, address = parts.port or 27017, address_of(parts.hostname or "")
    if address is None:
        raise _cannot_be_bound(url)
    guard.check([Place(Kind.ADDRESS, str(address), port)])
    more: dict[str, Any] = {"directConnection": True}
    if "true" not in (query.get("tls"), query.get("ssl")):
        shown = f"[{address}]" if address.version == 6 else str(address)
        parts = parts._replace(netloc=f"{place[0]}{place[1]}{shown}:{port}")
    else:
        more["tlsDisableOCSPEndpointCheck"] = True  # A certificate names the server that would be asked.
    return urlunsplit(parts), more


def _cannot_be_bound(url: str) -> OutOfReach:
    hint = "name one host by its address in numbers, without AWS or OIDC; or put the URL into a secret"
    return OutOfReach(f"{redacted(url)} cannot be bound to what may be reached", hint=hint)


@contextmanager
def translate_errors(url: str, where: str = "") -> Iterator[None]:
    """The client's errors in one line, sorted by what to do about them."""
    place = f"{redacted(url)} {where}".strip()
    try:
        yield
    except (errors.ConnectionFailure, errors.WaitQueueTimeoutError) as error:
        raise StorageGone(f"{place} does not answer: {_line(error)}") from None
    except errors.OperationFailure as error:
        needs_login = error.code == _UNAUTHORIZED and "requires authentication" in str(error)
        if error.code in _AUTHENTICATION or needs_login:
            raise ConfigError(f"{redacted(url)} does not accept the user or the password: {_line(error)}") from None
        raise StorageError(f"{place}: {_line(error)}") from None
    except (errors.ConfigurationError, errors.InvalidURI) as error:
        raise ConfigError(f"{redacted(url)}: {_line(error)}") from None
    except (errors.PyMongoError, BSONError, OverflowError) as error:
        raise StorageError(f"{place}: {_line(error)}") from None


def _line(error: Exception) -> str:
    """The first part of what the client says; the rest describes its whole view of the servers."""
    text = one_line(error)
    return re.split(r", full error: |, Timeout: | \(configured timeouts: ", text)[0][:300]
