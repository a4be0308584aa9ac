"""Options of the MQTT source and sink."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field, SecretStr, field_validator

from headgate.connectors.api import Options, identity
from headgate.connectors.payloads import FORMATS, Format
from headgate.connectors.templates import Template
from headgate.connectors.wire import Address

PORTS = {"mqtt": 1883, "mqtts": 8883}
LONGEST_BYTES = 65_535  # Of a text in MQTT.
DAY_S = 86_400

Version: TypeAlias = Literal["5", "3.1.1"]


def address_of(url: SecretStr) -> Address:
    """What the URL says."""
    return Address.of(url.get_secret_value(), PORTS)


class _MqttOptions(Options):
    url: SecretStr = identity(
        description="mqtt://user:password@host, or mqtts with TLS. Several hosts: host1,host2."
        " `cacertfile`, `certfile` and `keyfile` may follow a ?."
    )
    version: Version = Field("5", description="Of the protocol.")
    qos: Literal[1, 2] = Field(1, description="1: at least once. 2: once between this client and the broker.")
    format: Format = Field("json", description=FORMATS)

    @field_validator("url")
    @classmethod
    def _url_form(cls, value: SecretStr) -> SecretStr:
        Address.of(value.get_secret_value(), PORTS)
        return value


class MqttSourceOptions(_MqttOptions):
    """What to subscribe to."""

    topics: list[str] = Field(
        min_length=1, description="Topic filters; $share/GROUP/FILTER shares the messages with the others of a group."
    )
    client_id: str | None = identity(
        None, min_length=1, description="The session's name at the broker; headgate-STREAM if absent."
    )
    session_expiry_s: int = Field(
        7 * DAY_S, ge=60, lt=2**32 - 1, description="How long the broker keeps messages while nobody is connected."
    )
    receive_maximum: int = Field(
        1000,
        ge=1,
        le=65_535,
        description="The most messages that are delivered and not acknowledged (version 5). Brokers may deliver fewer.",
    )
    batch: int = Field(1000, ge=1, le=100_000, description="The most records in one batch.")
    max_message_bytes: int = Field(
        10 * 2**20, ge=1, le=256 * 2**20, description="A larger message becomes a dead letter."
    )

    @field_validator("topics")
    @classmethod
    def _filters(cls, value: list[str]) -> list[str]:
        for one in value:
            if (wrong := _wrong_filter(one)) is not None:
                raise ValueError(f"{one[:80]!r} {wrong}")
        return value


class MqttSinkOptions(_MqttOptions):
    """Where to publish."""

    topic: str = identity(description="The topic; may have fields of the record: orders/{kind}.")
    retain: bool = Field(False, description="Whether the broker keeps the last message of each topic for later.")

    @field_validator("topic")
    @classmethod
    def _template(cls, value: str) -> str:
        template = Template(value)
        if (wrong := wrong_topic(template.of({}) if template.is_constant else value)) is not None:
            raise ValueError(wrong)
        return value


def wrong_topic(topic: str) -> str | None:
    """Why nothing can be published to this topic. It repeats nothing of it."""
    if not topic:
        return "the topic is empty"
    if set("+#\0") & set(topic):
        return "the topic has a + or # or a zero, which no topic may have"
    if len(topic.encode("utf-8", "surrogatepass")) > LONGEST_BYTES:
        return "the topic is longer than 65,535 bytes"
    return None


def _wrong_filter(text: str) -> str | None:
    levels = text.split("/")
    if levels[0] == "$share":
        if len(levels) < 3 or not levels[1] or set("+#") & set(levels[1]):
            return "must be $share/GROUP/FILTER"
        levels = levels[2:]
    if not any(levels) and len(levels) == 1:
        return "is empty"
    if "\0" in text or len(text.encode("utf-8", "replace")) > LONGEST_BYTES:
        return "has a zero, or is longer than 65,535 bytes"
    if any(("#" in one or "+" in one) and len(one) > 1 for one in levels) or "#" in levels[:-1]:
        return "is no filter: + stands for a whole level, # for the rest"
    return None
