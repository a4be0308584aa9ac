"""Where tests keep their files: in memory, if there is enough of it.

Tests make a thousand databases and throw each away seconds later. On a disk that is most of what they cost: copying the
template takes 150 ms of CPU time on ext4 and 12 ms on tmpfs. Nothing here must outlive the machine, so no test needs
the disk. `TMPDIR` in the environment is respected, and workers get it from the process that starts them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

MEMORY = Path("/dev/shm")
NEEDED_BYTES = 6 << 30  # A run uses less than half of it; the rest is for what else runs on the machine.
KEPT_S = 3600.0
ROOM = f"headgate-{os.getuid()}"


def choose() -> Path | None:
    """Have this process and its children make their temporary files in memory. Returns the folder, if it is so."""
    if "TMPDIR" in os.environ or not _has_room():
        return None
    room = MEMORY / ROOM
    room.mkdir(mode=0o755, exist_ok=True)
    for left in room.iterdir():  # What runs have left that were killed, or whose failures nobody looks at any more.
        if not Path(f"/proc/{left.name}").exists() and left.stat().st_mtime < time.time() - KEPT_S:
            shutil.rmtree(left, ignore_errors=True)
    folder = room / str(os.getpid())
    folder.mkdir(exist_ok=True)
    folder.chmod(0o1777)  # As /tmp: some tests run programs as another user.
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    return folder


def _has_room() -> bool:
    try:
        status = os.statvfs(MEMORY)
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    except OSError:
        return False
    runs_programs = not status.f_flag & os.ST_NOEXEC  # Some tests copy programs.
    available = int(lines["MemAvailable"].split()[0]) * 1024
    return runs_programs and min(status.f_bavail * status.f_frsize, available) > NEEDED_BYTES
