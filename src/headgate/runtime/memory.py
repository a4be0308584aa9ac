"""What a process holds: the collector's rounds, and memory that goes back to the system.

The garbage collector does not walk what was made at the start (`settle`); what lives for a while and dies in a circle
is collected when an incarnation has been given up (`collect`). What was freed lies scattered between what is in use,
and C's allocator gives back only the end of its heap by itself. So a node trims: when it has collected, and every
minute (`give_back`), because a database that is away leaves its marks as well.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import linecache

TRIM_S = 60.0  # It takes a few milliseconds, in which threads that need memory wait.

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # The C library of Linux has it; others may not.


def settle() -> None:
    """Keep the garbage collector from walking what was made at the start, again and again while records move."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 5, 20)  # What a failed run leaves behind in circles survives a few rounds, not more.


def collect() -> None:
    """Collect everything, and trim. Stacks that were logged have left the text of whole modules behind."""
    linecache.clearcache()
    gc.collect()
    _give_back()


async def give_back() -> None:
    """Trim every minute, until cancelled."""
    while True:
        await asyncio.sleep(TRIM_S)
        await asyncio.to_thread(_give_back)


def _give_back() -> None:
    if _trim is not None:
        _trim(0)
