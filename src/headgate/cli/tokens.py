"""`headgate tokens`: who may ask a node for what."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from headgate.cli.call import Call, command, noun
from headgate.cli.output import ago, complain, say, table, to_json
from headgate.errors import NotFound, Refused

if TYPE_CHECKING:
    from headgate.web.bodies.access import Tokens

app = noun("Tokens: who may ask a node for what.")


class Role(StrEnum):
    """Each may do what those before it may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


@command(app, "create")
def create(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who will use it.")],
    role: Annotated[Role, typer.Option("--role", help="What it allows.")],
) -> None:
    """Create a token. It is shown once, alone on stdout."""
    from headgate.web.bodies.access import NewToken

    found = call.node.post("/api/tokens", NewToken, {"name": name, "role": str(role)})
    say(to_json(found.sent) if call.as_json else found.value.token)
    complain("this token is shown only now; keep it")


@command(app, "list")
def list_(call: Call) -> None:
    """All tokens, without their texts."""
    from headgate.web.bodies.access import Tokens

    call.relay(call.node.get("/api/tokens", Tokens), _table)


@command(app, "revoke")
def revoke(call: Call, which: Annotated[str, typer.Argument(metavar="TOKEN", help="Its id or its name.")]) -> None:
    """Make a token worth nothing."""
    from headgate.web.bodies.access import Tokens

    found = [one for one in call.node.get("/api/tokens", Tokens).value.items if which in (str(one.id), one.name)]
    if not found:
        raise NotFound(f"token {which!r} does not exist", hint="headgate tokens list")
    if len(found) > 1:
        ids = ", ".join(str(str(one.id)) for one in found)
        raise Refused(f"{len(found)} tokens are called {which!r}", hint=f"say which: {ids}")
    call.node.delete(f"/api/tokens/{found[0].id}")
    call.say({"id": str(found[0].id), "action": "revoke"}, f"revoked {found[0].name}")


def _table(found: Tokens) -> str:
    rows = [(one.name, one.role, ago(one.created_at), str(one.id)) for one in found.items]
    return table(("TOKEN", "ROLE", "CREATED", "ID"), rows, empty="no tokens")
