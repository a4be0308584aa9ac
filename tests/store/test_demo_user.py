"""The demo's database user."""

from __future__ import annotations

from uuid import uuid4

import asyncpg
import pytest

from headgate.store.demo_user import url_of_demo_user


async def test_the_demo_writes_as_a_user_who_can_do_nothing_else(url: str) -> None:
    installation = uuid4()
    own = await url_of_demo_user(url, installation, None)
    assert await url_of_demo_user(url, installation, own) == own
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
    weak = await url_of_demo_user(url, installation, None)
    assert await url_of_demo_user(weak, uuid4(), None) == weak
