"""A client for one URL and what its answers lead to.

It is written on `httptools` because of what a poller must promise (decision 36): a connection goes to an address that
the guard has resolved and judged, under the name that stands in the URL; an answer is bounded in bytes and in time; and
a redirect is a decision, not a convenience. There are no proxies, no cookies, and nothing of the environment.

*Redirects.* Each goes past the guard again, and none leads deeper into the network than the URL itself
(`http.targets`). What a document says of a request besides its URL (headers, credentials) goes to the origin of that
URL only. What has a body is sent on only where the answer says so (307, 308): a 302 would turn a write into a read.

*Connections* are kept for a few seconds. One that turns out to have ended before a word of its answer is replaced once.

*Errors.* Everything that can go wrong on the way is told here, once, as what the worker should do: `NotConnected` for a
server that is away, slow or cuts off, `Cause.CONFIG` for what stays wrong (a certificate, a redirect, a size).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from headgate.connectors.guard import Guard
from headgate.connectors.http.targets import Depth, Target, depth_of
from headgate.connectors.http.wire import Answer, Garbled, TooLarge, Wire, head_of
from headgate.errors import Cause, ConnectorError, NotConnected
from headgate.text import roughly

MOST_REDIRECTS = 10
CONNECT_S = 10.0  # To one address; a name may have several.
IDLE_S = 15.0  # A connection that rests longer is closed: most servers have ended it by then.
AGENT = "headgate"
_MOVED = frozenset({301, 302, 303})
_MOVED_AS_IT_IS = frozenset({307, 308})


@dataclass(frozen=True, slots=True)
class Request:
    """What to ask."""

    target: Target
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()  # For the client's own origin only.
    body: bytes = b""
    secret_params: tuple[tuple[str, str], ...] = ()  # The same, in the query.
    truncates: bool = False  # Of the answer's body, only the beginning is wanted.
    follows: bool = True  # Redirects.


@dataclass(frozen=True, slots=True)
class Limits:
    """What an answer may cost."""

    timeout_s: float
    body_bytes: int


class Client:
    """Speaks to the origin of one URL, and where that leads."""

    def __init__(self, home: Target, guard: Guard, limits: Limits, ca_file: str | None = None, kept: int = 1) -> None:
        self._home = home
        self._guard = guard
        self._limits = limits
        self._ca_file = ca_file
        self._most_kept = kept
        self._depth: Depth | None = None  # Of the home, once it was resolved.
        self._kept: dict[str, list[tuple[Wire, asyncio.TimerHandle]]] = {}
        self._in_use: set[Wire] = set()

    async def send(self, request: Request) -> Answer:
        """The answer, after redirects."""
        before = {str(request.target)}
        for _ in range(MOST_REDIRECTS):
            answer = await self._once(request)
            location = answer.headers.get("location")
            if answer.status not in _MOVED | _MOVED_AS_IT_IS or location is None or not request.follows:
                return answer
            request = _redirected(request, answer.status, location)
            if str(request.target) in before:
                break
            before.add(str(request.target))
        raise ConnectorError(
            f"{self._home.origin} redirects without end", cause=Cause.CONFIG, hint="open the URL in a browser"
        )

    async def connect(self) -> None:
        """Connect to the home, and ask nothing."""
        with _translated(self._home, self._limits):
            async with asyncio.timeout(self._limits.timeout_s):
                self._keep(self._home, await self._dial(self._home))

    async def close(self) -> None:
        """End all connections."""
        for wire, timer in [one for kept in self._kept.values() for one in kept]:
            timer.cancel()
            wire.close()
        for wire in self._in_use:
            wire.close()
        self._kept.clear()
        await asyncio.sleep(0)  # Their sockets are closed in the loop's next turn.

    async def _once(self, request: Request) -> Answer:
        with _translated(request.target, self._limits):
            head = self._head(request)
            async with asyncio.timeout(self._limits.timeout_s):
                wire = self._resting(request.target)
                if wire is not None:
                    try:
                        return await self._exchange(wire, request, head)
                    except ConnectionError:
                        if wire.has_heard:
                            raise
                return await self._exchange(await self._dial(request.target), request, head)

    def _head(self, request: Request) -> bytes:
        target, is_home = request.target, request.target.origin == self._home.origin
        headers = [
            ("Host", target.authority),
            *(request.headers if is_home else _harmless(request.headers)),
            ("User-Agent", AGENT),
            ("Accept-Encoding", "gzip, deflate"),
        ]
        if request.body or request.method in ("POST", "PUT", "PATCH"):
            headers.append(("Content-Length", str(len(request.body))))
        path = target.with_params(dict(request.secret_params)).path if is_home else target.path
        return head_of(request.method, path, _first_of_each(headers))

    async def _exchange(self, wire: Wire, request: Request, head: bytes) -> Answer:
        self._in_use.add(wire)
        try:
            answer = await wire.exchange(head, request.body, self._limits.body_bytes, truncates=request.truncates)
        finally:
            self._in_use.discard(wire)
        if wire.is_usable:
            self._keep(request.target, wire)
        return answer

    # Connections.

    def _resting(self, target: Target) -> Wire | None:
        kept = self._kept.get(target.origin, [])
        while kept:
            wire, timer = kept.pop()
            timer.cancel()
            if wire.is_usable:
                return wire
            wire.close()
        return None

    def _keep(self, target: Target, wire: Wire) -> None:
        kept = self._kept.setdefault(target.origin, [])
        if len(kept) >= self._most_kept or target.origin != self._home.origin:
            wire.close()
            return
        timer = asyncio.get_running_loop().call_later(IDLE_S, wire.close)
        kept.append((wire, timer))

    async def _dial(self, target: Target) -> Wire:
        addresses = await self._guard.resolve(target.host, target.port)
        if target.origin == self._home.origin:
            self._depth = _deepest(addresses)
        else:
            if self._depth is None:
                self._depth = _deepest(await self._guard.resolve(self._home.host, self._home.port))
            judge_depth(target, _deepest(addresses), self._depth)
        last: OSError | None = None
        loop = asyncio.get_running_loop()
        # Reading authorities takes tens of milliseconds, so it happens in a thread.
        tls = await asyncio.to_thread(lambda: self._tls) if target.scheme == "https" else None
        name = target.host if tls else None
        for address in addresses:
            try:
                async with asyncio.timeout(CONNECT_S):
                    _, wire = await loop.create_connection(Wire, address, target.port, ssl=tls, server_hostname=name)
                return wire
            except ssl.SSLError:
                raise
            except (OSError, TimeoutError) as error:
                last = error
        raise last or OSError("the host has no address")

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        if self._ca_file is None:
            return ssl.create_default_context()
        try:
            with open(self._guard.open(self._ca_file), encoding="ascii") as file:
                text = file.read() or "none"  # Empty, it would stand for the usual authorities.
            return ssl.create_default_context(cadata=text)
        except (ValueError, ssl.SSLError):
            raise ConnectorError(f"{self._ca_file} has no certificate", cause=Cause.CONFIG) from None


def _deepest(addresses: Sequence[str]) -> Depth:
    return max(map(depth_of, addresses), default=Depth.PUBLIC)


def judge_depth(target: Target, depth: Depth, home: Depth) -> None:
    """Refuse what lies deeper in the network than the URL that led there."""
    if depth > home:
        raise ConnectorError(
            f"an answer leads to {target.authority}, which is inside a network that the URL is not in",
            cause=Cause.CONFIG,
            hint="if that is right, make it the URL",
        )


def _redirected(request: Request, status: int, location: str) -> Request:
    if request.method != "GET" and status in _MOVED:
        raise ConnectorError(
            f"{request.target.origin} answered {status}: it redirects a {request.method}, which would lose its body",
            cause=Cause.CONFIG,
            hint="make the URL that it redirects to the URL",
        )
    try:
        return replace(request, target=request.target.joined(location))
    except ValueError as error:
        raise ConnectorError(f"{request.target.origin} redirects to a URL that {error}", cause=Cause.CONFIG) from None


def _harmless(headers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """What says how to answer, and nothing of who asks."""
    return [pair for pair in headers if pair[0].lower() in ("accept", "content-type")]


def _first_of_each(headers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """One header of each name; what a document says comes before our own, but Host is ours."""
    found: dict[str, tuple[str, str]] = {}
    for name, value in headers:
        found.setdefault(name.lower(), (name, value))
    return list(found.values())


@contextmanager
def _translated(target: Target, limits: Limits) -> Iterator[None]:
    """What goes wrong on the way, as the worker should know it. No message has more of a URL than its origin."""
    where = target.origin
    try:
        yield
    except TimeoutError:
        raise NotConnected(f"{where} gave no whole answer within {roughly(limits.timeout_s)}") from None
    except ssl.SSLCertVerificationError as error:
        raise ConnectorError(
            f"{where} has a certificate that is not accepted: {error.verify_message}",
            cause=Cause.CONFIG,
            hint="name the authority that signed it as `ca_file`",
        ) from None
    except ssl.SSLError as error:
        raise NotConnected(f"{where} does not speak TLS as it should: {error.reason or 'it was cut off'}") from None
    except socket.gaierror as error:
        raise NotConnected(f"{where} cannot be resolved: {error.strerror}") from None
    except OSError as error:
        raise NotConnected(f"{where} is not reached: {error.strerror or error}") from None
    except Garbled as error:
        raise NotConnected(f"{where}: {error}") from None
    except TooLarge as error:
        hint = "ask for smaller pages, or raise `max_body_bytes`"
        raise ConnectorError(
            f"{where} gives an answer that is too large: {error}", cause=Cause.CONFIG, hint=hint
        ) from None
    except ValueError as error:
        raise ConnectorError(f"{where}: {error}", cause=Cause.CONFIG) from None
