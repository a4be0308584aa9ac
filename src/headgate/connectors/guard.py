"""The guard: every file that a connector opens, and every connection that it makes, goes past it.

A guard holds bounds, and what is reached must be within each: the admin's lists, for what a document names, and what
the settings of this node leave of them. What is refused at all times, such as the node's own folder, stands in `never`.
A guard without bounds lets everything pass but that.

What decides is what is really reached. A path is resolved, judged, and opened component by component without following
another symlink, so that nobody can put one there between the two. A name is resolved, its addresses are judged, and
the connection is made to one of these, so that nobody can let it point elsewhere in between.

A stream's source and sink find their guard in `Context.guard`; a session of a dump takes `present()` when it is made.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from headgate.connectors.places import Place, places_of_url
from headgate.core import reach
from headgate.core.reach import Kind, Reach, Verdict
from headgate.errors import Cause, ConnectorError

_SETTINGS = {Kind.FOLDER: "HEADGATE_FILES", Kind.ADDRESS: "HEADGATE_ADDRESSES", Kind.MODULE: "HEADGATE_MODULES"}
_FOLDER_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class OutOfReach(ConnectorError):
    """What was named may not be reached from here."""

    code = "out_of_reach"
    cause = Cause.CONFIG


@dataclass(frozen=True, slots=True)
class Bound:
    """What may be reached, and whose word that is."""

    reach: Reach
    is_nodes: bool = False  # The settings of this node; else the admin's lists.

    def hint(self, kind: Kind, named: str) -> str:
        """What helps."""
        if self.is_nodes:
            return f"{_SETTINGS[kind]} of this node leaves it out"
        return f"an admin may publish it, or allow it: headgate allow add {kind} {named}"


@dataclass(frozen=True, slots=True)
class Guard:
    """What one connector may reach."""

    bounds: tuple[Bound, ...] = ()
    never: tuple[str, ...] = ()  # Resolved paths.

    # Judging.

    def check(self, places: Iterable[Place]) -> None:
        """Refuse what is named, as far as that can be told before it is reached."""
        for place in places:
            if (found := self.problem(place)) is not None:
                raise found

    def problem(self, place: Place) -> OutOfReach | None:
        """Why something that is named may not be reached. None: it may, or only a connection can tell."""
        try:
            match place.kind:
                case Kind.FOLDER:
                    self.path(place.text)
                case Kind.ADDRESS:
                    for bound in self.bounds:
                        if reach.judge_written(bound.reach, place.text, place.port) is Verdict.REFUSED:
                            return _refused(bound, Kind.ADDRESS, str(place))
                case Kind.MODULE:
                    self.module(place.text)
        except OutOfReach as error:
            return error
        return None

    def module(self, name: str) -> None:
        """Refuse to import what is on no list."""
        for bound in self.bounds:
            if not reach.allows_module(bound.reach, name):
                raise _refused(bound, Kind.MODULE, name)

    # Files.

    def path(self, path: str | os.PathLike[str]) -> str:
        """The path without symlinks and `..`, if it may be opened."""
        named = os.fspath(path)
        try:
            resolved = os.path.realpath(os.path.expanduser(named))
        except ValueError:  # A zero byte.
            raise OutOfReach("a path has a zero byte", hint="leave it out") from None
        if any(reach.is_within(resolved, one) for one in self.never):
            raise OutOfReach(f"{named} is Headgate's own", hint="name another file or folder")
        for bound in self.bounds:
            if not reach.allows_path(bound.reach, resolved):
                # Where it leads is not said: who reads this need not know what symlinks there are.
                leads = "leads to no folder" if os.path.abspath(named) != resolved else "is in no folder"
                raise OutOfReach(f"{named} {leads} that may be reached", hint=bound.hint(Kind.FOLDER, "FOLDER"))
        return resolved

    def open(
        self, path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o644, *, follow: bool = True
    ) -> int:
        """A regular file, open. Its folders are walked without following any symlink that was not judged. `follow`:
        whether the path itself may be a symlink."""
        resolved = self.path(path)
        if not follow:
            folder, name = os.path.split(os.fspath(path))
            resolved = os.path.join(self.path(folder or "."), name)
        *folders, name = resolved.split("/")[1:]
        held = os.open("/", _FOLDER_FLAGS)
        try:
            for folder in folders:
                held, before = os.open(folder, _FOLDER_FLAGS, dir_fd=held), held
                os.close(before)
            # A pipe that nobody writes would be waited for, and is no file.
            descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=held)
        finally:
            os.close(held)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) and flags & os.O_DIRECTORY == 0:
            os.close(descriptor)
            raise OutOfReach(f"{os.fspath(path)} is not a regular file", hint="name a file")
        return descriptor

    # Connections.

    @property
    def judges_addresses(self) -> bool:
        """Whether there is an address that this guard would refuse."""
        return any(bound.reach.addresses is not None for bound in self.bounds)

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of a host that a connection may be made to, in numbers."""
        loop = asyncio.get_running_loop()
        return self._judged(host, port, await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))

    def connect(self, host: str, port: int, timeout_s: float) -> socket.socket:
        """A connection to a host, made in this thread."""
        last: OSError | None = None
        for address in self._judged(host, port, socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)):
            try:
                return socket.create_connection((address, port), timeout_s)
            except OSError as error:
                last = error
        raise last or OSError(f"{host} has no address")

    async def knock(self, places: Iterable[Place]) -> None:
        """Return if one of these addresses accepts a connection. Nothing is sent."""
        last: OSError | None = None
        for place in places:
            try:
                for address in await self.resolve(place.text, place.port):
                    _, writer = await asyncio.open_connection(address, place.port)
                    writer.transport.abort()
                    return
            except OSError as error:
                last = error
        raise last or OSError("there is no address")

    def _judged(self, host: str, port: int, found: Iterable[Any]) -> list[str]:
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
        for bound in self.bounds:
            allowed = [one for one in addresses if reach.allows_address(bound.reach, host, ip_address(one), port)]
            if addresses and not allowed:
                raise _refused(bound, Kind.ADDRESS, f"{host}:{port}")
            addresses = allowed
        return addresses

    def loop(self) -> Any:
        """The event loop for a client that connects by itself: its connections are judged. None: none need be."""
        return _GuardedLoop(asyncio.get_running_loop(), self) if self.judges_addresses else None


def _refused(bound: Bound, kind: Kind, named: str) -> OutOfReach:
    what = "address" if kind is Kind.ADDRESS else "Python module"
    return OutOfReach(f"{named} is no {what} that may be reached", hint=bound.hint(kind, named))


class _GuardedLoop:
    """An event loop that connects to what the guard has judged, and is the real one in everything else."""

    def __init__(self, loop: asyncio.AbstractEventLoop, guard: Guard) -> None:
        self._loop = loop
        self._guard = guard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(
        self, factory: Callable[[], Any], host: str | None = None, port: int | None = None, **more: Any
    ) -> Any:
        """To an address that was judged. The host's name stays what a certificate must be for."""
        if host is None or port is None:
            return await self._loop.create_connection(factory, **more)
        if more.get("ssl") and "server_hostname" not in more:
            more["server_hostname"] = host
        last: OSError | None = None
        for address in await self._guard.resolve(host, int(port)):
            try:
                return await self._loop.create_connection(factory, address, port, **more)
            except OSError as error:
                last = error
        raise last or OSError(f"{host} has no address")

    async def create_unix_connection(self, factory: Callable[[], Any], path: str, **more: Any) -> Any:
        """A socket in a folder is a path."""
        return await self._loop.create_unix_connection(factory, self._guard.path(path), **more)


OPEN = Guard()
_present: ContextVar[Guard] = ContextVar("guard", default=OPEN)


def present() -> Guard:
    """The guard of the session that is being made."""
    return _present.get()


@contextmanager
def guarding(guard: Guard, url: str, *, is_local: bool) -> Iterator[None]:
    """For the making of a session with this URL."""
    guard.check(places_of_url(url, is_local=is_local))
    token = _present.set(guard)
    try:
        yield
    finally:
        _present.reset(token)
