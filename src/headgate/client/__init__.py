"""Clients for Python programs: one hands its records to a node, one takes turns with others of its group."""

from headgate.client.consumer import Consumer
from headgate.client.errors import ConsumerError, ConsumerRefused, PushError, PushRefused
from headgate.client.push import PushClient
from headgate.client.stream import PushStream
from headgate.client.turn import Turn

__all__ = [
    "Consumer",
    "ConsumerError",
    "ConsumerRefused",
    "PushClient",
    "PushError",
    "PushRefused",
    "PushStream",
    "Turn",
]
