"""Tokens: only their hashes are kept. One that has ended keeps its row for a while, so that it is known as such."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from headgate.core.access import AdminToken, Bounds, Caller, Role, locks_out
from headgate.errors import NotFound, Refused
from headgate.ids import lock_key, new_id
from headgate.store import events
from headgate.store.database import Database, Row, Session, sql
from headgate.store.events import Event

KEEP_ENDED_S = 90 * 86400.0
USED_EVERY_S = 60.0  # How late `used_at` may be: a busy token is not written for each of its calls.
MOST_ADDRESSES = 1000  # Of one token. Uses from more are no events any more.

_LOCK = lock_key("tokens")
TOKEN, SESSION, CODE = "hg_", "hgs_", "hgc_"  # What a text begins with says what it is.
_TEXT = re.compile(r"hg[sc]?_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class Found:
    """The token behind a text."""

    caller: Caller
    hash: bytes
    has_ended: bool  # Revoked, or past its end.


@dataclass(frozen=True, slots=True)
class Issued:
    """A token as it is listed: without its text, which nobody has but its owner."""

    id: UUID
    name: str
    role: Role
    bounds: Bounds | None
    author: str  # The name of the token that made it.
    created_at: datetime
    expires_at: datetime | None
    used_at: datetime | None  # Up to a minute late.


def is_text(text: str) -> bool:
    """Whether a token, a session or a code could read so. What cannot needs not be looked up."""
    return _TEXT.fullmatch(text) is not None


def hash_of(token: str) -> bytes:
    """A token is 256 random bits, so a plain hash protects it."""
    return hashlib.sha256(token.encode()).digest()


class Tokens:
    """Create, find, end. Each change is an event of the same transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        name: str,
        role: Role,
        actor: str = "headgate",
        bounds: Bounds | None = None,
        expires_at: datetime | None = None,
        *,
        recovered: bool = False,
    ) -> tuple[Caller, str]:
        """A new token. Its text is shown once and never again."""
        async with self._database.transaction() as connection:
            ended = await _end_expired(connection)  # Their names are free.
            caller, text = await _insert(connection, name, role, actor, bounds, expires_at)
            payload = _payload(caller, expires_at) | ({"recovered": True} if recovered else {})
            await events.append(connection, [*ended, _event("token_created", payload, actor)])
        return caller, text

    async def create_first(self, name: str, keep: Callable[[str], None]) -> str | None:
        """An admin's token for a database that has never had one, and None for any other: what was revoked stays so.

        Its text is kept before it is committed: a token that nobody has would lock everybody out."""
        async with self._database.transaction() as connection:
            await connection.execute(sql("tokens/lock"), _LOCK)
            if await connection.fetchval(sql("tokens/exists")):
                return None
            caller, text = await _insert(connection, name, "admin", "headgate", None, None)
            created = _event("token_created", _payload(caller, None), "headgate")
            await events.append(connection, [created])
            keep(text)
        return text

    async def find(self, hashes: Sequence[bytes]) -> list[Found]:
        """Tokens by the hashes of their texts, or of their sessions and codes; those that have ended too."""
        return [_found(row) for row in await self._database.fetch(sql("tokens/find"), hashes)]

    async def live(self, ids: Sequence[UUID]) -> list[UUID]:
        """Those of these tokens and sessions that still work."""
        return [row["id"] for row in await self._database.fetch(sql("tokens/find_live"), ids)]

    async def all(self) -> list[Issued]:
        """All tokens that work, without their texts."""
        return [
            Issued(
                row["id"],
                row["name"],
                row["role"],
                _bounds(row),
                row["author"],
                row["created_at"],
                row["expires_at"],
                row["used_at"],
            )
            for row in await self._database.fetch(sql("tokens/list"))
        ]

    async def revoke(self, id: UUID, actor: str, *, yes: bool) -> str:
        """The token is worth nothing from now on; returns its name. Unless `yes`, an admin must be left."""
        async with self._database.transaction() as connection:
            await connection.execute(sql("tokens/lock"), _LOCK)  # Two admins that revoke each other do it in turn.
            rows = await connection.fetch(sql("tokens/list_admins"))
            admins = [AdminToken(row["id"], row["ends"]) for row in rows]
            if not yes and locks_out(admins, id):
                raise Refused(
                    "this is the last admin token that does not end by itself",
                    code="last_admin",
                    hint="create another first, or say yes; `headgate tokens recover` makes one from the database",
                )
            row = await connection.fetchrow(sql("tokens/end"), id)
            if row is None:
                raise NotFound(f"token {id} does not exist", hint="headgate tokens list")
            payload = {"token": row["name"], "id": str(id), "role": row["role"]}
            await events.append(connection, [_event("token_revoked", payload, actor)])
            return str(row["name"])

    async def end_expired(self) -> int:
        """Note those that are past their end, and forget what ended long ago."""
        async with self._database.transaction() as connection:
            ended = await _end_expired(connection)
            await connection.execute(sql("tokens/purge"), KEEP_ENDED_S)
            await events.append(connection, ended)
        return len(ended)

    async def note_uses(self, uses: Sequence[tuple[UUID, str]]) -> int:
        """Note that tokens were used, and from where; returns how many addresses were new to their tokens."""
        uses = sorted(uses)
        tokens = [token for token, _ in uses]
        async with self._database.transaction() as connection:
            await connection.execute(sql("tokens/note_uses"), sorted(set(tokens)), USED_EVERY_S)
            addresses = [address for _, address in uses]
            rows = await connection.fetch(sql("tokens/note_addresses"), tokens, addresses, MOST_ADDRESSES)
            new = [_event("token_used", _named(row) | {"address": row["address"]}, row["name"]) for row in rows]
            await events.append(connection, new)
        return len(new)

    async def note_failures(self, counts: Mapping[str, int], addresses: Mapping[str, int], node: str) -> None:
        """Note how many tokens were refused on a node since the last time, and from where most of them came."""
        payload = {"node": node, "count": sum(counts.values()), **counts, "addresses": addresses}
        async with self._database.transaction() as connection:
            await events.append(connection, [_event("tokens_refused", payload, "headgate")])


async def _insert(
    connection: Session, name: str, role: Role, actor: str, bounds: Bounds | None, expires_at: datetime | None
) -> tuple[Caller, str]:
    text = TOKEN + secrets.token_urlsafe(32)
    caller = Caller(new_id(), name, role, bounds)
    row = await connection.fetchrow(
        sql("tokens/insert"),
        caller.id,
        name,
        role,
        hash_of(text),
        None if bounds is None else bounds.datasources,
        None if bounds is None else bounds.groups,
        expires_at,
        actor,
    )
    if row is None:
        raise Refused(f"a token is called {name!r} already", code="exists", hint="revoke it first, or use another name")
    return caller, text


async def _end_expired(connection: Session) -> list[Event]:
    rows = await connection.fetch(sql("tokens/end_expired"))
    return [_event("token_expired", _named(row) | {"role": row["role"]}, "headgate") for row in rows]


def _event(type: str, payload: Mapping[str, object], actor: str) -> Event:
    """Tokens belong to no datasource."""
    return Event(None, None, type, payload, actor)


def _named(row: Row) -> dict[str, object]:
    return {"token": row["name"], "id": str(row["id"])}


def _payload(caller: Caller, expires_at: datetime | None) -> dict[str, object]:
    found: dict[str, object] = {"token": caller.name, "id": str(caller.id), "role": caller.role}
    if caller.bounds is not None:
        found |= {"datasources": caller.bounds.datasources, "groups": caller.bounds.groups}
    if expires_at is not None:
        found["expires_at"] = expires_at.isoformat()
    return found


def _found(row: Row) -> Found:
    caller = Caller(row["id"], row["name"], row["role"], _bounds(row), row["session"])
    return Found(caller, row["hash"], row["has_ended"])


def _bounds(row: Row) -> Bounds | None:
    if row["datasources"] is None:
        return None
    return Bounds(tuple(row["datasources"]), tuple(row["groups"]))
