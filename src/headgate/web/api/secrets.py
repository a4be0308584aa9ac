"""Secrets. A value goes in and never comes out."""

from __future__ import annotations

from litestar import delete, get, post, put

from headgate.datasources.notifications import users_of_secrets
from headgate.errors import NotFound
from headgate.ids import is_name
from headgate.runtime.node import Node
from headgate.store.demo_user import url_of_own_user
from headgate.web.auth import Needs, Req
from headgate.web.bodies import access as bodies

OWN, DEMO = "own-database", "demo-database"  # Both are of the same user, who has one password.
ADMIN = [Needs("administer")]


@get("/api/secrets", guards=[Needs("operate_all")], tags=["secrets"], summary="The names of all secrets")
async def list_secrets(node: Node) -> bodies.Secrets:
    """Names, authors, times, and the datasources and targets of notifications that use them; never a value."""
    rows, users = await node.registry.secrets.all(), await node.registry.secrets.users()
    told = users_of_secrets((await node.notifications.read()).document)
    return bodies.Secrets(
        items=[
            bodies.Secret(
                name=row.name,
                author=row.author,
                changed_at=row.changed_at,
                used_by=[*dict.fromkeys(one.name for one in users.get(row.name, [])), *told.get(row.name, [])],
            )
            for row in rows
        ]
    )


@put("/api/secrets/{name:str}", guards=ADMIN, tags=["secrets"], summary="Write a secret")
async def put_secret(node: Node, request: Req, name: str, data: bodies.PutSecret) -> bodies.SecretWritten:
    """The workers that use it restart."""
    users = await node.registry.set_secret(name, data.value, request.user.name)
    return bodies.SecretWritten(name=name, restarted=len(users))


@delete("/api/secrets/{name:str}", guards=ADMIN, tags=["secrets"], summary="Delete a secret")
async def delete_secret(node: Node, request: Req, name: str, yes: bool = False) -> None:
    """A 409 that names every user while a draft, or a published or running version, refers to it, or a sink is yet to
    be cleaned with it; unless `yes` is true. What runs goes on until it next starts."""
    if not is_name(name):
        raise NotFound(f"secret {name!r} does not exist", hint="headgate secrets list")
    await node.registry.delete_secret(name, request.user.name, yes=yes)


@post(
    "/api/secrets/own-database",
    guards=ADMIN,
    status_code=200,
    tags=["secrets"],
    summary="Have a secret with the URL of this installation's database, for sinks that write into it",
)
async def own_database(node: Node, request: Req) -> bodies.SecretWritten:
    """As a user who has no right on Headgate's own tables and is no superuser; made if absent. A 409 if the node may
    make none."""
    found = await node.registry.secrets.read([OWN, DEMO])
    url = await url_of_own_user(node.url, node.installation, [found.get(OWN), found.get(DEMO)])
    users = await node.registry.set_secret(OWN, url, request.user.name) if found.get(OWN) != url else ()
    return bodies.SecretWritten(name=OWN, restarted=len(users))


@post("/api/secrets/rotate", guards=ADMIN, status_code=200, tags=["secrets"], summary="Rotate the master key")
async def rotate(node: Node) -> bodies.Rotated:
    """Secrets and the records of dead letters. No worker notices."""
    done, stuck = await node.registry.secrets.rotate()
    letters, letters_stuck = await node.letters.rotate()
    node.waker.wake("letters")  # Those that sinks keep are rewrapped by the runs of their streams.
    left = await node.letters.left_to_rewrap()
    return bodies.Rotated(rewrapped=done, stuck=stuck, letters=letters, letters_stuck=letters_stuck, letters_left=left)


ROUTES = [list_secrets, put_secret, delete_secret, rotate, own_database]
