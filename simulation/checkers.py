"""The guarantees, checked from outside.

The checkers see every change of a row, every message that acts and everything that becomes durable. They know the true
time and everybody's state, and share no code with what they check. The numbers are those of the guarantees in the
design: (1) acknowledged means durable, (2) exactly once into a transactional sink, (3) one live grant, ever higher
epochs, (4) a stale epoch changes nothing, (5) the number of commits never falls, (6) a cooperative move loses and
repeats nothing, (7) a node stops acting before another may begin, unless the sink refuses what it writes. What another
number of streams must keep has no number: each part of the source is followed from stream to stream, and (1) and (2)
hold for all of its records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headgate.core.parts import UNNAMED
from headgate.core.streams import (
    Acquire,
    Checkpoint,
    Command,
    Deal,
    Done,
    Edit,
    Grant,
    Progress,
    Release,
    Reply,
    Revoke,
    Stream,
    TakeOver,
)
from simulation.database import GHOSTS, NodeRow
from simulation.eras import Eras, positions_of
from simulation.kernel import Process
from simulation.sinks import Batch, PlainSink, Write, is_bad
from simulation.trace import Violation

if TYPE_CHECKING:
    from simulation.client import Client
    from simulation.world import World

DURABLE = "1 (acknowledged means durable)"
ONCE = "2 (exactly once into a transactional sink)"
GRANT = "3 (one live grant, ever higher epochs)"
STALE = "4 (a stale epoch changes nothing)"
NUMBER = "5 (commits never fall; only a commit or an edit moves a position)"
COOPERATIVE = "6 (a cooperative move loses and repeats nothing)"
DEALT = "another number of streams loses and repeats nothing"
TRIED = "a version that has not proved itself runs in one stream"
LAW = "read = written + filtered + dead-lettered"
ACTING = "7 (a node stops acting before another may begin, unless a sink fences it)"
UNFENCED = "7 (what no sink fences waits for the lease)"
LOCKED = "7 (a node that holds its lock is not ended before its lease)"
BLIP = "7 (a session that is cut and back at once moves nothing)"
SILENCE = "7 (a silent database proves nothing)"
TAKEOVER = "7 (after a kill, granted elsewhere in time)"

SOONEST_S = 1.1  # After a beat; an observer's clock may be a little fast.
RESTART_S = 1.5  # A database that refused for longer than this has refused everybody.
BLIP_S = 4.0  # Whatever kept a node from beating longer ago than this is no excuse.
OUTAGE_S = 8.0  # A database that was away this recently explains a node's silence.
MOST_DRAINING_S = 5.0  # A grant that was under way when its node began to drain comes no later than this.


class Checkers:
    """Raises `Violation` at the first thing that must not be."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._granted: dict[UUID, int] = {}  # The highest epoch of any grant.
        self._opened: dict[tuple[str, UUID], int] = {}  # The highest epoch that a sink has seen.
        self._eras = Eras()
        self._durable: dict[tuple[str, str, UUID, str], set[int]] = {}  # By sink, source, datasource and part.
        self._verified: dict[int, int] = {}  # Up to where everything was found durable, in each era.
        self._taken: set[tuple[UUID, int]] = set()  # Grants that an operator ended: only the sink tells the holder.
        self._ended_early: set[UUID] = set()  # Incarnations. They may not know it, and write what is refused.
        self._late: dict[tuple[UUID, int], list[Write]] = {}  # Writes that arrived after their grant was over.

    def _fail(self, guarantee: str, text: str, stream: UUID | None, *names: str) -> None:
        about = names if stream is None else (self._world.name(stream), *names)
        raise Violation(guarantee, text, about)

    def _positions(self, stream: UUID, position: Any) -> dict[str, int]:
        """Which record of each part a position names."""
        return {part: self._world.index(stream, at) for part, at in positions_of(position).items()}

    # The registry.

    def row_changed(self, before: Stream, after: Stream, command: Command, node: UUID | None) -> None:
        """A stream's row was saved."""
        world = self._world
        about = (world.name(before.id), world.node_name(node or after.owner or before.owner))
        world.note(about, "{} {}", type(command).__name__, _brief(after))
        self._check_right(before, after, command, node)
        self._check_epoch(before, after, command)
        self._check_progress(before, after, command)
        if after.progress.generation > before.progress.generation:
            if not isinstance(command, Deal):
                positions = self._positions(after.id, after.progress.position)
                self._eras.begin(after.id, after.progress.generation, positions)
        elif after.progress.position != before.progress.position:
            self._check_durable(after.id, after.progress, after.sink_identity or "", after.source_identity or "")

    def answered(self, before: Stream, command: Command, reply: Reply) -> None:
        """A command with a stale epoch must be answered so, even where nothing would change."""
        if not isinstance(command, Checkpoint | Release) or not isinstance(reply, Done):
            return
        if (before.owner, before.epoch) != (command.owner, command.epoch):
            self._fail(STALE, f"{command} was taken by {_brief(before)}", before.id)

    def _check_right(self, before: Stream, after: Stream, command: Command, node: UUID | None) -> None:
        """Whether this command may change this row."""
        stream, owner, nodes = before.id, before.owner, self._world.database.nodes
        if node is not None and self._world.database.live(node) is None:
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
                if row is None or row.is_ended:
                    self._fail(GRANT, "granted to a node that is gone, or was ended", stream)
                elif row.draining_since_s is not None and self._is_long_ago(row.draining_since_s):
                    self._fail(GRANT, f"granted to {row.name}, which is draining", stream, row.name)
            case Acquire():
                if owner not in (command.owner, None) or (owner is None and not command.claims):
                    self._fail(GRANT, f"acquired while owned: {_brief(before)}", stream)
                self._check_version(stream, command.version)
            case Edit() | Deal():
                if owner is not None:
                    self._fail(NUMBER, f"edited while owned: {_brief(before)}", stream)
            case Revoke():
                if owner != command.owner:
                    self._fail(STALE, f"revoked from another: {_brief(before)}", stream)
                if node is None and command.epoch is not None:
                    self._taken.add((stream, before.epoch))
            case TakeOver():
                if owner != command.owner:
                    self._fail(STALE, f"taken over from another: {_brief(before)}", stream)
                if before.run is not None and isinstance(self._world.sinks[before.sink_identity or "plain"], PlainSink):
                    self._fail(UNFENCED, f"taken over before the lease: {_brief(before)}", stream)

    def _check_version(self, stream: UUID, version: int) -> None:
        """While an older version could go on, one that has not proved itself is tried by the first stream alone."""
        member = self._world.database.members[stream]
        running = self._world.database.datasources[member.datasource].running
        if member.index > 0 and running is not None and version > running:
            self._fail(TRIED, f"version {version} was acquired; {running} has proved itself", stream)

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
        if isinstance(command, Revoke | TakeOver) and after.epoch == before.epoch:
            self._fail(STALE, "revoked without a new epoch: the old owner cannot see that it is over", after.id)

    def _check_progress(self, before: Stream, after: Stream, command: Command) -> None:
        old, new = before.progress, after.progress
        if new.commits < old.commits or new.generation < old.generation:
            self._fail(NUMBER, f"the registry went from {old} to {new}", after.id)
        if new.totals.read < old.totals.read or (new.totals != old.totals and new.commits == old.commits):
            self._fail(LAW, f"the registry went from {old} to {new}", after.id)
        self._check_same_totals(after)
        if new.position != old.position and new.commits == old.commits and new.generation == old.generation:
            sink = self._world.sinks[after.sink_identity or "plain"]
            is_sinks_own = isinstance(command, Release) and not isinstance(sink, PlainSink)
            if isinstance(sink, PlainSink) or not is_sinks_own or sink.rows.progress(after.id).position != new.position:
                self._fail(NUMBER, f"the registry went from {old} to {new}", after.id)
        if isinstance(command, Deal):
            return
        if after.source_identity != before.source_identity and before.source_identity and new.position is not None:
            self._fail(NUMBER, "a position of another source was kept", after.id)
        if after.sink_identity != before.sink_identity and before.sink_identity and new.generation == old.generation:
            self._fail(NUMBER, "another sink without a new generation", after.id)

    def _check_same_totals(self, row: Stream) -> None:
        """Where the registry has the sink's last commit, it has its totals."""
        sink = self._world.sinks[row.sink_identity or "plain"]
        kept = None if isinstance(sink, PlainSink) else sink.rows.progress(row.id)
        is_same = kept is not None and (kept.generation, kept.commits) == (
            row.progress.generation,
            row.progress.commits,
        )
        if kept is not None and is_same and kept.totals != row.progress.totals:
            self._fail(LAW, f"the sink has {kept.totals}, the registry {row.progress.totals}", row.id)

    def dealt(self, before: Sequence[Stream], after: Sequence[Stream], parts: Sequence[str]) -> None:
        """Parts change hands: with the position that their reader had, and none of them twice."""
        self._world.trace.count("deals")
        known: dict[str, int] = {}
        for place, part in enumerate(parts or UNNAMED):
            row = before[place % len(before)]
            at = self._positions(row.id, row.progress.position).get(part)
            if at is not None:
                known[part] = at
        for index, row in enumerate(after):
            for part, at in self._positions(row.id, row.progress.position).items():
                if known.pop(part, None) != at:
                    self._fail(DEALT, f"stream {index} begins {part!r} after {at}, which nobody had reached", row.id)
        if known:
            self._fail(DEALT, f"nobody goes on with {known}", after[0].id)
        self._eras.dealt(before, after, parts)

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

    def went_back(self) -> None:
        """A new era begins: what the present incarnations still write is refused, or is what waits for their end."""
        nodes = (machine.node for machine in self._world.machines)
        self._ended_early |= {node.incarnation for node in nodes if node is not None}
        self._world.trace.count("eras")

    def node_ended_early(self, row: NodeRow, by: UUID, holders: Sequence[Process]) -> None:
        """An incarnation was ended before its lease: its lock was free, and something kept it from beating."""
        world = self._world
        world.note((row.name, world.node_name(by)), "incarnation {} is ended early", row.id.int & 0xFFFF)
        world.trace.count("takeovers before a lease")
        self._ended_early.add(row.id)
        if holders or world.is_pooled(row.name):
            self._fail(LOCKED, f"{row.name} was ended, and has its lock, or never had one", None, row.name)
        if world.loop.now_s - row.beaten_at_s < SOONEST_S:
            self._fail(BLIP, f"{row.name} was ended; it has just beaten", None, row.name)
        database = world.database
        was_restarted = database.refused_s > RESTART_S and row.beaten_at_s < database.back_at_s
        if was_restarted:
            self._fail(SILENCE, f"{row.name} was ended; it has not beaten since the database is back", None, row.name)
        node = world.node_of(row.id)
        if node is None or not node.process.is_alive or node.has_left:
            return
        world.trace.count("ended early while it lives")
        last_s = max(world.network.troubled_at_s.get(row.name, -100.0), node.process.resumed_at_s)
        is_reached = world.network.mode(row.name, world.database.name) == "up"
        if is_reached and not node.process.is_paused and world.loop.now_s - last_s > BLIP_S:
            self._fail(BLIP, f"{row.name} was ended; only the database had kept it from beating", None, row.name)

    # Sinks.

    def _is_lawful(self, write: Write, row: Stream) -> bool:
        """Whether the row is its writer's, or a ghost's, which stands for writers of the time that was lost."""
        is_waited_for = row.owner is not None and row.owner.int > GHOSTS and write.node in self._ended_early
        return is_waited_for or (row.owner, row.epoch) == (write.node, write.batch.epoch)

    def acting(self, write: Write) -> None:
        """A message of a write is sent: the grant must be live. A process that was paused may send one more."""
        batch, world = write.batch, self._world
        row = world.database.streams[batch.stream]
        if self._is_lawful(write, row) or (batch.stream, batch.epoch) in self._taken:
            return
        if self._is_fenced(write):
            world.trace.count("writes that a fence has to refuse")
            return
        names = world.node_name(write.node), world.node_name(row.owner)
        if write.process.resumed_at_s <= write.began_at_s:
            self._fail(ACTING, f"writes under epoch {batch.epoch}; the row says {_brief(row)}", batch.stream, *names)
        write.late_sends += 1
        world.note((world.name(batch.stream), names[0]), "woke inside a write under {}", batch.epoch)
        if write.late_sends > 1:
            self._fail(ACTING, "went on writing after it woke", batch.stream, *names)

    def _is_fenced(self, write: Write) -> bool:
        """Whether its node was ended early and still trusts itself, as it may: the sink refuses what it writes."""
        node = self._world.node_of(write.node)
        is_known = write.node in self._ended_early and node is not None and node.has_trust()
        return is_known and not isinstance(self._world.sinks[write.batch.sink], PlainSink)

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
        self._check_next(ONCE, batch, indexes)
        self._check_totals(sink, batch, before)
        self._is_durable(batch, indexes)

    def _check_totals(self, sink: str, batch: Batch, before: Progress) -> None:
        """Every record that was read is written or dead, and what a sink has counted is never forgotten by it."""
        totals = batch.progress.totals
        if totals.read != totals.written + totals.filtered + totals.dead_lettered:
            self._fail(LAW, f"{sink} was told {totals}", batch.stream)
        if batch.progress.commits != before.commits + 1:
            return  # Another sink was written to meanwhile, and the totals went along with the stream.
        bad = sum(map(is_bad, batch.records))
        found = (totals.read - before.totals.read, totals.dead_lettered - before.totals.dead_lettered)
        if found != (len(batch.records), bad):
            text = f"{len(batch.records)} records, {bad} of them bad, took {sink} from {before.totals} to {totals}"
            self._fail(LAW, text, batch.stream)

    def _check_next(self, guarantee: str, batch: Batch, indexes: Sequence[int]) -> None:
        """Whether these records are exactly what comes next in this part, whichever stream reads it."""
        one, member = self._world.database.datasource_of(batch.stream), self._world.database.members[batch.stream]
        place = one.parts.index(batch.part) if batch.part in one.parts else 0
        if place % one.dealt != member.index:
            self._fail(guarantee, f"part {batch.part!r} is read by another stream", batch.stream)
        era = self._eras.era(batch.stream, batch.progress.generation, batch.part)
        expected = self._eras.reached(era) + 1
        if indexes != list(range(expected, expected + len(indexes))):
            text = f"{batch.sink} got {indexes[0]}…{indexes[-1]} of part {batch.part!r} where {expected} is next"
            self._fail(guarantee, text, batch.stream)
        self._eras.reach(era, indexes[-1])

    def appended(self, sink: str, write: Write, records: Sequence[int]) -> None:
        """A plain sink has these records."""
        batch, world = write.batch, self._world
        stream = batch.stream
        indexes = [world.index(stream, record) for record in records]
        world.note((world.name(stream), world.node_name(write.node)), "appended {} to {}", indexes[0], indexes[-1])
        row = world.database.streams[stream]
        if not self._is_lawful(write, row):
            late = self._late.setdefault((stream, batch.epoch), [])
            if write not in late:
                late.append(write)
            if len(late) > 1:
                self._fail(STALE, "more than the write in flight came after its grant", stream)
        if world.kind.is_cooperative:
            self._check_next(COOPERATIVE, batch, indexes)
        self._is_durable(batch, indexes)

    def _is_durable(self, batch: Batch, indexes: Sequence[int]) -> None:
        datasource = self._world.database.members[batch.stream].datasource
        self._durable.setdefault((batch.sink, batch.source, datasource, batch.part), set()).update(indexes)

    def _check_durable(self, stream: UUID, progress: Progress, sink: str, source: str) -> None:
        """Whether the sink has everything that this position claims."""
        datasource = self._world.database.members[stream].datasource
        for part, index in self._positions(stream, progress.position).items():
            era = self._eras.era(stream, progress.generation, part)
            verified = self._verified.get(era, self._eras.base(era))
            durable = self._durable.get((sink, source, datasource, part), set())
            for missing in range(verified + 1, index + 1):
                if missing not in durable:
                    text = f"{progress.position} is acknowledged; {sink} does not have {missing} of {part!r}"
                    self._fail(DURABLE, text, stream)
            self._verified[era] = max(verified, index)

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
        row = self._world.database.streams[client.stream]
        progress = Progress(row.progress.generation, position=client.sequence.id(index) if index >= 0 else None)
        self._check_durable(client.stream, progress, row.sink_identity or "", row.source_identity or "")
        if index < client.acked:
            self._fail(DURABLE, f"{index} is acknowledged after {client.acked}", client.stream, client.name)

    def client_closed(self, client: Client, index: int, sent: int) -> None:
        """A client was told that its end of stream is durable."""
        self.client_acked(client, max(index, client.acked))
        if index < sent:
            self._fail(DURABLE, f"closed at {index}; {sent} was sent", client.stream, client.name)

    def push_dropped(self, stream: UUID, node: str) -> None:
        """A session took records for a stream that its node does not have."""
        self._fail("push", "records were taken that nobody will write", stream, node)

    def client_blamed(self, client: Client, code: str) -> None:
        """A client was told that it broke the protocol. None of ours does."""
        self._fail("push", f"a client that kept to the protocol was told {code!r}", client.stream, client.name)


def _brief(row: Stream) -> str:
    owner = "nobody" if row.owner is None else f"{row.owner.int & 0xFFFF}"
    at = row.progress
    return f"owner {owner} epoch {row.epoch} generation {at.generation} commits {at.commits} at {at.position}"
