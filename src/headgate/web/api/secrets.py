"""Secrets and tokens. A secret's value goes in and never comes out; a token's text is shown once."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from litestar import delete, get, post, put
from litestar.connection import Request

from headgate.errors import ConfigError, NotFound, Problem
from headgate.ids import is_name
from headgate.runtime.node import Node
from headgate.store.tokens import ROLES
from headgate.web.auth import needs

Req = Request[Any, Any, Any]
ADMIN = [needs("admin")]


@get("/api/secrets", guards=[needs("operator")], tags=["secrets"], summary="The names of all secrets")
async def list_secrets(node: Node) -> dict[str, Any]:
    """Names, authors and times; never a value."""
    rows = await node.registry.secrets.all()
    return {"items": [{"name": r["name"], "author": r["author"], "changed_at": r["changed_at"]} for r in rows]}


@put("/api/secrets/{name:str}", guards=ADMIN, tags=["secrets"], summary="Write a secret")
async def put_secret(node: Node, request: Req, name: str, data: dict[str, Any]) -> dict[str, Any]:
    """The workers that use it begin anew."""
    value = data.get("value")
    if not isinstance(value, str) or not value:
        raise ConfigError([Problem("value", "must be text that is not empty")])
    users = await node.registry.set_secret(name, value, request.user.name)
    return {"name": name, "restarted": len(users)}


@delete("/api/secrets/{name:str}", guards=ADMIN, tags=["secrets"], summary="Delete a secret that nothing uses")
async def delete_secret(node: Node, request: Req, name: str) -> None:
    """Refused while a published or running version refers to it."""
    if not is_name(name):
        raise NotFound(f"secret {name!r} does not exist", hint="headgate secrets list")
    await node.registry.delete_secret(name, request.user.name)


@post("/api/secrets/rotate", guards=ADMIN, status_code=200, tags=["secrets"], summary="Rotate the master key")
async def rotate(node: Node) -> dict[str, Any]:
    """No worker notices."""
    done, stuck = await node.registry.secrets.rotate()
    return {"rewrapped": done, "stuck": stuck}


@get("/api/tokens", guards=ADMIN, tags=["tokens"], summary="All tokens, without their texts")
async def list_tokens(node: Node) -> dict[str, Any]:
    """Oldest first."""
    return {"items": [dict(row) for row in await node.tokens.all()]}


@post("/api/tokens", guards=ADMIN, tags=["tokens"], summary="Create a token")
async def create_token(node: Node, data: dict[str, Any]) -> dict[str, Any]:
    """Its text is in this answer and nowhere else."""
    name, role = data.get("name"), data.get("role", "viewer")
    problems = []
    if not isinstance(name, str) or not name.strip() or len(name) > 100 or not name.isprintable():
        problems.append(Problem("name", "must be a name of 1 to 100 printable characters"))
    if role not in ROLES:
        problems.append(Problem("role", "must be viewer, operator or admin"))
    if problems:
        raise ConfigError(problems)
    token, text = await node.tokens.create(str(name), role)
    return {"id": token.id, "name": token.name, "role": token.role, "token": text}


@delete("/api/tokens/{id:uuid}", guards=ADMIN, tags=["tokens"], summary="Revoke a token")
async def revoke_token(node: Node, request: Req, id: UUID) -> None:
    """It works nowhere from now on."""
    await node.tokens.revoke(id)
    request.app.state.gate.forget()


ROUTES = [list_secrets, put_secret, delete_secret, rotate, list_tokens, create_token, revoke_token]
