"""Settings: flags win over the environment, the environment wins over `headgate.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from headgate.core.lease import LEASE_S, SHORTEST_LEASE_S
from headgate.errors import ConfigError, Problem


class Settings(BaseSettings):
    """What a node, and the commands that talk to the database, need to know."""

    model_config = SettingsConfigDict(
        env_prefix="HEADGATE_", toml_file="headgate.toml", extra="ignore", frozen=True, hide_input_in_errors=True
    )

    database: SecretStr | None = Field(None, description="A PostgreSQL URL. Absent: embedded, in `home`.")
    home: Path = Field(Path(".headgate"), description="Where the embedded database, keys and tokens live.")
    host: str = Field("127.0.0.1", description="The address to listen on.")
    port: int = Field(8470, ge=0, le=65535, description="The port to listen on; 0 picks a free one.")
    node_name: str = Field("", description="A label for this node. Default: the host's name.")
    advertise: str = Field(
        "", description="The URL at which others reach this node; `{port}` in it stands for the node's port."
    )
    master_key: SecretStr | None = Field(None, description="Encrypts secrets. Several, separated by commas, to rotate.")
    registry: str = Field("database", description="`database`, or `yaml:FILE` to take datasources from a file.")
    lease_s: float = Field(
        LEASE_S, ge=SHORTEST_LEASE_S, le=300, description="A node that is silent for this long is dead."
    )
    log: Literal["console", "json"] = Field("console", description="How log lines look.")
    auth: bool = Field(True, description="Whether tokens are asked for. Without, only on loopback.")
    inbox_keep_s: float = Field(3600.0, ge=0, description="How long handled webhook payloads are kept.")
    max_connections: int = Field(10_000, ge=10, description="The most connections to this node at once.")
    max_connections_per_address: int = Field(
        5_000, ge=1, description="The most of them from one address. A proxy in front of the node is one address."
    )
    source_timeout_s: float = Field(60.0, gt=0, description="A dump's source that sends nothing for this long is gone.")
    process: UUID | None = Field(
        None, description="Not for you: `headgate up --processes` tells its nodes apart by it."
    )

    @field_validator("registry")
    @classmethod
    def _registry_form(cls, value: str) -> str:
        if value != "database" and not value.startswith("yaml:"):
            raise ValueError("must be `database` or `yaml:FILE`")
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
    def registry_file(self) -> Path | None:
        """The file that datasources come from, if they come from a file."""
        return Path(self.registry.removeprefix("yaml:")) if self.registry.startswith("yaml:") else None


def load(**flags: Any) -> Settings:
    """Read the settings; flags that are None were not given."""
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([Problem("headgate.toml", str(error))]) from None
    except ValidationError as error:
        raise ConfigError(
            [
                Problem(
                    f"HEADGATE_{'_'.join(map(str, item['loc'])).upper()}",
                    item["msg"].removeprefix("Value error, "),
                )
                for item in error.errors(include_input=False, include_context=False)
            ]
        ) from None
