"""Tokens: only their hashes are kept."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias
from uuid import UUID

from headgate.errors import NotFound
from headgate.ids import new_id
from headgate.store.database import Database, sql

Role: TypeAlias = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")  # Each may do what those before it may.


@dataclass(frozen=True, slots=True)
class Token:
    """Who is asking."""

    id: UUID
    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class Issued:
    """A token as it is listed: without its text, which nobody has but its owner."""

    id: UUID
    name: str
    role: Role
    created_at: datetime


def hash_of(token: str) -> bytes:
    """A token is 256 random bits, so a plain hash protects it."""
    return hashlib.sha256(token.encode()).digest()


class Tokens:
    """Create, find, revoke."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, name: str, role: Role) -> tuple[Token, str]:
        """A new token. Its text is shown once and never again."""
        text = "hg_" + secrets.token_urlsafe(32)
        token = Token(new_id(), name, role)
        await self._database.execute(sql("tokens/insert"), token.id, name, role, hash_of(text))
        return token, text

    async def find(self, text: str) -> Token | None:
        """The token with this text."""
        row = await self._database.fetchrow(sql("tokens/find"), hash_of(text))
        return Token(row["id"], row["name"], row["role"]) if row else None

    async def all(self) -> list[Issued]:
        """All tokens, without their texts."""
        rows = await self._database.fetch(sql("tokens/list"))
        return [Issued(row["id"], row["name"], row["role"], row["created_at"]) for row in rows]

    async def revoke(self, id: UUID) -> None:
        """The token is worth nothing from now on."""
        if await self._database.fetchval(sql("tokens/delete"), id) is None:
            raise NotFound(f"token {id} does not exist", hint="headgate tokens list")
