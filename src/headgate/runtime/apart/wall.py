"""The wall behind the guard, in the process of a connector: what asks Python for a connection or a file is judged.

A connector that goes by its guard is refused there. For one that does not, Python is asked: each connection to an
address that the lists leave out, and each file of the node's own folder, is refused. A library that is not written in
Python asks the kernel and not Python: nothing here sees that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from headgate.connectors.guard import Guard, OutOfReach
from headgate.core import reach

_passed: set[str] = set()  # Addresses that the guard has let pass, by name or number.


class WalledGuard(Guard):
    """A guard that remembers the addresses that it let pass."""

    __slots__ = ()

    def _judged(self, host: str, port: int, found: Iterable[Any]) -> list[str]:
        allowed = super()._judged(host, port, found)
        _passed.update(allowed)
        return allowed


def raise_wall(guard: Guard) -> Guard:
    """From now on, for as long as this process lives. Returns the guard that knows of it."""
    walled = WalledGuard(guard.bounds, guard.never)

    def judge(event: str, args: tuple[Any, ...]) -> None:
        if event == "socket.connect" and walled.judges_addresses:
            _judge_address(walled, args[1])
        elif event == "open" and walled.never and isinstance(args[0], str | bytes | os.PathLike):
            _judge_file(walled, os.fsdecode(args[0]))

    sys.addaudithook(judge)
    return walled


def _judge_address(guard: Guard, address: Any) -> None:
    if not isinstance(address, tuple) or str(address[0]) in _passed:
        return
    host, port = str(address[0]), int(address[1])
    guard._judged(host, port, [(None, None, None, None, (host,))])


def _judge_file(guard: Guard, path: str) -> None:
    resolved = os.path.realpath(path)
    if any(reach.is_within(resolved, one) for one in guard.never):
        raise OutOfReach(f"{path} is Headgate's own", hint="name another file or folder")
