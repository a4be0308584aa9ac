"""Connectors of others that are installed in this node's home: who may have them, who uses them, and what happened."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from headgate.connectors.bridges import Home, Installed, Installer, Work, uses, wanted_from_texts
from headgate.core.stakes import some
from headgate.datasources.registry import Registry
from headgate.errors import NotFound, Problem, Refused, StoreError

log = structlog.get_logger()


class Installs:
    """What is installed here. Other nodes have their own, unless they share this home."""

    def __init__(self, home: Path, registry: Registry, node: str) -> None:
        self._home = Home.use(home)
        self._installer = Installer(self._home)
        self._registry = registry
        self._node = node  # The node's name.
        self._notes: set[asyncio.Task[None]] = set()

    async def tidy(self) -> None:
        """Remove what an interrupted installation, or a program that was killed, has left."""
        await asyncio.to_thread(self._home.tidy)

    def all(self) -> list[Installed]:
        """By kind and name."""
        return self._home.all()

    @property
    def work(self) -> Work | None:
        """The latest installation, while it is under way and if it has failed."""
        return self._installer.work

    def get(self, kind: str, name: str) -> Installed:
        """One of them."""
        found = self._home.find(kind, name)
        if found is None:
            raise NotFound(f"{kind}:{name} is not installed on this node", hint="headgate connectors list")
        return found

    def begin(self, package: str, extra: list[str], actor: str) -> Work:
        """Install it in the background; `work` tells how it goes."""
        wanted = wanted_from_texts(package, extra)

        def ended(done: Installed | None, error: str) -> None:
            if done is None:
                log.warning("a connector was not installed", connector=str(wanted.package), error=error)
            else:
                self._note(actor, "connector_installed", done)

        return self._installer.begin(wanted, ended)

    async def remove(self, kind: str, name: str, actor: str, *, yes: bool = False) -> Installed:
        """Remove it. One that a datasource reads with only after a yes."""
        found = self.get(kind, name)
        users = [one.name for one in await self._registry.export() if uses(one.content.source, found)]
        if users and not yes:
            raise Refused(
                f"{kind}:{found.name} is in use: {some(users)}",
                code="in_use",
                hint="see to that first, or say --yes: what runs goes on until it next starts, and then fails",
                problems=[Problem(name, "reads with it") for name in users],
                counts={"datasources": len(users)},
            )
        await asyncio.to_thread(self._installer.remove, found)
        self._note(actor, "connector_removed", found)
        return found

    async def close(self) -> None:
        """Stop what is under way."""
        await self._installer.close()
        if self._notes:
            await asyncio.wait(self._notes)

    def _note(self, actor: str, event: str, one: Installed) -> None:
        task = asyncio.create_task(self._record(actor, event, one), name=event)
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def _record(self, actor: str, event: str, one: Installed) -> None:
        connector = f"{one.kind}:{one.name}"
        log.info(event.replace("_", " "), connector=connector, version=one.version)
        try:
            async with self._registry.datasources.change(actor) as change:
                change.event(None, event, connector=connector, version=one.version, node=self._node)
        except StoreError as error:
            log.warning("an event could not be written", event_type=event, error=error.message)
        else:
            self._registry.waker.wake("events")
