"""`HEADGATE_HOME` as commands and nodes of this machine share it.

| file | what it says |
| --- | --- |
| `node.json` | where the nodes run that were started with this home: the first in front, the others under `others` |
| `installation` | the installation that this home is of |
| `token` | a token of that installation, for its owner alone |

A token goes to no other installation than its own. So the two files change together: a node of another installation
that is started with this home puts the token aside, and the first installation finds it again when it comes back.

Nodes write `node.json` one at a time, under a lock. A node that was killed cannot remove its line; the next one that
writes does, and until then commands ask those that are alive first. What is not an address of this machine is no node
that was started with this home: a folder that came from elsewhere must not lead a token there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

TOKEN, INSTALLATION, NODES = "token", "installation", "node.json"


@dataclass(frozen=True, slots=True)
class Place:
    """A node on this machine."""

    url: str
    pid: int
    certificate: str | None = None  # The file of what it shows, if it speaks HTTPS.


def home() -> Path:
    """`HEADGATE_HOME`, read without the settings of a node: commands start fast."""
    if named := os.environ.get("HEADGATE_HOME"):
        return Path(named)
    import tomllib

    try:
        found = tomllib.loads(Path("headgate.toml").read_text("utf-8")).get("home")
    except (OSError, ValueError):
        found = None
    return Path(found) if isinstance(found, str) else Path(".headgate")


# Whose token.


def read_token(home: Path) -> str | None:
    """The token of this home."""
    return _read(home / TOKEN)


def installation(home: Path) -> str | None:
    """The installation that this home, and so its token, is of."""
    return _read(home / INSTALLATION)


def settle(home: Path, installation: str) -> None:
    """This home is of this installation from now on. A token of another one is put aside, and ours taken back."""
    before = _read(home / INSTALLATION)
    if before == installation:
        return
    if before is not None:
        with contextlib.suppress(FileNotFoundError):
            (home / TOKEN).rename(home / f"{TOKEN}-{before}")
    _replace(home / INSTALLATION, installation + "\n")
    if not (home / TOKEN).exists():
        with contextlib.suppress(FileNotFoundError):
            (home / f"{TOKEN}-{installation}").rename(home / TOKEN)


def keep_token(home: Path, text: str) -> None:
    """Keep this token for the commands on this machine."""
    _replace(home / TOKEN, text + "\n")


# Where nodes are.


def places(home: Path) -> list[Place]:
    """The nodes that were started with this home, the oldest first; those that have died come last."""
    text = _read(home / NODES)
    try:
        found = json.loads(text or "")
    except ValueError:
        return []
    if not isinstance(found, dict):
        return []
    others = found.get("others")
    listed = [place for one in (found, *(others if isinstance(others, list) else [])) if (place := _place(one))]
    return sorted(listed, key=lambda place: not is_alive(place.pid))


def add(home: Path, place: Place) -> None:
    """Let commands on this machine find this node; what died is forgotten."""

    def with_it(found: list[Place]) -> list[Place]:
        left = [place if one.url == place.url else one for one in found if is_alive(one.pid)]
        return left if place in left else [*left, place]

    _change(home, with_it)


def remove(home: Path, url: str) -> None:
    """Commands must not look for this node any more."""
    with contextlib.suppress(OSError):
        _change(home, lambda found: [one for one in found if one.url != url])


def is_alive(pid: int) -> bool:
    """Whether there is such a process. Whether it is a node, only asking it can tell."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return pid > 0


def _change(home: Path, change: Callable[[list[Place]], list[Place]]) -> None:
    with _locked(home):
        file = home / NODES
        left = [_written(one) for one in change(places(home))]
        if left:
            first, *others = left
            _replace(file, json.dumps({**first, "others": others} if others else first))
        else:
            file.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    descriptor = os.open(home / "node.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _place(found: object) -> Place | None:
    match found:
        case {"url": str(url), **rest} if _is_here(url):
            pid, certificate = rest.get("pid"), rest.get("certificate")
            return Place(
                url.rstrip("/"),
                pid if isinstance(pid, int) else 0,
                certificate if isinstance(certificate, str) else None,
            )
    return None


def _is_here(url: str) -> bool:
    """Whether this is an address of this machine: only such an address can be listened on."""
    try:
        parts = urlsplit(url)
        host = ip_address("127.0.0.1" if parts.hostname == "localhost" else parts.hostname or "")
    except ValueError:
        return False
    if parts.scheme not in ("http", "https"):
        return False
    if host.is_loopback:
        return True
    with socket.socket(socket.AF_INET if host.version == 4 else socket.AF_INET6) as probe:
        try:
            probe.bind((str(host), 0))
        except OSError:
            return False
    return True


def _written(place: Place) -> dict[str, object]:
    found: dict[str, object] = {"url": place.url, "pid": place.pid}
    return found | ({"certificate": place.certificate} if place.certificate else {})


def _read(file: Path) -> str | None:
    try:
        return file.read_text("utf-8").strip() or None
    except (OSError, ValueError):
        return None


def _replace(file: Path, text: str) -> None:
    """Write all at once, for the owner alone. A link that somebody has put there is replaced, not followed."""
    fresh = file.with_name(file.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(text)
    fresh.replace(file)
