"""How a conversation with a PostgreSQL server begins, for those who let others through to a socket of it.

A server that hears from a folder that only its owner can enter believes every name, the superuser's too. So only a
session of the user and the database that a URL names is let through, and no replication, by which
all files of the server could be read. What would ask for TLS, or cancel somebody's query, is not let through either.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from urllib.parse import parse_qsl, unquote, urlsplit

from headgate.connectors.api import LocalSocket
from headgate.core.hosts import hosts_of

MOST_BYTES = 10_000  # The server's own limit.
_VERSION = 3
_HEAD = struct.Struct("!iHH")  # The length of it all, and the protocol's version.
_REFUSED = frozenset({"replication"})


def sockets_of(url: str) -> list[LocalSocket]:
    """The sockets that a URL names, if it says whose sessions they are for."""
    return [socket for host in hosts_of(url) for socket in _sockets_of(host.url)]


def _sockets_of(url: str) -> list[LocalSocket]:
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    user = unquote(parts.username or "") or query.get("user", "")
    database = unquote(parts.path.removeprefix("/")) or query.get("dbname", "") or query.get("database", "") or user
    hosts = [*query.get("host", "").split(","), unquote(parts.netloc.rpartition("@")[2].partition(":")[0])]
    ports = [one for one in query.get("port", str(parts.port or "")).split(",") if one] or ["5432"]
    folders = [host for host in hosts if host.startswith("/")]
    if not user:
        return []
    admits = _admitting(user, database)
    return [LocalSocket(os.path.join(folder, f".s.PGSQL.{port}"), admits) for folder in folders for port in ports]


def _admitting(user: str, database: str) -> Callable[[bytes], bool | None]:
    def admits(first: bytes) -> bool | None:
        if len(first) < _HEAD.size:
            return None
        length, major, _ = _HEAD.unpack_from(first)
        if major != _VERSION or not _HEAD.size < length <= MOST_BYTES:
            return False
        if len(first) < length:
            return None
        *fields, last, end = first[_HEAD.size : length].split(b"\0")
        if last or end or len(fields) % 2:
            return False
        given = list(zip(fields[::2], fields[1::2], strict=True))
        names = [name.decode("utf-8", "replace") for name, _ in given]
        said = dict(zip(names, (value for _, value in given), strict=True))
        is_plain = len(names) == len(set(names)) and _REFUSED.isdisjoint(names)
        return is_plain and said.get("user") == user.encode() and said.get("database") == database.encode()

    return admits
