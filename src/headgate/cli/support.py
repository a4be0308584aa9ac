"""`headgate support-bundle`: one zip for somebody elsewhere who is to find out what is wrong.

A node tells it to an admin; where none answers, it is read straight from the database. Where that is not to be had
either, `headgate doctor` says why. What else could not be had is named in the zip.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate import __version__
from headgate.cli.call import Call
from headgate.cli.client import Unreachable
from headgate.cli.output import to_json
from headgate.errors import HeadgateError, Refused
from headgate.hidden import hide, remember, remember_url
from headgate.text import counted, size

AS_LINES = ("events", "logs")  # One JSON object on each line.
README = """What is in here, as of {at} (headgate {version}):

about, settings, server, migrations, tables   versions, settings without secrets, PostgreSQL
nodes, datasources, streams                   who is there, how everything stands
events, logs                                  what happened last
doctor                                        what headgate doctor says on the machine that made this
metrics, ready                                what a node reports, if one was asked
missing                                       what could not be had, and why

There are no secrets, no tokens, no records, no positions and no documents in it; there are names of datasources,
nodes, hosts, tables and people. Look before you send it.
"""


def support_bundle(
    call: Call,
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="Where to write. Default: headgate-support-TIME.zip.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option("--database", metavar="URL", help="Read it straight from this database. Or: HEADGATE_DATABASE."),
    ] = None,
) -> None:
    """Pack versions, settings, states, events, logs and metrics into a zip, without secrets and without records."""
    path = Path(file or time.strftime("headgate-support-%Y%m%d-%H%M%S.zip"))
    for known in ("HEADGATE_TOKEN", "HEADGATE_MASTER_KEY"):
        remember(os.environ.get(known, ""))
    parts, missing = _gathered(call, database)
    parts["missing"] = missing
    _write(path, parts)
    told = {"file": str(path), "bytes": path.stat().st_size, "missing": missing}
    lacks = "".join(f"\n  without {name}: {why}" for name, why in missing.items())
    call.say(told, f"wrote {path} ({size(path.stat().st_size)}, {counted(len(parts), 'part')}){lacks}")


def _gathered(call: Call, database: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """The installation, with all else that can be had; and why the rest cannot."""
    parts = _straight(database) if database else _asked(call)
    missing: dict[str, str] = {}

    def get(name: str, ask: Callable[[], Any]) -> None:
        try:
            parts[name] = ask()
        except HeadgateError as error:
            missing[name] = hide(error.message)

    if not database:
        get("metrics", lambda: call.node.get_text("/metrics"))
        get("ready", lambda: call.node.send("GET", "/readyz").json())
    get("doctor", lambda: _doctor(call, database))
    return parts, missing


def _asked(call: Call) -> dict[str, Any]:
    """What a node says; straight from the database where none answers."""
    from headgate.web.bodies.support import Support

    try:
        sent: dict[str, Any] = call.node.get("/api/support", Support).sent
    except Unreachable:
        if call.is_at_node:
            raise
        return _straight(None)
    return sent


def _straight(database: str | None) -> dict[str, Any]:
    from headgate.cli import direct
    from headgate.config import load
    from headgate.runtime.support import collect

    settings = load(database=database)
    if settings.database is None and not (settings.home / "postgres" / "data").exists():
        raise Refused(f"no node answers, and {settings.home} has no database", code="nothing")

    async def read(url: str) -> dict[str, Any]:
        remember_url(url)
        async with direct.opened(url, any_lineage=True) as opened:
            return await collect(opened, settings)

    with direct.reached(settings) as url:
        return asyncio.run(read(url))


def _doctor(call: Call, database: str | None) -> list[dict[str, Any]]:
    from headgate.cli.doctor import examine

    return [asdict(one) for one in examine(call, database)]


def _write(path: Path, parts: dict[str, Any]) -> None:
    """Only the owner can read it. What was there is not written over."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Refused(f"{path} exists", code="exists", hint="name another file") from None
    except OSError as error:
        raise HeadgateError(f"{path} cannot be written: {error.strerror}") from None
    at = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    with os.fdopen(descriptor, "wb") as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("README.txt", README.format(at=at, version=__version__))
        for name, found in parts.items():
            packed.writestr(*_file(name, found))


def _file(name: str, found: Any) -> tuple[str, str]:
    if isinstance(found, str):
        return f"{name}.txt", hide(found)
    if name in AS_LINES:
        return f"{name}.jsonl", hide("".join(f"{json.dumps(one, default=str)}\n" for one in found))
    return f"{name}.json", hide(to_json(found))
