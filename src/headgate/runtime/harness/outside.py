"""What the process of a test may reach: nothing, or what the guards of its version allow.

A connector that goes by its guard is refused there. This is the wall behind it, for one that does not: whatever asks
Python for a connection is asked whether a guard has judged that very address. In a test without network there is also
none in the kernel's eyes, where it lets us have it so.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any

from headgate.connectors.guard import Guard, OutOfReach
from headgate.runtime.harness.doorways import Dial

_REACHING = ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname")
_HINT = "only --fetch and --sink rollback reach out"

_judged: set[str] = set()


class WatchedGuard(Guard):
    """A guard that remembers the addresses that it let pass."""

    __slots__ = ()

    def _judged(self, host: str, port: int, found: Iterable[Any]) -> list[str]:
        allowed = super()._judged(host, port, found)
        _judged.update(allowed)
        return allowed


def watched(guard: Guard) -> WatchedGuard:
    """The same, remembering."""
    return WatchedGuard(guard.bounds, guard.never)


class DiallingGuard(WatchedGuard):
    """A guard whose loop goes through the doorways of its test, where there is one."""

    __slots__ = ("dial",)
    dial: Dial

    def loop(self) -> Any:
        """The loop that connects by itself to what has no doorway."""
        return _DiallingLoop(super().loop() or asyncio.get_running_loop(), self.dial)


class _DiallingLoop:
    """An event loop in everything else."""

    def __init__(self, loop: Any, dial: Dial) -> None:
        self._loop = loop
        self._dial = dial

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_unix_connection(self, factory: Callable[[], Any], path: str, **more: Any) -> Any:
        """Through the doorway to this socket, or straight to it."""
        if not self._dial.knows(path):
            return await self._loop.create_unix_connection(factory, path, **more)
        connected = self._dial.open(path)
        return await asyncio.get_running_loop().create_unix_connection(factory, sock=connected, **more)


def dialling(guard: Guard, dial: Dial) -> DiallingGuard:
    """The same, remembering, and with doorways."""
    found = DiallingGuard(guard.bounds, guard.never)
    object.__setattr__(found, "dial", dial)
    return found


def wall_off(guards: Iterable[Guard], *, has_network: bool) -> None:
    """From now on, for as long as this process lives."""
    known = list(guards)

    def judge(event: str, args: tuple[Any, ...]) -> None:
        if event in _REACHING:
            _refuse(event, args, known, has_network=has_network)

    sys.addaudithook(judge)


def _refuse(event: str, args: tuple[Any, ...], guards: list[Guard], *, has_network: bool) -> None:
    if not has_network:
        raise OutOfReach("a test with a payload has no network", hint=_HINT)
    if event in ("socket.getaddrinfo", "socket.gethostbyname"):
        return  # A name that is looked up is not reached yet.
    address = args[1] if len(args) > 1 else None
    if isinstance(address, str | bytes):
        _refuse_socket(address, guards)
    elif isinstance(address, tuple) and not _is_judged(args[0], address, guards):
        raise OutOfReach(f"{address[0]}:{address[1]} is no address that a guard has judged", hint="use the guard")


def _is_judged(used: object, address: tuple[Any, ...], guards: list[Guard]) -> bool:
    is_bounded = all(guard.judges_addresses for guard in guards)
    return not is_bounded or str(address[0]) in _judged or _is_for_names(used)


def _refuse_socket(path: str | bytes, guards: list[Guard]) -> None:
    """A socket in a folder is a path."""
    text = path.decode(errors="surrogateescape") if isinstance(path, bytes) else path
    for guard in guards:
        with contextlib.suppress(OutOfReach):
            guard.path(text)
            return
    raise OutOfReach(f"{text} is in no folder that may be reached")


def _is_for_names(used: object) -> bool:
    """Whether it only asks which way a packet would go, as resolvers do: nothing is sent."""
    return isinstance(used, socket.socket) and used.type == socket.SOCK_DGRAM
