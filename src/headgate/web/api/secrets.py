"""Secrets and tokens. A secret's value goes in and never comes out; a token's text is shown once."""

from __future__ import annotations

from uuid import UUID

from litestar import delete, get, post, put

from headgate.errors import ConfigError, NotFound, Problem
from headgate.ids import is_name
from headgate.runtime.node import Node
from headgate.web.auth import Req, needs
from headgate.web.bodies import access as bodies

ADMIN = [needs("admin")]


@get("/api/secrets", guards=[needs("operator")], tags=["secrets"], summary="The names of all secrets")
async def list_secrets(node: Node) -> bodies.Secrets:
    """Names, authors and times; never a value."""
    rows = await node.registry.secrets.all()
    return bodies.Secrets(
        items=[bodies.Secret(name=row.name, author=row.author, changed_at=row.changed_at) for row in rows]
    )


@put("/api/secrets/{name:str}", guards=ADMIN, tags=["secrets"], summary="Write a secret")
async def put_secret(node: Node, request: Req, name: str, data: bodies.PutSecret) -> bodies.SecretWritten:
    """The workers that use it restart."""
    users = await node.registry.set_secret(name, data.value, request.user.name)
    return bodies.SecretWritten(name=name, restarted=len(users))


@delete("/api/secrets/{name:str}", guards=ADMIN, tags=["secrets"], summary="Delete a secret that nothing uses")
async def delete_secret(node: Node, request: Req, name: str) -> None:
    """Refused while a published or running version refers to it."""
    if not is_name(name):
        raise NotFound(f"secret {name!r} does not exist", hint="headgate secrets list")
    await node.registry.delete_secret(name, request.user.name)


@post("/api/secrets/rotate", guards=ADMIN, status_code=200, tags=["secrets"], summary="Rotate the master key")
async def rotate(node: Node) -> bodies.Rotated:
    """No worker notices."""
    done, stuck = await node.registry.secrets.rotate()
    return bodies.Rotated(rewrapped=done, stuck=stuck)


@get("/api/tokens", guards=ADMIN, tags=["tokens"], summary="All tokens, without their texts")
async def list_tokens(node: Node) -> bodies.Tokens:
    """Oldest first."""
    return bodies.Tokens(
        items=[
            bodies.Token(id=one.id, name=one.name, role=one.role, created_at=one.created_at)
            for one in await node.tokens.all()
        ]
    )


@post("/api/tokens", guards=ADMIN, tags=["tokens"], summary="Create a token")
async def create_token(node: Node, data: bodies.CreateToken) -> bodies.NewToken:
    """Its text is in this answer and nowhere else."""
    if not data.name.strip() or not data.name.isprintable():
        raise ConfigError([Problem("name", "must be a name of 1 to 100 printable characters")])
    token, text = await node.tokens.create(data.name, data.role)
    return bodies.NewToken(id=token.id, name=token.name, role=token.role, token=text)


@delete("/api/tokens/{id:uuid}", guards=ADMIN, tags=["tokens"], summary="Revoke a token")
async def revoke_token(node: Node, request: Req, id: UUID) -> None:
    """It works nowhere from now on."""
    await node.tokens.revoke(id)
    request.app.state.gate.forget()


ROUTES = [list_secrets, put_secret, delete_secret, rotate, list_tokens, create_token, revoke_token]
