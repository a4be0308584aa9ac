"""The acceptance suite for sinks that keep dead letters next to the data.

Derive a class from `LetterSinkContract` and say what `TransactionalSinkContract` asks for; and, if the sink keeps one
row for each key, that it does:

    class TestShelfLetters(LetterSinkContract):
        by_key = True

        def make_sink(self): return ShelfSink(options, make_context())

        def make_refused_record(self, id): return {"id": id, "text": None}

        async def read_back(self): ...

A letter's content, its remains and its key are bytes to the sink: it gives them back, and reads nothing in them.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, cast, get_args
from uuid import UUID, uuid5

import pytest

from headgate.connectors.api import KeyKind, Letter, LetterOutcome, LetterSink, Outgoing, Progress
from headgate.errors import BadRecords, BatchRefused, Fenced
from headgate.testing.contract.patience import soon
from headgate.testing.contract.streaming import CANCEL_AFTER, TransactionalSinkContract
from headgate.testing.factories import INSTALLATION, make_grant

REFUSALS = (BadRecords, BatchRefused)


def make_letter(name: str, id: int | None = None, outcome: LetterOutcome = "open") -> Letter:
    """A letter, and the key of the record with this `id`. The same name makes the same letter."""
    key = None if id is None else _key({"id": id})
    return Letter(uuid5(INSTALLATION, name), f"record of {name}".encode(), key, outcome, b"remains")


def _key(record: Mapping[str, Any]) -> bytes | None:
    return None if record.get("id") is None else f"key {record['id']}".encode()


def _id(name: str) -> UUID:
    return make_letter(name).id


class LetterSinkContract(TransactionalSinkContract):
    """What every sink does that keeps dead letters."""

    by_key = False  # Whether it keeps one row for each key, so that a later record replaces an earlier one.
    deletes = False  # Whether it takes deletions.

    @abstractmethod
    def make_refused_record(self, id: int) -> dict[str, Any]:
        """A record with this `id` that the sink refuses."""

    def make_refused_records(self) -> list[dict[str, Any]]:
        return [*self.make_records(50, 2), self.make_refused_record(52)]

    # Kept.

    async def test_letters_are_kept_with_the_batch_or_not_at_all(self) -> None:
        async with self._letter_sink() as sink:
            with pytest.raises(REFUSALS):
                await self._send(sink, self.make_refused_records(), letters=[make_letter("a")])
            assert await soon(sink.outcomes()) == {}
            letters = [make_letter("a", 7), make_letter("b"), make_letter("c", outcome="superseded")]
            await self._send(sink, self.make_records(0, 3), letters=letters)
            assert await soon(sink.outcomes()) == {_id("a"): "open", _id("b"): "open", _id("c"): "superseded"}
        await self._has(3)

    async def test_a_letter_is_given_back_as_it_was_until_it_is_not_open_any_more(self) -> None:
        async with self._letter_sink() as sink:
            await self._send(sink, letters=[make_letter("a", 7), make_letter("b"), make_letter("c")])
            await soon(sink.resolve([_id("b"), _id("unknown")], "discarded"))
        async with self._letter_sink(epoch=2) as sink:
            found = await self._letters(sink, "a", "b", "unknown")
            assert found == {_id("a"): make_letter("a", 7), _id("b"): replace(make_letter("b"), **_closed("discarded"))}

    async def test_the_first_outcome_stays(self) -> None:
        async with self._letter_sink() as sink:
            await self._send(sink, letters=[make_letter("a")])
            await soon(sink.resolve([_id("a")], "expired"))
            await soon(sink.resolve([_id("a")], "discarded"))
            assert await soon(sink.outcomes()) == {_id("a"): "expired"}

    async def test_a_letter_that_is_kept_twice_stays_as_it_is(self) -> None:
        async with self._letter_sink() as sink:
            await self._send(sink, letters=[make_letter("a")])
            await soon(sink.resolve([_id("a")], "discarded"))
            await self._send(sink, commits=2, letters=[make_letter("a")])
            assert await soon(sink.outcomes()) == {_id("a"): "discarded"}

    async def test_each_stream_has_its_own_letters_and_each_datasource_too(self) -> None:
        async with AsyncExitStack() as all_:
            names = ("one:0", "one:1", "two:0")
            sinks = [await all_.enter_async_context(self._letter_sink(name)) for name in names]
            for name, sink in zip(names, sinks, strict=True):
                await self._send(sink, letters=[make_letter(name)])
            await soon(sinks[2].resolve([_id("one:0")], "discarded"))
            for name, sink in zip(names, sinks, strict=True):
                assert await soon(sink.outcomes()) == {_id(name): "open"}
            assert set(await self._letters(sinks[0], *names)) == {_id("one:0"), _id("one:1")}

    async def test_a_run_with_a_stale_epoch_changes_no_letter(self) -> None:
        async with self._letter_sink(epoch=1) as old:
            await self._send(old, letters=[make_letter("a")])
            async with self._letter_sink(epoch=2) as new:
                with pytest.raises(Fenced):
                    await self._send(old, commits=2, letters=[make_letter("b")])
                with pytest.raises(Fenced):
                    await soon(old.resolve([_id("a")], "discarded"))
                with pytest.raises(Fenced):
                    await soon(old.rewrite([replace(make_letter("a"), content=b"other")]))
                assert await self._letters(new, "a", "b") == {_id("a"): make_letter("a")}

    async def test_a_cancelled_write_has_kept_its_letters_if_it_has_moved_the_position(self) -> None:
        for number, turns in enumerate(CANCEL_AFTER, 1):
            name = f"after {turns}"
            async with self._letter_sink(epoch=3 * number) as sink:
                writing = asyncio.ensure_future(sink.write(_outgoing((), commits=number, letters=[make_letter(name)])))
                for _ in range(turns):
                    await asyncio.sleep(0)
                writing.cancel()
                with suppress(asyncio.CancelledError):
                    await writing
            found = await self._progress(3 * number + 1)
            async with self._letter_sink(epoch=3 * number + 2) as sink:
                is_kept = _id(name) in await soon(sink.outcomes())
            assert is_kept == (found is not None and found.commits == number)

    async def test_another_content_takes_the_place_of_that_of_open_letters(self) -> None:
        async with self._letter_sink() as sink:
            await self._send(sink, letters=[make_letter("a", 7), make_letter("b")])
            await soon(sink.resolve([_id("b")], "discarded"))
            names = ("a", "b", "unknown")
            await soon(sink.rewrite([replace(make_letter(name), content=b"other") for name in names]))
            found = await self._letters(sink, *names)
            assert found[_id("a")] == replace(make_letter("a", 7), content=b"other")
            assert found[_id("b")].content == b"remains"
            assert len(found) == 2

    # Replayed.

    async def test_a_replay_and_its_outcome_commit_together_and_once(self) -> None:
        async with self._letter_sink() as sink:
            await self._send(sink, letters=[make_letter("a"), make_letter("b"), make_letter("c")])
            await soon(sink.resolve([_id("b")], "discarded"))
            zero, one, two, three = self.make_records(0, 4)
            replays = [_id("a"), _id("b"), _id("c"), _id("c")]
            for commits in (2, 3):  # The second time as after a crash, before anybody was told.
                await self._send(sink, [zero, three, one, two], commits=commits, replays=replays)
                await self._has(3)
            assert await soon(sink.outcomes()) == {_id("a"): "replayed", _id("b"): "discarded", _id("c"): "replayed"}
        assert await self._progress(2) == Progress(commits=3, position=3)

    async def test_a_letter_with_a_record_that_is_refused_stays_open_with_all_its_records(self) -> None:
        async with self._letter_sink() as sink:
            await self._send(sink, letters=[make_letter("a")])
            refused = [*self.make_records(0, 1), self.make_refused_record(1)]
            with pytest.raises(REFUSALS):
                await self._send(sink, refused, commits=2, replays=[_id("a")] * 2)
            assert await soon(sink.outcomes()) == {_id("a"): "open"}
        await self._has(0)

    async def test_a_letter_that_was_kept_elsewhere_is_replayed_once_too(self) -> None:
        async with self._letter_sink() as sink:
            strange = replace(make_letter("a"), content=b"")
            for commits in (1, 2):
                await self._send(sink, self.make_records(0, 1), commits=commits, letters=[strange], replays=[_id("a")])
            assert await soon(sink.outcomes()) == {_id("a"): "replayed"}
        await self._has(1)

    # Superseded.

    async def test_a_later_write_of_its_key_supersedes_a_letter(self) -> None:
        self._needs_keys()
        async with (
            self._letter_sink("one:0") as sink,
            self._letter_sink("one:1") as other,
            self._letter_sink("two:0") as two,
        ):
            await self._send(sink, letters=[make_letter("a", 0), make_letter("b", 9), make_letter("c")])
            await self._send(two, letters=[make_letter("theirs", 0)])
            with pytest.raises(REFUSALS):
                await self._send(other, [*self.make_records(0, 1), self.make_refused_record(1)])
            assert set((await soon(sink.outcomes())).values()) == {"open"}
            await self._send(other, self.make_records(0, 3))
            assert await soon(sink.outcomes()) == {_id("a"): "superseded", _id("b"): "open", _id("c"): "open"}
            assert await soon(two.outcomes()) == {_id("theirs"): "open"}
            await self._send(other, self.make_records(0, 3), commits=2, supersedes=None)
            assert await soon(two.outcomes()) == {_id("theirs"): "open"}

    async def test_a_superseded_letter_is_not_replayed_over_the_newer_row(self) -> None:
        self._needs_keys()
        async with self._letter_sink() as sink:
            await self._send(sink, letters=[make_letter("a", 0)])
            await self._send(sink, self.make_records(0, 1), commits=2)
            (older,) = self.make_records(0, 1)
            await self._send(sink, [{**older, "text": "older"}], commits=3, replays=[_id("a")])
            assert await soon(sink.outcomes()) == {_id("a"): "superseded"}
        await self._has(1)

    async def test_a_replay_supersedes_older_letters_of_its_key_and_no_newer_ones(self) -> None:
        self._needs_keys()
        async with self._letter_sink() as sink:
            await self._send(sink, commits=1, letters=[make_letter("old", 0), make_letter("mid", 0)])
            await self._send(sink, commits=2, letters=[make_letter("new", 0)])
            await self._send(sink, self.make_records(0, 1), commits=3, replays=[_id("mid")])
            outcomes = await soon(sink.outcomes())
            assert outcomes == {_id("old"): "superseded", _id("mid"): "replayed", _id("new"): "open"}

    async def test_a_deletion_supersedes_too(self) -> None:
        self._needs_keys()
        if not self.deletes:
            pytest.skip("this sink takes no deletions")
        async with self._letter_sink() as sink:
            await self._send(sink, self.make_records(0, 1), letters=[make_letter("a", 0)])
            await self._send(sink, [{"id": 0}], commits=2, deletes=[0])
            assert await soon(sink.outcomes()) == {_id("a"): "superseded"}
        await self._has(0)

    async def test_says_what_it_keeps_keys_in_or_nothing(self) -> None:
        async with self._letter_sink() as sink:
            await self._send(sink, self.make_records(0, 1))
            kinds = await soon(sink.key_kinds(("id", "text")))
            assert len(kinds) in (0, 2)
            assert set(kinds) <= set(get_args(KeyKind))
            assert list(await soon(sink.key_kinds(("no such field",)))) in ([], ["other"])

    # Rehearsed.

    async def test_a_rehearsal_says_what_a_write_would_say_and_leaves_nothing(self) -> None:
        async with self._letter_sink(epoch=3) as running:
            await self._send(running, self.make_records(0, 2), letters=[make_letter("a", 2)])
            for is_open in (True, False):
                sink = cast("LetterSink", self.make_sink())
                try:
                    if is_open:
                        await soon(sink.open(make_grant("another", epoch=1)))
                    await soon(sink.rehearse(_outgoing(self.make_records(2, 3))))
                    with pytest.raises(REFUSALS):
                        await soon(sink.rehearse(_outgoing(self.make_refused_records())))
                finally:
                    await soon(sink.close())
            await self._has(2)
            assert await soon(running.outcomes()) == {_id("a"): "open"}
            await self._send(running, self.make_records(2, 1), commits=2)  # Nobody has fenced it.
        await self._has(3)

    # How.

    @asynccontextmanager
    async def _letter_sink(self, name: str = "test", epoch: int = 1) -> AsyncIterator[LetterSink]:
        sink = cast("LetterSink", self.make_sink())
        try:
            await soon(sink.open(make_grant(name, epoch=epoch)))
            yield sink
        finally:
            await soon(sink.close())

    async def _send(self, sink: LetterSink, records: Sequence[dict[str, Any]] = (), **more: Any) -> None:
        if not self.by_key:
            more = {"supersedes": None, **more}
        await soon(sink.write(_outgoing(records, **more)))

    async def _letters(self, sink: LetterSink, *names: str) -> dict[UUID, Letter]:
        return {letter.id: letter for letter in await soon(sink.letters([_id(name) for name in names]))}

    def _needs_keys(self) -> None:
        if not self.by_key:
            pytest.skip("this sink does not keep one row for each key")


def _outgoing(records: Sequence[dict[str, Any]], commits: int = 1, **more: Any) -> Outgoing:
    options = {"key": ("id",), "supersedes": _key, **more}
    return Outgoing(list(records), Progress(commits=commits, position=commits), **options)


def _closed(outcome: LetterOutcome) -> dict[str, Any]:
    return {"outcome": outcome, "content": b"remains"}
