"""Options of connectors: what a document may say of one side, checked by pydantic, and which of it names the data.

`core.identity` says what names and marks are for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from headgate.core.hosts import hosts_of
from headgate.credentials import hide_credentials

__all__ = ["Options", "identity", "identity_of", "mark_of", "other_names"]


class Options(BaseModel):
    """The options of one side of a connector: frozen, and unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def identity(default: Any = ..., *, is_new: bool = False, is_address: bool = False, **kwargs: Any) -> Any:
    """An option that says *which* data this is. With another identity an old position means nothing.

    An option that a later release adds is new: with its default it adds nothing, so that older positions keep theirs.
    One that is an address says where the data are: if they have a mark, they are the same elsewhere.
    """
    kind = "new" if is_new else "address" if is_address else True
    return Field(default, json_schema_extra={"identity": kind}, **kwargs)


def identity_of(connector: str, options: Options) -> str:
    """The name of the data: a hash of the options that say which they are, without user and password."""
    return _hashed([connector, {name: _bare(value) for name, _, value in _identifying(options)}])


def other_names(connector: str, options: Options) -> tuple[str, ...]:
    """The names that the data would have if one of their hosts were the only one."""
    found = {name: _bare(value) for name, _, value in _identifying(options)}
    return tuple(
        _hashed([connector, {**found, name: _bare(host.url)}])
        for name, kind, value in _identifying(options)
        if kind == "address" and len(hosts := hosts_of(_plain(value))) > 1
        for host in hosts
    )


def mark_of(connector: str, options: Options, said: str) -> str:
    """A hash of what the data say that they are, in place of where they are."""
    others = {name: _bare(value) for name, kind, value in _identifying(options) if kind != "address"}
    return _hashed([connector, said, others])


def _identifying(options: Options) -> Iterator[tuple[str, Any, Any]]:
    """The options that say which data these are: name, kind and value."""
    for name, info in sorted(type(options).model_fields.items()):
        extra = info.json_schema_extra if isinstance(info.json_schema_extra, Mapping) else {}
        kind, value = extra.get("identity"), getattr(options, name)
        if kind and (value != info.default or kind != "new"):
            yield name, kind, value


def _hashed(value: Any) -> str:
    text = msgspec.json.encode(value, order="sorted", enc_hook=str)
    return hashlib.sha256(text).hexdigest()[:16]


def _plain(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _bare(value: Any) -> Any:
    """The value as plain text, credentials removed from URLs."""
    plain = _plain(value)
    if isinstance(plain, str) and "://" in plain:
        parts = urlsplit(plain)
        return hide_credentials(urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])))
    return plain
