"""Subscribes to topics. A message is acknowledged when it is durable in the sink, and not before; so it comes at least
once.

The session is the broker's: named after the stream, kept while nobody is connected for as long as `session_expiry_s`
says. A newer run takes it over, and the broker ends the connection of the older one. The position carries nothing that
the broker needs. It names the last message of this connection, so that `ack` knows what to acknowledge, and the filters
that the session has, so that a run with others can end those that are gone.

In 3.1.1 the broker repeats what it has retained with each subscription, which is with each run.
"""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from collections.abc import Mapping, Sequence

from headgate.connectors.api import Batch, Context, Position
from headgate.connectors.mqtt.client import Login, Mqtt, connected
from headgate.connectors.mqtt.options import MqttSourceOptions, address_of
from headgate.connectors.mqtt.packets import Published
from headgate.connectors.payloads import decoded, too_large

BATCH_BYTES = 8 * 2**20  # The most in one batch, unless one message is larger.
_CHECKED = "headgate-check-"


class MqttSource:
    """One session."""

    def __init__(self, options: MqttSourceOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._mqtt: Mqtt | None = None
        self._run = ""
        self._number = 0  # Of the last message that was returned.
        self._unacked: deque[tuple[int, Published]] = deque()

    async def check(self) -> None:
        """Log in under another name: the session's own would end a running source."""
        login = Login(_CHECKED + secrets.token_hex(4), self._options.version == "5", is_clean=True)
        mqtt = await connected(address_of(self._options.url), self._context.guard, login)
        await mqtt.close()

    async def parts(self) -> Sequence[str]:
        """One."""
        return [""]

    async def open(self, position: Position) -> None:
        """Take the session over, or begin one."""
        options = self._options
        login = Login(
            options.client_id or f"headgate-{self._context.stream}",
            options.version == "5",
            is_clean=False,
            session_expiry_s=options.session_expiry_s,
            receive_maximum=options.receive_maximum,
            max_message_bytes=options.max_message_bytes,
        )
        self._run, self._number = secrets.token_hex(4), 0
        self._unacked.clear()
        self._mqtt = mqtt = await connected(address_of(options.url), self._context.guard, login)
        if position is not None and not mqtt.has_session:
            self._context.log.warning("the broker has no session: what came meanwhile, if anything, is lost")
        if gone := [one for one in _filters(position) if one not in options.topics]:
            await mqtt.unsubscribe(gone)
        await mqtt.subscribe(options.topics, options.qos)

    async def read(self) -> Batch:
        """What has come. It stays where it is until it is returned, so a read may be cancelled anywhere."""
        mqtt, options = self._mqtt, self._options
        assert mqtt is not None, "the source is open"
        while not mqtt.arrived:
            await mqtt.wait_for_more()
        messages: list[Published] = []
        size_bytes = 0
        for message in itertools.islice(mqtt.arrived, options.batch):
            if messages and size_bytes + len(message.body) > BATCH_BYTES:
                break
            size_bytes += len(message.body)
            messages.append(message)
        records = await decoded((message.body for message in messages), options.format)
        for index, message in enumerate(messages):
            if message.size_bytes > options.max_message_bytes:
                records[index] = too_large(message.body, message.size_bytes, options.max_message_bytes)
        mqtt.taken(messages)
        first = self._number + 1
        self._unacked.extend((number, one._replace(body=b"")) for number, one in enumerate(messages, first))
        self._number += len(messages)
        return Batch(
            records,
            position={"last": f"{self._run}:{self._number}", "topics": options.topics},
            size_bytes=size_bytes,
            meta=[
                {
                    "topic": one.topic,
                    "qos": one.qos,
                    "retained": one.is_retained,
                    "redelivered": one.is_again,
                    **one.said,
                }
                for one in messages
            ],
            place=lambda index: f"topic {messages[index].topic}, message {first + index} of this session",
        )

    async def ack(self, position: Position) -> None:
        """All up to this message, if it is of this connection."""
        run, _, number = str(position["last"]).partition(":")
        if self._mqtt is None or run != self._run:
            return
        while self._unacked and self._unacked[0][0] <= int(number):
            self._mqtt.acknowledge(self._unacked.popleft()[1])
        await self._mqtt.drain()

    async def close(self) -> None:
        """End the connection. The session stays, and with it what was not acknowledged."""
        mqtt, self._mqtt = self._mqtt, None
        if mqtt is not None:
            await mqtt.close()


def _filters(position: Position) -> Sequence[str]:
    """Those that the last run has subscribed to."""
    found = position.get("topics") if isinstance(position, Mapping) else None
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
