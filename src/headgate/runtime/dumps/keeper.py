"""What a node does for dumps: it runs those that were given to the nodes, one process each, and works on spread ones.

The dump's row says which node runs it: a node claims it for ten seconds and renews that. If the node dies, another
claims it and goes on from the plan. A dump that is spread has workers on every node, each of which leases chunks for
itself; without a plan there is nothing to lease, so they need not know which node plans.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import msgspec
import structlog

from headgate.core.chunks.outcome import Status, is_for_me
from headgate.datasources.registry import Registry
from headgate.errors import HeadgateError, NotFound, Refused, StoreError
from headgate.runtime.dumps.addresses import Addresses
from headgate.runtime.dumps.backfill import running_version, storages_of, transform_of
from headgate.runtime.dumps.copying import Transform
from headgate.runtime.dumps.plan import SOURCE_TIMEOUT_S, Options, Storages
from headgate.runtime.dumps.process import DumpFailed, StreamProcess
from headgate.runtime.dumps.workers import join
from headgate.store.dump_rows import OpenDump
from headgate.store.dumps import Dumps

LOOK_S = 1.0

log = structlog.get_logger()


class DumpKeeper:
    """The dumps that this node works on."""

    def __init__(
        self,
        dumps: Dumps,
        home: Path,
        may_work: Callable[[], bool],
        registry: Registry,
        source_timeout_s: float = SOURCE_TIMEOUT_S,
    ) -> None:
        self._dumps = dumps
        self._home = home
        self._may_work = may_work  # Not while draining, nor without trust.
        self._registry = registry
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._source_timeout_s = source_timeout_s
        self._warned: set[UUID] = set()

    async def run(self) -> None:
        """Look for dumps, until cancelled."""
        try:
            while True:
                with suppress(StoreError):
                    await self._look()
                await asyncio.sleep(LOOK_S)
        finally:
            await self._stop(list(self._tasks))

    async def _look(self) -> None:
        for dump in [dump for dump, task in self._tasks.items() if task.done()]:
            del self._tasks[dump]
        if not self._may_work():
            await self._stop(list(self._tasks))
            return
        for row in await self._dumps.to_run():
            if row.id not in self._tasks and is_for_me(is_run=row.is_run, is_spread=row.spread):
                self._tasks[row.id] = asyncio.create_task(self._work(row), name=f"dump {row.id}")

    async def _stop(self, dumps: list[UUID]) -> None:
        tasks = [self._tasks.pop(dump) for dump in dumps]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, row: OpenDump) -> None:
        """Run a dump that no process runs; work on one that another runs."""
        dump = row.id
        try:
            options = msgspec.json.decode(row.options, type=Options)
            try:
                storages, transform = await self._storages(row, options)
            except NotFound as error:  # Its datasource was deleted, and nobody was left to give it up.
                await self._dumps.set_status(dump, Status.CANCELLED, error.message)
                return
            storages = replace(storages, source_timeout_s=options.source_timeout_s or self._source_timeout_s)
            if not row.is_run:
                with suppress(Refused):  # Another node was faster.
                    process = StreamProcess(
                        self._dumps, dump, storages, options.workers, self._home, transform=transform, goes_on=True
                    )
                    log.info("a dump begins here", dump=str(dump))
                    log.info("a dump has ended", dump=str(dump), status=await process.run())
                    return
            if row.spread:
                await join(self._dumps, dump, storages, options.workers, transform)
        except StoreError:
            return  # Our database is away, which is said elsewhere. It is tried again every second.
        except DumpFailed as error:
            log.error("a dump failed", dump=str(dump), error=error.message, hint=error.hint)
        except HeadgateError as error:
            if dump not in self._warned:  # Once: it is tried again every second.
                log.warning("a dump cannot be run here", dump=str(dump), error=error.message, hint=error.hint)
            self._warned.add(dump)

    async def _storages(self, row: OpenDump, options: Options) -> tuple[Storages, Transform | None]:
        """Its URLs, and for a backfill the datasource's own sink and mapping."""
        backfilled = await running_version(self._registry, row.datasource) if row.datasource is not None else None
        urls = await self._dumps.urls(row.id)
        if urls is None:
            raise Refused(
                "the dump's URLs cannot be decrypted here",
                hint="give this node the master key that it was created with",
            )
        is_trusted = not options.is_bounded
        if backfilled is not None:
            name, prepared = backfilled
            guard = (await self._registry.reaching()).guard(is_trusted=is_trusted)
            storages, _ = storages_of(name, prepared, urls.source, guard)
            return storages, transform_of(name, prepared)
        sides = await Addresses(self._registry).both(urls.source, urls.target, is_trusted=is_trusted)
        return Storages.of(*sides, options.own), None
