"""What is wrong with the registry file of this node, written where every node can read it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from uuid import UUID

from headgate.datasources.registry_file import RegistryFile
from headgate.errors import StoreError
from headgate.store.nodes import Nodes
from headgate.text import one_line

POLL_S = 1.0
MOST = 500  # Characters: a file may have a thousand mistakes.


async def tell_registry_problem(file: RegistryFile, nodes: Nodes, incarnation: Callable[[], UUID]) -> None:
    """Write it down whenever it changes, and for each incarnation, until cancelled."""
    told: tuple[UUID, str | None] | None = None
    while True:
        present = (incarnation(), None if file.problem is None else one_line(file.problem, MOST))
        if present != told:
            with contextlib.suppress(StoreError):
                await nodes.set_registry_problem(*present)
                told = present
        await asyncio.sleep(POLL_S)
