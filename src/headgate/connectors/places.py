"""What a URL or the options of a connector name outside: hosts with their ports, and files.

A URL names more than its host: certificates, password files and sockets stand in its query. A parameter that is known
to name a file counts as a path, and so does any value that looks like one, because drivers learn new parameters.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from headgate.connectors.urls import path_and_options, path_of, scheme_of
from headgate.core.reach import Kind
from headgate.errors import ConfigError

PORTS = {
    "postgresql": 5432,
    "postgres": 5432,
    "mysql": 3306,
    "mariadb": 3306,
    "mongodb": 27017,
    "http": 80,
    "https": 443,
    "ws": 80,
    "wss": 443,
    "ftp": 21,
    "sftp": 22,
    "redis": 6379,
    "rediss": 6379,
    "amqp": 5672,
    "amqps": 5671,
    "rabbitmq-stream": 5552,
    "rabbitmq-stream+tls": 5551,
    "mqtt": 1883,
    "mqtts": 8883,
    "nats": 4222,
    "tls": 4222,
}
_FILES = (
    "passfile sslkey sslcert sslrootcert sslcrl sslcrldir servicefile unix_socket ssl_ca ssl_cert ssl_key ssl_crl"
    " ssl_capath ssl_ca_certs ssl_certfile ssl_keyfile ssl_crlfile ssl_pem_passphrase tlscafile tlscertificatekeyfile"
    " tlscrlfile read_default_file defaults_file option_files server_public_key_path keytab krb5ccname sslkeylogfile"
)
FILES = frozenset(_FILES.split())
SERVICES = "~/.pg_service.conf"  # What the parameter `service` reads, if it is not told otherwise.
_HOSTS = frozenset({"host", "hostaddr", "hosts"})


@dataclass(frozen=True, slots=True)
class Place:
    """Something outside that is named."""

    kind: Kind
    text: str  # A path, a host, or a module.
    port: int = 0
    option: str = ""  # Where it was named: `url`.

    def __str__(self) -> str:
        return f"{self.text}:{self.port or '*'}" if self.kind is Kind.ADDRESS else self.text


def place_of_path(path: str, option: str = "") -> Place:
    """A file, a folder, or a pattern: of that, the last folder in which nothing is left open."""
    kept = path
    while glob.has_magic(kept):
        kept = os.path.dirname(kept)
    return Place(Kind.FOLDER, kept or ".", option=option)


def places_of_url(url: str, option: str = "", *, is_local: bool = False) -> list[Place]:
    """All that a URL names. `is_local`: it is a path with a scheme before it."""
    if is_local or scheme_of(url) in ("file", "sqlite"):
        try:
            return [place_of_path(str(path_and_options(url, _Any())[0]), option)]
        except ConfigError:
            return [place_of_path(str(path_of(url)), option)]
    return [replace(place, option=option) for place in _of_server(url)]


class _Any(tuple[str, ...]):
    """Every option is known: which ones are is said elsewhere."""

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        return True


def _of_server(url: str) -> Iterator[Place]:
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    usual = PORTS.get(scheme) or PORTS.get(scheme.partition("+")[0], 0)
    query = parse_qsl(parts.query, keep_blank_values=True, separator="&")
    ports = [one for name, value in query if name.lower() == "port" for one in value.split(",")]
    hosts = [one for one in parts.netloc.rpartition("@")[2].split(",") if one]
    more = [one for name, value in query if name.lower() in _HOSTS for one in value.split(",") if one]
    # Of lists of the same length, each host has its port. Else it may be any of them: drivers differ.
    are_pairs = not hosts and len(more) == len(ports)
    for number, host in enumerate([*hosts, *more] or ["localhost"]):
        yield from _of_host(host, usual, ports[number : number + 1] if are_pairs else ports)
    for name, value in query:
        lower = name.lower().replace("-", "_")
        if lower == "service":
            yield Place(Kind.FOLDER, SERVICES)
        # A password may begin with any sign, and must stand in no message.
        may_be_path = lower not in _HOSTS and "pass" not in lower and value.startswith(("/", "~", "./", "../"))
        if lower in FILES or may_be_path:
            yield Place(Kind.FOLDER, value)


def _of_host(text: str, usual: int, ports: list[str]) -> Iterator[Place]:
    plain = unquote(text)
    if plain.startswith(("/", "@")):
        yield Place(Kind.FOLDER, plain)  # A socket, or the folder that it is in.
        return
    host, colon, port = plain.rpartition(":")
    if not colon or plain.endswith("]") or (plain.count(":") > 1 and not plain.startswith("[")):
        host, port = plain, ""
    for one in ([port] if port else ports) or [str(usual)]:
        yield Place(Kind.ADDRESS, host.strip("[]"), int(one) if one.isascii() and one.isdigit() else 0)


def places_in(options: Any, option: str = "") -> list[Place]:
    """All that the URLs among a connector's options name, however deep they stand."""
    from pydantic import BaseModel, SecretStr  # Who has options has it already.
    from pydantic_core import PydanticCustomError

    match options:
        case BaseModel():
            pairs = [(name, getattr(options, name)) for name in type(options).model_fields]
        case dict():
            pairs = [(str(name), value) for name, value in options.items()]
        case list() | tuple():
            pairs = [(str(index), value) for index, value in enumerate(options)]
        case SecretStr():
            try:
                return places_in(options.get_secret_value(), option)
            except PydanticCustomError:  # It is not read, because the caller must learn nothing about it.
                return []
        case str() if "://" in options:
            return places_of_url(options, option)
        case _:
            return []
    at = f"{option}." if option else ""
    return [place for name, value in pairs for place in places_in(value, f"{at}{name}")]
