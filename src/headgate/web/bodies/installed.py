"""Bodies about connectors of others that are installed."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, field

from headgate.web.bodies import Answer, Object, Request

Kind = Literal["singer", "airbyte", "dlt"]


class InstalledLine(Answer):
    """One in a line."""

    kind: Kind
    name: str
    version: str
    program: str  # What documents may call it, too.
    installed_at: datetime


class Installing(Answer):
    """An installation that is under way, or that has failed."""

    package: str
    began_at: datetime
    step: str
    said: str = ""  # What the installer says now.
    error: str | None = None  # Why it has failed; null while it is under way.


class InstalledConnectors(Answer):
    """All that are installed in the home of a node."""

    items: list[InstalledLine]
    installing: Installing | None = None  # The latest, while it is under way and if it has failed.


class InstalledConnector(Answer):
    """One with all that was installed with it."""

    kind: Kind
    name: str
    version: str
    program: str
    installed_at: datetime
    python: str
    packages: list[str]  # Names and versions.
    spec: Object | None  # The JSON Schema of its configuration, if it says one.


class Install(Request):
    """What to install: by its kind, its name and perhaps its version."""

    package: Annotated[str, Meta(min_length=3, max_length=300)]
    extra: Annotated[list[str], Meta(max_length=20)] = field(default_factory=list, name="with")
