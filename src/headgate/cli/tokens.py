"""`headgate tokens`: who may ask a node for what."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headgate.cli.call import Call, Yes, command, noun
from headgate.cli.output import ago, complain, say, table, to_json
from headgate.errors import ConfigError, NotFound, Problem
from headgate.text import parse_duration

if TYPE_CHECKING:
    from headgate.web.bodies.access import Token, Tokens

app = noun("Tokens: who may ask a node for what.")


class Role(StrEnum):
    """What a token is for."""

    VIEWER = "viewer"
    SENDER = "sender"
    OPERATOR = "operator"
    ADMIN = "admin"


@command(app, "create")
def create(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who will use it.")],
    role: Annotated[Role, typer.Option("--role", help="What it allows.")],
    datasource: Annotated[
        list[str] | None,
        typer.Option("--datasource", metavar="PATTERN", help="Only for this one, or these: orders-*. May be repeated."),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="PATTERN", help="Only for this group: STREAM/GROUP. May be repeated."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="WHEN", help="When it ends: 30d, 12h, or 2030-01-31.")
    ] = None,
) -> None:
    """Create a token. It is shown once, alone on stdout."""
    from headgate.web.bodies.access import NewToken

    body: dict[str, object] = {"name": name, "role": str(role)}
    body |= {"datasources": datasource} if datasource else {}
    body |= {"groups": group} if group else {}
    body |= {"expires_at": _end(expires).isoformat()} if expires is not None else {}
    found = call.node.post("/api/tokens", NewToken, body)
    say(to_json(found.sent) if call.as_json else found.value.token)
    complain("this token is shown only now; keep it")


@command(app, "list")
def list_(call: Call) -> None:
    """All tokens that work, without their texts."""
    from headgate.web.bodies.access import Tokens

    call.relay(call.node.get("/api/tokens", Tokens), _table)


@command(app, "revoke")
def revoke(
    call: Call, which: Annotated[str, typer.Argument(metavar="TOKEN", help="Its id or its name.")], yes: Yes = False
) -> None:
    """Make a token worth nothing. The last admin token only with --yes."""
    from headgate.web.bodies.access import Tokens

    items = call.node.get("/api/tokens", Tokens).value.items
    # An id first: somebody may have called a token like the id of another.
    found = [one for one in items if which == str(one.id)] or [one for one in items if which == one.name]
    if not found:
        raise NotFound(f"token {which!r} does not exist", hint="headgate tokens list")
    call.node.delete(f"/api/tokens/{found[0].id}", yes=True if yes else None)
    call.say({"id": str(found[0].id), "action": "revoke"}, f"revoked {found[0].name}")


@command(app, "recover", asks_node=False)
def recover(
    call: Call,
    database: Annotated[str | None, typer.Option(help="A PostgreSQL URL. Absent: the embedded one.")] = None,
    home: Annotated[Path | None, typer.Option(help="HEADGATE_HOME.")] = None,
) -> None:
    """Make an admin token straight in the database, when nobody has one. It is shown once, alone on stdout."""
    from headgate.cli import direct
    from headgate.config import load

    settings = load(database=database, home=home)
    if settings.database is None and not (settings.home / "postgres" / "data").exists():
        raise NotFound(f"{settings.home} has no database", hint="headgate up makes one; or --database")
    with direct.reached(settings) as url:
        name, text = asyncio.run(direct.recover(url))
    say(to_json({"name": name, "role": "admin", "token": text}) if call.as_json else text)
    complain(f"{name!r} is an admin's token; it is shown only now, so keep it, and revoke it when it is not needed")


def _end(text: str) -> datetime:
    """A date is its beginning, in UTC."""
    try:
        return datetime.now(UTC) + timedelta(seconds=parse_duration(text))
    except (ValueError, OverflowError):
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError([Problem("--expires", f"{text!r} is no time", "30d, 12h, or 2030-01-31")]) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _table(found: Tokens) -> str:
    heads = ("TOKEN", "ROLE", "CREATED", "USED", "ENDS", "FOR")
    rows = [
        (
            one.name,
            one.role,
            ago(one.created_at),
            "never" if one.used_at is None else ago(one.used_at),
            "never" if one.expires_at is None else f"{one.expires_at:%Y-%m-%d %H:%M}",
            _bounds(one),
        )
        for one in found.items
    ]
    return table(heads, rows, empty="no tokens")


def _bounds(one: Token) -> str:
    return " ".join([*(one.datasources or ()), *(one.groups or ())]) or "everything"
