"""What a support bundle tells of an installation: versions, settings, the database, nodes, streams, events and logs.

It is for people elsewhere, so it has names, numbers, causes and times: no secret, no record, and no position, which may
be made of one. Whatever is said passes through `hide` as well.
"""

from __future__ import annotations

import asyncio
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from typing import Any, TypeAlias

import msgspec
from pydantic import SecretStr

from headgate import __version__
from headgate.clock import unix_s
from headgate.config import Settings
from headgate.connectors import plugins
from headgate.credentials import hide_credentials
from headgate.hidden import hide
from headgate.store.database import Database
from headgate.store.events import Events, Recorded
from headgate.store.logs import Logs, Named
from headgate.store.nodes import Nodes
from headgate.store.support import facts

EVENTS = 1000
LINES = 2000
LATEST = 2**63 - 1
OF_POSITIONS = {"position_edited": ("before", "after")}  # What of an event may be made of a record.
PACKAGES = ("asyncpg", "cryptography", "httptools", "httpx", "litestar", "msgspec", "pydantic", "uvicorn", "uvloop")

Told: TypeAlias = dict[str, object]


async def collect(database: Database, settings: Settings) -> Told:
    """Everything but what only a running node knows."""
    found = await facts(database)
    told: Told = {
        "about": about(),
        "settings": shown(settings),
        "server": found.server,
        "migrations": found.migrations,
        "tables": found.tables,
        "nodes": [asdict(one) for one in await Nodes(database).all()],
        "datasources": found.datasources,
        "streams": found.streams,
        "events": [_event(one) for one in await Events(database).last(None, EVENTS)],
        "logs": [_line(one) for one in await Logs(database).page(None, LATEST, LINES)][::-1],
    }
    return await asyncio.to_thread(_plain, told)  # Megabytes, in which every text is looked through.


def _plain(told: Told) -> Told:
    plain: Told = _hidden(msgspec.to_builtins(told, enc_hook=str, str_keys=True))
    return plain


def _hidden(value: Any) -> Any:
    """The same without any secret that this process knows. Text by text: as a whole it might be JSON no longer."""
    match value:
        case str():
            return hide(value)
        case dict():
            return {key: _hidden(one) for key, one in value.items()}
        case list() | tuple():
            return [_hidden(one) for one in value]
    return value


def about() -> Told:
    """This program, and what it runs on."""
    return {
        "headgate": __version__,
        "at": unix_s(),
        "python": sys.version,
        "platform": platform.platform(),
        "connectors": plugins.names(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def shown(settings: Settings) -> dict[str, str | None]:
    """The settings as they hold: of what is secret, whether it is there; of the database, where it is."""
    found: dict[str, str | None] = {}
    for name in Settings.model_fields:
        value = getattr(settings, name)
        if name == "database" and isinstance(value, SecretStr):
            found[name] = hide_credentials(value.get_secret_value())
        elif isinstance(value, SecretStr):
            found[name] = "set"
        else:
            found[name] = None if value is None else str(value)
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _event(one: Recorded) -> Told:
    left_out = OF_POSITIONS.get(one.type, ())
    payload = {key: "not shown" if key in left_out else value for key, value in one.payload.items()}
    return {"id": one.id, "at": one.at, "name": one.name, "type": one.type, "payload": payload, "actor": one.actor}


def _line(one: Named) -> Told:
    line = one.line
    fields: Mapping[str, object] = line.fields
    return {"id": one.id, "at": line.at, "name": one.name, "level": line.level, "text": line.text, "fields": fields}
