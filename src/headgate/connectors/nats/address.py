"""Where NATS servers are, from a URL: nats://user:password@host1:4222,host2:4222."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

PORT = 4222


@dataclass(frozen=True, slots=True)
class Address:
    """One server, and as whom we speak to it."""

    host: str
    port: int
    is_tls: bool
    user: str = ""
    password: str | None = field(default=None, repr=False)
    query: str = ""

    @property
    def name(self) -> str:
        """For people."""
        return f"NATS at {self.host}:{self.port}"

    @property
    def files(self) -> list[tuple[str, str]]:
        """Of certificates."""
        return parse_qsl(self.query)

    @property
    def credentials(self) -> dict[str, str]:
        """As the server wants them."""
        if not self.user:
            return {}
        return {"auth_token": self.user} if self.password is None else {"user": self.user, "pass": self.password}


def addresses_of(url: str) -> list[Address]:
    """All servers that a URL names. ValueError: it is none."""
    parts = urlsplit(url)
    if parts.scheme not in ("nats", "tls"):
        raise ValueError("must begin with nats:// or tls://")
    access, _, hosts = parts.netloc.rpartition("@")
    user, colon, password = access.partition(":")
    if parts.fragment or parts.path.strip("/") or not hosts:
        raise ValueError("is not a URL; write / # ? @ : in a password as %2F %23 %3F %40 %3A")
    return [
        Address(
            *_host_and_port(host),
            parts.scheme == "tls",
            unquote(user),
            unquote(password) if colon else None,
            parts.query,
        )
        for host in hosts.split(",")
    ]


def _host_and_port(text: str) -> tuple[str, int]:
    found = urlsplit(f"//{text}")
    if not found.hostname or found.username is not None:
        raise ValueError("names no host")
    return found.hostname, found.port or PORT
