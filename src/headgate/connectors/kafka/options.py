"""Options of the Kafka source and sink: the cluster, how to be let in, and what messages carry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, SecretStr, field_validator

from headgate.connectors.api import Options, identity
from headgate.connectors.payloads import Format
from headgate.connectors.places import Place, place_of_path, places_in
from headgate.core.reach import Kind

PORT = 9092
MIB = 1024 * 1024


class Sasl(Options):
    """Who we are to the brokers."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field("PLAIN", description="How to authenticate.")
    username: str = Field(description="The user.")
    password: SecretStr = Field(description="Its password.")


class Tls(Options):
    """Encryption, and whom to trust."""

    ca: str | None = Field(None, description="A file with the certificates to trust, in PEM; the system's if absent.")
    certificate: str | None = Field(None, description="A file with our certificate, in PEM.")
    key: str | None = Field(None, description="A file with its key, in PEM.")
    key_password: SecretStr | None = Field(None, description="The password of the key.")
    verify: bool = Field(True, description="Whether the broker's certificate and name are checked.")


class Cluster(Options):
    """Where the brokers are, and how to be authenticated."""

    brokers: str = identity(is_address=True, description="Some of the brokers: host:port, separated by commas.")
    sasl: Sasl | None = Field(None, description="Mechanism, username and password; without: no authentication.")
    tls: bool | Tls = Field(False, description="true, or what to trust and to show: TLS is used.")

    @field_validator("brokers")
    @classmethod
    def _listed(cls, value: str) -> str:
        for one in value.split(","):
            host, _, port = one.strip().rpartition(":")
            if not host.strip("[]") or "/" in one or "@" in one or not port.isascii() or not port.isdigit():
                raise ValueError("must be host:port, or several of them with commas between")
        return value

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each broker that is named."""
        pairs = [one.strip().rpartition(":") for one in self.brokers.split(",")]
        return [(host.strip("[]"), int(port)) for host, _, port in pairs]

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.tls is not False


class SchemaRegistry(Options):
    """A registry of schemas, as Confluent's."""

    url: str = Field(description="Where it is: http://host:8081, or https://…")
    username: str | None = Field(None, description="The user, if it asks for one.")
    password: SecretStr | None = Field(None, description="Its password.")

    @field_validator("url")
    @classmethod
    def _http(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")) or "@" in value:
            raise ValueError("must be http://host:port or https://host:port, without a user")
        return value


class KafkaSourceOptions(Cluster):
    """Options of the Kafka source."""

    topic: str = identity(description="The topic.", min_length=1, max_length=249)
    format: Format | Literal["avro", "json_schema"] = Field(
        "json",
        description=(
            "json: the value is the record. text: {body: …}. bytes: {body: …} in base64. "
            "avro, json_schema: the value begins with the id of a schema in the registry."
        ),
    )
    key_format: Literal["text", "json", "bytes", "avro"] = Field(
        "text", description="What `meta.key` is: text, what the JSON or Avro says, or bytes in base64."
    )
    tombstones: Literal["null", "key", "skip"] = Field(
        "null",
        description=(
            "What a message without a value becomes. null: the record null. key: its key is the record, "
            "{key: …} if that is no object. skip: nothing. `meta.is_tombstone` tells in any case."
        ),
    )
    start: Literal["earliest", "latest"] = Field("earliest", description="Where a partition without a position begins.")
    missing: Literal["fail", "earliest", "latest"] = Field(
        "fail", description="Where to continue if the records after the position are gone. fail: not at all."
    )
    schema_registry: SchemaRegistry | None = Field(None, description="Where schemas are found by their ids.")
    batch: int = Field(5000, gt=0, le=100_000, description="The most messages in one batch.")
    max_message_bytes: int = Field(10 * MIB, gt=0, le=1024 * MIB, description="A larger message is a dead letter.")

    @property
    def needs_registry(self) -> bool:
        """Whether schemas have to be looked up."""
        return "avro" in (self.format, self.key_format)


class KafkaSinkOptions(Cluster):
    """Options of the Kafka sink."""

    topic: str = identity(description="The topic. It must exist.", min_length=1, max_length=249)
    format: Format = Field(
        "json", description="json: the record is the value. text: its `body`. bytes: that in base64."
    )
    key_format: Literal["text", "json"] = Field(
        "text",
        description=(
            "What the mapping's `key` becomes. text: one field as it is, several as a JSON object. "
            "json: always a JSON object. Without a key messages have none."
        ),
    )
    headers: str | None = Field(None, description="A field that has the headers, an object of texts, and is removed.")
    delivery: Literal["exactly_once", "at_least_once"] = Field(
        "exactly_once", description="exactly_once: in transactions, with the position. at_least_once: without."
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field("lz4", description="Of what is sent.")
    transaction_timeout_s: float = Field(
        60.0, ge=1, le=900, description="A transaction that is open for longer is ended by the brokers."
    )
    positions_topic: str = identity(
        "headgate_positions", description="Where positions are kept. It is made if it is absent."
    )
    max_message_bytes: int = Field(
        1_000_000, ge=1000, le=1_000_000_000, description="A larger record is a dead letter."
    )

    @property
    def is_plain(self) -> bool:
        """Whether no position is kept with the data."""
        return self.delivery == "at_least_once"


def reaches(options: Any) -> Sequence[Place]:
    """The brokers that are named, the files of TLS, and the registry of schemas."""
    found = [Place(Kind.ADDRESS, host, port, "brokers") for host, port in options.addresses]
    if isinstance(options.tls, Tls):
        files = (("ca", options.tls.ca), ("certificate", options.tls.certificate), ("key", options.tls.key))
        found += [place_of_path(path, f"tls.{name}") for name, path in files if path is not None]
    if isinstance(options, KafkaSourceOptions) and options.schema_registry is not None:
        found += places_in(options.schema_registry, "schema_registry")
    return found
