"""Options of the Redis connector."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from headgate.connectors.api import Options, identity
from headgate.connectors.tls import check_files

_FORMATS = "fields: each field is a text. json: the body is the record. text: {body: …}. bytes: {body: …} in base64."


class _Server(Options):
    """Where the server is."""

    url: SecretStr = identity(description="redis://user:password@host:6379/0, or rediss:// for TLS.")

    @field_validator("url")
    @classmethod
    def _url_form(cls, value: SecretStr) -> SecretStr:
        text = value.get_secret_value()
        try:
            parts = urlsplit(text)
            is_whole = not parts.fragment and (parts.port or 1) > 0
        except ValueError:
            is_whole = False
        if not text.startswith(("redis://", "rediss://")):
            raise ValueError("must begin with redis:// or rediss://")
        if not is_whole:
            raise ValueError("is not a URL; write / # ? @ : in a password as %2F %23 %3F %40 %3A")
        database = parts.path.strip("/")
        if database and not (database.isascii() and database.isdigit() and len(database) < 6):
            raise ValueError("must end with the number of a database, as in redis://host:6379/0")
        check_files(parts.query)
        return value


class RedisSourceOptions(_Server):
    """Options of the Redis source: a stream or a list."""

    stream: str | None = identity(None, min_length=1, description="The key of the stream to read.")
    list: str | None = identity(
        None, min_length=1, description="The key of the list to take elements from, oldest left."
    )
    format: Literal["fields", "json", "text", "bytes"] | None = Field(
        None, description=f"{_FORMATS} Default: fields for a stream, json for a list."
    )
    field: str = Field(
        "body", min_length=1, description="The field of an entry that is its body, unless format is fields."
    )
    missing: Literal["fail", "go_on"] = Field(
        "fail",
        description="What to do if entries were removed before they were read, or the stream is not there: stop with an"
        " error, or go on with what is there and what comes.",
    )
    processing: str | None = identity(
        None,
        min_length=1,
        description="The key of the list that elements stay in until they are written."
        " Default: headgate:{LIST}:taken:NAME, with the stream's name.",
    )
    batch: int = Field(1000, gt=0, le=100_000, description="Entries per batch, at most.")
    batch_bytes: int = Field(8 * 2**20, gt=0, le=2**30, description="Bytes per batch, about.")
    max_message_bytes: int = Field(
        10 * 2**20, gt=0, le=2**29, description="A larger entry becomes a dead letter with its beginning."
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> RedisSourceOptions:
        if (self.stream is None) == (self.list is None):
            raise ValueError("name either a stream or a list")
        if self.list is not None and self.format == "fields":
            raise ValueError("an element of a list has no fields: format is json, text or bytes")
        if self.processing is not None and (self.list is None or self.processing == self.list):
            raise ValueError("processing is the key of another list, for a source with a list")
        return self


class RedisSinkOptions(_Server):
    """Options of the Redis sink: a stream, a list, or a key for each record."""

    stream: str | None = identity(None, min_length=1, description="The key of the stream to add entries to.")
    list: str | None = identity(None, min_length=1, description="The key of the list to append elements to.")
    keys: str | None = identity(
        None,
        description="What stands before the mapping's key in the key of each record, such as order: for order:17. The"
        " record replaces what is there, or removes it if the mapping says delete.",
    )
    format: Literal["fields", "json", "text", "bytes"] | None = Field(
        None,
        description=f"{_FORMATS} With fields a key has a hash. Default: fields for a stream, else json.",
    )
    field: str = Field(
        "body", min_length=1, description="The field of an entry that is its body, unless format is fields."
    )
    max_length: int | None = Field(
        None, gt=0, description="Keep about this many entries in the stream, the newest; all if absent."
    )

    @model_validator(mode="after")
    def _one_of_three(self) -> RedisSinkOptions:
        if sum(one is not None for one in (self.stream, self.list, self.keys)) != 1:
            raise ValueError("name one of stream, list and keys")
        if self.list is not None and self.format == "fields":
            raise ValueError("an element of a list has no fields: format is json, text or bytes")
        if self.max_length is not None and self.stream is None:
            raise ValueError("max_length is for a stream")
        return self


def tag_of(key: str) -> str:
    """What decides, in a cluster, where a key is: what stands in its first braces, or all of it."""
    _, brace, rest = key.partition("{")
    tag, end, _ = rest.partition("}")
    return tag if brace and end and tag else key


def next_to(key: str, kind: str) -> str:
    """A key of ours, in the same slot as this one."""
    return f"headgate:{{{tag_of(key)}}}:{kind}"
