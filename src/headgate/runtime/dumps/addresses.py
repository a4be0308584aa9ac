"""What the two URLs of a dump stand for: what somebody wrote, or the value of a secret.

`${secret:NAME}` in the place of a URL is the URL that an admin has put into the secret of that name. A node reads it
each time it opens a storage, so a password that was changed meanwhile is known. The whole URL is the secret's, or
nothing: a secret inside a URL would be sent to a host that somebody else has named. Nothing of it is shown.

An admin may name any. For others a dump reaches what a datasource would with the same secret: they may write where a
sink of theirs could, read where a source could, and name no file, because no document can name one by a secret.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headgate.connectors.guard import OPEN, Guard
from headgate.connectors.plugins import absolute, by_scheme, whole
from headgate.connectors.urls import redacted, scheme_of
from headgate.errors import ConfigError, Refused

if TYPE_CHECKING:
    from headgate.datasources.registry import Registry

_REFERENCE = re.compile(r"\$\{secret:([a-z0-9][a-z0-9_-]*)\}")


@dataclass(frozen=True, slots=True)
class Address:
    """One side of a dump."""

    url: str
    kept: str  # What is kept of it, encrypted: the URL, or the secret's name.
    shown: str
    guard: Guard = OPEN


def secret_in(url: str) -> str | None:
    """The name of the secret that stands for a URL."""
    found = _REFERENCE.fullmatch(url)
    return None if found is None else found[1]


def refuse_secret(url: str) -> None:
    """Refuse what only a node can read, and what nobody should."""
    if secret_in(url) is not None:
        raise ConfigError(f"{url} is read by nodes", hint="--on URL has a node run the dump")
    if "${secret:" in url:
        raise ConfigError("a secret stands for a whole URL, not for a part of one", hint="${secret:NAME}")


def written(url: str, guard: Guard = OPEN) -> Address:
    """A URL that somebody wrote."""
    refuse_secret(url)
    url = absolute(whole(url))
    return Address(url, url, redacted(url), guard)


class Addresses:
    """What URLs stand for on a node."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def both(self, source: str, target: str, *, is_trusted: bool) -> tuple[Address, Address]:
        """Those of a dump."""
        return (
            await self._of(source, "read", is_trusted=is_trusted),
            await self._of(target, "write", is_trusted=is_trusted),
        )

    async def _of(self, text: str, purpose: Literal["read", "write"], *, is_trusted: bool) -> Address:
        """The address, with what may be reached for it by somebody who is an admin or is not."""
        reaching = await self._registry.reaching()
        name = secret_in(text)
        if name is None:
            return written(text, reaching.guard(is_trusted=is_trusted))
        values = await self._registry.secrets.read([name])
        url = values.get(name)
        if name not in values:
            raise Refused(f"secret {name!r} does not exist", code="no_secret", hint=f"headgate secrets set {name}")
        if url is None:
            raise Refused(f"secret {name!r} cannot be decrypted here", code="no_secret", hint="check the master key")
        connector = by_scheme(scheme_of(url))
        if connector is None:
            raise Refused(f"secret {name!r} is not the URL of a storage", code="no_storage")
        if not is_trusted and (connector.source if purpose == "read" else connector.sink) is None:
            raise Refused(
                f"with secret {name!r} no datasource could {purpose}, and so no operator can",
                code="out_of_reach",
                hint="an admin may, or may allow the address",
            )
        guard = reaching.guard(is_trusted=is_trusted) if connector.is_local else reaching.secret_guard()
        return Address(url, text, text, guard)
