"""Where nodes are: the addresses that a client was given, and those that nodes send it."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit, urlunsplit

PATH = "/push"
GROUPS_PATH = "/groups"
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


def to_address(url: str, door: str = PATH) -> str:
    """The WebSocket address of a node's door, one spelling for each; raises ValueError."""
    parts = urlsplit(url)
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("a node's URL is http(s)://host:port or ws(s)://host:port")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a node's URL has no user and no password; give a token instead")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = parts.port or (443 if scheme == "wss" else 80)
    path = parts.path.rstrip("/").removesuffix(door) + door
    return urlunsplit((scheme, f"{host}:{port}", path, "", ""))


def usable(url: str | None, door: str = PATH) -> str | None:
    """The address that a node sent, if it is valid."""
    try:
        return to_address(url, door) if url else None
    except ValueError:
        return None


class Addresses:
    """The addresses to try, one after another."""

    def __init__(self, urls: Iterable[str], door: str = PATH) -> None:
        self._door = door
        self._given = list(dict.fromkeys(to_address(url, door) for url in urls))
        if not self._given:
            raise ValueError("a client needs the URL of at least one node")
        # A token that was only ever given to encrypted addresses is not shown to others.
        self._is_secret = all(address.startswith("wss:") for address in self._given)
        self._learned: list[str] = []
        self._preferred: str | None = None
        self._last: str | None = None

    def is_given(self, address: str) -> bool:
        """Whether the program itself named it."""
        return address in self._given

    def learn(self, urls: Iterable[str]) -> None:
        """A node says where nodes are now."""
        self._learned = [address for url in urls if (address := usable(url, self._door)) and self._may_use(address)]

    def prefer(self, address: str | None) -> None:
        """Try this one next."""
        self._preferred = address if address is not None and self._may_use(address) else None

    def next(self) -> str:
        """The one to try now: the preferred one, else the one after the last."""
        addresses = list(dict.fromkeys([*self._given, *self._learned]))
        if self._preferred is not None:
            address, self._preferred = self._preferred, None
        elif self._last in addresses:
            address = addresses[(addresses.index(self._last) + 1) % len(addresses)]
        else:
            address = addresses[0]
        self._last = address
        return address

    def _may_use(self, address: str) -> bool:
        return not self._is_secret or address.startswith("wss:")
