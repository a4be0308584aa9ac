"""Tokens: who may ask a node for what. A token's text is shown once."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from litestar import delete, get, post

from headgate.clock import unix_s
from headgate.core import access
from headgate.core.access import Bounds
from headgate.errors import ConfigError, Forbidden, Problem
from headgate.runtime.node import Node
from headgate.store.sessions import CODE_S
from headgate.store.tokens import Issued
from headgate.web.auth import Needs, Req
from headgate.web.bodies import access as bodies

ADMIN = [Needs("administer")]

# Names that events have for actors that are no tokens.
RESERVED = ("headgate", "anyone", "demo", "import", "recover")
PEOPLE = ("(import)", "(recover)")


@get("/api/tokens", guards=ADMIN, tags=["tokens"], summary="All tokens that work, without their texts")
async def list_tokens(node: Node) -> bodies.Tokens:
    """Oldest first. `datasources` and `groups` are null for a token without bounds; `used_at` may be a minute late."""
    return bodies.Tokens(items=[_view(one) for one in await node.tokens.all()])


@post("/api/tokens", guards=ADMIN, tags=["tokens"], summary="Create a token")
async def create_token(node: Node, request: Req, data: bodies.CreateToken) -> bodies.NewToken:
    """Its text is in this answer and nowhere else. A sender names datasources or groups; others may."""
    bounds = Bounds(tuple(data.datasources), tuple(data.groups))
    problems = [*_problems(data), *(Problem(path, message) for path, message in access.problems(data.role, bounds))]
    if problems:
        raise ConfigError(problems)
    found = bounds if bounds != Bounds() else None
    caller, text = await node.tokens.create(data.name, data.role, request.user.name, found, data.expires_at)
    assert caller.id is not None
    _tell(node, request)
    return bodies.NewToken(
        id=caller.id,
        name=caller.name,
        role=caller.role,
        datasources=None if found is None else data.datasources,
        groups=None if found is None else data.groups,
        expires_at=data.expires_at,
        token=text,
    )


@delete("/api/tokens/{id:uuid}", guards=ADMIN, tags=["tokens"], summary="Revoke a token")
async def revoke_token(node: Node, request: Req, id: UUID, yes: bool = False) -> None:
    """It works nowhere from now on, and what it has open is closed. The last admin token only with `yes`."""
    await node.tokens.revoke(id, request.user.name, yes=yes)
    _tell(node, request)


@post(
    "/api/sign-in",
    guards=[Needs("sign_in")],
    tags=["tokens"],
    summary="Make a link that signs in to the console",
)
async def make_link(node: Node, request: Req) -> bodies.SignInLink:
    """As this token, once, within `expires_s`. `path` belongs to the address of any node. A session makes none."""
    if request.user.session is not None:  # Or a session could go on forever.
        raise Forbidden("a session makes no links; use the token")
    code = await node.sessions.make_code(request.user.id) if request.user.id is not None else None
    return bodies.SignInLink(path=f"/?code={code}" if code else "/", expires_s=int(CODE_S))


def _tell(node: Node, request: Req) -> None:
    """This node at once, and the others by a wake-up."""
    request.app.state.gate.forget()
    node.waker.wake("tokens")
    node.waker.wake("events")


def _problems(data: bodies.CreateToken) -> list[Problem]:
    found = []
    if not data.name.isprintable() or data.name != " ".join(data.name.split()):
        found.append(Problem("name", "must be a name of 1 to 100 printable characters"))
    elif data.name.lower() in RESERVED or data.name.startswith("yaml:") or data.name.endswith(PEOPLE):
        found.append(Problem("name", f"{data.name!r} is what events call somebody else", "use another name"))
    if data.expires_at is not None and data.expires_at <= datetime.fromtimestamp(unix_s(), UTC):
        found.append(Problem("expires_at", "must be in the future"))
    return found


def _view(one: Issued) -> bodies.Token:
    return bodies.Token(
        id=one.id,
        name=one.name,
        role=one.role,
        datasources=None if one.bounds is None else list(one.bounds.datasources),
        groups=None if one.bounds is None else list(one.bounds.groups),
        author=one.author,
        created_at=one.created_at,
        expires_at=one.expires_at,
        used_at=one.used_at,
    )


ROUTES = [list_tokens, create_token, revoke_token, make_link]
