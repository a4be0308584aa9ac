"""Writes to a JetStream stream: each batch of messages with its position, as one atomic batch of the server.

The position of a stream is a message, too, on a subject of its own in the same JetStream stream. It has the epoch and
the progress. Every write names the sequence of the position message that it follows; the server compares that when it
commits, and a batch that follows another one changes nothing. `open` puts a message with its own epoch there in the
same way. From then on no older run can commit.

**Parts.** The server takes 1,000 messages at once, and a batch may have more. Then it goes in parts, each atomic. The
position message of a part that is not the last leaves the position as it was, and says which messages are *ahead* of
it, by their hashes. If a run ends between two parts, the source reads again from the position. Messages whose hashes
are ahead, in their order, are recognised and not written again, however the batch is cut this time.

**Forgetting** leaves a last word on the subject instead of nothing. A run that looked before it was forgotten names a
sequence that is over; one that looks afterwards has no trust left, because a stream is forgotten only once its node has
none, and raises nothing.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from headgate.connectors.api import Context, Grant, Outgoing, Progress
from headgate.connectors.nats.options import FIELD, NatsSinkOptions
from headgate.connectors.nats.publishing import MOST_AT_ONCE, Letterbox, Post, Stale
from headgate.connectors.nats.session import Answer, Session, matches, stream_info
from headgate.connectors.payloads import encoded
from headgate.connectors.progress import Values, progress_of, values_of
from headgate.errors import Bad, BadRecords, Cause, ConnectorError, Fenced, NotConnected

PART = MOST_AT_ONCE - 1  # Messages in one atomic batch, besides the position.
HASH_BYTES = 8
NO_MESSAGE = 10037
HEADERS_BYTES = 4096  # That a message may have besides its body.
OPEN_TRIES = 5
PURGE_EVERY = 1000  # Commits after which older positions are removed, where they are not replaced.
KEPT_S = 24 * 3600  # The last word of a forgotten stream, where the stream allows that words end.

_TOKEN = re.compile(r"[^\s.*>{}\x00-\x1f\x7f\ud800-\udfff]+")


class Kept(msgspec.Struct, omit_defaults=True):
    """What a position message says."""

    epoch: int = 0
    progress: Values | None = None
    ahead: list[str] = []  # Hashes of messages that were written and that the position does not cover.
    forgotten: bool = False


@dataclass(slots=True)
class _Held:
    """What this run holds: the position message that the next one follows."""

    grant: Grant
    subject: bytes
    sequence: int
    kept: Kept
    commits: int = 0  # Since it was opened.


class NatsSink:
    """Writes one stream into one JetStream stream."""

    def __init__(self, options: NatsSinkOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._session = Session(options.url, options.credentials, context.guard)
        self._post = Letterbox(self._session)
        self._positions = options.positions or f"headgate.position.{options.stream}"
        self._config: dict[str, Any] = {}
        self._held: _Held | None = None
        self._grant: Grant | None = None

    async def check(self) -> None:
        """The stream is there, takes the subject, and can do what is promised."""
        stream = self._options.stream
        info = await stream_info(self._session, stream)
        self._config = info["config"]
        example = FIELD.sub("x", self._options.subject)
        if not self._takes(example):
            subjects = ", ".join(self._config.get("subjects") or []) or "none: it mirrors another one"
            raise ConnectorError(
                f"stream {stream} does not take {self._options.subject}; its subjects are {subjects}",
                cause=Cause.CONFIG,
                hint="name a subject of the stream, or add this one to it",
            )
        if self._options.exactly_once:
            self._check_atomic()

    def _check_atomic(self) -> None:
        stream = self._options.stream
        otherwise = "or say exactly_once: false, for at least once"
        if not self._config.get("allow_atomic"):
            raise ConnectorError(
                f"stream {stream} takes no atomic batches",
                cause=Cause.CONFIG,
                hint=f"nats stream edit {stream} --allow-batch, with a server from 2.12 on; {otherwise}",
            )
        if not self._takes(f"{self._positions}.>"):
            raise ConnectorError(
                f"stream {stream} does not take {self._positions}.>, where positions are kept",
                cause=Cause.CONFIG,
                hint=f"add that subject to the stream, or name another one with positions; {otherwise}",
            )

    def _takes(self, subject: str) -> bool:
        return any(matches(subject.split("."), one.split(".")) for one in self._config.get("subjects") or [])

    async def open(self, grant: Grant) -> Progress | None:
        """Fence every older run; return where the data stand."""
        await self.check()
        self._grant = grant
        if not self._options.exactly_once:
            return None
        subject = self._subject_of(grant.installation, grant.stream)
        for _ in range(OPEN_TRIES):
            sequence, kept = await self._look(subject)
            if grant.trust_left_s() <= 0:  # After the look: see above.
                raise NotConnected("our trust ended before the sink was open")
            if kept.epoch >= grant.epoch:
                raise Fenced(f"epoch {grant.epoch} is fenced by epoch {kept.epoch}")
            raised = Kept(grant.epoch, kept.progress, kept.ahead)
            try:
                sequence = await self._post.send(self._position(subject, raised, sequence))
            except Stale:
                continue  # A write of the run before was on its way.
            self._held = _Held(grant, subject, sequence, raised)
            await self._purge(subject)
            return progress_of(raised.progress, grant)
        raise NotConnected("others write this stream's position all the time")

    async def write(self, batch: Outgoing) -> None:
        """Messages and position, at once or in parts."""
        messages = self._messages(batch)
        held = self._held
        if held is None:
            assert self._grant is not None, "the sink is open"
            place = f"{self._grant.stream}:{batch.progress.generation}:{batch.progress.commits}"
            await self._post.send_each(messages, [f"{place}:{i}:{_hash(one)}" for i, one in enumerate(messages)])
            return
        kept, epoch = held.kept, held.grant.epoch
        hashes = [_hash(message) for message in messages] if kept.ahead or len(messages) > PART else []
        known, left, is_replay = 0, kept.ahead, _is_replay(kept, batch.progress)
        if not is_replay:
            known = _known(hashes, kept.ahead) if _is_same_generation(kept, batch.progress) else 0
            left = kept.ahead[known:] if known == len(messages) else []
        while len(messages) - known > PART:
            part = messages[known : known + PART]
            known += PART
            ahead = kept.ahead if is_replay else hashes[:known]
            await self._commit(held, part, Kept(epoch, kept.progress, ahead))
        await self._commit(held, messages[known:], Kept(epoch, values_of(batch.progress), left))

    async def forget(self, installation: UUID, streams: Sequence[UUID]) -> None:
        """Leave a last word on the positions of streams that are gone. It need not be open."""
        if not self._options.exactly_once:
            return
        await self.check()
        for stream in streams:
            subject = self._subject_of(installation, stream)
            for _ in range(OPEN_TRIES):
                sequence, kept = await self._look(subject)
                if not sequence or kept.forgotten:
                    break
                with suppress(Stale):
                    await self._post.send(self._position(subject, Kept(forgotten=True), sequence))
                    await self._purge(subject)
                    break

    async def close(self) -> None:
        """End the connection."""
        await self._session.close()

    # Messages.

    def _messages(self, batch: Outgoing) -> list[Post]:
        """One for each record. `BadRecords` names those that the server would not take."""
        bodies = encoded(batch.records, self._options.format)
        most = int(self._session.info.get("max_payload", 2**20)) - HEADERS_BYTES
        if 0 < (limit := self._config.get("max_msg_size") or -1) < most:
            most = limit - HEADERS_BYTES
        subject = self._options.subject
        fields = FIELD.findall(subject)
        bad, posts = [], []
        for index, (record, body) in enumerate(zip(batch.records, bodies, strict=True)):
            if len(body) > most:
                bad.append(Bad(index, None, f"it has {len(body):,} bytes, and at most {most:,} are taken"))
                continue
            try:
                named = subject
                for name in fields:
                    named = named.replace(f"{{{name}}}", _token(record, name))
            except ValueError as error:
                bad.append(Bad(index, None, str(error)))
                continue
            posts.append(Post(named.encode(), b"", body))
        if bad:
            raise BadRecords(bad)
        return posts

    async def _commit(self, held: _Held, messages: Sequence[Post], kept: Kept) -> None:
        position = self._position(held.subject, kept, held.sequence)
        try:
            held.sequence = await self._post.send_at_once([*messages, position])
        except Stale:
            raise await self._overtaken(held) from None
        held.kept = kept
        held.commits += 1
        if held.commits % PURGE_EVERY == 0:
            await self._purge(held.subject)

    async def _overtaken(self, held: _Held) -> ConnectorError:
        sequence, kept = await self._look(held.subject)
        if not sequence:
            return NotConnected("the position was removed by the limits of its stream: it is written again")
        by = "it was forgotten" if kept.forgotten else f"epoch {kept.epoch} has the stream"
        return Fenced(f"epoch {held.grant.epoch} is fenced: {by}")

    # Positions.

    def _subject_of(self, installation: UUID, stream: UUID) -> bytes:
        return f"{self._positions}.{installation}.{stream}".encode()

    def _position(self, subject: bytes, kept: Kept, after: int) -> Post:
        headers = [f"Nats-Expected-Last-Subject-Sequence: {after}"]
        if self._config.get("allow_rollup_hdrs"):
            headers.append("Nats-Rollup: sub")
        if kept.forgotten and self._config.get("allow_msg_ttl"):
            headers.append(f"Nats-TTL: {KEPT_S}s")
        return Post(subject, "\r\n".join([*headers, ""]).encode(), msgspec.json.encode(kept))

    async def _look(self, subject: bytes) -> tuple[int, Kept]:
        """The last position message, from the stream's leader: its sequence and what it says. 0: there is none."""
        question = f"STREAM.MSG.GET.{self._options.stream}"
        try:
            answer = await self._session.ask(question, {"last_by_subj": subject.decode()})
        except Answer as error:
            if error.number == NO_MESSAGE:
                return 0, Kept()
            raise
        message = answer["message"]
        return int(message["seq"]), msgspec.json.decode(base64.b64decode(message.get("data", "")), type=Kept)

    async def _purge(self, subject: bytes) -> None:
        """Remove older position messages. Where one may not, they stay until the stream's limits remove them."""
        if self._config.get("allow_rollup_hdrs") or self._config.get("deny_purge"):
            return
        with suppress(Answer):
            await self._session.ask(f"STREAM.PURGE.{self._options.stream}", {"filter": subject.decode(), "keep": 1})


def _is_replay(kept: Kept, progress: Progress) -> bool:
    """Letters that are replayed leave the position where it is."""
    return kept.progress is not None and kept.progress[2] == progress.position


def _is_same_generation(kept: Kept, progress: Progress) -> bool:
    """Whether the source continues where it was. A position that somebody has set has another generation."""
    return kept.progress is None or kept.progress[0] == progress.generation


def _known(hashes: Sequence[str], ahead: Sequence[str]) -> int:
    """How many of the first messages are there already."""
    for number, (one, other) in enumerate(zip(hashes, ahead, strict=False)):
        if one != other:
            return number
    return min(len(hashes), len(ahead))


def _hash(post: Post) -> str:
    return hashlib.blake2b(post.subject + b" " + post.body, digest_size=HASH_BYTES).hexdigest()


def _token(record: dict[str, Any], name: str) -> str:
    """The value of a field as one part of a subject."""
    value = record.get(name)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if value is None or not _TOKEN.fullmatch(text):
        raise ValueError(f"{name} is no part of a subject: it is empty, or has a dot, a space, * or >")
    return text
