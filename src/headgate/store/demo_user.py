"""The database user that the demo's sinks write as: no superuser, and without any right on Headgate's own schema."""

from __future__ import annotations

import secrets
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit
from uuid import UUID

import asyncpg

TABLES = ("demo_clicks", "demo_orders", "headgate_position", "headgate_dead_letter")

_GRANT = """
GRANT CONNECT ON DATABASE {database} TO {user};
GRANT USAGE, CREATE ON SCHEMA public TO {user};
"""


async def url_of_demo_user(url: str, installation: UUID, known: str | None) -> str:
    """The database's URL for the demo's own user, who is made if absent. `known` is the URL of last time.

    A user who may make no other is no superuser either: the demo then writes as that one.
    """
    user = f"headgate_demo_{installation.hex[:8]}"
    parts = urlsplit(known or "")
    password = unquote(parts.password or "") if parts.username == user else ""
    password = password or secrets.token_urlsafe(24)
    connection = await asyncpg.connect(url)
    try:
        await _make(connection, user, password)
    except asyncpg.InsufficientPrivilegeError:
        return url
    finally:
        await connection.close()
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    query = [pair for pair in parse_qsl(parts.query) if pair[0] not in ("user", "password", "passfile")]
    netloc = f"{user}:{quote(password, safe='')}@{place}"
    return urlunsplit(parts._replace(netloc=netloc, query=urlencode(query, safe="/:")))


async def _make(connection: asyncpg.Connection, user: str, password: str) -> None:
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", user)
        verb = "ALTER" if await connection.fetchval("SELECT to_regrole($1) IS NOT NULL", user) else "CREATE"
        # The password has letters, digits, - and _ only, and the name is ours.
        await connection.execute(f"{verb} ROLE {user} LOGIN NOSUPERUSER PASSWORD '{password}'")
        database = await connection.fetchval("SELECT quote_ident(current_database())")
        await connection.execute(_GRANT.format(database=database, user=user))
        for table in TABLES:
            if await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", f"public.{table}"):
                await connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON public.{table} TO {user}")
