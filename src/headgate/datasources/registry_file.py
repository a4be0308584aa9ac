"""Datasources from a YAML file instead of the database, for the duration of a migration.

Streams, positions and inboxes stay in the database, so each datasource of the file is also written there, as a
published version whose author is the file. Only datasources that the file names run; others stay as they are and run
again when the file is no longer used. A file that is broken later on changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from headgate.datasources.documents import apart, gather_yaml
from headgate.datasources.registry import Registry
from headgate.errors import ConfigError, HeadgateError, StoreError

POLL_S = 1.0

log = structlog.get_logger()


class RegistryFile:
    """The file, as last read."""

    def __init__(self, path: Path, registry: Registry) -> None:
        self._path = path
        self._registry = registry
        self._names: frozenset[str] = frozenset()
        self._stamp: tuple[int, int] | None = None
        self.problem: str | None = None  # What is wrong with it now. What runs goes on.

    def lists(self, name: str) -> bool:
        """Whether the file names this datasource."""
        return name in self._names

    async def load(self) -> None:
        """Read the file and bring the database in line. Raises what is wrong with the file."""
        try:
            self._stamp = self._stat()
            text = self._path.read_text("utf-8")
        except OSError as error:
            raise ConfigError(f"{self._path}: {error.strerror}", hint="HEADGATE_REGISTRY=yaml:FILE") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{self._path} is not UTF-8", hint="save it as UTF-8") from None
        documents = await apart(gather_yaml, text, str(self._path))
        await self._registry.adopt(documents, f"yaml:{self._path.name}", is_admin=True)
        self._names = frozenset(documents)

    async def watch(self, on_change: Callable[[], Awaitable[None]]) -> None:
        """Read it again whenever it changes, until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            try:
                if self._stat() == self._stamp:
                    continue
                await self.load()
                await on_change()
            except StoreError:
                self._stamp = None  # Nothing is wrong with the file: read it again.
                continue
            except (HeadgateError, OSError) as error:
                self._stamp = None  # It may become usable without being touched: a secret that it names is set.
                if str(error) != self.problem:
                    self.problem = str(error)
                    log.error("the registry file is not usable; what runs goes on", error=self.problem)
                continue
            self.problem = None
            log.info("registry file read", datasources=len(self._names))

    def _stat(self) -> tuple[int, int]:
        found = self._path.stat()
        return found.st_mtime_ns, found.st_size
