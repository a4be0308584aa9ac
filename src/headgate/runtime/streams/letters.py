"""Dead letters on their way between runs, sinks and the registry.

A sink that keeps letters commits them with the data; the registry has copies, brought in line by their ids whenever a
run opens and after each commit that made or resolved some (`Desk.copy`). So it does not matter which of the two was
away, or went back in time: that letters were replayed or superseded is the sink's word, and that they were discarded
or have expired is the registry's. For other sinks the registry's table is the only place, and letters are saved there
in one transaction with the checkpoint that passes them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import structlog

from headgate.connectors.api import Letter, LetterSink
from headgate.core.letter_keys import KeyKind, key_hash
from headgate.core.letters import Contents, Facts, LetterOutcome
from headgate.core.mapping.document import Mapping as CompiledMapping
from headgate.core.streams import Checkpoint, Progress
from headgate.datasources.registry import Registry
from headgate.errors import ConnectorError, StoreError
from headgate.ids import new_id
from headgate.runtime.streams.sides import quietly
from headgate.store.letter_rows import rewrapped, seal
from headgate.store.letters import Again, Letters, ToReplay

log = structlog.get_logger("headgate.letters")

COPY_S = 0.2  # From one copy of a sink's letters to the next, while there are new ones,
REST = 9  # and this many times as long as it took: it compares them all.
LAST_COPY_S = 2.0  # For the last one: the end of a run must not wait for a database that is away.
RETRY_S = 1.0
COPIED_AT_ONCE = 200  # Letters with their payloads.
REPLAYED_AT_ONCE = 100
SINKS_WORD: tuple[LetterOutcome, ...] = ("replayed", "superseded")  # The sink alone decides that.


@dataclass(frozen=True, slots=True)
class Desk:
    """The letters of one stream, for one run."""

    rows: Letters
    registry: Registry
    node: UUID
    installation: UUID
    datasource: UUID
    stream: UUID
    epoch: int

    def letter(self, facts: Facts, contents: Contents, key: bytes | None) -> Letter:
        """A new letter, encrypted."""
        id = new_id()
        return Letter(id, seal(self.rows.keyring, id, facts, contents), key)

    def key_hash(self, values: Sequence[object] | None, kinds: Sequence[KeyKind]) -> bytes | None:
        """What tells a key from others."""
        return key_hash(values, self.installation, kinds)

    async def keep(self, letters: Sequence[Letter], progress: Progress) -> None:
        """Save letters with the position that passes them. Raises `Fenced` if the stream is not ours any more."""
        await self.rows.save(self.node, self.stream, letters, self._checkpoint(progress))

    async def copy(self, sink: LetterSink) -> None:
        """Bring sink and registry in line."""
        kept, known = await sink.outcomes(), await self.rows.known(self.stream)
        missing = [id for id in kept if id not in known]
        for begin in range(0, len(missing), COPIED_AT_ONCE):
            found = await sink.letters(missing[begin : begin + COPIED_AT_ONCE])
            # One without content was replayed here, and kept elsewhere before: the registry has it already.
            await self.rows.copy(self.stream, [letter for letter in found if letter.content])
        await self.note(sink, [id for id, one in known.items() if kept.get(id, "open") not in ("open", one.outcome)])
        closed = {id: one for id, one in known.items() if one.outcome != "open" and kept.get(id) == "open"}
        doubted = [id for id, one in closed.items() if one.outcome in SINKS_WORD and not one.is_elsewhere]
        await self._reopen(sink, doubted)
        told = {id: one.outcome for id, one in closed.items() if id not in {*doubted}}
        for outcome, ids in _by_outcome(told).items():
            await self.rows.tell(ids)
            await sink.resolve(ids, outcome)
        await self._rewrap(sink)

    async def _reopen(self, sink: LetterSink, ids: Sequence[UUID]) -> None:
        """The registry has it from the sink that these were replayed or superseded. If the sink still says otherwise
        when it is asked once more, it went back in time, and the rows with it: the letters are open again."""
        for begin in range(0, len(ids), COPIED_AT_ONCE):
            found = await sink.letters(ids[begin : begin + COPIED_AT_ONCE])
            open_ = [letter for letter in found if letter.outcome == "open" and letter.content]
            if open_ and (again := await self.rows.reopen(self.stream, open_)):
                await self.registry.record_events([(self.datasource, "letters_reopened", {"letters": len(again)})])

    async def _rewrap(self, sink: LetterSink) -> None:
        """Wrap the data keys of the sink's letters with the current master key."""
        keyring = self.rows.keyring
        while keyring is not None and (ids := await self.rows.to_rewrap(self.stream, COPIED_AT_ONCE)):
            keys: dict[UUID, str | None] = dict.fromkeys(ids)  # What it does not have needs no key.
            changed = []
            for letter in await sink.letters(ids):
                if letter.content and letter.outcome == "open":
                    found, keys[letter.id] = rewrapped(keyring, letter)
                    changed += [found] if found is not None else []
            if changed:
                await sink.rewrite(changed)
            # What its own key does not fit is damaged, and would be tried forever.
            older = set(keyring.others)
            await self.rows.rewrapped({id: None if key in older else key for id, key in keys.items()})

    async def note(self, sink: LetterSink, ids: Sequence[UUID]) -> None:
        """What the sink says became of these. One without content is kept by another."""
        for begin in range(0, len(ids), COPIED_AT_ONCE):
            found = [one for one in await sink.letters(ids[begin : begin + COPIED_AT_ONCE]) if one.outcome != "open"]
            for is_elsewhere in (False, True):
                some = {one.id: one.outcome for one in found if (not one.content) is is_elsewhere}
                for outcome, resolved in _by_outcome(some).items():
                    await self.rows.resolve(resolved, outcome, is_elsewhere=is_elsewhere)

    # Replays.

    async def to_replay(self, version: int) -> list[ToReplay]:
        """The next letters that somebody wants to have replayed, and that a run of this version replays."""
        found, closed = await self.rows.to_replay(self.stream, REPLAYED_AT_ONCE, version)
        if closed:
            await self.rows.failed_again(closed)
        return found

    async def mapping(self, version: int) -> CompiledMapping:
        """That of another version."""
        return (await self.registry.get_datasource_config(self.datasource, version)).prepared.mapping

    async def failed_again(self, letters: Sequence[Again]) -> None:
        """These stay open."""
        await self.rows.failed_again(letters)

    async def are_done(self, ids: Sequence[UUID]) -> None:
        """Of these there is nothing to write any more, and the sink need not know them."""
        await self.rows.resolve(ids, "replayed")

    async def replayed(self, ids: Sequence[UUID], progress: Progress) -> None:
        """Letters that only the registry has were replayed."""
        await self.rows.save_replayed(self.node, self.stream, ids, self._checkpoint(progress))

    def _checkpoint(self, progress: Progress) -> Checkpoint:
        return Checkpoint(self.node, self.epoch, progress.commits, progress.position, progress.totals)


class Copier:
    """Copies letters of a sink into the registry, whenever there may be new ones, as long as a run lasts."""

    def __init__(self, desk: Desk, sink: LetterSink, *, is_due: bool) -> None:
        self._desk = desk
        self._sink = sink
        self._due = asyncio.Event()
        self._is_done = True
        if is_due:
            self._due.set()
        self._task: asyncio.Task[None] | None = asyncio.ensure_future(self._run())

    def due(self) -> None:
        """There may be something new."""
        self._due.set()

    async def end(self, *, copies: bool) -> None:
        """Copy what is left, without waiting long: nobody else does before the next run."""
        task, self._task = self._task, None  # A task that was cancelled refers to where it was: to this object.
        assert task is not None
        task.cancel()
        await asyncio.wait((task,))
        if copies and (self._due.is_set() or not self._is_done):
            await quietly(self._desk.copy(self._sink), LAST_COPY_S)

    async def _run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            self._is_done = False
            began_s = time.perf_counter()
            try:
                await self._desk.copy(self._sink)
                self._is_done = True
                await asyncio.sleep(max(COPY_S, REST * (time.perf_counter() - began_s)))
            except Exception as error:  # Whatever it is: letters that are not copied are seen by nobody.
                if not isinstance(error, StoreError | ConnectorError):
                    log.exception("letters could not be copied")
                self._due.set()
                await asyncio.sleep(RETRY_S)


async def persist(note: Callable[[], Awaitable[None]]) -> None:
    """Note something in the registry, however long that is away: the sink has it, and would get it twice."""
    while True:
        try:
            return await note()
        except StoreError:
            await asyncio.sleep(RETRY_S)


def _by_outcome(outcomes: Mapping[UUID, LetterOutcome]) -> dict[LetterOutcome, list[UUID]]:
    found: dict[LetterOutcome, list[UUID]] = {}
    for id, outcome in outcomes.items():
        found.setdefault(outcome, []).append(id)
    return found
