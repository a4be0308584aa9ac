"""Makes the faults of a plan happen. Each heals what it has broken; none waits for another, unless both need the same.

A fault whose target is under another fault befalls the next of its kind that is not. If there is none it is left out,
and counted as such: the plan goes on by the clock.
"""

from __future__ import annotations

import asyncio
import random
import signal
import traceback
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any

from tests.storm.journal import Journal
from tests.storm.operating import Refused, Unanswered
from tests.storm.plan import OTHERS, STEADY, Fault
from tests.storm.scene import Scene

REJECTED_S = 60.0  # A bad version is given up after this, even if nobody has come to try it.
LOOK_S = 0.5


class Faults:
    """Everything that can be broken."""

    def __init__(self, journal: Journal, scene: Scene) -> None:
        self._journal = journal
        self._nodes = scene.nodes
        self._links = scene.links
        self._registry = scene.registry
        self._sink = scene.sink
        self._operator = scene.operator
        self._datasources = scene.datasources
        self._programs = scene.programs
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._revisions: defaultdict[str, int] = defaultdict(int)  # The last one of each datasource.
        self._tasks: set[asyncio.Task[None]] = set()

    # The plan.

    async def run(self, plan: Iterable[Fault]) -> None:
        """Begin each fault at its time, and return when all are over and healed."""
        for fault in plan:
            await asyncio.sleep(max(0.0, fault.at_s - self._journal.now_s))
            task = asyncio.create_task(self._perform(fault))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await self.finish()

    async def finish(self) -> None:
        """Wait for those under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _perform(self, planned: Fault) -> None:
        free = [one for one in self._like(planned.target) if not self._locks[one].locked()]
        if not free:
            self._journal.count("(left out: all its targets were under other faults)")
            return
        fault = replace(planned, target=free[0])
        perform: Callable[[Fault], Awaitable[None]] = getattr(self, f"_{fault.kind.replace('-', '_')}")
        async with self._locks[fault.target]:
            self._journal.note(f"{fault}")
            try:
                await perform(fault)
            except (Refused, Unanswered) as error:
                self._journal.fail(f"{fault}: {error}")
            except Exception as error:
                self._journal.fail(f"{fault} could not be made: {type(error).__name__}: {error}")
                self._journal.note(traceback.format_exc())
        self._journal.count(fault.kind)
        self._journal.note(f"{fault}: over")

    def _like(self, target: str) -> list[str]:
        """This target, and those that the fault could befall as well, beginning with the next one."""
        for some in (list(OTHERS), sorted(self._datasources), sorted(self._programs)):
            if target in some:
                place = some.index(target)
                return some[place:] + some[:place]
        return [target]

    async def watch_nodes(self) -> None:
        """A node that ends by itself is wrong, and is started again."""
        while True:
            await asyncio.sleep(LOOK_S)
            for name in self._nodes.members:
                if not self._locks[name].locked() and (code := self._nodes.ended(name)) is not None:
                    async with self._locks[name]:
                        self._journal.fail(f"node {name} ended by itself, with {code}")
                        await self._nodes.start(name)

    # Nodes.

    async def _kill(self, fault: Fault) -> None:
        await self._nodes.end(fault.target, signal.SIGKILL)
        await asyncio.sleep(fault.hold_s)
        await self._nodes.start(fault.target)

    async def _restart(self, fault: Fault) -> None:
        code = await self._nodes.end(fault.target, signal.SIGTERM)
        if code not in (0, 1):  # 1: the database was away, and others take its streams.
            self._journal.fail(f"node {fault.target} ended with {code} when it was told to stop")
        self._journal.count(f"(a node told to stop ended with {code})")
        await self._nodes.start(fault.target)

    async def _freeze_short(self, fault: Fault) -> None:
        await self._nodes.pause(fault.target, fault.hold_s)

    _freeze_long = _freeze_short

    async def _cut_short(self, fault: Fault) -> None:
        """Connections that end and are refused, or that stay and are silent."""
        is_silent = fault.draw % 2 == 0
        for link in self._links:
            if is_silent:
                link.freeze()
            else:
                link.refuse = True
                link.cut()
        await asyncio.sleep(fault.hold_s)
        for link in self._links:
            link.refuse = False
            link.thaw()

    _cut_long = _cut_short

    async def _drain(self, fault: Fault) -> None:
        if (id := await self._operator.incarnation(fault.target)) is None:
            self._journal.count("(left out: the node was down)")
            return
        await self._unless_gone("POST", f"/api/nodes/{id}/drain")
        await asyncio.sleep(fault.hold_s)
        await self._unless_gone("POST", f"/api/nodes/{id}/undrain")

    async def _unless_gone(self, method: str, path: str, body: object = None) -> None:
        """Another fault may have ended what this is about, or made it busy."""
        try:
            await self._operator.call(method, path, body)
        except Refused as error:
            if error.status not in (404, 409):
                raise
            self._journal.count("(refused, because of another fault)")

    # Databases.

    async def _registry_pause(self, fault: Fault) -> None:
        await asyncio.to_thread(self._registry.pause, fault.hold_s)

    async def _registry_restart(self, fault: Fault) -> None:
        await asyncio.to_thread(self._registry.restart, fault.hold_s)

    async def _registry_kill(self, fault: Fault) -> None:
        await asyncio.to_thread(self._registry.kill, fault.hold_s)

    async def _promotion(self, fault: Fault) -> None:
        await asyncio.to_thread(self._registry.promote, fault.hold_s)

    async def _old_primary_returns(self, fault: Fault) -> None:
        await asyncio.to_thread(self._registry.promote, 0.0, returns_for_s=fault.hold_s)

    async def _standby_pause(self, fault: Fault) -> None:
        await asyncio.to_thread(self._registry.pause_standby, fault.hold_s)

    async def _sink_pause(self, fault: Fault) -> None:
        await asyncio.to_thread(self._sink.pause, fault.hold_s)

    async def _sink_restart(self, fault: Fault) -> None:
        await asyncio.to_thread(self._sink.restart, fault.hold_s)

    async def _sink_kill(self, fault: Fault) -> None:
        await asyncio.to_thread(self._sink.kill, fault.hold_s)

    # What operators do.

    def _next(self, name: str) -> int:
        self._revisions[name] += 1
        return self._revisions[name]

    async def _publish(self, fault: Fault) -> None:
        document = self._datasources[fault.target].document(self._next(fault.target))
        await self._operator.apply({fault.target: document})

    async def _publish_bad(self, fault: Fault) -> None:
        await self._publish_in_vain(fault, self._datasources[fault.target].bad_document(self._next(fault.target)))

    async def _publish_elsewhere(self, fault: Fault) -> None:
        datasource = self._datasources[fault.target]
        await self._publish_in_vain(fault, datasource.document_of_another_sink(self._next(fault.target)))

    async def _publish_in_vain(self, fault: Fault, document: Any) -> None:
        """The version must be rejected once it is tried; until then and after that, the old one goes on. Other faults
        may keep it from being tried for long."""
        name = fault.target
        await self._operator.apply({name: document})
        published = (await self._operator.datasource(name))["published_version"]
        deadline_s = self._journal.now_s + REJECTED_S
        while self._journal.now_s < deadline_s:
            found = await self._operator.datasource(name)
            if found["running_version"] == published:
                if self._datasources[name].is_generated:  # Nobody can send while nodes are away, and silence is proof.
                    self._journal.fail(f"version {published} of {name} is bad, and was taken")
                self._journal.count("(a bad version ran for 30 s in silence)")
                break
            if found["published_status"] == "rejected" or found["worker_status"] == "STOPPED":
                self._journal.count(f"(a bad version was {found['published_status']})")
                break
            await asyncio.sleep(LOOK_S)
        else:
            self._journal.count(f"(a bad version was not tried in {REJECTED_S:.0f} s)")
        await self._publish(fault)

    async def _publish_invalid(self, fault: Fault) -> None:
        name, datasource = fault.target, self._datasources[fault.target]
        try:
            await self._operator.apply({name: datasource.invalid_document(self._next(name))})
        except Refused as error:
            if error.status != 422 and error.status != 400:
                raise
        else:
            self._journal.fail(f"an invalid document of {name} was accepted")

    async def _move(self, fault: Fault) -> None:
        chance = random.Random(fault.draw)
        streams = [one for one in (await self._operator.call("GET", "/api/streams"))["items"] if one["label"] is None]
        mine = [one["name"] for one in streams if one["datasource"] == fault.target]
        target = chance.choice([STEADY, *OTHERS])
        id = await self._operator.incarnation(target)
        if not mine or id is None:
            self._journal.count("(left out: a program pushes it, or the node was down)")
            return
        path = f"/api/streams/{chance.choice(mine)}/move"
        await self._unless_gone("POST", path, {"node": id})
        await asyncio.sleep(fault.hold_s)
        await self._unless_gone("POST", path, {"node": None})

    async def _stop(self, fault: Fault) -> None:
        await self._operator.call("POST", f"/api/datasources/{fault.target}/stop")
        await asyncio.sleep(fault.hold_s)
        await self._unless_gone("POST", f"/api/datasources/{fault.target}/start")  # What has finished is not started.

    async def _datasource_restart(self, fault: Fault) -> None:
        await self._unless_gone("POST", f"/api/datasources/{fault.target}/restart")

    async def _replay(self, fault: Fault) -> None:
        await self._operator.call("POST", f"/api/datasources/{fault.target}/dead-letters/replay")

    async def _program_kill(self, fault: Fault) -> None:
        self._programs[fault.target].kill()
