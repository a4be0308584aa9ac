"""Settings: flags win over the environment, the environment wins over `headgate.toml`.

A name that is no setting is an error, with the name that may have been meant: a limit or a key that is misspelled
would otherwise be ignored in silence.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from headgate.core.lease import LEASE_S, SHORTEST_LEASE_S
from headgate.core.reach import rule_from_text
from headgate.errors import ConfigError, Problem
from headgate.hidden import remember, remember_url
from headgate.text import parse_duration

PREFIX = "HEADGATE_"
FILE = "headgate.toml"
OF_COMMANDS = ("url", "token", "ca")  # Read by the commands that ask a node.
OF_TESTS = "HEADGATE_TEST_"  # Variables with this prefix are for tests, and nothing else reads them.
EVENTS_S = (3600.0, 36500 * 86400.0)  # How long they may be kept. A program that follows them has breaks.
_SEE = "docs/reference/settings.md lists all settings"


class Settings(BaseSettings):
    """What a node, and the commands that talk to the database, need to know."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, toml_file=FILE, extra="ignore", frozen=True, hide_input_in_errors=True
    )

    database: SecretStr | None = Field(None, description="A PostgreSQL URL. Absent: embedded, in `home`.")
    home: Path = Field(Path(".headgate"), description="Where the embedded database, keys and tokens live.")
    host: str = Field("127.0.0.1", description="The address to listen on.")
    port: int = Field(8470, ge=0, le=65535, description="The port to listen on; 0 picks a free one.")
    node_name: str = Field("", description="A label for this node. Default: the host's name.")
    advertise: str = Field(
        "", description="The URL at which others reach this node; `{port}` in it stands for the node's port."
    )
    tls_cert: Path | None = Field(
        None, description="A certificate in PEM, with its chain: the node speaks HTTPS. Read again when it changes."
    )
    tls_key: Path | None = Field(
        None, description="The certificate's key in PEM, without a passphrase. Absent: in the file of the certificate."
    )
    master_key: SecretStr | None = Field(None, description="Encrypts secrets. Several, separated by commas, to rotate.")
    registry: str = Field("database", description="`database`, or `yaml:FILE` to take datasources from a file.")
    lease_s: float = Field(
        LEASE_S, ge=SHORTEST_LEASE_S, le=300, description="A node that is silent for this long is dead."
    )
    log: Literal["console", "json"] = Field("console", description="How log lines look.")
    auth: bool = Field(True, description="Whether tokens are asked for. Without, only on loopback.")
    inbox_keep_s: float = Field(3600.0, ge=0, description="How long handled webhook payloads are kept.")
    events_keep: str = Field("90d", description="How long events are kept: 12h, 90d; at least 1h.")
    max_connections: int = Field(10_000, ge=10, description="The most connections to this node at once.")
    max_connections_per_address: int = Field(
        5_000, ge=1, description="The most of them from one address. A proxy in front of the node is one address."
    )
    source_timeout_s: float = Field(60.0, gt=0, description="A dump's source that sends nothing for this long is gone.")
    files: str | None = Field(
        None, description="Folders, separated by commas: connectors on this node open files in no other."
    )
    addresses: str | None = Field(
        None, description="Such as `10.0.0.0/8:5432,db:*`: connectors on this node connect to nothing else."
    )
    modules: str | None = Field(None, description="Python modules, separated by commas: storages come from no other.")
    harness_user: str = Field(
        "nobody", description="Who tests run as, on a node that root has started. `root`: they stay root."
    )
    harness_timeout_s: float = Field(10.0, gt=0, le=300, description="How long a test may take, unless it says less.")
    harness_memory_mb: int = Field(512, ge=64, description="How much memory a test may take.")
    connector_memory_mb: int = Field(
        512, ge=64, description="How much memory a connector that runs in its own process may take."
    )
    otlp: str = Field(
        "", description="Where traces and metrics go: a collector of OpenTelemetry, as in `http://collector:4318`."
    )
    process: UUID | None = Field(
        None, description="Not for you: `headgate up --processes` tells its nodes apart by it."
    )

    @field_validator("registry")
    @classmethod
    def _registry_form(cls, value: str) -> str:
        if value != "database" and not value.startswith("yaml:"):
            raise ValueError("must be `database` or `yaml:FILE`")
        return value

    @field_validator("events_keep")
    @classmethod
    def _events_keep_form(cls, value: str) -> str:
        if not EVENTS_S[0] <= parse_duration(value) <= EVENTS_S[1]:
            raise ValueError("must be between 1h and 36500d")
        return value

    @field_validator("otlp")
    @classmethod
    def _otlp_form(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None):
            raise ValueError("must be an http or https URL without a password (OTEL_EXPORTER_OTLP_HEADERS has those)")
        return value

    @field_validator("addresses")
    @classmethod
    def _addresses_form(cls, value: str | None) -> str | None:
        for one in filter(str.strip, (value or "").split(",")):
            rule_from_text(one)
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, environment, file; in this order."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def events_keep_s(self) -> float:
        """How long events are kept."""
        return parse_duration(self.events_keep)

    @property
    def registry_file(self) -> Path | None:
        """The file that datasources come from, if they come from a file."""
        return Path(self.registry.removeprefix("yaml:")) if self.registry.startswith("yaml:") else None


def load(**flags: Any) -> Settings:
    """Read the settings; flags that are None were not given. Raises everything that is wrong with them."""
    problems = unknown_names()
    try:
        found = Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        problems += [
            Problem(f"{PREFIX}{'_'.join(map(str, item['loc'])).upper()}", item["msg"].removeprefix("Value error, "))
            for item in error.errors(include_input=False, include_context=False)
        ]
    if problems:
        raise ConfigError(problems)
    if found.database is not None:
        remember_url(found.database.get_secret_value())
    if found.master_key is not None:
        for key in found.master_key.get_secret_value().split(","):
            remember(key)
    return found


def unknown_names() -> list[Problem]:
    """What the environment and the file name that is no setting. Raises if the file cannot be read at all."""
    names = [*Settings.model_fields, *OF_COMMANDS]
    of_environment = [f"{PREFIX}{name.upper()}" for name in names]
    problems = [
        Problem(given, "is not a setting", _meant(given.upper(), of_environment))
        for given in sorted(os.environ)
        if given.upper().startswith(PREFIX) and not given.startswith(OF_TESTS)
        if given.upper() not in of_environment
    ]
    return problems + [
        Problem(FILE, f"{given!r} is not a setting", _meant(given.lower().replace("-", "_"), Settings.model_fields))
        for given in _file()
        if given not in Settings.model_fields
    ]


def _file() -> dict[str, Any]:
    try:
        return tomllib.loads(Path(FILE).read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError:
        raise ConfigError([Problem(FILE, "is not UTF-8", "save it as UTF-8")]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([Problem(FILE, str(error))]) from None
    except OSError as error:
        raise ConfigError([Problem(FILE, f"cannot be read: {error.strerror}")]) from None


def _meant(given: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(given, list(known), 1)
    return f"did you mean {near[0]}?" if near else _SEE
