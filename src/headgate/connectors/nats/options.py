"""Options of the NATS connector."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, field_validator

from headgate.connectors.api import Options, identity
from headgate.connectors.nats.address import addresses_of
from headgate.connectors.nats.nkeys import Credentials
from headgate.connectors.payloads import FORMATS, Format
from headgate.connectors.tls import check_files

_NAME = r"[^\s.*>/\\]+"
_TOKEN = r"[^\s.*>{}]+"
FIELD = re.compile(r"\{([^{}.\s]+)\}")


def _filter(text: str) -> str:
    """A subject, which may have wildcards."""
    if not re.fullmatch(rf"(?:(?:{_TOKEN}|\*)\.)*(?:{_TOKEN}|\*|>)", text):
        raise ValueError("must be a subject such as orders.new, orders.* or orders.>")
    return text


def _plain(text: str) -> str:
    if not re.fullmatch(rf"{_TOKEN}(?:\.{_TOKEN})*", text):
        raise ValueError("must be a subject without wildcards, such as orders.new")
    return text


def _template(text: str) -> str:
    """A subject in which a field's name in braces stands for its value."""
    _plain(FIELD.sub("x", text))
    return text


class _Server(Options):
    """Where the server is."""

    url: SecretStr = identity(
        description="nats://user:password@host:4222, nats://token@host, tls:// for TLS; or several hosts:"
        " host1:4222,host2:4222"
    )
    credentials: SecretStr | None = Field(
        None, description="What a file of credentials (.creds) says, or the seed of a user (SU…)."
    )
    stream: str = identity(pattern=rf"^{_NAME}$", description="The name of the stream.")

    @field_validator("url")
    @classmethod
    def _url_form(cls, value: SecretStr) -> SecretStr:
        check_files(addresses_of(value.get_secret_value())[0].query)
        return value

    @field_validator("credentials")
    @classmethod
    def _credentials_form(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            Credentials(value.get_secret_value())
        return value


class NatsSourceOptions(_Server):
    """Options of the NATS source."""

    subjects: list[Annotated[str, AfterValidator(_filter)]] = identity(
        [], max_length=100, description="Only messages with these subjects, which may have wildcards; all if absent."
    )
    format: Format = Field("json", description=FORMATS)
    missing: Literal["fail", "go_on"] = Field(
        "fail",
        description="What to do if messages were removed before they were read: stop with an error, or go on with what"
        " is there.",
    )
    batch: int = Field(1000, gt=0, le=100_000, description="Messages per batch, at most.")
    batch_bytes: int = Field(8 * 2**20, gt=0, le=2**30, description="Bytes per batch, about.")
    max_message_bytes: int = Field(
        10 * 2**20, gt=0, le=2**29, description="A larger message becomes a dead letter with its beginning."
    )


class NatsSinkOptions(_Server):
    """Options of the NATS sink."""

    subject: Annotated[str, AfterValidator(_template)] = identity(
        description="The subject of each message. A field in braces stands for its value: orders.{region}."
    )
    format: Format = Field("json", description=FORMATS)
    exactly_once: bool = Field(
        True,
        description="Write each batch with its position, atomically. Without, at least once: a repeated message is"
        " recognised within the stream's duplicate window.",
    )
    positions: Annotated[str, AfterValidator(_plain)] | None = identity(
        None,
        description="What stands before the subjects of positions, which the stream must take."
        " Default: headgate.position.STREAM.",
    )
