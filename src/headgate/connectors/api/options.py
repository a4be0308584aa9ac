"""Options of connectors: what a document may say of one side, checked by pydantic, and which of it names the data."""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from headgate.credentials import hide_credentials

__all__ = ["Options", "identity", "identity_of"]


class Options(BaseModel):
    """The options of one side of a connector: frozen, and unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def identity(default: Any = ..., *, is_new: bool = False, **kwargs: Any) -> Any:
    """An option that says *which* data this is. With another identity an old position means nothing.

    An option that a later release adds is new: with its default it adds nothing, so that older positions keep theirs.
    """
    return Field(default, json_schema_extra={"identity": "new" if is_new else True}, **kwargs)


def identity_of(connector: str, options: Options) -> str:
    """A hash of the options that say which data this is, without user and password."""
    marked = {
        name: _bare(value)
        for name, info in sorted(type(options).model_fields.items())
        if isinstance(info.json_schema_extra, dict)
        and (kind := info.json_schema_extra.get("identity"))
        and ((value := getattr(options, name)) != info.default or kind != "new")
    }
    text = msgspec.json.encode([connector, marked], order="sorted", enc_hook=str)
    return hashlib.sha256(text).hexdigest()[:16]


def _bare(value: Any) -> Any:
    """The value as plain text, credentials removed from URLs."""
    plain = value.get_secret_value() if isinstance(value, SecretStr) else value
    if isinstance(plain, str) and "://" in plain:
        parts = urlsplit(plain)
        return hide_credentials(urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])))
    return plain
