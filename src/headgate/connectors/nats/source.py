"""Reads a JetStream stream by sequence, through a consumer that is made for the run and forgotten with it.

The position is the sequence of the last message handled. A consumer starts after it, acknowledges nothing and holds
nothing: if it is lost, as after a restart of the server, another one starts after what was read.

Messages are asked for in *pulls*, each bounded in number and bytes, and wait here until `read` returns them. A pull may
outlive the call that made it, so a read that is cancelled loses nothing, and a stream that is slow needs no new
question for each message. How many more there are stands in each message: after the last one a batch is complete.

Messages can be removed before they are read, because a stream has limits. Then its first sequence is beyond the one
after the position. Holes between messages that are there are somebody's deletions, or the filter's, and are no loss.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from headgate.connectors.api import Backlog, Batch, Context, Position
from headgate.connectors.nats.options import NatsSourceOptions
from headgate.connectors.nats.session import ANSWER_S, NO_RESPONDERS, Session, stream_info
from headgate.connectors.nats.wire import Message, Wire, parsed, status_of
from headgate.connectors.payloads import decoded
from headgate.errors import Cause, ConnectorError, NotConnected
from headgate.text import counted

PULL_S = 5.0  # A pull is answered within this time, if only with the word that nothing came.
IDLE_NS = 60 * 10**9  # After this time without a pull the server removes the consumer.
REMOVE_S = 1.0  # How long the end of a run waits for the end of its consumer.
OVERHEAD_BYTES = 64 * 1024  # Of a message besides its body, where the limit of a pull is concerned.
_ENDS = ("Batch Completed", "MaxBytes")  # How the server tells that a pull has had its share.


class _Pull:
    """Messages that were asked for together."""

    __slots__ = ("error", "has_ended", "inbox", "left", "number")

    def __init__(self, inbox: bytes, number: int) -> None:
        self.inbox = inbox
        self.number = self.left = number
        self.has_ended = False
        self.error: tuple[int, str] | None = None


class _Delivered:
    """What the reply subject of a message says: its place, its time, and how many follow."""

    __slots__ = ("number", "pending", "sequence", "time_ns")

    def __init__(self, reply: bytes) -> None:
        words = reply.split(b".")
        at = 5 if len(words) == 9 else 7  # Newer ones have a domain and an account in front.
        self.sequence, self.number = int(words[at]), int(words[at + 1])
        self.time_ns, self.pending = int(words[at + 2]), int(words[at + 3])


class NatsSource:
    """Reads one stream."""

    def __init__(self, options: NatsSourceOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._session = Session(options.url, options.credentials, context.guard)
        self._last = 0  # The sequence of the last message that `read` has returned.
        self._consumer = ""
        self._numbered = 0  # The consumer's own number of the last message that came,
        self._passed = 0  # and its sequence.
        self._waiting: deque[tuple[_Delivered, Message]] = deque()
        self._pull: _Pull | None = None
        self._pulls = itertools.count()
        self._wire: Wire | None = None  # That the consumer sends to,
        self._inbox = self._subscription = b""  # and where.
        self._has_giant = False  # The next message is larger than a pull.
        self._bell: asyncio.Future[Any] | None = None

    async def check(self) -> None:
        """The stream is there, and can be read by many."""
        await self._info()

    async def parts(self) -> Sequence[str]:
        """One."""
        return [""]

    async def open(self, position: Position) -> None:
        """Continue after this message."""
        if position is not None and (type(position) is not int or position < 0):
            raise ConnectorError("the position is not the sequence of a message", cause=Cause.CONFIG)
        self._last = position or 0
        await self._consume()

    async def read(self) -> Batch:
        """Wait for messages."""
        options = self._options
        while not self._is_batch():
            await self._receive()
        most, size_bytes = options.batch_bytes, 0
        found: list[tuple[_Delivered, Message]] = []
        for one in self._waiting:
            if len(found) >= options.batch or (found and size_bytes >= most):
                break
            found.append(one)
            size_bytes += len(one[1].body)
        records = await decoded([message.body for _, message in found], options.format, options.max_message_bytes)
        if self._last and not options.subjects and found[0][0].sequence > self._last + 1:
            self._judge((await self._info())["state"], found[0][0].sequence)
        for _ in found:
            self._waiting.popleft()
        last = found[-1][0]
        self._last = last.sequence
        stream = options.stream
        return Batch(
            records,
            position=last.sequence,
            size_bytes=size_bytes,
            event_time_s=last.time_ns / 1e9,
            meta=[_meta(stream, *one) for one in found],
            place=lambda index: f"stream {stream}, message {found[index][0].sequence}",
        )

    async def backlog(self) -> Backlog | None:
        """What the consumer has not sent, and what waits here."""
        if not self._consumer:
            return None
        info = await self._session.ask(f"CONSUMER.INFO.{self._options.stream}.{self._consumer}")
        return Backlog(info["num_pending"] + len(self._waiting))

    async def ack(self, position: Position) -> None:
        """Nobody needs to know: messages stay as long as the stream's limits say."""

    async def close(self) -> None:
        """Remove the consumer, if that is quick, and end the connection."""
        consumer = self._consumer
        self._forget()
        try:
            if consumer and self._session.is_connected:
                async with asyncio.timeout(REMOVE_S):
                    await self._session.ask(f"CONSUMER.DELETE.{self._options.stream}.{consumer}")
        except (ConnectorError, TimeoutError):
            return  # The server removes it when nobody has asked it for a while.
        finally:
            await self._session.close()

    # Messages.

    def _is_batch(self) -> bool:
        """Whether what waits is worth returning: enough, or all that there is."""
        if not self._waiting:
            return False
        pull = self._pull
        return (
            len(self._waiting) >= self._options.batch
            or self._waiting[-1][0].pending == 0
            or pull is None
            or pull.has_ended
        )

    async def _receive(self) -> None:
        """Until there is more, or the pull has ended."""
        async with self._session.waiting() as (wire, bell):
            if self._wire is not wire or self._pull is None or self._pull.has_ended:
                await self._ask(wire)
                if self._wire is not wire or self._waiting:
                    return
            self._bell = bell
            try:
                async with asyncio.timeout(PULL_S + ANSWER_S):
                    await bell
            finally:
                self._bell = None

    async def _ask(self, wire: Wire) -> None:
        """Begin a pull, on a consumer that is there."""
        if self._wire is not wire:
            self._forget()
        elif self._pull is not None and self._pull.error is not None:
            status, text = self._pull.error
            self._forget()
            if status not in (NO_RESPONDERS, 409):
                raise NotConnected(f"{self._session.name}: {text} ({status})")
        if self._wire is None:
            await self._consume()
        options, largest = self._options, int(self._session.info.get("max_payload", 2**20)) + OVERHEAD_BYTES
        wanted = {"batch": options.batch, "max_bytes": max(options.batch_bytes, largest), "expires": int(PULL_S * 1e9)}
        if self._has_giant:  # It alone, then. It was stored when the server took larger ones.
            self._has_giant = False
            wanted = {"batch": 1, "expires": wanted["expires"]}
        pull = self._pull = _Pull(b"%b.%d" % (self._inbox, next(self._pulls)), wanted["batch"])
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{options.stream}.{self._consumer}".encode()
        body = msgspec.json.encode(wanted)
        assert self._wire is not None
        self._wire.send(b"PUB %b %b %d\r\n%b\r\n" % (subject, pull.inbox, len(body), body))

    def _come(self, message: Message) -> None:
        """A message, or the word that there are no more. Called by the connection."""
        pull = self._pull
        if pull is None:
            return
        if not message.reply.startswith(b"$JS.ACK."):
            status, text = status_of(message.headers)
            if status == 100 or message.subject != pull.inbox or pull.has_ended:
                return
            pull.has_ended = True
            self._has_giant = "MaxBytes" in text and pull.left == pull.number
            if status not in (404, 408) and not any(end in text for end in _ENDS):
                pull.error = (status, text)
        else:
            found = _Delivered(message.reply)
            if found.number != self._numbered + 1:  # Something was lost on the way: start over behind what came.
                pull.has_ended, pull.error = True, (NO_RESPONDERS, "a message was lost on the way")
            else:
                self._numbered, self._passed = found.number, found.sequence
                self._waiting.append((found, message))
                pull.left -= 1
                pull.has_ended = pull.left <= 0
                if not pull.has_ended and found.pending and len(self._waiting) < self._options.batch:
                    return
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    def _forget(self) -> None:
        """The consumer is gone. What it has sent is kept, and the next one starts behind it."""
        if self._wire is not None:
            self._wire.unsubscribe(self._subscription)
        self._wire, self._pull, self._consumer = None, None, ""

    # The stream and its consumer.

    async def _info(self) -> dict[str, Any]:
        stream = self._options.stream
        info = await stream_info(self._session, stream)
        if info["config"].get("retention") == "workqueue":
            raise ConnectorError(
                f"{self._session.name}: stream {stream} is a work queue, whose messages are removed by their reader",
                cause=Cause.CONFIG,
                hint="read a stream whose retention is limits or interest, such as a mirror of this one",
            )
        return info

    def _judge(self, state: dict[str, Any], next: int | None = None) -> None:
        """Whether messages after the last one, and before the next that has come, are gone."""
        last = self._last
        if last == 0:
            return
        end = state["first_seq"] if next is None else min(next, state["first_seq"])
        if state["last_seq"] < last:
            self._missing(f"the stream was made again since message {last}")
            self._last = 0
        elif end > last + 1 and next in (None, end):
            may = "may be gone" if self._options.subjects else "gone"
            self._missing(f"{counted(end - last - 1, 'message')} after {last} {may}: removed before being read")

    def _missing(self, what: str) -> None:
        if self._options.missing == "fail":
            hint = "missing: go_on continues with what is there"
            raise ConnectorError(f"stream {self._options.stream}: {what}", cause=Cause.CONFIG, hint=hint)
        self._context.log.warning("messages are missing", what=what)

    async def _consume(self) -> None:
        """Make a consumer that starts after what has come."""
        options, info = self._options, await self._info()
        if not self._waiting:
            self._judge(info["state"])
            self._passed = self._last
        config: dict[str, Any] = {
            "ack_policy": "none",
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._passed + 1,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": IDLE_NS,
        }
        if len(options.subjects) == 1:
            config["filter_subject"] = options.subjects[0]
        elif options.subjects:
            config["filter_subjects"] = options.subjects
        made = await self._session.ask(
            f"CONSUMER.CREATE.{options.stream}", {"stream_name": options.stream, "config": config}
        )
        wire = await self._session.connected()
        self._consumer, self._numbered = made["name"], 0
        self._inbox = self._session.new_inbox()
        self._wire, self._subscription = wire, wire.subscribe(self._inbox + b".*", self._come)


def _meta(stream: str, delivered: _Delivered, message: Message) -> dict[str, Any]:
    return {
        "stream": stream,
        "subject": message.subject.decode("utf-8", "replace"),
        "sequence": delivered.sequence,
        "time": delivered.time_ns / 1e9,
        "headers": parsed(message.headers) if message.headers else {},
    }
