"""Dead letters: what could not be handled, its record, and what is to become of it.

A letter's record is data, so all of it needs the role operator; a token with bounds sees and touches the letters of the
datasources that it names. Lists have the facts only. An export is a stream: a piece of it is read when the last one has
been taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import get, post, put
from litestar.di import Provide
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Parameter
from litestar.response import Stream
from msgspec import UNSET

from headgate.core.access import may
from headgate.core.letters import Contents, LetterOutcome, plain, text_of
from headgate.core.records import Stage, Unreadable
from headgate.datasources import letters as boxes
from headgate.errors import ConfigError, Problem
from headgate.ids import as_id
from headgate.runtime.harness.letters import Rehearsal, rehearse
from headgate.runtime.node import Node
from headgate.store.letters import Filter, Heap, Kept, pieces
from headgate.web import subjects
from headgate.web.api import views
from headgate.web.api.harness import RUNS_TESTS
from headgate.web.auth import Needs, Req
from headgate.web.bodies import letters as bodies
from headgate.web.bodies.problems import ProblemDetails
from headgate.web.problems import MEDIA_TYPE
from headgate.web.queries import in_query, moment

OF_DATASOURCE = [Needs("operate", subjects.datasource)]
OF_LETTER = [Needs("operate", subjects.letter)]

PATH = "/api/dead-letters/{id:str}"
ALL = "/api/datasources/{name:str}/dead-letters"
JSONL = "text/jsonl"  # Which generated clients read.
PAGE = 1000  # Letters of an export whose facts are read together.
KEYLESS = "their keys are not known, so they may be older than the rows that they would overwrite; `overwrite` does so"
NOT_OPEN = "they are not open, or not of this datasource"
UNKNOWN = {
    404: ResponseSpec(
        ProblemDetails, description="A datasource does not exist.", media_type=MEDIA_TYPE, generate_examples=False
    )
}
LINES = {
    200: ResponseSpec(
        str, description="A letter with its record on each line.", media_type=JSONL, generate_examples=False
    )
}

Text = Annotated[str | None, Parameter(max_length=bodies.MOST_TEXT)]
Number = Annotated[int | None, Parameter(ge=1, le=2**31 - 1)]


def filter_of(
    stage: Stage | None = None,
    field: Text = None,
    reason: Text = None,
    version: Number = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Filter:
    """Which letters a query asks for."""
    with in_query():
        return checked(Filter(None, stage, field, reason, version, moment("since", since), moment("until", until)))


BY_QUERY = {"which": Provide(filter_of, sync_to_thread=False)}


@get(
    "/api/dead-letters",
    guards=[Needs("operate_listed")],
    dependencies=BY_QUERY,
    tags=["dead letters"],
    summary="Records that could not be handled, and why",
    responses=UNKNOWN,
)
async def list_letters(
    node: Node,
    request: Req,
    which: Filter,
    datasource: list[str] | None = None,
    outcome: bodies.Outcomes = "open",
    limit: Annotated[int, Parameter(ge=1, le=PAGE)] = 100,
    after: str | None = None,
) -> bodies.LetterList:
    """The latest first; of all datasources, or of those that are named. `reason` is a part of it, `since` and `until`
    are about the last try, `after` is that of the answer before. The records are not in it."""
    which = replace(which, datasources=await seen(node, request, datasource or []))
    wanted: LetterOutcome | None = None if outcome == "all" else outcome
    with in_query():
        cursor = cursor_of(after)
    found = await node.letters.page(which, wanted, limit + 1, cursor)
    next_ = cursor_text(found[limit - 1]) if len(found) > limit else None
    return bodies.LetterList(items=[letter(one) for one in found[:limit]], after=next_)


@get(
    "/api/dead-letters/summary",
    guards=[Needs("operate_listed")],
    dependencies=BY_QUERY,
    tags=["dead letters"],
    summary="Open letters by what is wrong with them",
    responses=UNKNOWN,
)
async def letter_heaps(
    node: Node,
    request: Req,
    which: Filter,
    datasource: list[str] | None = None,
    limit: Annotated[int, Parameter(ge=1, le=PAGE)] = 100,
) -> bodies.LetterHeaps:
    """How many of each datasource, stage, field, reason and version; the largest heaps first."""
    which = replace(which, datasources=await seen(node, request, datasource or []))
    found = await node.letters.heaps(which, limit + 1)
    items = [bodies.LetterHeap(**heap_fields(one)) for one in found[:limit]]
    return bodies.LetterHeaps(items=items, more=len(found) > limit)


@get(PATH, guards=OF_LETTER, tags=["dead letters"], summary="One letter, with its record")
async def show_letter(node: Node, id: str) -> bodies.LetterDetails:
    """By its id, or by the first characters of it."""
    return details(*await node.letters.read(id))


@put(PATH, guards=OF_LETTER, tags=["dead letters"], summary="Edit the record of a letter")
async def edit_letter(node: Node, request: Req, id: str, data: bodies.EditLetter) -> bodies.LetterDetails:
    """`payload` takes the place of what was read. Refused unless the letter is open and nobody wants it replayed."""
    await node.letter_box.edit(id, data.payload, request.user.name)
    return details(*await node.letters.read(id))


@get(ALL, guards=OF_DATASOURCE, tags=["dead letters"], summary="What became of the dead letters of a datasource")
async def letter_numbers(node: Node, name: str) -> bodies.LetterState:
    """Also how many wait for their replay, and why."""
    found = await node.registry.get(name)
    counted = await node.letters.numbers(found.id)
    waits = await node.letter_box.why_waiting(found) if counted.waiting else None
    shown = msgspec.structs.asdict(views.letter_numbers(counted))
    return bodies.LetterState(**shown, datasource=found.name, waits=waits)


@post(
    f"{ALL}/replay",
    guards=OF_DATASOURCE,
    status_code=200,
    tags=["dead letters"],
    summary="Replay dead letters",
    opt=RUNS_TESTS,
)
async def replay_letters(node: Node, request: Req, name: str, data: bodies.Replay | None = None) -> bodies.Replaying:
    """The stream's own run does it, between two batches; without a filter it replays all open ones. In a sink that has
    one row for each key, letters whose key is not known are left alone without `overwrite`. `dry_run` only says what
    would become of them."""
    found, body = await node.registry.get(name), data or bodies.Replay()
    version = None if body.with_version is UNSET else body.with_version
    wish = boxes.Replay(_which(body), version, body.overwrite)
    done = await node.letter_box.replay(found, wish, request.user.name, is_dry=body.dry_run)
    if not body.dry_run:
        return replaying(found.name, done)
    rehearsal = await rehearse(
        node.harness,
        node.letters,
        found.name,
        replace(wish.which, datasources=[found.id]),
        version or await node.letter_box.present(found),
        any_key=not done.keyless,
        is_admin=may(request.user, "administer"),
    )
    return replaying(found.name, done, rehearsal)


@post(f"{ALL}/discard", guards=OF_DATASOURCE, status_code=200, tags=["dead letters"], summary="Discard dead letters")
async def discard_letters(node: Node, request: Req, name: str, data: bodies.Discard) -> bodies.Discarded:
    """Their records are gone at once. Without a filter only with `all`."""
    found, which = await node.registry.get(name), _which(data)
    done = await node.letter_box.discard(found, which, request.user.name, everything=data.all)
    return bodies.Discarded(datasource=found.name, letters=done)


@get(
    f"{ALL}/export",
    guards=OF_DATASOURCE,
    dependencies=BY_QUERY,
    tags=["dead letters"],
    summary="Dead letters with their records, as JSON Lines",
    responses=LINES,
)
async def export_letters(node: Node, name: str, which: Filter, outcome: bodies.Outcomes = "open") -> Stream:
    """The latest first. Those that are not open any more have no record."""
    found = await node.registry.get(name)
    wanted: LetterOutcome | None = None if outcome == "all" else outcome
    lines = _lines(node, replace(which, datasources=[found.id]), wanted)
    return Stream(lines, media_type=JSONL)


# What is asked for.


async def seen(node: Node, request: Req, names: list[str]) -> list[UUID] | None:
    """The datasources that are named, or that the caller sees; None: all."""
    if names:
        subjects.check_each(request, "operate", names)
        return [(await node.registry.get(name)).id for name in names]
    if request.user.bounds is None:
        return None
    return [one.id for one in await node.registry.datasources.all() if subjects.sees(request.user, one.name)]


def _which(body: bodies.Which) -> Filter:
    given: dict[str, Any] = {name: value for name in _NARROW if (value := getattr(body, name)) is not UNSET}
    for path in ("since", "until"):
        given[path] = moment(path, given.get(path))
    return checked(Filter(**given))


_NARROW = ("ids", "stage", "field", "reason", "version", "since", "until")


def checked(which: Filter) -> Filter:
    """These texts can be looked for."""
    texts = {"field": which.field, "reason": which.reason}
    problems = [Problem(path, "must have no zero byte") for path, text in texts.items() if "\0" in (text or "")]
    if problems:
        raise ConfigError(problems)
    return which


def cursor_of(text: str | None) -> tuple[datetime, UUID] | None:
    """Where the page before has ended."""
    if text is None:
        return None
    at, _, id = text.partition("_")
    try:
        when, found = moment("after", datetime.fromisoformat(at)), as_id(id)
    except ValueError:
        found = None
    if found is None or when is None:
        raise ConfigError([Problem("after", "must be the `after` of an answer")])
    return when, found


def cursor_text(last: Kept) -> str:
    """Where a page ends, for the one that follows."""
    return f"{last.last_at.astimezone(UTC).isoformat().replace('+00:00', 'Z')}_{last.id}"


# What is answered.


def letter(found: Kept) -> bodies.Letter:
    """A letter without its record."""
    return bodies.Letter(**_facts(found))


def heap_fields(found: Heap) -> dict[str, Any]:
    """What a heap of letters has in common."""
    same = {name: getattr(found, name) for name in Heap.__slots__ if name != "name"}
    return {**same, "datasource": found.name}


def details(found: Kept, contents: Contents | None) -> bodies.LetterDetails:
    """A letter with its record."""
    return bodies.LetterDetails(**_facts(found), **_record(contents))


def replaying(name: str, done: boxes.Asked, rehearsal: Rehearsal | None = None) -> bodies.Replaying:
    """What comes of a wish."""
    left = [(done.keyless, KEYLESS), (done.not_open, NOT_OPEN)]
    return bodies.Replaying(
        datasource=name,
        letters=done.letters,
        left_alone=[bodies.LeftAlone(letters=number, reason=reason) for number, reason in left if number],
        waits=done.waits,
        before=views.letter_numbers(done.before),
        dry_run=None if rehearsal is None else _dry_run(rehearsal),
    )


def _dry_run(found: Rehearsal) -> bodies.DryRun:
    counts = Counter(one.result.outcome for one in found.tried)
    return bodies.DryRun(
        version=found.version,
        is_rehearsed=found.is_rehearsed,
        is_cut=found.is_cut,
        written=counts["written"],
        filtered=counts["filtered"],
        dead_lettered=counts["dead_lettered"],
        letters=[
            bodies.TriedLetter(
                id=one.letter.id,
                place=one.letter.place,
                outcome=one.result.outcome,
                stage=one.result.stage,
                field=one.result.field,
                reason=one.result.reason,
            )
            for one in found.tried
        ],
        trouble=found.trouble,
    )


_SAME = [name for name in Kept.__slots__ if name not in ("datasource", "name", "stream", "stream_name", "is_asked")]


def _facts(found: Kept) -> dict[str, Any]:
    same = {name: getattr(found, name) for name in _SAME}
    return {**same, "datasource": found.name, "stream": found.stream_name, "is_waiting": found.is_asked}


def _record(contents: Contents | None) -> Mapping[str, Any]:
    if contents is None:
        return {"is_kept": False}
    shown: dict[str, Any] = {"is_kept": True, "meta": _plain(contents.meta), "mapped": _plain(contents.mapped)}
    payload = contents.payload
    if isinstance(payload, Unreadable):
        return {**shown, "base64": plain(payload.body), "text": text_of(payload.body)}
    return {**shown, "payload": _plain(payload)}


def _plain(value: Any) -> Any:
    try:
        return plain(value)
    except RecursionError:
        return "nested too deeply to be shown"


async def _lines(node: Node, which: Filter, outcome: LetterOutcome | None) -> AsyncIterator[bytes]:
    after: tuple[datetime, UUID] | None = None
    while page := await node.letters.page(which, outcome, PAGE, after):
        for some in pieces(page):
            records = await node.letters.contents(some)
            yield b"".join(msgspec.json.encode(details(one, records.get(one.id))) + b"\n" for one in some)
        after = page[-1].last_at, page[-1].id


ROUTES = [
    list_letters,
    letter_heaps,
    show_letter,
    edit_letter,
    letter_numbers,
    replay_letters,
    discard_letters,
    export_letters,
]
