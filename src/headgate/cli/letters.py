"""What the commands about dead letters share: which letters are meant, how they look, and how a replay is followed."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.cli import documents
from headgate.cli.call import Call, checked, datasource
from headgate.cli.client import Reply
from headgate.cli.output import ago, complain, one_line, pairs, table, to_json, visible
from headgate.errors import ConfigError, NotFound, Refused
from headgate.text import counted, parse_duration, size

if TYPE_CHECKING:
    from headgate.web.bodies.letters import Letter, LetterDetails, LetterList, LetterNumbers, LetterState, Replaying

LOOK_S = 0.3
SHORT = 8  # Characters of an id in a list.
_ID = frozenset("0123456789abcdef-")

OneId = Annotated[str, typer.Argument(metavar="ID", help="The letter, by its id or the beginning of it.")]


# Which.


def path_of(id: str) -> str:
    """The path of a letter. What cannot be an id cannot lead to another path either."""
    if not 6 <= len(id) <= 36 or not set(id.lower()) <= _ID:
        raise NotFound(f"dead letter {id!r} does not exist", hint="headgate dlq list; six characters of its id will do")
    return f"/api/dead-letters/{id.lower()}"


def moment(option: str, text: str | None) -> str | None:
    """`2h` ago, or a time as it is written, in ISO."""
    if text is None:
        return None
    try:
        at = datetime.now(UTC) - timedelta(seconds=parse_duration(text))
    except (ValueError, OverflowError):
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise typer.BadParameter(f"{option} must be a time such as 2h, 30m or 2026-07-01T12:00:00Z") from None
        at = at.astimezone(UTC)  # Without a zone it is the reader's own.
    return at.isoformat()


def chosen(
    call: Call,
    name: str | None,
    ids: list[str] | None,
    stage: str | None,
    field: str | None,
    reason: str | None,
    version: int | None,
    since: str | None,
    until: str | None,
) -> tuple[str, dict[str, Any]]:
    """The datasource, and what says which of its letters are meant. Ids may be short, and say whose they are."""
    from headgate.web.bodies.letters import LetterDetails

    if name is None and not ids:
        raise typer.BadParameter("give a NAME, or letters with --id")
    if name is not None:
        checked(name, "datasource", "headgate ds list")
    found = [call.node.get(path_of(id), LetterDetails).value for id in ids or []]
    owners = {one.datasource for one in found} | ({name} if name else set())
    if len(owners) > 1:
        raise Refused(f"these letters are of several datasources: {', '.join(sorted(owners))}", code="several")
    given = {
        "ids": [str(one.id) for one in found] or None,
        "stage": stage,
        "field": field,
        "reason": reason,
        "version": version,
        "since": moment("--since", since),
        "until": moment("--until", until),
    }
    return owners.pop(), {key: value for key, value in given.items() if value is not None}


# Editing.


def edit_payload(call: Call, found: LetterDetails, file: str | None) -> Reply[LetterDetails] | None:
    """Another payload, from a file or an editor; None: it is the same. What somebody wrote is never lost."""
    from headgate.web.bodies.letters import LetterDetails

    if not found.is_kept:
        raise Refused(f"letter {str(found.id)[:SHORT]} is {found.outcome}: its record is gone", code="not_open")
    path = path_of(str(found.id))
    if file is not None:
        return call.node.put(path, LetterDetails, {"payload": _json(documents.read_text(file), file)})
    before = to_json(found.payload) if found.base64 is None else (found.text or "")
    text, kept = documents.edit(before, f"letter-{str(found.id)[:SHORT]}", suffix=".json")
    if text.strip() == before.strip():
        kept.unlink()
        return None
    try:
        written = call.node.put(path, LetterDetails, {"payload": _json(text, str(kept))})
    except BaseException:
        complain(f"headgate: the letter was not edited; your text is in {kept}")
        raise
    kept.unlink()
    return written


def _json(text: str, file: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON: {one_line(error)}") from None


# Following a replay.


def follow(call: Call, done: Replaying) -> Reply[LetterState]:
    """Until all have been tried, or something stands in the way; with a line about it where somebody looks."""
    from headgate.web.bodies.letters import LetterState

    shows, shown = sys.stderr.isatty() and not call.as_json, ""
    while True:
        found = call.node.get(datasource(done.datasource, "dead-letters"), LetterState)
        tried = _became(done, found.value)
        line = f"{tried.replayed:,} replayed, {tried.failed:,} failed again, {tried.left:,} left"
        if shows and line != shown:
            shown = line
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()
        if not tried.left or found.value.waits is not None:
            if shows:
                sys.stderr.write("\r\x1b[K")
            return found
        time.sleep(LOOK_S)


class _Tried:
    """What has become of the letters of a replay. Others may ask for replays too, so it is no more than it can be."""

    def __init__(self, asked: int, before: LetterNumbers, now: LetterState) -> None:
        resolved = now.replayed + now.superseded - before.replayed - before.superseded
        self.superseded = min(asked, max(0, now.superseded - before.superseded))
        self.replayed = min(asked, max(0, resolved)) - self.superseded
        self.left = min(asked - self.replayed - self.superseded, now.waiting)
        self.failed = asked - self.replayed - self.superseded - self.left


def _became(done: Replaying, now: LetterState) -> _Tried:
    return _Tried(done.letters, done.before, now)


def told(done: Replaying, now: LetterState | None = None) -> str:
    """What came of a wish, in one sentence and a line for what was left alone."""
    letters = counted(done.letters, "letter")
    if now is not None:
        tried = _became(done, now)
        parts = [f"{tried.replayed:,} replayed"]
        parts += [f"{tried.superseded:,} superseded"] if tried.superseded else []
        parts += [f"{tried.failed:,} failed again (headgate dlq list {done.datasource})"] if tried.failed else []
        parts += [f"{tried.left:,} left: {now.waits}"] if tried.left else []
        text = f"{letters} of {done.datasource}: {', '.join(parts)}"
    elif not done.letters:
        text = f"no letters of {done.datasource} to replay"
    elif done.waits is not None:
        text = f"{letters} to replay, but not now: {done.waits}"
    else:
        text = f"{letters} of {done.datasource} will be replayed"
    return "\n".join([text, *(f"{one.letters:,} left alone: {one.reason}" for one in done.left_alone)])


# How it looks.


def rehearsed(done: Replaying) -> str:
    """What would become of letters."""
    found = done.dry_run
    assert found is not None
    rows = [
        (str(one.id)[:SHORT], one.outcome.replace("_", "-"), one.stage, one.place, one.field, one.reason)
        for one in found.letters
    ]
    counts = f"{found.written:,} would be written, {found.filtered:,} filtered, {found.dead_lettered:,} fail again"
    lines = [f"version {found.version} of {done.datasource}: {counts}"]
    lines += ["the sink was not asked: it cannot take back what it has written"] if not found.is_rehearsed else []
    lines += ["there are more letters than can be tried at once"] if found.is_cut else []
    lines += [f"it did not end: {found.trouble}"] if found.trouble else []
    lines += [f"{one.letters:,} left alone: {one.reason}" for one in done.left_alone]
    heads = ("LETTER", "OUTCOME", "STAGE", "PLACE", "FIELD", "REASON")
    return "\n".join([table(heads, rows, empty="no letters to try", wrap=True), "", *map(one_line, lines)])


def table_of(found: LetterList, outcome: str, names: list[str]) -> str:
    """A line for each letter."""
    rows = [
        (str(one.id)[:SHORT], ago(one.last_at), one.stream, _outcome(one), one.stage, one.place, one.field, one.reason)
        for one in found.items
    ]
    heads = ("LETTER", "LAST TRY", "STREAM", "OUTCOME", "STAGE", "PLACE", "FIELD", "REASON")
    whose = f" of {', '.join(names)}" if names else ""
    text = table(heads, rows, empty=f"no {outcome} letters{whose}".replace("no all letters", "no letters"), wrap=True)
    return f"{text}\n… and more (--limit, --since or --json)" if found.after else text


def _outcome(one: Letter) -> str:
    return "to be replayed" if one.is_waiting else one.outcome


def page(one: LetterDetails) -> str:
    """Everything about a letter."""
    facts = pairs(
        [
            ("letter", str(one.id)),
            ("stream", one.stream),
            ("place", one.place),
            ("outcome", _outcome(one)),
            ("by", one.actor),
            ("stage", one.stage),
            ("field", one.field),
            ("reason", one.reason),
            ("version", one.version),
            ("attempts", one.attempts),
            ("first try", ago(one.first_at)),
            ("last try", ago(one.last_at)),
            ("key", None if one.has_key else "not known"),
            ("size", size(one.size_bytes)),
        ]
    )
    return "\n\n".join([facts, *_record(one)])


def _record(one: LetterDetails) -> list[str]:
    if not one.is_kept:
        return ["its record is gone"]
    if one.base64 is not None:
        body = one.text if one.text is not None else one.base64
        parts = [f"payload, which could not be read{'' if one.text is not None else ', in base64'}:\n{body}"]
    else:
        parts = [f"payload:\n{to_json(one.payload)}"]
    parts += [f"meta:\n{to_json(one.meta)}"] if one.meta is not None else []
    parts += [f"mapped:\n{to_json(one.mapped)}"] if one.mapped is not None else []
    return [visible(part) for part in parts]
