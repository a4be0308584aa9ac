"""Dead letters on their way between runs, sinks and the registry.

A sink that keeps letters commits them with the data; the registry has copies, brought in line by their ids whenever a
run opens and after each commit that made or resolved some (`Desk.copy`). So it does not matter which of the two was
away, or went back in time. For other sinks the registry's table is the only place, and letters are saved there in one
transaction with the checkpoint that passes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from headgate.connectors.api import Letter, LetterSink
from headgate.core.letters import Contents, Facts, LetterOutcome, key_hash
from headgate.core.mapping.document import Mapping as CompiledMapping
from headgate.core.streams import Checkpoint, Progress
from headgate.datasources.registry import Registry
from headgate.ids import new_id
from headgate.store.letters import Again, Letters, ToReplay, seal

COPIED_AT_ONCE = 200  # Letters with their payloads.
REPLAYED_AT_ONCE = 100


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

    def key_hash(self, values: Sequence[object] | None) -> bytes | None:
        """What tells a key from others."""
        return key_hash(values, self.installation)

    async def keep(self, letters: Sequence[Letter], progress: Progress) -> None:
        """Save letters with the position that passes them. Raises `Fenced` if the stream is not ours any more."""
        await self.rows.save(self.node, self.stream, letters, self._checkpoint(progress))

    async def copy(self, sink: LetterSink) -> None:
        """Bring sink and registry in line."""
        kept, known = await sink.outcomes(), await self.rows.known(self.stream)
        missing = [id for id in kept if id not in known]
        for begin in range(0, len(missing), COPIED_AT_ONCE):
            found = await sink.letters(missing[begin : begin + COPIED_AT_ONCE])
            await self.rows.copy(self.stream, [letter for letter in found if letter.content])
        for outcome, ids in _by_outcome({id: new for id, new in kept.items() if known.get(id, new) != new}).items():
            if outcome != "open":
                await self.rows.resolve(ids, outcome)
        closed = {id: ours for id, ours in known.items() if ours != "open" and kept.get(id) == "open"}
        for outcome, ids in _by_outcome(closed).items():
            await sink.resolve(ids, outcome)

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

    async def replayed(self, ids: Sequence[UUID], progress: Progress) -> None:
        """Letters that only the registry has were replayed."""
        await self.rows.save_replayed(self.node, self.stream, ids, self._checkpoint(progress))

    async def older(self, letters: Sequence[ToReplay]) -> list[UUID]:
        """Open letters of the same keys as these, and older."""
        return await self.rows.older(self.datasource, [one.id for one in letters if one.key is not None])

    def _checkpoint(self, progress: Progress) -> Checkpoint:
        return Checkpoint(self.node, self.epoch, progress.commits, progress.position, progress.totals)


def _by_outcome(outcomes: Mapping[UUID, LetterOutcome]) -> dict[LetterOutcome, list[UUID]]:
    found: dict[LetterOutcome, list[UUID]] = {}
    for id, outcome in outcomes.items():
        found.setdefault(outcome, []).append(id)
    return found
