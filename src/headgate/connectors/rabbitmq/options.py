"""Options of the RabbitMQ source and sink."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from headgate.connectors.api import Options, identity
from headgate.connectors.payloads import FORMATS, Format
from headgate.connectors.templates import Template
from headgate.connectors.wire import Address

QUEUE_PORTS = {"amqp": 5672, "amqps": 5671}
STREAM_PORTS = {"rabbitmq-stream": 5552, "rabbitmq-stream+tls": 5551}
_URL = (
    "amqp://user:password@host/vhost for queues and exchanges, rabbitmq-stream://… for streams; amqps and"
    " rabbitmq-stream+tls with TLS. Several hosts: host1,host2. `cacertfile`, `certfile` and `keyfile` may follow a ?."
)


def queue_address(url: SecretStr) -> Address:
    """What the URL of a queue or an exchange says."""
    return Address.of(url.get_secret_value(), QUEUE_PORTS)


def stream_address(url: SecretStr) -> Address:
    """What the URL of a stream says."""
    return Address.of(url.get_secret_value(), STREAM_PORTS)


class _RabbitmqOptions(Options):
    url: SecretStr = identity(description=_URL)

    @field_validator("url")
    @classmethod
    def _url_form(cls, value: SecretStr) -> SecretStr:
        Address.of(value.get_secret_value(), QUEUE_PORTS | STREAM_PORTS)
        return value

    def _must_be_one(self, streams: tuple[str, ...], others: tuple[str, ...]) -> None:
        """Of these options exactly one is given, and the URL is one for it."""
        given = [name for name in (*streams, *others) if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"name exactly one of {', '.join((*others, *streams))}")
        ports = STREAM_PORTS if given[0] in streams else QUEUE_PORTS
        text = self.url.get_secret_value()
        if not text.startswith(tuple(f"{scheme}://" for scheme in ports)):
            raise ValueError(f"url: for a {given[0]} it must begin with {' or '.join(f'{one}://' for one in ports)}")


class RabbitmqSourceOptions(_RabbitmqOptions):
    """What to read: a queue, a stream, or a super stream."""

    queue: str | None = identity(None, min_length=1, max_length=255, description="A queue, which must exist.")
    stream: str | None = identity(None, min_length=1, max_length=255, description="A stream, which must exist.")
    super_stream: str | None = identity(
        None, min_length=1, max_length=255, description="A super stream: its partitions are the parts."
    )
    format: Format = Field("json", description=FORMATS)
    encoding: Literal["amqp", "raw"] = Field(
        "amqp", description="What messages of a stream are: AMQP 1.0, as RabbitMQ's clients write it, or bytes."
    )
    missing: Literal["fail", "go_on"] = Field(
        "fail", description="Of a stream whose next messages were removed before they were read. go_on: read the rest."
    )
    batch: int = Field(5000, ge=1, le=100_000, description="The most records in one batch.")
    prefetch: int = Field(
        5000, ge=1, le=65_535, description="The most messages of a queue that are delivered and not acknowledged."
    )
    max_message_bytes: int = Field(
        10 * 2**20, ge=1, le=128 * 2**20, description="A larger message becomes a dead letter."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        self._must_be_one(("stream", "super_stream"), ("queue",))
        return self


class RabbitmqSinkOptions(_RabbitmqOptions):
    """Where to write: an exchange, a queue, or a stream."""

    exchange: str | None = identity(None, max_length=255, description="An exchange, which must exist.")
    queue: str | None = identity(None, min_length=1, max_length=255, description="A queue, which must exist.")
    stream: str | None = identity(None, min_length=1, max_length=255, description="A stream, which must exist.")
    routing_key: str = Field("", description="For an exchange; may have fields of the record: orders.{kind}.")
    format: Format = Field("json", description=FORMATS)
    persistent: bool = Field(True, description="Whether a durable queue keeps the message when the server restarts.")

    @field_validator("routing_key")
    @classmethod
    def _template(cls, value: str) -> str:
        Template(value)
        return value

    @model_validator(mode="after")
    def _one(self) -> Self:
        self._must_be_one(("stream",), ("exchange", "queue"))
        if self.routing_key and self.exchange is None:
            raise ValueError("routing_key: only an exchange has one")
        return self
