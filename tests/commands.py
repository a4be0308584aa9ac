"""The command line, run as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import LONG_S


def headgate(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `headgate` in this home, with no settings but these."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("HEADGATE_")}
    return subprocess.run(
        [sys.executable, "-m", "headgate.cli", *arguments],
        env={**inherited, "HEADGATE_HOME": str(home), **environment},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=LONG_S,
    )
