"""The client of the push protocol: a Python program hands its records to a node, and learns what is durable."""

from headgate.client.errors import PushError, PushRefused
from headgate.client.push import PushClient
from headgate.client.stream import PushStream

__all__ = ["PushClient", "PushError", "PushRefused", "PushStream"]
