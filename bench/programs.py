"""The two programs that `bench.rabbitmq` compares. Both handle one message at a time and write down that they did.

    python -m bench.programs headgate|fenced|rabbitmq URL SCENE [HEARTBEAT_S]

To handle a message is to work on it for a moment, and then to append a record with the time and the program's process
to a table, which is neither's own. The one is a consumer of a group and handles the next message for as long as its
turn holds, with its epoch as the fence; `fenced` says so when it joins. The other consumes from a queue with a single
active consumer, one message in hand, and acknowledges each. RabbitMQ gives it nothing to fence with.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import asyncpg

from headgate.client import Consumer, Turn

WORK_S = 0.05

TABLES = """
CREATE TABLE fence (scene text PRIMARY KEY, epoch bigint NOT NULL DEFAULT 0);
CREATE TABLE handled (scene text, pid int, epoch bigint, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE begun (scene text, pid int, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE refused (scene text, pid int, epoch bigint, at timestamptz DEFAULT clock_timestamp());
"""
BEGIN = "INSERT INTO begun (scene, pid) VALUES ($1, $2)"
RAISE = "UPDATE fence SET epoch = $2 WHERE scene = $1 AND epoch < $2"
APPEND = "INSERT INTO handled (scene, pid) VALUES ($1, $2)"
APPEND_FENCED = """
WITH mine AS (UPDATE fence SET epoch = $3 WHERE scene = $1 AND epoch <= $3 RETURNING scene),
     kept AS (INSERT INTO handled (scene, pid, epoch) SELECT scene, $2, $3 FROM mine)
INSERT INTO refused (scene, pid, epoch) SELECT $1, $2, $3 WHERE NOT EXISTS (SELECT FROM mine)
"""
QUEUE = {"x-single-active-consumer": True}


async def headgate(url: str, scene: str, *, is_fenced: bool) -> None:
    """A consumer of a group."""
    table = await asyncpg.connect(os.environ["TARGET"])

    async def work(turn: Turn) -> None:
        await table.execute(RAISE, scene, turn.epoch)
        await table.execute(BEGIN, scene, os.getpid())
        while turn.holds and not turn.stepping:
            await asyncio.sleep(WORK_S)
            await table.execute(APPEND_FENCED, scene, os.getpid(), turn.epoch)

    consumer = Consumer(url, token=os.environ["TOKEN"], stream=scene, group="bench", fenced=is_fenced)
    async with consumer:
        await consumer.run(work)


def rabbitmq(url: str, scene: str, heartbeat_s: int | None) -> None:
    """A consumer of a queue. One that has lost its connection connects again."""
    import pika
    from pika.exceptions import AMQPError

    loop = asyncio.new_event_loop()
    table = loop.run_until_complete(asyncpg.connect(os.environ["TARGET"]))

    has_begun = False

    def handle(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        nonlocal has_begun
        if not has_begun:
            has_begun = True
            loop.run_until_complete(table.execute(BEGIN, scene, os.getpid()))
        time.sleep(WORK_S)
        loop.run_until_complete(table.execute(APPEND, scene, os.getpid()))
        channel.basic_ack(method.delivery_tag)

    host, _, port = url.partition(":")
    parameters = pika.ConnectionParameters(host, int(port), heartbeat=heartbeat_s)
    while True:
        try:
            channel = pika.BlockingConnection(parameters).channel()
            channel.queue_declare(scene, arguments=QUEUE)
            channel.basic_qos(prefetch_count=1)
            channel.basic_consume(scene, handle)
            channel.start_consuming()
        except AMQPError:
            time.sleep(1.0)


def main(kind: str, url: str, scene: str, heartbeat_s: str = "") -> None:
    """Until it is killed."""
    if kind != "rabbitmq":
        asyncio.run(headgate(url, scene, is_fenced=kind == "fenced"))
    else:
        rabbitmq(url, scene, int(heartbeat_s) if heartbeat_s else None)


if __name__ == "__main__":
    main(*sys.argv[1:])
