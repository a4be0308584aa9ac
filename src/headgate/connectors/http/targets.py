"""Where a request goes: a URL taken apart once, and judged by what it may lead to.

An answer may name another URL, by a redirect or as the next page. It is somebody else's text. So it is only ever
followed by HTTP, loses what a URL can carry besides the place (a user, a password, a fragment), and leads no deeper
into the network than the URL of the document does: a server on the internet cannot send this node to a neighbour or to
itself. Whether a host may be reached at all is the guard's to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from ipaddress import ip_address
from urllib.parse import parse_qsl, quote, urlencode, urljoin, urlsplit

from headgate.core.reach import is_special, plain_of

LONGEST = 16 * 1024  # Of a URL, in characters. Servers take about half of that.
PORTS = {"http": 80, "https": 443}
_SAFE = "/:@!$&'()*+,;=~-._%?[]|"  # What may stand in a path and a query as it is.


class Depth(IntEnum):
    """How far inside a network an address is."""

    PUBLIC = 0
    PRIVATE = 1
    SPECIAL = 2  # This machine, or a service of its network such as cloud metadata.


@dataclass(frozen=True, slots=True)
class Target:
    """A URL of HTTP."""

    scheme: str
    host: str  # As it goes into a certificate's name: lower case, without brackets.
    port: int
    path: str  # With the query: what stands in the first line of a request.

    @property
    def origin(self) -> str:
        """`https://api.example.com`: who answers, and for whom credentials are."""
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        """The value of the header Host."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == PORTS[self.scheme] else f"{name}:{self.port}"

    def __str__(self) -> str:
        return f"{self.origin}{self.path}"

    def joined(self, location: str) -> Target:
        """What a URL in an answer from here leads to; it may be relative. Raises ValueError."""
        return target_of(urljoin(str(self), location.strip()))

    def with_params(self, params: Mapping[str, str]) -> Target:
        """With these parameters in the query, in place of others of the same names."""
        if not params:
            return self
        path, _, query = self.path.partition("?")
        kept = [pair for pair in parse_qsl(query, keep_blank_values=True) if pair[0] not in params]
        return replace(self, path=f"{path}?{urlencode([*kept, *params.items()])}")

    def without_params(self, *names: str) -> Target:
        """Without these parameters in the query; one that has none of them stays as it is, letter by letter."""
        path, _, query = self.path.partition("?")
        pairs = parse_qsl(query, keep_blank_values=True)
        kept = [pair for pair in pairs if pair[0] not in names]
        if len(kept) == len(pairs):
            return self
        return replace(self, path=f"{path}?{urlencode(kept)}" if kept else path)


def target_of(url: str) -> Target:
    """A URL, taken apart. Raises ValueError."""
    if len(url) > LONGEST:
        raise ValueError(f"is longer than {LONGEST:,} characters")
    parts = urlsplit(url)
    if parts.scheme not in PORTS:
        raise ValueError("does not begin with http:// or https://")
    host = parts.hostname or ""
    if not host:
        raise ValueError("has no host")
    if ":" not in host:
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            raise ValueError("has no valid host") from None
        if not host.replace("-", "").replace(".", "").replace("_", "").isalnum():
            raise ValueError("has no valid host")
    port = PORTS[parts.scheme] if parts.port is None else parts.port  # Raises for one that is none.
    path = quote(parts.path or "/", safe=_SAFE.replace("?", "")) + (
        parts.query and "?" + quote(parts.query, safe=_SAFE)
    )
    return Target(parts.scheme, host, port, path)


def depth_of(address: str) -> Depth:
    """How far inside an address in numbers is."""
    plain = plain_of(ip_address(address.partition("%")[0]))
    if is_special(plain):
        return Depth.SPECIAL
    return Depth.PUBLIC if plain.is_global else Depth.PRIVATE
