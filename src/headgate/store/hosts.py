"""The registry's servers: what this process knows of the hosts in `HEADGATE_DATABASE`.

The pool, the beat, which has its own thread, and the listener all come here for their sessions, so that one of them
that meets a new primary takes the others along. An old primary is used only if no other server takes writes, and then
`store.lineage` refuses it, unless a person has adopted it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from headgate.core.hosts import Answer, Host
from headgate.errors import ConfigError
from headgate.hosts import Hosts

CONNECT_S = 5.0
CHOOSE_S = 4.0  # Less than that, so that the error says what each host is and not that it took too long.
LOOK_S = 5.0  # How long an old primary that still answers is believed, after another was promoted.

_DRIVER = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
_hosts: dict[str, Hosts[Any]] = {}


def hosts(dsn: str) -> Hosts[Any]:
    """The servers of this URL, as the whole process knows them."""
    if dsn not in _hosts:
        try:
            _hosts[dsn] = Hosts(dsn, _DRIVER, refuses_older=False)
        except ValueError as error:
            raise ConfigError(str(error), hint="check HEADGATE_DATABASE") from None
    return _hosts[dsn]


async def open_session(dsn: str, **options: Any) -> asyncpg.Connection:
    """A session with the newest server that takes writes. The options are those of the driver."""
    return await hosts(dsn).connect(lambda url: asyncpg.connect(url, **options), CHOOSE_S)


async def look(dsn: str, *, everyone: bool = False) -> dict[Host, Answer]:
    """What the servers are that are not in use, or all of them."""
    return await hosts(dsn).look(lambda url: asyncpg.connect(url, timeout=CONNECT_S), everyone=everyone)


async def watch(dsn: str) -> None:
    """Look again and again for a newer primary than the one in use, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_S)
        await look(dsn)
