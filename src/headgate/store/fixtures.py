"""Fixtures at rest: inputs and expected results of a datasource, encrypted as secrets are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from headgate.store.database import Database, sql
from headgate.store.events import Event, append
from headgate.store.secrets import Keyring, sealed_name


@dataclass(frozen=True, slots=True)
class FixtureName:
    """A fixture as it is listed: nothing of its records."""

    name: str
    inputs: int
    size_bytes: int
    author: str  # The name of the token that wrote it last.
    changed_at: datetime


class Fixtures:
    """List, read, write, delete."""

    def __init__(self, database: Database, keyring: Keyring | None) -> None:
        self._database = database
        self.keyring = keyring

    async def names(self, datasource: UUID) -> list[FixtureName]:
        """All of a datasource, by name."""
        rows = await self._database.fetch(sql("fixtures/list"), datasource)
        return [
            FixtureName(row["name"], row["inputs"], row["size_bytes"], row["author"], row["changed_at"]) for row in rows
        ]

    async def datasources(self) -> set[UUID]:
        """Those that have fixtures."""
        return {row["datasource"] for row in await self._database.fetch(sql("fixtures/datasources"))}

    async def read(self, datasource: UUID) -> dict[str, str | None]:
        """The content of all of a datasource; None for one that cannot be decrypted here."""
        found: dict[str, str | None] = {}
        for row in await self._database.fetch(sql("fixtures/read"), datasource):
            name = sealed_name("fixture", datasource, row["name"])
            sealed = (name, row["key_id"], row["wrapped_key"], row["ciphertext"])
            found[row["name"]] = self.keyring.unseal(*sealed) if self.keyring else None
        return found

    async def put(self, datasource: UUID, contents: dict[str, tuple[int, str]], event: Event) -> None:
        """Write these, with how many inputs each has; in one transaction."""
        assert self.keyring is not None, "the caller has looked"
        async with self._database.transaction() as connection:
            for name, (inputs, text) in sorted(contents.items()):
                sealed = self.keyring.seal(sealed_name("fixture", datasource, name), text)
                await connection.execute(sql("fixtures/put"), datasource, name, inputs, *sealed, event.actor)
            await append(connection, [event])

    async def delete(self, datasource: UUID, name: str, event: Event) -> bool:
        """Delete one. False: there is none of this name."""
        async with self._database.transaction() as connection:
            if not await connection.fetch(sql("fixtures/delete"), datasource, name):
                return False
            await append(connection, [event])
            return True
