"""URLs of storages: their schemes, the paths in them, and how they are shown to people.

postgresql://user:password@host/database
csv:path/to/folder
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from headgate.credentials import SHOWN, hide_credentials
from headgate.errors import ConfigError

_PLACES = ("host", "port", "unix_socket")


def scheme_of(url: str) -> str:
    """The scheme, in lower case; empty for a path. One letter is a drive, not a scheme."""
    head, colon, _ = url.partition(":")
    return head.lower() if colon and head.replace("+", "").replace("-", "").isalnum() and len(head) > 1 else ""


def path_of(url: str) -> Path:
    """The path in the URL of a file storage."""
    rest = url.partition(":")[2]
    return Path(unquote(rest.removeprefix("//"))) if rest.startswith("//") else Path(rest)


def path_and_options(url: str, known: Sequence[str]) -> tuple[Path, dict[str, str]]:
    """The path of a URL, and its options. A question mark without a name and `=` after it is part of a pattern."""
    found = re.fullmatch(r"(.*?)\?([a-z_]+=.*)", url, re.DOTALL)
    if found is None:
        return path_of(url), {}
    options = dict(one.split("=", 1) for one in found[2].split("&") if "=" in one)
    for name in options:
        if name not in known:
            hint = f"known: {', '.join(known)}" if known else "this kind of file has no options"
            raise ConfigError(f"{name!r} is not an option of {found[1]}", hint=hint)
    return path_of(found[1]), {name: unquote(value) for name, value in options.items()}


def redacted(url: str) -> str:
    """The URL for people: no password, and no options, which may hold one, except those that say where."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"{scheme_of(url)}:{SHOWN}"
    rest = f"{parts.path}{parts.query}{parts.fragment}"
    if parts.netloc and "@" in rest:
        return f"{parts.scheme}://{SHOWN}"  # A password with a sign that ends the host: any part may belong to it.
    query = urlencode([pair for pair in parse_qsl(parts.query) if pair[0] in _PLACES], safe="/:")
    if not parts.netloc:
        if ":" in rest.rpartition("@")[0]:
            return f"{parts.scheme}:{SHOWN}"  # The slashes before a user and a password were forgotten.
        return hide_credentials(url.partition("?")[0] + (query and "?" + query))
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    shown = urlunsplit((parts.scheme, f"{name}{colon and ':' + SHOWN}{at}{host}", parts.path, query, ""))
    return hide_credentials(shown)
