"""Which storage a URL means, and how to open one.

    postgresql://user:password@host/database    postgres://…
    mysql://user:password@host/database         mariadb://…
    mongodb://user:password@host/database       mongodb+srv://…
    sqlite:path/to/file.db                      or any path that ends in .db, .sqlite, .sqlite3
    csv:path  jsonl:path  parquet:path          or any path that ends in .csv, .jsonl, .ndjson, .parquet

A path may name a file, or a folder with one file or folder per table. Each storage is a module with two functions,
`reader(url, snapshot)` and `writer(url)`, imported when it is needed: its client library is an extra.

A storage of your own is a factory, `package.module:factory` or `path/to/file.py:factory`. It is called with the URL
whose scheme is none of these, and returns an object with `query` or with `write` (`headgate.connectors.own`), or one
that follows the whole contract (`headgate.connectors.api.bulk`).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from headgate.connectors.api.bulk import ReadStorage, WriteStorage
from headgate.errors import ConfigError

_SCHEMES = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "mysql": "mysql",
    "mariadb": "mysql",
    "mongodb": "mongodb",
    "mongodb+srv": "mongodb",
    "sqlite": "sqlite",
    "csv": "csv",
    "jsonl": "jsonl",
    "parquet": "parquet",
}
_ENDINGS = {
    ".db": "sqlite",
    ".sqlite": "sqlite",
    ".sqlite3": "sqlite",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_MODULES = {
    "postgres": "postgres.reader",
    "mysql": "mysql.reader",
    "mongodb": "mongodb.reader",
    "sqlite": "sqlite.reader",
    "csv": "files.csv",
    "jsonl": "files.jsonl",
    "parquet": "files.parquet",
}
_EXTRAS = {"mysql": "mysql", "mongodb": "mongodb", "parquet": "parquet"}
SHOWN = "***"
_PLACES = ("host", "port", "unix_socket")


def whole(url: str) -> str:
    """The URL with its scheme: a path gets that of its ending."""
    scheme = _scheme(url)
    if scheme:
        return url
    ending = Path(url.partition("?")[0]).suffix.lower()
    if ending in _ENDINGS:
        return f"{_ENDINGS[ending]}:{url}"
    raise ConfigError(
        f"{redacted(url)!r} is not a storage",
        hint="a URL such as postgresql://…, or a path with a scheme or an ending: csv:folder, orders.parquet",
    )


def _scheme(url: str) -> str:
    head, colon, _ = url.partition(":")
    return head.lower() if colon and head.replace("+", "").replace("-", "").isalnum() and len(head) > 1 else ""


def is_own(url: str) -> bool:
    """Whether the URL is for a storage of the user's own."""
    return _scheme(url) not in _SCHEMES


def path_of(url: str) -> Path:
    """The path in the URL of a file storage."""
    rest = url.partition(":")[2]
    return Path(unquote(rest.removeprefix("//"))) if rest.startswith("//") else Path(rest)


def redacted(url: str) -> str:
    """The URL for people: without its password, and without options, which may hold one, but those that say where."""
    parts = urlsplit(url)
    if parts.netloc and "@" in f"{parts.path}{parts.query}{parts.fragment}":
        return f"{parts.scheme}://{SHOWN}"  # A password with a sign that ends the host: any part may be of it.
    query = urlencode([pair for pair in parse_qsl(parts.query) if pair[0] in _PLACES], safe="/:")
    if not parts.netloc:
        return url.partition("?")[0] + (query and "?" + query)
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    return urlunsplit((parts.scheme, f"{name}{colon and ':' + SHOWN}{at}{host}", parts.path, query, ""))


def open_read(url: str, snapshot: str | None = None, own: Sequence[str] = ()) -> ReadStorage:
    """A session that reads; what the snapshot shows, if one is named. Nothing is connected before it is used."""
    module = _module(url)
    if module is not None:
        return module.reader(url, snapshot)  # type: ignore[no-any-return]
    from headgate.connectors.own import OwnReader

    made = _own(url, own)
    return made if hasattr(made, "describe") else OwnReader(made)


def open_write(url: str, own: Sequence[str] = ()) -> WriteStorage:
    """A session that writes."""
    module = _module(url)
    if module is not None:
        return module.writer(url)  # type: ignore[no-any-return]
    from headgate.connectors.own import OwnWriter

    made = _own(url, own)
    return made if hasattr(made, "prepare") else OwnWriter(made)


def _module(url: str) -> ModuleType | None:
    name = _SCHEMES.get(_scheme(url))
    if name is None:
        return None
    try:
        return importlib.import_module(f"headgate.connectors.{_MODULES[name]}")
    except ImportError as error:
        if error.name and error.name.startswith("headgate"):
            raise
        extra = _EXTRAS.get(name, "dump")
        raise ConfigError(f"{name} needs {error.name}", hint=f"pip install 'headgate[{extra}]'") from None


def _own(url: str, own: Sequence[str]) -> Any:
    if not own:
        raise ConfigError(
            f"no storage is called {_scheme(url)!r}", hint=f"one of {', '.join(_SCHEMES)}, or --storage MODULE:FACTORY"
        )
    scheme = _scheme(url)
    named = dict(one.split("=", 1) for one in own if "=" in one)
    plain = [one for one in own if "=" not in one]
    if scheme not in named and not plain:
        raise ConfigError(f"no --storage is for {scheme!r}", hint=f"--storage {scheme}=MODULE:FACTORY")
    return factory(named.get(scheme) or plain[0])(url)


def factory(name: str) -> Any:
    """The factory that `module:factory` names; the module may be a file."""
    where, colon, what = name.rpartition(":")
    if not colon or not where:
        raise ConfigError(f"{name!r} is not MODULE:FACTORY", hint="such as mypackage.storages:Orders")
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except FileNotFoundError:
        raise ConfigError(f"there is no file {where}") from None
    except Exception as error:
        raise ConfigError(f"{where} cannot be imported: {error}") from None
    made = getattr(module, what, None)
    if not callable(made):
        raise ConfigError(f"{where} has no factory {what!r}")
    return made


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"headgate_own_{quote(path.stem, safe='')}", path)
    if spec is None or spec.loader is None or not path.exists():
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
