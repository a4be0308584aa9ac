"""Publishing to JetStream: one message, many at once or not at all, or each by itself.

All messages of a batch go out together, and only the last one is answered: the server keeps those with the id of a
batch aside until it comes. A batch of which something is missing, or that fails its conditions, leaves nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from headgate.connectors.nats.session import ANSWER_S, NO_RESPONDERS, Answer, Session
from headgate.connectors.nats.wire import Message, Wire, status_of
from headgate.errors import NotConnected, RetryLater

MOST_AT_ONCE = 1000  # Messages that a server takes in one batch, if nobody has changed that.
FULL_S = 5.0
_STALE = {10071, 10164}  # Another sequence is the last.
_FULL = {10023, 10047, 10077, 10122, 10210, 10211}  # No room, or too many batches at once.
_GONE = {10176}  # The batch was given up.


class Stale(Exception):
    """The batch does not follow the message that it should follow."""


class Post(NamedTuple):
    """A message to publish."""

    subject: bytes
    headers: bytes  # Lines with their ends.
    body: bytes


class Letterbox:
    """Publishes over a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def send(self, post: Post) -> int:
        """Publish one message. Returns its sequence."""
        (answer,) = await self._sent([(post, True)])
        return answer

    async def send_at_once(self, posts: Sequence[Post]) -> int:
        """Publish all or nothing. Returns the sequence of the last one."""
        if len(posts) == 1:
            return await self.send(posts[0])
        batch, last = secrets.token_hex(12), len(posts)
        named = [
            (
                Post(
                    post.subject,
                    b"%bNats-Batch-Id: %b\r\nNats-Batch-Sequence: %d\r\n%b"
                    % (post.headers, batch.encode(), number, b"Nats-Batch-Commit: 1\r\n" if number == last else b""),
                    post.body,
                ),
                number == last,
            )
            for number, post in enumerate(posts, 1)
        ]
        (answer,) = await self._sent(named)
        return answer

    async def send_each(self, posts: Sequence[Post], ids: Sequence[str]) -> None:
        """Publish each by itself, with an id by which the server recognises it."""
        if posts:
            await self._sent(
                [
                    (Post(post.subject, b"%bNats-Msg-Id: %b\r\n" % (post.headers, id.encode()), post.body), True)
                    for post, id in zip(posts, ids, strict=True)
                ]
            )

    async def _sent(self, posts: Sequence[tuple[Post, bool]]) -> list[int]:
        """Send them, and wait for the answers to those that want one. The first that is refused is raised."""
        answers: list[Message] = []
        wanted = sum(is_answered for _, is_answered in posts)
        async with self._session.waiting() as (wire, waiting):
            inbox = self._session.new_inbox()

            def come(message: Message) -> None:
                answers.append(message)
                if not waiting.done() and (len(answers) >= wanted or _is_refusal(message)):
                    waiting.set_result(None)

            wire.listen(inbox, come)
            try:
                _send(wire, inbox, posts)
                async with asyncio.timeout(ANSWER_S + len(posts) / 1000):
                    await waiting
            finally:
                wire.forget(inbox)
        return [self._sequence(answer) for answer in answers]

    def _sequence(self, message: Message) -> int:
        if status_of(message.headers)[0] == NO_RESPONDERS:
            raise NotConnected(f"{self._session.name}: no stream answers for this subject")
        answer: dict[str, Any] = msgspec.json.decode(message.body)
        if "error" not in answer:
            return int(answer["seq"])
        refused = Answer(self._session.name, answer["error"])
        if refused.number in _STALE:
            raise Stale
        if refused.number in _FULL:
            raise RetryLater(str(refused), after_s=FULL_S)
        if refused.number in _GONE or refused.status == NO_RESPONDERS:
            raise NotConnected(str(refused))
        raise refused


def _is_refusal(message: Message) -> bool:
    return bool(message.headers) or b'"error"' in message.body


def _send(wire: Wire, inbox: bytes, posts: Sequence[tuple[Post, bool]]) -> None:
    parts: list[bytes] = []
    for (subject, lines, body), is_answered in posts:
        headers = b"NATS/1.0\r\n%b\r\n" % lines
        reply = b" " + inbox if is_answered else b""
        head = b"HPUB %b%b %d %d\r\n" % (subject, reply, len(headers), len(headers) + len(body))
        parts += [head, headers, body, b"\r\n"]
    wire.send_all(parts)
