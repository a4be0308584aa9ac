"""Where commands find dumps: at a node, if one was named, or straight in Headgate's database.

Both places answer the same questions with the same values. A node is asked if `--url` or `HEADGATE_URL` says which;
`--database` means the database all the same.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import typer

from headgate.cli import dumping
from headgate.cli.call import Call
from headgate.cli.client import Reply
from headgate.errors import HeadgateError, NotFound

if TYPE_CHECKING:
    from uuid import UUID

    from headgate.cli.dumping import Desk
    from headgate.runtime.dumps.verdicts import VerifiedView
    from headgate.runtime.dumps.views import AttemptList, DumpList, DumpView
    from headgate.store.dumps import Dumps

LOOK_S = 0.3


class Place(Protocol):
    """What can be asked about dumps."""

    def all(self, limit: int) -> Reply[DumpList]:
        """The newest."""
        ...

    def one(self, id: str) -> Reply[DumpView]:
        """One dump with its tables."""
        ...

    def history(self, id: str, after: int, limit: int) -> Reply[AttemptList]:
        """Attempts, oldest first."""
        ...

    def pause(self, id: str) -> Reply[DumpView]:
        """Begin no more chunks."""
        ...

    def cancel(self, id: str) -> Reply[DumpView]:
        """Give it up."""
        ...

    def set_rate(self, id: str, rate: str) -> Reply[DumpView]:
        """Faster or slower."""
        ...

    def clean(self, id: str) -> Reply[DumpView]:
        """Remove what it left for itself at the target."""
        ...

    def delete(self, id: str) -> DumpView:
        """Forget it. Returns what it was."""
        ...

    def verify(self, id: str, repair: bool, on_progress: Callable[[str, int, int], None]) -> Reply[VerifiedView]:
        """Compare it, to the end."""
        ...


def place_of(call: Call, database: str | None, source: str | None = None, target: str | None = None) -> Place:
    """Where dumps are looked for. `source` and `target` are URLs for a dump that has not kept its own."""
    if not is_at_node(call, database):
        return AtDatabase(call, database, source, target)
    refuse(source=source, target=target)
    return AtNode(call)


def is_at_node(call: Call, database: str | None) -> bool:
    """Whether a node is meant, and not a database."""
    if database is not None and call.is_at_node and not call.is_by_environment:
        raise typer.BadParameter("give --url or --database, and not both")
    return call.is_at_node and database is None


def refuse(**options: object) -> None:
    """What is said to a node cannot be said with these."""
    for name, given in options.items():
        if given:
            raise typer.BadParameter("a node does not take this", param_hint=f"--{name.replace('_', '-')}")


class AtNode:
    """Asked over HTTP."""

    def __init__(self, call: Call) -> None:
        self._node = call.node

    def all(self, limit: int) -> Reply[DumpList]:
        from headgate.runtime.dumps.views import DumpList

        return self._node.get("/api/dumps", DumpList, limit=limit)

    def one(self, id: str) -> Reply[DumpView]:
        from headgate.runtime.dumps.views import DumpView

        return self._node.get(path_of(id), DumpView)

    def history(self, id: str, after: int, limit: int) -> Reply[AttemptList]:
        from headgate.runtime.dumps.views import AttemptList

        return self._node.get(path_of(id, "history"), AttemptList, after=after, limit=limit)

    def pause(self, id: str) -> Reply[DumpView]:
        return self._post(id, "pause")

    def resume(self, id: str) -> Reply[DumpView]:
        """Have nodes go on with it."""
        return self._post(id, "resume")

    def retry(self, id: str, chunks: str, table: str | None) -> Reply[DumpView]:
        """Have nodes copy these chunks again."""
        return self._post(id, "retry", {"chunks": chunks, "table": table})

    def cancel(self, id: str) -> Reply[DumpView]:
        return self._post(id, "cancel")

    def clean(self, id: str) -> Reply[DumpView]:
        return self._post(id, "clean")

    def set_rate(self, id: str, rate: str) -> Reply[DumpView]:
        from headgate.runtime.dumps.views import DumpView

        return self._node.put(path_of(id, "rate"), DumpView, {"rate": rate})

    def delete(self, id: str) -> DumpView:
        found = self.one(id).value
        self._node.delete(path_of(found.id))
        return found

    def verify(self, id: str, repair: bool, on_progress: Callable[[str, int, int], None]) -> Reply[VerifiedView]:
        from headgate.runtime.dumps.verdicts import VerifyDone, VerifyFailed, VerifyRunning
        from headgate.runtime.dumps.views import VerifiedDump

        reply = self._node.post(path_of(id, "verify"), VerifiedDump, {"repair": repair})
        while True:
            match reply.value.verify:
                case VerifyRunning() as running:
                    on_progress(running.table or "", running.chunks_done, running.chunks)
                case VerifyDone() as done:
                    sent = {"id": reply.value.id, **reply.sent["verify"]}
                    return Reply(sent, done)
                case VerifyFailed() as failed:
                    raise HeadgateError(failed.error, hint=failed.hint)
                case None:
                    raise HeadgateError(
                        "the node has forgotten the comparison: it was started again", hint="verify again"
                    )
            time.sleep(LOOK_S)
            reply = self._node.get(path_of(reply.value.id), VerifiedDump)

    def _post(self, id: str, what: str, body: Any = None) -> Reply[DumpView]:
        from headgate.runtime.dumps.views import DumpView

        return self._node.post(path_of(id, what), DumpView, body)


def path_of(id: str, *rest: str) -> str:
    """The path of a dump. What cannot be an id cannot lead to another path either."""
    if not id or not set(id.lower()) <= set("0123456789abcdef-"):
        raise NotFound(f"dump {id!r} does not exist", hint="headgate dumps list")
    return "/".join(["/api/dumps", quote(id, safe=""), *rest])


class AtDatabase:
    """Asked straight in the database."""

    def __init__(self, call: Call, database: str | None, source: str | None, target: str | None) -> None:
        self._call = call
        self._database = database
        self._source = source
        self._target = target

    def all(self, limit: int) -> Reply[DumpList]:
        async def act(desk: Desk) -> DumpList:
            from headgate.runtime.dumps import views

            return views.DumpList(await views.listed(desk.dumps, limit))

        return _reply(dumping.straight(self._call, self._database, act))

    def one(self, id: str) -> Reply[DumpView]:
        from headgate.runtime.dumps import views

        return self._ask(id, views.describe)

    def history(self, id: str, after: int, limit: int) -> Reply[AttemptList]:
        async def act(desk: Desk) -> AttemptList:
            from headgate.runtime.dumps import views

            return views.AttemptList(await views.history(desk.dumps, id, after, limit))

        return _reply(dumping.straight(self._call, self._database, act))

    def pause(self, id: str) -> Reply[DumpView]:
        from headgate.runtime.dumps import control

        return self._ask(id, control.pause)

    def cancel(self, id: str) -> Reply[DumpView]:
        from headgate.runtime.dumps import control

        return self._ask(id, control.cancel)

    def clean(self, id: str) -> Reply[DumpView]:
        from headgate.connectors.plugins import whole
        from headgate.runtime.dumps import control

        target = self._target and whole(self._target)
        return self._ask(id, lambda dumps, id: control.clean(dumps, id, target))

    def set_rate(self, id: str, rate: str) -> Reply[DumpView]:
        from headgate.runtime.dumps import control

        return self._ask(id, lambda dumps, id: control.set_rate(dumps, id, rate))

    def delete(self, id: str) -> DumpView:
        async def act(desk: Desk) -> DumpView:
            from headgate.runtime.dumps import control

            return await control.delete(desk.dumps, id, desk.settings.home)

        return dumping.straight(self._call, self._database, act)

    def verify(self, id: str, repair: bool, on_progress: Callable[[str, int, int], None]) -> Reply[VerifiedView]:
        async def act(desk: Desk) -> tuple[UUID, VerifiedView]:
            from headgate.connectors.plugins import whole
            from headgate.runtime.dumps import control
            from headgate.runtime.dumps.verify import verify, view

            row = await desk.dumps.find(id)
            source, target = self._source and whole(self._source), self._target and whole(self._target)
            storages = await control.storages_of(desk.dumps, row, source, target)
            found = await desk.signals.guard(verify(desk.dumps, row.id, storages, repair=repair, notify=on_progress))
            return row.id, view(found)

        import msgspec

        dump, found = dumping.straight(self._call, self._database, act)
        return Reply({"id": str(dump), **msgspec.to_builtins(found)}, found)

    def _ask(self, id: str, ask: Callable[[Dumps, str], Awaitable[DumpView]]) -> Reply[DumpView]:
        async def act(desk: Desk) -> DumpView:
            return await ask(desk.dumps, id)

        return _reply(dumping.straight(self._call, self._database, act))


def _reply(found: Any) -> Reply[Any]:
    return Reply(found, found)
