"""Waiting for file descriptors, whatever their numbers: `select` knows none above 1023, and a node may have more."""

from __future__ import annotations

import math
import select


def readable(descriptors: list[int], within_s: float) -> list[int]:
    """Those that have something to read, or whose other end is closed. None of them: that took too long."""
    poll = select.poll()
    for one in descriptors:
        poll.register(one, select.POLLIN)
    return [one for one, _ in poll.poll(math.ceil(within_s * 1000))]
