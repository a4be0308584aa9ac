"""The demo's database user."""

from __future__ import annotations

from uuid import uuid4

import asyncpg
import pytest

from headgate.errors import Refused
from headgate.store.database import Database
from headgate.store.demo_user import drop_demo_tables, remove_demo_user, url_of_demo_user, url_of_own_user


async def test_the_demo_writes_as_a_user_who_can_do_nothing_else(url: str) -> None:
    installation = uuid4()
    own = await url_of_demo_user(url, installation, [])
    assert await url_of_demo_user(url, installation, [url, None, own]) == own  # Others use this password.
    connection = await asyncpg.connect(own)
    try:
        assert not await connection.fetchval("SELECT usesuper FROM pg_user WHERE usename = current_user")
        await connection.execute("CREATE TABLE public.demo_orders (id int); INSERT INTO demo_orders VALUES (1)")
        for statement in (
            "SELECT FROM headgate.token",
            "INSERT INTO headgate.token (name) VALUES ('mine')",
            "CREATE TABLE headgate.mine ()",
            "COPY (SELECT 1) TO PROGRAM 'true'",
            "CREATE ROLE other",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
    finally:
        await connection.execute("DROP OWNED BY CURRENT_USER")
        await connection.close()


async def test_who_may_make_no_user_writes_the_demo_as_itself(url: str) -> None:
    installation = uuid4()
    weak = await url_of_demo_user(url, installation, [])
    assert await url_of_demo_user(weak, uuid4(), []) == weak
    with pytest.raises(Refused, match="may make no other"):
        await url_of_own_user(weak, uuid4(), [])


async def test_the_user_goes_with_its_tables_and_not_with_those_of_others(url: str, database: Database) -> None:
    installation, stream = uuid4(), uuid4()
    own = await url_of_demo_user(url, installation, [])
    ours, theirs = await asyncpg.connect(url), await asyncpg.connect(own)
    try:
        await ours.execute("CREATE TABLE public.demo_status (id int)")  # Of that name, and somebody else's.
        await theirs.execute(
            "CREATE TABLE demo_orders (id int); CREATE TABLE other (id int);"
            "CREATE TABLE headgate_position (stream uuid); CREATE TABLE headgate_dead_letter (stream uuid)"
        )
        await theirs.execute("INSERT INTO headgate_position VALUES ($1)", stream)
        await theirs.close()
        await drop_demo_tables(url, installation)
        names = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
        left = ["demo_status", "headgate_dead_letter", "headgate_position", "other"]
        assert [row["tablename"] for row in await ours.fetch(names)] == left
        assert await remove_demo_user(database, url, installation, ["demo-orders"])
        left.remove("headgate_dead_letter")  # It was empty; the position is another sink's.
        assert [row["tablename"] for row in await ours.fetch(names)] == left
        assert not await ours.fetchval("SELECT to_regrole($1) IS NOT NULL", f"headgate_demo_{installation.hex[:8]}")
        assert not await remove_demo_user(database, url, installation, [])
        await drop_demo_tables(url, installation)
    finally:
        await ours.close()
