"""A source whose records a program of somebody else reads, run by run.

A *run* of the program begins with the state of the last one and ends by itself, or never. After a pause the next one
begins. How a program is started and what its lines mean is its *dialect*: Singer's, Airbyte's, or that of the script
which runs dlt.

Delivery is at least once. A run that is cut off goes on from its last state that is durable, and taps say many records
again that they have said before it: into a sink that upserts by a key that makes no difference.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from headgate.connectors.api import Batch, Context, Position, SourceStream
from headgate.connectors.bridges.child import Child, Program
from headgate.connectors.bridges.gathered import HOLD_S, Gathered
from headgate.connectors.bridges.installed import present_home
from headgate.connectors.bridges.lines import TooLong
from headgate.connectors.bridges.options import BridgeOptions
from headgate.connectors.bridges.said import Said
from headgate.connectors.guard import OutOfReach
from headgate.connectors.moves import NO_POSITION
from headgate.connectors.payloads import too_large
from headgate.core.payloads import is_costly
from headgate.errors import Cause, ConnectorError, EndOfStream
from headgate.hidden import remember

CHECK_S = 20.0  # A check that takes longer says nothing: runs may take as long as they like.
DISCOVER_S = 600.0
_STATE = re.compile(rb'"type"\s*:\s*"STATE"')
_SENSELESS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class Failed(ConnectorError):
    """A program has ended with an error, or has said one."""


class Incomplete(Failed):
    """One of its streams could not be read to its end. The program goes on with the others."""


class Dialect(Protocol):
    """What is particular to a kind of program."""

    @property
    def runs(self) -> Path:
        """Where programs have their folders."""

    @property
    def streams(self) -> list[SourceStream]:
        """What is known of those that the program has named."""

    async def check(self) -> None:
        """Raise if the program says that it could not read."""

    async def program(self, state: Any) -> Program:
        """What to start, to go on from this state; None: from nothing."""

    def take(self, line: bytes, into: Gathered, said: Said) -> None:
        """Understand one line. Raises `Failed` if it says that the program cannot go on, `Incomplete` if
        it says that a stream cannot."""


class BridgeSource:
    """A source that is a program."""

    def __init__(self, options: BridgeOptions, context: Context, dialect: Dialect) -> None:
        self._options = options
        self._context = context
        self._dialect = dialect
        self._gathered = Gathered()
        self._pending: deque[bytes | TooLong] = deque()  # Lines that have come and are not understood yet.
        self._said = Said(context.log, options.connector)
        self._starting: asyncio.Task[Child] | None = None
        self._child: Child | None = None
        self._failure: ConnectorError | None = None  # What is to be raised once all before it was handed on.
        self._incomplete: Incomplete | None = None  # The first stream of this run that failed.
        self._has_run = False
        self._due_s = 0.0  # When the next run may begin, on the loop's clock.

    async def check(self) -> None:
        """Ask the program. A slow answer is no answer."""
        try:
            async with asyncio.timeout(CHECK_S):
                await self._dialect.check()
        except TimeoutError:
            self._context.log.warning("the check of a bridge takes long: a run will show it", within_s=CHECK_S)

    async def parts(self) -> Sequence[str]:
        return [""]

    async def open(self, position: Position) -> None:
        self._gathered, self._pending = Gathered(state=state_of(position)), deque()

    async def read(self) -> Batch:
        batch = await self._next()
        return replace(batch, streams=self._dialect.streams)

    async def _next(self) -> Batch:
        clock = asyncio.get_running_loop().time
        while True:
            self._take_pending()
            if (batch := self._gathered.full()) is not None:
                return batch
            if self._failure is not None:
                if (batch := self._gathered.marked()) is not None:
                    return batch
                raise self._failure  # What has come after the last state will come again.
            if self._child is None and (batch := self._gathered.marked() or self._gathered.rest()) is not None:
                return batch  # A run has left it.
            child = await self._running()
            lines = await child.lines(self._patience_s(clock()))
            if lines is None:
                if (batch := self._gathered.marked()) is not None:
                    return batch  # A program may close its output long before it ends.
                await self._ended(child)
            elif lines:
                self._gathered.since_s = self._gathered.since_s if self._gathered.records else clock()
                self._pending.extend(lines)
                await asyncio.sleep(0)  # Others have their turn between two pieces.
            elif self._patience_s(clock()) == 0.0:
                batch = self._gathered.marked() or self._gathered.rest()
                assert batch is not None
                return batch

    def _patience_s(self, now_s: float) -> float | None:
        """How long to wait for more before what has come is handed on."""
        if self._gathered.has_state:
            return 0.0
        return max(0.0, self._gathered.since_s + HOLD_S - now_s) if self._gathered.records else None

    async def _running(self) -> Child:
        """The program, started if it does not run. A read that is cancelled meanwhile starts no second one."""
        if self._child is None:
            if self._starting is None:
                if self._has_run and self._options.once:
                    raise EndOfStream(f"{self._options.connector} has ended")
                await asyncio.sleep(self._due_s - asyncio.get_running_loop().time())
                self._starting = asyncio.create_task(self._start(), name=f"start {self._options.connector}")
            try:
                self._child = await asyncio.shield(self._starting)
                self._said = self._child.said
            finally:
                if self._starting.done():
                    self._starting = None
        return self._child

    async def _start(self) -> Child:
        program = await self._dialect.program(self._gathered.state)
        return await Child.start(program, self._dialect.runs, self._context.log)

    def _take_pending(self) -> None:
        """Understand lines until there is enough for a batch."""
        pending, gathered = self._pending, self._gathered
        most_bytes = self._options.max_line_bytes
        while pending and not gathered.is_full and self._failure is None:
            line = pending.popleft()
            try:
                if isinstance(line, TooLong):
                    self._refuse_state(line.beginning, "is too long", "raise `max_line_bytes`")
                    gathered.add(too_large(line.beginning, line.size_bytes, most_bytes), None, len(line.beginning))
                elif is_costly(line):
                    self._refuse_state(line, "takes too long to decode")
                    gathered.add_unreadable(line, "the record takes too long to decode", len(line))
                else:
                    self._take(line)
            except Incomplete as error:
                self._incomplete = self._incomplete or error
            except Failed as error:
                self._failure = self._incomplete or error  # It says once more, in the end, that there was one.

    def _take(self, line: bytes) -> None:
        """Understand one line. A program may say anything: what makes no sense is that line's fault alone."""
        try:
            self._dialect.take(line, self._gathered, self._said)
        except _SENSELESS:
            self._refuse_state(line, "makes no sense, or is nested too deeply")
            self._gathered.add_unreadable(line, "the line makes no sense, or is nested too deeply", len(line))

    def _refuse_state(self, line: bytes, why: str, hint: str = "") -> None:
        """A record that cannot be taken is a dead letter; without a state there is no position to go on from."""
        if _STATE.search(line[:200]) is not None:
            raise Failed(f"a state of {self._options.connector} {why}", cause=Cause.CONFIG, hint=hint)

    async def _ended(self, child: Child) -> None:
        """A run is over: how it ended, and when the next one begins."""
        code = await child.ended()
        await child.close()
        self._child, self._has_run = None, True
        self._due_s = asyncio.get_running_loop().time() + self._options.every_s
        if self._failure is None and (code != 0 or self._incomplete is not None):
            self._failure = self._incomplete or failed(self._options.connector, code, child.said)

    async def ack(self, position: Position) -> None:
        """The program does not need to know: it is told when it starts next."""

    async def close(self) -> None:
        starting, self._starting = self._starting, None
        child, self._child = self._child, None
        if starting is not None:
            starting.cancel()
            await asyncio.wait([starting])
            if not starting.cancelled() and starting.exception() is None:
                child = starting.result()
        if child is not None:
            await child.close()


def failed(connector: str, code: int, said: Said) -> Failed:
    """A program has ended with this code: why, as far as its last words tell."""
    how = f"ended with {code}" if code >= 0 else f"was ended by signal {-code}"
    last = said.last()
    message = f"{connector} {how}{f': {last}' if last else ''}"
    if code < 0:  # Somebody has killed it, or the kernel has, because memory was short.
        return Failed(message, cause=Cause.NETWORK, hint="raise `memory_mb` if it takes more" if code == -9 else "")
    return Failed(message, cause=said.cause() or Cause.BUG)


def state_of(position: Position) -> Any:
    """The state in a position. Raises ConnectorError."""
    if position is None:
        return None
    if not isinstance(position, dict) or set(position) != {"state"}:
        raise ConnectorError("the position is none of a bridge: it has no state", cause=Cause.CONFIG)
    return position["state"]


def tell_move(before: Position, after: Position) -> str:
    """What another position means."""
    try:
        stood, stands = state_of(before), state_of(after)
    except ConnectorError:
        return NO_POSITION
    if stood == stands:
        return "nothing changes"
    if stands is None:
        return "the connector begins again: all that it still finds is read again"
    return "the connector goes on from another state; what it skips or reads again, only it knows"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an installed connector is."""

    runs: Path  # Where programs have their folders.
    environment: Path
    executable: str


def place_of(options: BridgeOptions, context: Context) -> Place:
    """Of the installed connector, if it may run here. Secrets are covered from now on."""
    if context.is_rehearsal:
        said = f"{options.connector} does not run in a test: nothing could keep it from what it may not reach"
        raise ConnectorError(said, cause=Cause.CONFIG, hint="test with a payload")
    home = present_home()
    found = None if home is None else options.installed()
    if home is None or found is None:
        said = f"{options.connector} is not installed on this node"
        raise ConnectorError(said, cause=Cause.CONFIG, hint=f"headgate connectors install {options.package_hint}")
    if said := options.misfit(found):
        raise ConnectorError(said, cause=Cause.CONFIG)
    for bound in context.guard.bounds:
        is_narrow = bound.reach.addresses is not None or bound.reach.folders is not None
        if bound.is_nodes and is_narrow and bound.reach.modules is None:
            said = "this node bounds addresses or folders, which a program of others cannot be held to"
            raise OutOfReach(said, hint=f"HEADGATE_MODULES={options.module} lets it run all the same")
    for value in options.secrets.values():
        remember(value.get_secret_value())
    environment = home.environment(found.environment)
    return Place(home.runs, environment, str(environment / "bin" / found.executable))
