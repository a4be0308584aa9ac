"""The one door for connectors: found by name for a document, by the scheme of a URL for a dump.

Built-in connectors and those of other packages come through the same entry point group, `headgate.connectors`. A
connector's module is imported when it is first asked for, and no other with it: a node that moves webhooks into
PostgreSQL never loads a Kafka client. Only a URL whose scheme is no connector's name makes the door look at them all.

A dump may also be given factories (`--storage`), for a storage that is a class in a file and not an installed package.
Such a factory becomes a connector too, for that one dump.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from headgate.connectors.api import Connector, Reader, Writer
from headgate.connectors.guard import OPEN, Guard, guarding
from headgate.connectors.urls import path_of, redacted, scheme_of
from headgate.errors import ConfigError, NotFound
from headgate.hidden import remember_url

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

GROUP = "headgate.connectors"
T = TypeVar("T")

# The schemes of built-in connectors that a dump can read and write. To know them here spares looking at all that is
# installed, which takes longer than everything else that a short dump does.
_SCHEMES = {
    "postgresql": "postgres",
    **{name: name for name in ("mongodb", "mysql", "postgres", "sqlite")},
    "mariadb": "mysql",
    **dict.fromkeys(("csv", "json", "jsonl", "parquet"), "files"),
    "mongodb+srv": "mongodb",
}
_FIRST = ("files", "sqlite")  # Where endings are looked for first.


# By name.


def names() -> list[str]:
    """The names of all installed connectors, whether or not they can be loaded."""
    return sorted(_entries())


@cache
def get(name: str) -> Connector:
    """The connector of this name."""
    found = _entries().get(name)
    if found is None:
        near = difflib.get_close_matches(name, names(), n=3) or names()
        raise NotFound(f"connector {name!r} does not exist", hint=f"did you mean {' or '.join(near)}?")
    if len(found) > 1:
        modules = " and ".join(sorted(entry.value for entry in found))
        raise ConfigError(f"connector {name!r} is installed more than once: {modules}", hint="uninstall all but one")
    return _load(found[0])


def module_of(name: str) -> str:
    """The module that an installed connector is in, which need not be imported for that."""
    return _entries()[name][0].module


def distribution_of(name: str) -> Distribution | None:
    """The package that an installed connector came with, if that is known."""
    return _entries()[name][0].dist


def all() -> list[Connector]:
    """Every connector that can be loaded here; `get` says why another one cannot."""
    return list(_one_by_one())


def _one_by_one() -> Iterator[Connector]:
    for name in names():
        try:
            found = get(name)
        except ConfigError:
            continue
        yield found


@cache
def _entries() -> dict[str, list[EntryPoint]]:
    """Entry points by name. Two of one name are one if they lead to the same place, as when installed twice."""
    from importlib.metadata import entry_points

    found: dict[str, dict[str, EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name, {})[entry.value] = entry
    return {name: list(by_value.values()) for name, by_value in found.items()}


def _load(entry: EntryPoint) -> Connector:
    try:
        connector = entry.load()
    except ImportError as error:
        raise _missing(entry.name, error) from error
    except AttributeError as error:
        raise ConfigError(f"connector {entry.name!r} cannot be loaded: {error}") from error
    if not isinstance(connector, Connector) or connector.name != entry.name:
        raise ConfigError(f"{entry.value} is not a connector called {entry.name!r}")
    return connector


def _missing(name: str, error: ImportError) -> ConfigError:
    """A library is not installed: name it, and the command that brings it, the package's extra if there is one."""
    entry = _entries()[name][0] if name in _entries() else None
    hint = ""
    if entry is not None and entry.dist is not None:
        package, extras = entry.dist.name, entry.dist.metadata.get_all("Provides-Extra") or []
        hint = f"pip install '{package}[{name}]'" if name in extras else f"pip install --upgrade {package}"
    return ConfigError(f"connector {name!r} cannot be loaded: {error}", hint=hint)


# By URL.


def whole(url: str) -> str:
    """The URL with its scheme: a path gets that of its ending."""
    if scheme_of(url):
        return url
    ending = Path(url.partition("?")[0]).suffix.lower()
    for connector in chain(map(get, _FIRST), _one_by_one()):
        if ending in connector.endings:
            return f"{connector.endings[ending]}:{url}"
    raise ConfigError(
        f"{redacted(url)!r} is not a storage",
        hint="a URL such as postgresql://…, or a path with a scheme or an ending: csv:folder, orders.parquet",
    )


def absolute(url: str) -> str:
    """The URL with the whole path, if it is one of files, so that it means the same in another folder."""
    scheme = scheme_of(url)
    connector = by_scheme(scheme)
    if connector is None or not connector.is_local:
        return url
    path, question, query = url.partition("?")
    text = str(path_of(path).absolute())
    return f"{scheme}:{text}{'/' if path.endswith('/') else ''}{question}{query}"


def by_scheme(scheme: str) -> Connector | None:
    """The connector whose reader and writer understand such URLs. A built-in one cannot be replaced by another
    package."""
    if scheme in _SCHEMES:
        return _built_in(_SCHEMES[scheme])
    if scheme in _entries() and scheme in get(scheme).schemes:
        return get(scheme)
    return next((connector for connector in all() if scheme in connector.schemes), None)


@cache
def _built_in(name: str) -> Connector:
    found = import_module(f"headgate.connectors.{name}").CONNECTOR
    assert isinstance(found, Connector)
    return found


def open_reader(url: str, snapshot: str | None = None, factories: Sequence[str] = (), guard: Guard = OPEN) -> Reader:
    """A session that reads; what the snapshot shows, if one is named. It connects to nothing before it is used."""
    connector = _connector_of(url, factories, guard)
    if connector.reader is None or (opened := connector.reader.open) is None:
        raise ConfigError(f"connector {connector.name!r} cannot read in bulk")
    with guarding(guard, url, is_local=connector.is_local):
        made: Reader = built(connector, lambda: opened(url, snapshot))
        if hasattr(made, "describe"):
            return made
        from headgate.connectors.own import reader_of

        return reader_of(made)


def open_writer(url: str, factories: Sequence[str] = (), guard: Guard = OPEN) -> Writer:
    """A session that writes."""
    connector = _connector_of(url, factories, guard)
    if connector.writer is None:
        raise ConfigError(f"connector {connector.name!r} cannot write in bulk")
    opened = connector.writer.open
    with guarding(guard, url, is_local=connector.is_local):
        made: Writer = built(connector, lambda: opened(url))
        if hasattr(made, "prepare"):
            return made
        from headgate.connectors.own import writer_of

        return writer_of(made)


def _connector_of(url: str, factories: Sequence[str], guard: Guard) -> Connector:
    remember_url(url)  # A driver may put it into the text of an error.
    scheme = scheme_of(url)
    if (found := by_scheme(scheme)) is not None:
        return found
    from headgate.connectors.own import connector_of  # Only where a storage is somebody's own, as above.

    return connector_of(scheme, factories, _schemes(), guard)


def _schemes() -> list[str]:
    return [scheme for connector in all() for scheme in connector.schemes]


def built(connector: Connector, build: Callable[[], T]) -> T:
    """What a builder makes. It imports the client library, which may not be installed."""
    try:
        return build()
    except ImportError as error:
        if error.name and error.name.partition(".")[0] == "headgate":
            raise
        raise _missing(connector.name, error) from None
