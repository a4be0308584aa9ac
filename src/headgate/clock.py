"""Clocks. Leases are counted on `boot_s`, which goes on while the machine sleeps; people read `unix_s`."""

from __future__ import annotations

import time

# CLOCK_BOOTTIME counts suspended time, so a laptop lid or a paused virtual machine cannot stretch a lease.
# Systems without it (macOS) have a monotonic clock that already does.
_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_s() -> float:
    """Seconds since the machine started, suspended time included."""
    return time.clock_gettime(_BOOT)


def unix_s() -> float:
    """Unix time, for people and for event times; no decision hangs on it."""
    return time.time()
