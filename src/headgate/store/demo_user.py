"""The database user that the demo's sinks write as: no superuser, and without any right on Headgate's own schema."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit
from uuid import UUID

import asyncpg

from headgate.errors import Refused, StoreError
from headgate.store.database import Database, refusals_in_words, sql, store_errors
from headgate.text import one_line

DEMO = ("demo_broker", "demo_clicks", "demo_orders", "demo_poison", "demo_status")
SHARED = ("headgate_position", "headgate_dead_letter")  # Of every sink in the database.
TABLES = (*DEMO, *SHARED)

_GRANT = """
GRANT CONNECT ON DATABASE {database} TO {user};
GRANT USAGE, CREATE ON SCHEMA public TO {user};
"""
_OWNED = "SELECT relowner = to_regrole($2) FROM pg_class WHERE oid = to_regclass($1)"
_IS_USED = "SELECT EXISTS (SELECT FROM public.{table})"


async def url_of_demo_user(url: str, installation: UUID, known: Sequence[str | None]) -> str:
    """The database's URL for the demo's own user, who is made if absent. `known` are URLs that may be those of last
    time: whichever is of this user has the password, which others go on using.

    A user who may make no other is no superuser either: the demo then writes as that one.
    """
    user = f"headgate_demo_{installation.hex[:8]}"
    password = _password(known, user) or secrets.token_urlsafe(24)
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


def _password(known: Sequence[str | None], user: str) -> str:
    for parts in (urlsplit(one) for one in known if one):
        if parts.username == user and parts.password:
            return unquote(parts.password)
    return ""


async def url_of_own_user(url: str, installation: UUID, known: Sequence[str | None]) -> str:
    """The same for somebody who asks for it while the node runs. The node's own user is given to nobody: who may use a
    secret in a document could write into Headgate's own tables with it."""
    try:
        found = await url_of_demo_user(url, installation, known)
    except (OSError, TimeoutError, asyncpg.PostgresError) as error:
        raise StoreError(f"the database made no user: {one_line(error)}") from None
    if found == url:
        raise Refused(
            "the node's database user may make no other user",
            hint="make one with CREATE ROLE, and a secret with its URL: headgate secrets set NAME",
        )
    return found


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


async def held(database: Database, names: Sequence[str]) -> int:
    """How many streams of deleted datasources of these names a node may still hold."""
    return int(await database.fetchval(sql("demo/held"), list(names)))


async def forget_left(database: Database, names: Sequence[str]) -> None:
    """What deleted datasources of these names have left in their sinks stays there."""
    streams = [row["stream"] for row in await database.fetch(sql("demo/list"), list(names))]
    await database.execute(sql("demo/forget"), streams)


async def drop_demo_tables(url: str, installation: UUID) -> None:
    """Drop the tables that the demo's user has made, where others need the user. The rows in tables that all sinks
    share are removed as those of any deleted datasource."""
    with store_errors(), refusals_in_words():
        connection = await asyncpg.connect(url)
        try:
            async with connection.transaction():
                await _drop(connection, f"headgate_demo_{installation.hex[:8]}", DEMO)
        finally:
            await connection.close()


async def remove_demo_user(database: Database, url: str, installation: UUID, names: Sequence[str]) -> bool:
    """Drop the demo's user with the tables that it has made, once nobody holds a stream of these datasources. What
    other sinks keep in tables of its stays, and is then ours.

    No removal needs to wait for the trust of their last holders: a user who is gone opens nothing. Without such a user
    nobody knows who has made a table: none is dropped, and the answer is False.
    """
    user = f"headgate_demo_{installation.hex[:8]}"
    streams = [row["stream"] for row in await database.fetch(sql("demo/list"), list(names))]
    with store_errors(), refusals_in_words():
        connection = await asyncpg.connect(url)
        try:
            async with connection.transaction():
                is_there = await _remove(connection, user, streams)
        finally:
            await connection.close()
    if is_there:
        await database.execute(sql("demo/forget"), streams)
    return is_there


async def _remove(connection: asyncpg.Connection, user: str, streams: Sequence[UUID]) -> bool:
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", user)
    if not await connection.fetchval("SELECT to_regrole($1) IS NOT NULL", user):
        return False
    await connection.execute(f"GRANT {user} TO CURRENT_USER")  # To delete from tables of its.
    for table in SHARED:
        if await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", f"public.{table}"):
            await connection.execute(f"DELETE FROM public.{table} WHERE stream = ANY($1::uuid[])", streams)
    await _drop(connection, user, TABLES)
    await connection.execute(f"REASSIGN OWNED BY {user} TO CURRENT_USER; DROP OWNED BY {user}; DROP ROLE {user}")
    return True


async def _drop(connection: asyncpg.Connection, user: str, tables: Sequence[str]) -> None:
    """Those of these tables that this user has made; of the shared ones, those that are empty."""
    if not await connection.fetchval("SELECT to_regrole($1) IS NOT NULL", user):
        return
    await connection.execute(f"GRANT {user} TO CURRENT_USER")
    for table in tables:
        is_theirs = await connection.fetchval(_OWNED, f"public.{table}", user)
        if is_theirs and (table in DEMO or not await connection.fetchval(_IS_USED.format(table=table))):
            await connection.execute(f"DROP TABLE public.{table}")
