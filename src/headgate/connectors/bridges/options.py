"""Options of the bridges, and what the spec of an installed connector says of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from headgate.connectors.api import Options, identity
from headgate.connectors.bridges import spec
from headgate.connectors.bridges.installed import Installed, present_home
from headgate.connectors.bridges.requirement import Kind
from headgate.core.payloads import MOST_BYTES
from headgate.text import parse_duration

LEAST_EVERY_S, MOST_EVERY_S = 0.1, 31 * 86400.0
T = TypeVar("T", bound="BridgeOptions")


class StreamChoice(Options):
    """One stream of a connector, and how it is read."""

    name: str = Field(min_length=1, description="The stream, as the connector calls it.")
    replication: Literal["full", "incremental", "log"] | None = Field(
        None,
        description="All of it each time, what is new by a cursor, or changes; if absent, as the connector likes.",
    )
    cursor: str | None = Field(None, description="The field by which what is new is found.")


class BridgeOptions(Options):
    """What all bridges have in common."""

    kind: ClassVar[Kind]
    named_by: ClassVar[str]  # The option that names the connector,
    given_by: ClassVar[str] = "config"  # and the one with its configuration.

    tuning: dict[str, Any] = Field(
        {}, description="More of the configuration: what may change without reading all again, such as a page's size."
    )
    secrets: dict[str, SecretStr] = Field(
        {}, description="What of the configuration is secret, by its path: password, credentials.api_key."
    )
    every: str = Field("5m", description="The pause from the end of a run of the connector to the next: 30s, 5m, 1d.")
    once: bool = Field(False, description="One run, then the source ends.")
    max_line_bytes: int = Field(
        8 * 1024 * 1024, ge=64 * 1024, le=MOST_BYTES, description="The most bytes of one record, as it comes."
    )
    memory_mb: int = Field(2048, ge=64, le=1024 * 1024, description="The most memory that the connector may take.")

    @field_validator("every")
    @classmethod
    def _duration(cls, value: str) -> str:
        if not LEAST_EVERY_S <= parse_duration(value) <= MOST_EVERY_S:
            raise ValueError("must be between 0.1s and 31d")
        return value

    @property
    def connector(self) -> str:
        """What the document calls the connector."""
        return str(getattr(self, self.named_by))

    @property
    def every_s(self) -> float:
        """The pause between two runs."""
        return parse_duration(self.every)

    @property
    def given(self) -> dict[str, Any]:
        """The configuration as the document has it."""
        return dict(getattr(self, self.given_by))

    def whole(self) -> dict[str, Any]:
        """The configuration with everything in it, secrets included."""
        return self._merged({path: value.get_secret_value() for path, value in self.secrets.items()})

    def _merged(self, secrets: Mapping[str, object]) -> dict[str, Any]:
        found = {**deepcopy(self.given), **deepcopy(self.tuning)}
        for path, value in secrets.items():
            _put(found, path.split("."), value)
        return found

    @model_validator(mode="after")
    def _fits(self: T) -> T:
        found = list(self._mistakes())
        if found:
            lines = [
                InitErrorDetails(type=PydanticCustomError("bridge", "{said}", {"said": said}), loc=loc, input=None)
                for loc, said in found
            ]
            raise ValidationError.from_exception_data(type(self).__name__, lines, hide_input=True)
        return self

    def _mistakes(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        installed = self.installed()
        if installed is None and present_home() is not None:
            said = f"{self.connector} is not installed on this node: headgate connectors install {self.package_hint}"
            yield (self.named_by,), said
        if installed is not None and (said := self.misfit(installed)):
            yield ("resource",), said
        try:
            shape = self._merged(dict.fromkeys(self.secrets, spec.SECRET))
        except ValueError as error:
            yield ("secrets",), str(error)
            return
        schema = None if installed is None else installed.spec
        hidden = spec.written_out(schema, shape)
        for path in hidden:
            named = ".".join(map(str, path))
            yield self._where(path), f"must not be written out here: secrets: {{{named}: {{$secret: NAME}}}}"
        if schema is not None:
            for path, said in spec.problems(schema, shape):
                if path not in hidden:
                    yield self._where(path), said

    def _where(self, path: tuple[str | int, ...]) -> tuple[str | int, ...]:
        """Where a part of the configuration stands in the options."""
        return ("tuning" if path and path[0] in self.tuning else self.given_by, *path)

    @property
    def package_hint(self) -> str:
        """What could be installed under this name."""
        return f"{self.kind}:{self.connector}"

    @property
    def module(self) -> str:
        """The name under which an admin allows it: `bridges.singer.tap_github`."""
        return f"bridges.{self.kind}.{self.connector.replace('-', '_').replace('.', '_')}"

    def misfit(self, installed: Installed) -> str:
        """Why it cannot be read with what is installed under its name; empty: it can."""
        return ""

    def installed(self) -> Installed | None:
        """The connector, if it is installed in the home of this process."""
        home = present_home()
        return None if home is None else home.find(self.kind, self.connector)


class StreamsOptions(BridgeOptions):
    """Of connectors that have streams to choose from."""

    config: dict[str, Any] = identity({}, description="The connector's configuration, as its own page says.")
    streams: list[str | StreamChoice] | None = Field(
        None, min_length=1, max_length=10_000, description="The streams to read; all if absent."
    )

    @property
    def choices(self) -> dict[str, StreamChoice] | None:
        """The chosen streams by name; None: all."""
        if self.streams is None:
            return None
        found = [
            StreamChoice(name=one, replication=None, cursor=None) if isinstance(one, str) else one
            for one in self.streams
        ]
        return {one.name: one for one in found}


class SingerOptions(StreamsOptions):
    """Which tap, and with what."""

    kind = "singer"
    named_by = "tap"

    tap: str = identity(min_length=1, max_length=200, description="The tap, as it was installed: tap-github.")
    discover: bool = Field(True, description="Ask the tap for its streams first. false: it has no catalog.")
    catalog: Literal["catalog", "properties"] = Field(
        "catalog", description="How the tap is handed its catalog. properties: taps of before 2019."
    )

    @model_validator(mode="after")
    def _together(self) -> SingerOptions:
        if not self.discover and self.streams is not None:
            raise ValueError("`streams` are chosen in the catalog of a tap: leave out `discover: false`")
        return self


class AirbyteOptions(StreamsOptions):
    """Which source, and with what."""

    kind = "airbyte"
    named_by = "source"

    source: str = identity(min_length=1, max_length=200, description="The source, as it was installed: source-faker.")

    @property
    def package_hint(self) -> str:
        name = self.connector
        return f"airbyte:{name if name.startswith('airbyte-') else f'airbyte-{name}'}"


class DltOptions(BridgeOptions):
    """Which source or resource, and with what."""

    kind = "dlt"
    named_by = "package"
    given_by = "arguments"

    resource: str = identity(
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$",
        max_length=300,
        description="A source or a resource of dlt: package.module:name.",
    )
    package: str = Field("", max_length=200, description="What it was installed as; if absent, its package.")
    arguments: dict[str, Any] = identity({}, description="What it is called with. Values of `incremental` make one.")
    resources: list[str] | None = Field(
        None, min_length=1, max_length=10_000, description="Of a source, the resources to read; all if absent."
    )

    @property
    def connector(self) -> str:
        return self.package or self.resource.partition(":")[0].partition(".")[0]

    def misfit(self, installed: Installed) -> str:
        """An admin has allowed that package, and not whatever else Python could import and call."""
        module = self.resource.partition(":")[0]
        known = "dlt.sources" if "dlt" in installed.modules else ", ".join(installed.modules[:20])
        return "" if installed.brings(module) else f"{module} is none of the modules of {installed.name}: {known}"


def _put(config: dict[str, Any], path: list[str], value: object) -> None:
    """At this place, which is made if it is not there. Raises ValueError."""
    here: Any = config
    for part, following in zip(path, [*path[1:], None], strict=True):
        if isinstance(here, list):
            if not part.isdigit() or int(part) >= len(here):
                raise ValueError(f"{'.'.join(path)} is no place in the configuration")
            key: Any = int(part)
        elif isinstance(here, dict) and part:
            key = part
        else:
            raise ValueError(f"{'.'.join(path)} is no place in the configuration")
        if following is None:
            here[key] = value
        else:
            here = here[key] if isinstance(here, list) else here.setdefault(key, {})
