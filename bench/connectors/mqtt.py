"""MQTT session → mapping of six fields → PostgreSQL, against paho with manual acknowledgements.

python -m bench connectors.mqtt

The messages wait in two sessions of a Mosquitto that has no limits for them. Both sides acknowledge what is committed.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from bench.connectors.bare import bare_rate, bodies, node_rate
from bench.rig import DATABASE_CORE, pin, report, running
from headgate.testing.mosquitto import HOST, Mosquitto, program

PACKAGES = Path(__file__).parent.parent.parent / "scripts/packages"
RECORDS = 150_000
IN_FLIGHT = 10_000
BATCH = 5000
TOPIC = "orders"


def session(port: int, name: str) -> paho.Client:
    """A client whose session outlives it, connected and subscribed."""
    client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5, manual_ack=True)
    properties = Properties(paho.PacketTypes.CONNECT)
    properties.SessionExpiryInterval, properties.ReceiveMaximum = 3600, IN_FLIGHT
    client.connect(HOST, port, clean_start=False, properties=properties)
    client.loop_start()
    client.subscribe(TOPIC, options=SubscribeOptions(qos=1, retainHandling=1))
    return client


def fill(port: int) -> None:
    """Both sessions get all of it."""
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.max_inflight_messages_set(1000)
    client.connect(HOST, port)
    client.loop_start()
    sent: Any = None
    for body in bodies(RECORDS):
        sent = client.publish(TOPIC, body, 1)
    sent.wait_for_publish()
    client.disconnect()
    client.loop_stop()


async def batches(port: int) -> AsyncIterator[list[bytes]]:
    """As paho's thread reads them. A batch is acknowledged when the next one is asked for."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    waiting: list[Any] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, "bare", protocol=paho.MQTTv5, manual_ack=True)

    def on_message(client: Any, data: Any, message: Any) -> None:
        waiting.append(message)
        loop.call_soon_threadsafe(arrived.set)

    client.on_message = on_message
    properties = Properties(paho.PacketTypes.CONNECT)
    properties.SessionExpiryInterval, properties.ReceiveMaximum = 3600, IN_FLIGHT
    client.connect(HOST, port, clean_start=False, properties=properties)
    client.loop_start()
    taken = 0
    while taken < RECORDS:
        while not waiting:
            arrived.clear()
            await arrived.wait()
        batch, waiting[:BATCH] = waiting[:BATCH], []
        taken += len(batch)
        yield [message.payload for message in batch]
        for message in batch:
            client.ack(message.mid, message.qos)
    client.disconnect()
    client.loop_stop()


def main() -> dict[str, float]:
    """Run and print."""
    if program() is None:
        subprocess.run([PACKAGES, "mosquitto"], check=False)
    if program() is None:
        print("\nMQTT → PostgreSQL: mosquitto is not installed, and only root can install it")
        return {}
    settings = ("allow_anonymous true", "max_queued_messages 0", "max_inflight_messages 0", "persistence false")
    with Mosquitto(*settings) as broker, running(pinned=True) as rig:
        pin(broker.pid, DATABASE_CORE)
        for name in ("ours", "bare"):
            client = session(broker.port, name)
            client.disconnect()
            client.loop_stop()
        fill(broker.port)
        rig.node.call("PUT", "/api/secrets/mqtt", {"value": broker.url})
        source = {"type": "mqtt", "url": {"$secret": "mqtt"}, "topics": [TOPIC], "client_id": "ours", "batch": BATCH}
        ours = node_rate(rig, "mqtt", {**source, "receive_maximum": IN_FLIGHT}, RECORDS)
        bare = asyncio.run(bare_rate(rig.sink, batches(broker.port)))
    return report(
        "MQTT → mapping of six fields → PostgreSQL (python -m bench connectors.mqtt)",
        {"records/s": ours, "bare loop of paho, records/s": bare, "against the bare loop": ours / bare},
    )


if __name__ == "__main__":
    main()
