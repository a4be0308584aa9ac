"""Processes that run dumps, by name: so that one that died can be told from one that is only slow."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def process_name() -> str:
    """This process, by a name that no other has: host, process, and when that began."""
    return f"{socket.gethostname()}:{os.getpid()}:{_began(os.getpid())}"


def is_dead(process: str | None) -> bool:
    """Whether a process of this host is known to have ended."""
    parts = (process or "").split(":")
    if len(parts) != 3 or parts[0] != socket.gethostname() or not parts[1].isdigit():
        return False
    return _began(int(parts[1])) != parts[2]


def _began(pid: int) -> str:
    """When a process began, as the system counts. Empty: there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
