"""The embedded server, joined while the rest of a command is still being imported.

Both take a few tenths of a second, and neither needs the other. That is possible where nobody has set anything: then
the settings need not be read, whose own import takes as long again.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headgate.cli import home as homes
from headgate.cli.client import OF_COMMANDS

if TYPE_CHECKING:
    from headgate.cli.call import Call, Run
    from headgate.store.embedded import EmbeddedServer

TOML = "headgate.toml"


@dataclass(frozen=True, slots=True)
class Defaults:
    """The settings, where nobody has set any: as in `config.Settings`."""

    home: Path
    database: None = None
    master_key: None = None
    source_timeout_s: float = 60.0


class EarlyServer:
    """Joins the server of the home at once. A command that ends without taking it leaves it again."""

    def __init__(self) -> None:
        from headgate.cli.up import make_home

        self.settings = Defaults(homes.home())
        make_home(self.settings.home)
        self._threads = ThreadPoolExecutor(1)
        self._joining: Future[EmbeddedServer] = self._threads.submit(_join, self.settings.home)
        self._is_taken = False

    async def take(self) -> EmbeddedServer:
        """The server, once it is there."""
        self._is_taken = True
        return await asyncio.wrap_future(self._joining)

    def __enter__(self) -> EarlyServer:
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown()
        if not self._is_taken and self._joining.exception() is None:
            self._joining.result().leave()


def _join(home: Path) -> EmbeddedServer:
    from headgate.store.embedded import EmbeddedServer

    return EmbeddedServer.join(home)


def begins_early(run: Run) -> Run:
    """Have a command begin with that, if it may. It finds the server in its `Call`."""

    @wraps(run)
    def begin(call: Call, **given: Any) -> None:
        if call.is_at_node or not is_unset(given.get("database")):
            run(call, **given)
            return
        with EarlyServer() as call.early:
            run(call, **given)

    return cast("Run", begin)


def is_unset(database: str | None) -> bool:
    """Whether nobody has set anything but what commands need to ask a node."""
    named = [name for name in os.environ if name.upper().startswith("HEADGATE_") and name not in OF_COMMANDS]
    return database is None and not named and not Path(TOML).exists()
