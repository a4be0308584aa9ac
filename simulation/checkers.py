"""The guarantees, checked from outside.

The checkers see every change of a row, every message that acts and everything that becomes durable. They know the true
time and everybody's state, and share no code with what they check.

The numbers are those of the guarantees in the design: (1) acknowledged means durable, (2) exactly once into a
transactional sink, (3) one live grant, rising epochs, (4) a stale epoch changes nothing, (5) `commits` never falls, (6)
a cooperative move loses and repeats nothing, (7) a node stops acting before another may begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from headgate.core.streams import Acquire, Checkpoint, Command, Edit, Grant, Progress, Release, Revoke, Stream
from simulation.database import NodeRow
from simulation.sinks import Batch, Write
from simulation.trace import Violation

if TYPE_CHECKING:
    from simulation.client import Client
    from simulation.world import World

DURABLE = "1 (acknowledged means durable)"
ONCE = "2 (exactly once into a transactional sink)"
GRANT = "3 (one live grant, ever higher epochs)"
STALE = "4 (a stale epoch changes nothing)"
NUMBER = "5 (n never falls; only n or an edit moves a position)"
COOPERATIVE = "6 (a cooperative move loses and repeats nothing)"
ACTING = "7 (a node stops acting before another may begin)"
SILENCE = "7 (a silent database proves nothing)"
TAKEOVER = "7 (after a kill, granted elsewhere in time)"

OUTAGE_S = 8.0  # A database that was away this recently explains a node's silence.
MOST_DRAINING_S = 5.0  # A grant that was under way when its node began to drain comes no later than this.


class Checkers:
    """Raises `Violation` at the first thing that must not be."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._granted: dict[UUID, int] = {}  # The highest epoch of any grant.
        self._opened: dict[tuple[str, UUID], int] = {}  # The highest epoch that a sink has seen.
        self._base: dict[tuple[UUID, int], int] = {}  # Where a stream begins in each generation.
        self._durable: dict[tuple[str, str, UUID], set[int]] = {}
        self._verified: dict[tuple[UUID, int], int] = {}  # Up to where everything was found durable.
        self._reached: dict[tuple[str, UUID], tuple[int, int]] = {}  # The generation and the last index in each sink.
        self._late: dict[tuple[UUID, int], list[Write]] = {}  # Writes that arrived after their grant was over.

    def _fail(self, guarantee: str, text: str, stream: UUID | None, *names: str) -> None:
        about = names if stream is None else (self._world.name(stream), *names)
        raise Violation(guarantee, text, about)

    def base(self, stream: UUID, generation: int) -> int:
        """The index before the first record that is due in this generation."""
        return self._base.get((stream, generation), -1)

    # The registry.

    def row_changed(self, before: Stream, after: Stream, command: Command, node: UUID | None) -> None:
        """A stream's row was saved."""
        world = self._world
        about = (world.name(before.id), world.node_name(node or after.owner or before.owner))
        world.note(about, "{} {}", type(command).__name__, _brief(after))
        self._check_right(before, after, command, node)
        self._check_epoch(before, after, command)
        self._check_held(before, after)
        if after.progress.generation > before.progress.generation:
            self._base[after.id, after.progress.generation] = world.index(after.id, after.progress.position)
        elif after.progress.position != before.progress.position:
            self._check_durable(after.id, after.progress, after.sink_identity or "", after.source_identity or "")

    def _check_right(self, before: Stream, after: Stream, command: Command, node: UUID | None) -> None:
        """Whether this command may change this row."""
        stream, owner, nodes = before.id, before.owner, self._world.database.nodes
        if node is not None and node not in nodes:
            self._fail(STALE, f"an incarnation that was ended changed a row by {command}", stream)
        match command:
            case Checkpoint() | Release():
                if (owner, before.epoch) != (command.owner, command.epoch):
                    self._fail(STALE, f"{command} changed {_brief(before)}", stream, self._world.node_name(node))
            case Grant():
                self._world.trace.count("grants")
                row = nodes.get(command.owner)
                if owner is not None:
                    self._fail(GRANT, f"granted while owned: {_brief(before)}", stream)
                if row is None:
                    self._fail(GRANT, "granted to a node that is gone", stream)
                elif row.draining_since_s is not None and self._is_long_ago(row.draining_since_s):
                    self._fail(GRANT, f"granted to {row.name}, which is draining", stream, row.name)
            case Acquire():
                if owner not in (command.owner, None) or (owner is None and not command.claims):
                    self._fail(GRANT, f"acquired while owned: {_brief(before)}", stream)
            case Edit():
                if owner is not None:
                    self._fail(NUMBER, f"edited while owned: {_brief(before)}", stream)
            case Revoke():
                if owner != command.owner:
                    self._fail(STALE, f"revoked from another: {_brief(before)}", stream)

    def _is_long_ago(self, then_s: float) -> bool:
        return self._world.loop.now_s - then_s > MOST_DRAINING_S

    def _check_epoch(self, before: Stream, after: Stream, command: Command) -> None:
        is_granted = after.owner is not None and (after.owner, after.run) != (before.owner, before.run)
        if is_granted:
            if after.epoch <= self._granted.get(after.id, 0):
                self._fail(GRANT, f"a grant under epoch {after.epoch}, which is not new", after.id)
            self._granted[after.id] = after.epoch
        if after.epoch < before.epoch:
            self._fail(GRANT, f"the epoch fell to {after.epoch}", after.id)
        if isinstance(command, Revoke) and after.epoch == before.epoch:
            self._fail(STALE, "revoked without a new epoch: the old owner cannot see that it is over", after.id)

    def _check_held(self, before: Stream, after: Stream) -> None:
        old, new = before.progress, after.progress
        if new.commits < old.commits or new.generation < old.generation:
            self._fail(NUMBER, f"the registry went from {old} to {new}", after.id)
        if new.position != old.position and new.commits == old.commits and new.generation == old.generation:
            self._fail(NUMBER, f"the registry went from {old} to {new}", after.id)
        if after.source_identity != before.source_identity and before.source_identity and new.position is not None:
            self._fail(NUMBER, "a position of another source was kept", after.id)
        if after.sink_identity != before.sink_identity and before.sink_identity and new.generation == old.generation:
            self._fail(NUMBER, "another sink without a new generation", after.id)

    def fenced(self, stream: UUID, node: UUID) -> None:
        """Somebody came too late and was told so."""
        self._world.trace.count("fenced attempts")
        self._world.note((self._world.name(stream), self._world.node_name(node)), "is fenced")

    # Nodes.

    def node_ended(self, row: NodeRow, by: UUID | None) -> None:
        """An incarnation was ended: it must have stopped acting, and must really have been silent."""
        world = self._world
        world.note((row.name, world.node_name(by)), "incarnation {} is ended", row.id.int & 0xFFFF)
        if by is None:
            return
        world.trace.count("takeovers")
        node = world.node_of(row.id)
        if node is None or not node.process.is_alive:
            return
        left_s = node.trust.left_s(node.process.clock_s())
        if left_s > 0.0:
            self._fail(ACTING, f"{row.name} was expired and trusts itself for another {left_s:.3f} s", None, row.name)
        database = world.database
        is_outage = database.mode != "up" or world.loop.now_s - database.back_at_s < OUTAGE_S / 2
        troubled_at_s = max(world.network.troubled_at_s.get(row.name, -100.0), node.process.resumed_at_s)
        is_troubled = node.process.is_paused or world.loop.now_s - troubled_at_s < 2 * OUTAGE_S
        if is_outage and not is_troubled:
            self._fail(SILENCE, f"{row.name} was expired because the database was away", None, row.name)

    # Sinks.

    def acting(self, write: Write) -> None:
        """A message of a write is sent: the grant must be live. A process that was paused may send one more."""
        batch, world = write.batch, self._world
        row = world.database.streams[batch.stream]
        if (row.owner, row.epoch) == (write.node, batch.epoch):
            return
        names = world.node_name(write.node), world.node_name(row.owner)
        if write.process.resumed_at_s <= write.began_at_s:
            self._fail(ACTING, f"writes under epoch {batch.epoch}; the row says {_brief(row)}", batch.stream, *names)
        write.late_sends += 1
        world.note((world.name(batch.stream), names[0]), "woke inside a write under {}", batch.epoch)
        if write.late_sends > 1:
            self._fail(ACTING, "went on writing after it woke", batch.stream, *names)

    def opened(self, sink: str, stream: UUID, epoch: int) -> None:
        """A transactional sink has raised the epoch."""
        if epoch <= self._opened.get((sink, stream), 0):
            self._fail(STALE, f"{sink} was opened under epoch {epoch} after a higher one", stream)
        self._opened[sink, stream] = epoch

    def committed(self, sink: str, write: Write, before: Progress) -> None:
        """A transactional sink has taken a batch: under the highest epoch, and exactly what comes next."""
        batch, world = write.batch, self._world
        stream, progress = batch.stream, batch.progress
        indexes = [world.index(stream, record) for record in batch.records]
        world.note((world.name(stream), world.node_name(write.node)), "committed {} under {}", progress, batch.epoch)
        if batch.epoch != self._opened.get((sink, stream)):
            self._fail(STALE, f"{sink} took a batch under epoch {batch.epoch}", stream, world.node_name(write.node))
        if progress.commits <= before.commits or progress.generation < before.generation:
            self._fail(NUMBER, f"{sink} went from {before} to {progress}", stream)
        generation, last = self._reached.get((sink, stream), (-1, -1))
        expected = (last if generation == progress.generation else self.base(stream, progress.generation)) + 1
        if indexes != list(range(expected, expected + len(indexes))):
            self._fail(ONCE, f"{sink} took {indexes[0]}…{indexes[-1]} where {expected} is next", stream)
        self._reached[sink, stream] = progress.generation, indexes[-1]
        self._is_durable(batch, indexes)

    def appended(self, sink: str, write: Write, records: Sequence[int]) -> None:
        """A plain sink has these records."""
        batch, world = write.batch, self._world
        stream = batch.stream
        indexes = [world.index(stream, record) for record in records]
        world.note((world.name(stream), world.node_name(write.node)), "appended {} to {}", indexes[0], indexes[-1])
        row = world.database.streams[stream]
        if (row.owner, row.epoch) != (write.node, batch.epoch):
            late = self._late.setdefault((stream, batch.epoch), [])
            if write not in late:
                late.append(write)
            if len(late) > 1:
                self._fail(STALE, "more than the write in flight came after its grant", stream)
        if world.kind.is_cooperative:
            generation, last = self._reached.get((sink, stream), (-1, -1))
            expected = (
                last if generation == batch.progress.generation else self.base(stream, batch.progress.generation)
            ) + 1
            if indexes != list(range(expected, expected + len(indexes))):
                self._fail(COOPERATIVE, f"{sink} got {indexes[0]}…{indexes[-1]} where {expected} is next", stream)
            self._reached[sink, stream] = batch.progress.generation, indexes[-1]
        self._is_durable(batch, indexes)

    def _is_durable(self, batch: Batch, indexes: Sequence[int]) -> None:
        self._durable.setdefault((batch.sink, batch.source, batch.stream), set()).update(indexes)

    def _check_durable(self, stream: UUID, progress: Progress, sink: str, source: str) -> None:
        """Whether the sink has everything that this position claims."""
        index = self._world.index(stream, progress.position)
        verified = self._verified.get((stream, progress.generation), self.base(stream, progress.generation))
        durable = self._durable.get((sink, source, stream), set())
        for missing in range(verified + 1, index + 1):
            if missing not in durable:
                self._fail(DURABLE, f"{progress.position} is acknowledged; {sink} does not have {missing}", stream)
        self._verified[stream, progress.generation] = max(verified, index)

    def source_acked(self, batch: Batch) -> None:
        """A worker has told its source that everything up to there is durable."""
        self._check_durable(batch.stream, batch.progress, batch.sink, batch.source)

    # Push clients.

    def client_accepted(self, client: Client, epoch: int, index: int) -> None:
        """A client may push from there."""
        self._world.trace.count("push grants")
        if index < client.acked:
            self._fail(DURABLE, f"told to go on after {index}, with {client.acked} acknowledged", client.stream)

    def client_acked(self, client: Client, index: int) -> None:
        """A client was told that everything up to there is durable."""
        wish = self._world.database.wishes[client.stream]
        progress = Progress(position=client.sequence.id(index) if index >= 0 else None)
        self._check_durable(client.stream, progress, wish.sink, wish.source)
        if index < client.acked:
            self._fail(DURABLE, f"{index} is acknowledged after {client.acked}", client.stream, client.name)

    def client_closed(self, client: Client, index: int, sent: int) -> None:
        """A client was told that its end of stream is durable."""
        self.client_acked(client, max(index, client.acked))
        if index < sent:
            self._fail(DURABLE, f"closed at {index}; {sent} was sent", client.stream, client.name)

    def client_blamed(self, client: Client, code: str) -> None:
        """A client was told that it broke the protocol. None of ours does."""
        self._fail("push", f"a client that kept to the protocol was told {code!r}", client.stream, client.name)


def _brief(row: Stream) -> str:
    owner = "nobody" if row.owner is None else f"{row.owner.int & 0xFFFF}"
    generation, commits, position = row.progress.generation, row.progress.commits, row.progress.position
    return f"owner {owner} epoch {row.epoch} generation {generation} commits {commits} at {position}"
