"""Sessions of the console, and the codes of links that sign in. Both stand for a token, and end with it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from uuid import UUID

from headgate.ids import new_id
from headgate.store.database import Database, Session, sql
from headgate.store.tokens import CODE, SESSION, hash_of

IDLE_S = 3 * 86400.0  # A session that nobody uses for this long is over,
LONGEST_S = 30 * 86400.0  # and any session after this.
CODE_S = 600.0
MOST_SESSIONS, MOST_CODES = 100, 10  # Of one token; the oldest go.


class Sessions:
    """Begin, end, clean."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, token: UUID, *, instead_of: str = "") -> str | None:
        """A session of this token, and the end of another; its text, or None if the token has ended."""
        async with self._database.transaction() as connection:
            if instead_of:
                await connection.execute(sql("sessions/end"), hash_of(instead_of))
            return await _insert(connection, token, is_code=False)

    async def make_code(self, token: UUID) -> str | None:
        """The text of a link that signs in once; None if the token has ended."""
        async with self._database.transaction() as connection:
            return await _insert(connection, token, is_code=True)

    async def redeem(self, code: str, *, instead_of: str = "") -> str | None:
        """A session for a code, which is worth nothing from now on; None if it was not worth anything before."""
        async with self._database.transaction() as connection:
            token = await connection.fetchval(sql("sessions/take_code"), hash_of(code))
            if token is None:
                return None
            if instead_of:
                await connection.execute(sql("sessions/end"), hash_of(instead_of))
            return await _insert(connection, token, is_code=False)

    async def end(self, text: str) -> None:
        """Signed out."""
        await self._database.execute(sql("sessions/end"), hash_of(text))

    async def touch(self, ids: Sequence[UUID]) -> None:
        """These were used."""
        await self._database.execute(sql("sessions/touch"), ids, IDLE_S)

    async def clean(self) -> None:
        """Remove what is over."""
        await self._database.execute(sql("sessions/clean"))


async def _insert(connection: Session, token: UUID, *, is_code: bool) -> str | None:
    text = (CODE if is_code else SESSION) + secrets.token_urlsafe(32)
    idle_s, longest_s = (CODE_S, CODE_S) if is_code else (IDLE_S, LONGEST_S)
    id = await connection.fetchval(sql("sessions/insert"), new_id(), hash_of(text), token, is_code, idle_s, longest_s)
    await connection.execute(sql("sessions/trim"), token, is_code, MOST_CODES if is_code else MOST_SESSIONS)
    return None if id is None else text
