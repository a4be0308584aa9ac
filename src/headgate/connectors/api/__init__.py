"""The public contracts between Headgate and connectors: streaming (Source, Sink) and bulk (Reader, Writer)."""

from headgate.connectors.api.streaming import *  # noqa: F403
