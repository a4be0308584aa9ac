"""Dead letters in the registry: kept with their checkpoint, found, asked for, resolved, let go, never in the clear."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from headgate.core.letters import Contents, Facts, Letter, LetterOutcome
from headgate.core.records import Totals
from headgate.core.streams import Checkpoint
from headgate.errors import Fenced, NotFound, Refused
from headgate.ids import new_id
from headgate.store import letters as store
from headgate.store.letters import Again, Filter, Known, Letters, Numbers, pieces, seal
from headgate.store.secrets import Keyring, new_master_key
from tests.store.conftest import ME, Rows

KEYRING = Keyring.load(new_master_key(), None)
MARKER = "pearl-in-the-payload"
NOW_S = datetime.now(UTC).timestamp()


def facts(**more: Any) -> Facts:
    plain: dict[str, Any] = {
        "place": "line 7",
        "stage": "mapping",
        "field": "set.n",
        "reason": "cannot read text as an int",
        "cause": "bad_record",
        "version": 1,
        "at_s": NOW_S,
        "size_bytes": 0,
    }
    return Facts(**{**plain, **more})


def letter(
    payload: Any = MARKER,
    key: bytes | None = None,
    outcome: LetterOutcome = "open",
    keyring: Any = KEYRING,
    **more: Any,
) -> Letter:
    """A letter as a run makes it."""
    id = new_id()
    return Letter(id, seal(keyring, id, facts(**more), Contents(payload, {"id": 3}, None)), key, outcome)


class Desk:
    """A stream that a node runs, and its letters."""

    def __init__(self, rows: Rows, node: UUID, stream: UUID, datasource: UUID, epoch: int) -> None:
        self.rows = rows
        self.node = node
        self.stream = stream
        self.datasource = datasource
        self.epoch = epoch
        self.letters = Letters(rows.database, KEYRING)
        self.commits = 0

    @property
    def all(self) -> Filter:
        return Filter([self.datasource])

    async def save(self, *letters: Letter, epoch: int | None = None) -> None:
        """With a checkpoint."""
        self.commits += 1
        totals = Totals(self.commits, 0, 0, self.commits)
        epoch = self.epoch if epoch is None else epoch
        checkpoint = Checkpoint(self.node, epoch, self.commits, self.commits, totals)
        await self.letters.save(self.node, self.stream, letters, checkpoint)

    async def ask(self, which: Filter | None = None, **more: Any) -> int:
        given: dict[str, Any] = {"overwrite": False, "any_key": True, "actor": ME, "name": "orders", **more}
        return await self.letters.ask(which or self.all, given.pop("version", None), **given)

    async def outcome(self, id: UUID) -> str:
        return (await self.letters.find(str(id))).outcome

    async def sql(self, query: str, *args: Any) -> list[Any]:
        return await self.rows.database.fetch(query, *args)


@pytest.fixture
async def desk(rows: Rows) -> Desk:
    node, stream = await rows.node(), await rows.stream()
    return Desk(rows, node, stream, await rows.datasource(), await rows.acquire(node, stream))


async def test_letters_are_kept_with_the_position_that_passes_them(desk: Desk) -> None:
    one = letter()
    await desk.save(one)
    row = await desk.rows.row(desk.stream)
    assert (row.progress.commits, row.progress.position, row.progress.totals) == (1, 1, Totals(1, 0, 0, 1))
    kept, contents = await desk.letters.read(str(one.id))
    assert contents == Contents(MARKER, {"id": 3}, None)
    assert (kept.name, kept.stream_name, kept.place, kept.stage) == ("orders", "orders:0", "line 7", "mapping")
    assert (kept.field, kept.reason, kept.version, kept.attempts) == ("set.n", "cannot read text as an int", 1, 1)
    assert (kept.outcome, kept.is_asked, kept.has_key) == ("open", False, False)


async def test_a_fenced_run_keeps_neither_letter_nor_position(desk: Desk) -> None:
    with pytest.raises(Fenced):
        await desk.save(letter(), epoch=desk.epoch - 1)
    assert (await desk.rows.row(desk.stream)).progress.commits == 0
    assert await desk.letters.page(desk.all, None, 10) == []


async def test_the_record_is_not_in_the_table(desk: Desk) -> None:
    await desk.save(letter())
    await desk.letters.copy(desk.stream, [letter()])
    (row,) = await desk.sql(
        "SELECT string_agg(encode(payload, 'escape') || l::text, '') AS text FROM headgate.dead_letter l"
    )
    assert MARKER not in row["text"]
    assert MARKER.encode().hex() not in row["text"]


async def test_the_payload_of_another_letter_does_not_open(desk: Desk) -> None:
    one, other = letter(), letter("another")
    await desk.save(one, other)
    await desk.sql(
        "UPDATE headgate.dead_letter l SET payload = o.payload"
        " FROM headgate.dead_letter o WHERE l.id = $1 AND o.id = $2",
        one.id,
        other.id,
    )
    with pytest.raises(Refused, match="cannot be decrypted"):
        await desk.letters.read(str(one.id))
    await desk.ask()
    found, closed = await desk.letters.to_replay(desk.stream, 10)
    assert ([one.id for one in found], [one.id for one in closed]) == ([other.id], [one.id])


async def test_without_a_master_key_payloads_are_as_safe_as_the_database(desk: Desk) -> None:
    one = letter(keyring=None)
    await desk.save(one)
    _, contents = await Letters(desk.rows.database, None).read(str(one.id))
    assert contents == Contents(MARKER, {"id": 3}, None)
    assert await desk.letters.rotate() == (0, 0)


async def test_a_copy_is_made_once_and_stays_as_it_is(desk: Desk) -> None:
    one, gone = letter(), letter(outcome="superseded")
    await desk.letters.copy(desk.stream, [one, gone])
    await desk.letters.failed_again([Again(one.id, "sink", "total", "is too large", "bad_record", 2)])
    await desk.letters.copy(desk.stream, [one, gone])
    kept, contents = await desk.letters.read(str(one.id))
    assert (kept.stage, kept.field, kept.reason, kept.version, kept.attempts) == ("sink", "total", "is too large", 2, 2)
    assert contents is not None
    assert await desk.letters.known(desk.stream) == {one.id: Known("open"), gone.id: Known("superseded")}
    assert (await desk.letters.read(str(gone.id)))[1] is None


@pytest.mark.parametrize(
    ("before", "said", "after"),
    [
        ("open", "replayed", "replayed"),
        ("open", "discarded", "discarded"),
        ("discarded", "replayed", "replayed"),  # The sink's row is there, whatever we decided meanwhile.
        ("discarded", "superseded", "superseded"),
        ("expired", "replayed", "replayed"),
        ("discarded", "expired", "discarded"),
        ("replayed", "discarded", "replayed"),
    ],
)
async def test_what_the_sink_says_of_a_row_outranks_what_people_decided(
    desk: Desk, before: LetterOutcome, said: LetterOutcome, after: LetterOutcome
) -> None:
    one = letter()
    await desk.letters.copy(desk.stream, [one])
    if before != "open":
        await desk.letters.resolve([one.id], before)
    await desk.letters.resolve([one.id], said)
    assert await desk.outcome(one.id) == after
    assert (await desk.letters.read(str(one.id)))[1] is None


async def test_letters_without_a_known_key_are_asked_for_only_if_any_key_will_do(desk: Desk) -> None:
    keyless, keyed = letter(), letter(key=b"k")
    await desk.save(keyless, keyed)
    assert await desk.letters.count(desk.all) == (2, 1)
    assert await desk.ask(any_key=False) == 1
    assert [one.id for one in (await desk.letters.to_replay(desk.stream, 10))[0]] == [keyed.id]
    assert await desk.ask(any_key=False, overwrite=True) == 2
    assert len((await desk.letters.to_replay(desk.stream, 10))[0]) == 2


async def test_what_is_asked_for_is_found_by_the_node_that_runs_the_stream(desk: Desk) -> None:
    one, other = letter(at_s=NOW_S), letter(at_s=NOW_S - 60)
    await desk.save(one, other)
    assert await desk.letters.asked(desk.node) == set()
    assert await desk.ask(version=3) == 2
    assert await desk.letters.asked(desk.node) == {desk.stream}
    assert await desk.letters.asked(new_id()) == set()
    found, _ = await desk.letters.to_replay(desk.stream, 10)
    assert [(one.id, one.version) for one in found] == [(other.id, 3), (one.id, 3)]  # The oldest first.
    checkpoint = Checkpoint(desk.node, desk.epoch, 2, 2, Totals(2, 0, 0, 2))
    await desk.letters.save_replayed(desk.node, desk.stream, [one.id], checkpoint)
    await desk.letters.failed_again([Again(other.id, "sink", None, "no", "bad_record", 1)])
    assert await desk.letters.asked(desk.node) == set()
    assert await desk.letters.numbers(desk.datasource) == Numbers(open=1, replayed=1)
    (told,) = await desk.sql("SELECT * FROM headgate.datasource_events WHERE type = 'letters_replay_asked'")
    assert (told["actor"], msgspec.json.decode(told["payload"])) == (
        ME,
        {"letters": 2, "overwrite": False, "version": 3},
    )


async def test_a_run_of_an_older_version_leaves_letters_to_the_published_one(desk: Desk) -> None:
    await desk.save(letter())
    await desk.ask()
    assert await desk.rows.publish() == 2
    for version, found in ((1, 0), (2, 1), (3, 1)):
        assert len((await desk.letters.to_replay(desk.stream, 10, version))[0]) == found
    await desk.sql("UPDATE headgate.datasource_version SET status = 'rejected' WHERE number = 2")
    assert len((await desk.letters.to_replay(desk.stream, 10, 1))[0]) == 1


async def test_many_letters_are_asked_for_and_discarded_in_pieces(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PIECE", 3)
    await desk.save(*(letter() for _ in range(7)))
    assert await desk.ask() == 7
    assert (await desk.letters.numbers(desk.datasource)).waiting == 7
    assert await desk.letters.discard(desk.all, ME, "orders") == 7
    assert await desk.letters.numbers(desk.datasource) == Numbers(discarded=7)
    told = await desk.sql("SELECT payload FROM headgate.datasource_events WHERE type = 'letters_discarded' ORDER BY id")
    assert [msgspec.json.decode(row["payload"])["letters"] for row in told] == [3, 3, 1]


async def test_a_filter_is_about_one_datasource_and_what_fits_all_of_it(desk: Desk) -> None:
    other = await desk.rows.stream("other")
    sink = letter(stage="sink", field=None, reason='breaks the constraint "a_check"', version=2)
    old = letter(at_s=NOW_S - 3600)
    await desk.save(letter(), sink, old)
    await desk.letters.copy(other, [letter()])
    recent = datetime.now(UTC) - timedelta(minutes=30)
    for which, letters in (
        (Filter(), 4),
        (desk.all, 3),
        (Filter([desk.datasource], stage="sink"), 1),
        (Filter([desk.datasource], reason="A_CHECK"), 1),
        (Filter([desk.datasource], reason="%"), 0),
        (Filter([desk.datasource], version=2), 1),
        (Filter([desk.datasource], field="set.n"), 2),
        (Filter([desk.datasource], since=recent), 2),
        (Filter([desk.datasource], until=recent), 1),
        (Filter([desk.datasource], ids=[sink.id]), 1),
        (Filter([await desk.rows.datasource("other")], ids=[sink.id]), 0),
    ):
        assert len(await desk.letters.page(which, "open", 10)) == letters, which
        if which.datasources:
            assert (await desk.letters.count(which))[0] == letters, which
    assert await desk.letters.discard(Filter([desk.datasource], stage="sink"), ME) == 1
    assert await desk.outcome(sink.id) == "discarded"
    assert (await desk.letters.numbers(desk.datasource)).open == 2


async def test_pages_follow_each_other_though_many_letters_are_of_one_moment(desk: Desk) -> None:
    await desk.save(*(letter() for _ in range(7)))
    seen, after = [], None
    while page := await desk.letters.page(desk.all, "open", 3, after):
        seen += [one.id for one in page]
        after = page[-1].last_at, page[-1].id
    assert len(seen) == len(set(seen)) == 7


async def test_a_letter_is_found_by_the_beginning_of_its_id(desk: Desk) -> None:
    one = letter()
    twins = [Letter(UUID(f"{n}" * 8 + "0" * 23 + last), letter().content) for n in "a" for last in "12"]
    await desk.save(one, *twins)
    for id in (str(one.id), str(one.id)[:8], str(one.id).upper()[:13], one.id.hex[:20]):
        assert (await desk.letters.find(id)).id == one.id
    with pytest.raises(Refused, match="ambiguous"):
        await desk.letters.find("aaaaaaaa")
    for id in ("", str(one.id)[:5], "zzzzzzzz", "a" * 33, "-" * 8, "%" * 8, str(new_id())):
        with pytest.raises(NotFound):
            await desk.letters.find(id)


# Edits.


async def test_an_edit_replaces_the_record_and_nothing_of_it_stays(desk: Desk) -> None:
    one = letter(key=b"k")
    await desk.save(one)
    kept = await desk.letters.find(str(one.id))
    await desk.letters.edit(kept, Contents({"n": 1}, {"id": 3}, None, 2), ME, is_same_key=True)
    after, contents = await desk.letters.read(str(one.id))
    assert (contents, after.has_key) == (Contents({"n": 1}, {"id": 3}, None, 2), True)
    (told,) = await desk.sql("SELECT * FROM headgate.datasource_events WHERE type = 'letter_edited'")
    assert (told["actor"], msgspec.json.decode(told["payload"])) == (ME, {"letter": str(one.id)})
    await desk.letters.edit(kept, Contents({"n": 1}, None, None), ME, is_same_key=False)
    assert not (await desk.letters.find(str(one.id))).has_key


async def test_an_edit_is_refused_once_a_run_may_have_read_the_letter(desk: Desk) -> None:
    one = letter()
    await desk.save(one)
    kept = await desk.letters.find(str(one.id))
    await desk.ask()
    with pytest.raises(Refused, match="about to be replayed"):
        await desk.letters.edit(kept, Contents(1, None, None), ME, is_same_key=False)
    await desk.letters.resolve([one.id], "replayed")
    with pytest.raises(Refused, match="not open"):
        await desk.letters.edit(kept, Contents(1, None, None), ME, is_same_key=False)


# Numbers and time.


async def test_letters_expire_in_the_time_that_their_document_says(desk: Desk) -> None:
    old, older = letter(at_s=NOW_S - 2 * 86400), letter(at_s=NOW_S - 40 * 86400)
    asked = letter(at_s=NOW_S - 50 * 86400)
    await desk.save(letter(), old, older, asked)
    await desk.ask(Filter([desk.datasource], ids=[asked.id]))
    assert await desk.letters.clean() is False
    assert [await desk.outcome(one.id) for one in (old, older, asked)] == ["open", "expired", "open"]
    assert (await desk.letters.read(str(older.id)))[1] is None
    await desk.sql("""UPDATE headgate.datasource_version SET options = '{"dead_letters": {"keep": "1d"}}'""")
    await desk.letters.clean()
    assert await desk.outcome(old.id) == "expired"
    assert await desk.letters.numbers(desk.datasource) == Numbers(open=2, expired=2, waiting=1)


async def test_rows_go_and_their_numbers_stay(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "AT_ONCE", 2)
    letters = [letter() for _ in range(5)]
    await desk.save(*letters)
    await desk.letters.resolve([one.id for one in letters[:3]], "replayed")
    await desk.letters.resolve([letters[3].id], "discarded")
    before = await desk.letters.numbers(desk.datasource)
    await desk.sql("UPDATE headgate.dead_letter SET outcome_at = now() - interval '31 days' WHERE outcome <> 'open'")
    assert await desk.letters.clean() is True
    while await desk.letters.clean():
        pass
    assert [one.id for one in await desk.letters.page(desk.all, None, 10)] == [letters[4].id]
    assert await desk.letters.numbers(desk.datasource) == before == Numbers(open=1, replayed=3, discarded=1)


async def test_a_row_stays_until_the_sink_was_told_what_became_of_its_letter(desk: Desk) -> None:
    """A stream may be stopped for months. Its sink still has the letter then, and it is open there."""
    letters = [letter() for _ in range(3)]
    await desk.letters.copy(desk.stream, letters)
    await desk.letters.discard(Filter([desk.datasource], ids=[one.id for one in letters[:2]]), ME)
    await desk.letters.resolve([letters[2].id], "superseded")
    await desk.letters.tell([letters[0].id])
    await desk.sql("UPDATE headgate.dead_letter SET outcome_at = now() - interval '31 days'")
    await desk.letters.clean()
    assert set(await desk.letters.known(desk.stream)) == {one.id for one in letters[:2]}  # The sink still names both.
    await desk.sql("UPDATE headgate.dead_letter SET told_at = told_at - interval '31 days'")
    await desk.letters.clean()
    assert await desk.letters.known(desk.stream) == {letters[1].id: Known("discarded")}
    assert await desk.letters.numbers(desk.datasource) == Numbers(discarded=2, superseded=1)
    await desk.sql("UPDATE headgate.dead_letter SET outcome_at = now() - interval '400 days'")
    await desk.letters.clean()
    assert await desk.letters.known(desk.stream) == {}


async def test_what_was_skipped_counts_as_discarded(desk: Desk) -> None:
    await desk.sql("UPDATE headgate.stream SET records_dead_lettered = 3, records_skipped = 3")
    assert await desk.letters.numbers(desk.datasource) == Numbers(discarded=3)


async def test_a_deleted_datasource_takes_its_letters_along(desk: Desk) -> None:
    one = letter()
    await desk.save(one)
    async with desk.rows.datasources.change(ME) as change:
        await change.delete(desk.datasource)
    with pytest.raises(NotFound):
        await desk.letters.find(str(one.id))
    assert await desk.letters.page(Filter(), None, 10) == []
    await desk.sql("UPDATE headgate.stream SET owner = NULL")
    await desk.rows.datasources.purge()
    assert (await desk.sql("SELECT count(*) FROM headgate.dead_letter"))[0]["count"] == 0


# Keys.


async def test_rotation_wraps_every_record_with_the_first_key(desk: Desk) -> None:
    one, plain = letter(), letter(keyring=None)
    await desk.save(one, plain)
    new = new_master_key()
    both = Keyring([*_raw(new), *KEYRING._keys.values()])  # type: ignore[union-attr]
    assert await Letters(desk.rows.database, both).rotate() == (1, 0)
    assert await Letters(desk.rows.database, both).rotate() == (0, 0)
    _, contents = await Letters(desk.rows.database, Keyring(_raw(new))).read(str(one.id))
    assert contents == Contents(MARKER, {"id": 3}, None)
    assert await desk.letters.rotate() == (0, 1)  # It has only the old key.


async def test_a_rotation_never_brings_back_what_was_edited_meanwhile(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = letter()
    await desk.save(one)
    kept = await desk.letters.find(str(one.id))
    both = Keyring([*_raw(new_master_key()), *KEYRING._keys.values()])  # type: ignore[union-attr]
    rotating = Letters(desk.rows.database, both)
    real, fetch = desk.rows.database.fetch, None

    async def edited_after_reading(query: str, *args: object) -> Any:
        nonlocal fetch
        rows = await real(query, *args)
        if rows and fetch is None:
            fetch = query
            await desk.letters.edit(kept, Contents("edited", None, None), ME, is_same_key=False)
        return rows

    monkeypatch.setattr(desk.rows.database, "fetch", edited_after_reading)
    assert (await rotating.rotate())[0] == 0
    _, contents = await rotating.read(str(one.id))
    assert contents == Contents("edited", None, None)


def _raw(text: str) -> list[bytes]:
    loaded = Keyring.load(text, None)
    assert loaded is not None
    return list(loaded._keys.values())


# Streams that have to be run for it.


async def test_a_stream_whose_source_has_ended_is_granted_again_for_a_replay(desk: Desk) -> None:
    await desk.save(letter())
    key = await desk.rows.wanted_key()
    await desk.sql("UPDATE headgate.stream SET owner = NULL, run = NULL, rests = $1", key)
    assert await desk.rows.placement.grant([]) == {}
    await desk.ask()
    assert await desk.rows.placement.grant([]) == {desk.stream: desk.node}


async def test_a_pushed_stream_is_stray_while_no_program_pushes_it(desk: Desk) -> None:
    await desk.rows.stream("clicks", source="push")
    datasource = await desk.rows.datasource("clicks")
    stream = (await desk.rows.streams.label([(datasource, "host-7")]))[datasource, "host-7"]
    await desk.letters.copy(stream, [letter()])
    assert await desk.letters.strays() == []
    await desk.ask(Filter([datasource]))
    (stray,) = await desk.letters.strays()
    assert (stray.stream, stray.datasource, stray.label) == (stream, datasource, "host-7")
    (waiting,) = await desk.letters.waiting(datasource)
    assert (waiting.name, waiting.letters, waiting.is_pushed, waiting.is_used) == ("clicks:host-7", 1, True, True)
    await desk.rows.acquire(desk.node, stream)
    assert await desk.letters.strays() == []
    assert (await desk.letters.waiting(datasource))[0].is_owned


async def test_records_are_read_in_pieces_that_fit_into_memory(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "READ_BYTES", 5000)
    monkeypatch.setattr(store, "READ_AT_ONCE", 3)
    await desk.save(letter("x" * 9000), *(letter("x" * 2000) for _ in range(3)), *(letter("x") for _ in range(7)))
    page = await desk.letters.page(desk.all, "open", 100)
    cut = list(pieces(page))
    assert [one for some in cut for one in some] == page
    assert all(len(some) <= 3 and (len(some) == 1 or sum(one.size_bytes for one in some) <= 5000) for some in cut)
    assert list(pieces([])) == []
