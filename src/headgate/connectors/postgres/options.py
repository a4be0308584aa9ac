"""Options of the PostgreSQL connector."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from headgate.connectors.api import Options, identity
from headgate.connectors.postgres.declared import parse_type
from headgate.connectors.postgres.names import LEAST_ROOM, STREAM, has_streams, room_in
from headgate.core.hosts import hosts_of


class SchemaOptions(Options):
    """What becomes of records that do not fit the table as it is."""

    new_fields: Literal["add", "ignore", "dead_letter", "fail"] | None = Field(
        default=None,
        description="Of a field that the table has no column for. Default: add in a table that Headgate made, else"
        " dead_letter.",
    )
    new_types: Literal["widen", "dead_letter", "fail"] | None = Field(
        default=None,
        description="Of a value that does not fit its column's type. Default: widen in a table that Headgate made, else"
        " dead_letter.",
    )


class PostgresOptions(Options):
    """Options of the PostgreSQL sink."""

    url: SecretStr = identity(
        is_address=True, description="postgresql://user:password@host/database; or several hosts: host1:5432,host2:5432"
    )
    table: str = identity(
        description="The table, with its schema if it is not on the search path. raw.{stream}: one for each stream that"
        " the source names."
    )
    mode: Literal["insert", "upsert"] = Field("insert", description="upsert: by the mapping's key.")
    create: bool = Field(True, description="Create the table when it is absent, from the first batch.")
    columns: dict[str, str] = Field({}, description="Types for columns that are made; others are guessed.")
    drift: SchemaOptions = Field(
        SchemaOptions(), alias="schema", description="What to do with new fields, and with values of other types."
    )

    @field_validator("url")
    @classmethod
    def _url_form(cls, value: SecretStr) -> SecretStr:
        text = value.get_secret_value()
        if not text.startswith(("postgresql://", "postgres://")):
            raise ValueError("must begin with postgresql://")
        if not all(_is_whole(host.url) for host in hosts_of(text)):
            raise ValueError("is not a URL; write / # ? @ : in a password as %2F %23 %3F %40 %3A")
        return value

    @field_validator("table")
    @classmethod
    def _table_form(cls, value: str) -> str:
        parts = value.split(".")
        if "\0" in value or len(parts) > 2 or not all(parts):
            raise ValueError("must be a table's name, or schema.table")
        if has_streams(value) and (parts[-1].count(STREAM) != 1 or (len(parts) > 1 and has_streams(parts[0]))):
            raise ValueError("must have {stream} once, in the table's name")
        if has_streams(value) and room_in(value) < LEAST_ROOM:
            raise ValueError(f"leaves less than {LEAST_ROOM} characters for the name of a stream")
        return value

    @field_validator("columns")
    @classmethod
    def _types(cls, value: dict[str, str]) -> dict[str, str]:
        for name, type in value.items():
            try:
                parse_type(type)
            except ValueError as error:
                raise ValueError(f"{name[:80]!r}: {type[:80]!r} {error}") from None
        return value


def _is_whole(url: str) -> bool:
    """Whether the URL ends where it seems to. A special character in a password would end it early."""
    try:
        parts = urlsplit(url)
        return not parts.fragment and (parts.port or 1) > 0
    except ValueError:
        return False
