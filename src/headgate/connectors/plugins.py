"""Finds connectors by name.

Built-in connectors and those of other packages come through the same door, the entry point group
`headgate.connectors`. A connector's module is imported when it is first asked for, and no other with it: a node that
moves webhooks into PostgreSQL never loads a Kafka client.
"""

from __future__ import annotations

import difflib
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from headgate.connectors.api.streaming import Connector
from headgate.errors import ConfigError, NotFound

GROUP = "headgate.connectors"


def names() -> list[str]:
    """The names of all installed connectors, whether or not they can be loaded."""
    return sorted(_entries())


@cache
def get(name: str) -> Connector:
    """The connector of this name."""
    found = _entries().get(name)
    if found is None:
        near = difflib.get_close_matches(name, names(), n=3) or names()
        raise NotFound(f"there is no connector {name!r}", hint=f"did you mean {' or '.join(near)}?")
    if len(found) > 1:
        modules = " and ".join(sorted(entry.value for entry in found))
        raise ConfigError(f"more than one connector is called {name!r}: {modules}", hint="uninstall all but one")
    return _load(found[0])


def all() -> list[Connector]:
    """Every connector that can be loaded here; `get` says why another one cannot."""
    loaded = []
    for name in names():
        try:
            loaded.append(get(name))
        except ConfigError:
            continue
    return loaded


@cache
def _entries() -> dict[str, list[EntryPoint]]:
    """Entry points by name. Two of one name are one if they lead to the same place, as when installed twice."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name, {})[entry.value] = entry
    return {name: list(by_value.values()) for name, by_value in found.items()}


def _load(entry: EntryPoint) -> Connector:
    try:
        connector = entry.load()
    except ImportError as error:
        raise ConfigError(f"connector {entry.name!r} cannot be loaded: {error}", hint=_how_to_install(entry)) from error
    except AttributeError as error:
        raise ConfigError(f"connector {entry.name!r} cannot be loaded: {error}") from error
    if not isinstance(connector, Connector) or connector.name != entry.name:
        raise ConfigError(f"{entry.value} is not a connector called {entry.name!r}")
    return connector


def _how_to_install(entry: EntryPoint) -> str:
    """The command that brings the client library: the package's extra of the connector's name, if it has one."""
    if entry.dist is None:
        return ""
    package = entry.dist.name
    extras = entry.dist.metadata.get_all("Provides-Extra") or []
    return f"pip install '{package}[{entry.name}]'" if entry.name in extras else f"pip install --upgrade {package}"
