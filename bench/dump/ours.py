"""`headgate dump` and `headgate dumps …` as processes, with what they took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.dump.contest import Took
from bench.dump.scene import Scene
from bench.scale import fetch

LOOK_S = 0.05

_COPY = """
SELECT extract(epoch FROM max(at) - min(at - make_interval(secs => seconds)))::float8, sum(rows)::bigint,
       extract(epoch FROM min(at - make_interval(secs => seconds)))::float8
FROM headgate.dump_attempt WHERE dump = $1 AND kind = 'completed'
"""


def command(*words: str) -> list[str]:
    """The command, of the code that is here."""
    return [sys.executable, "-m", "headgate.cli", *words]


def environment(home: Path) -> dict[str, str]:
    """Only the home: the settings of whoever measures do not count."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    return {**inherited, "HEADGATE_HOME": str(home), "NO_COLOR": "1"}


def dump(scene: Scene, source: str, target: str, *flags: str, rows: int) -> Took:
    """Copy, to the end. The copy's time is that of its attempts: from the first lease to the last commit."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        began, clock_s = time.perf_counter(), time.time()
        process = subprocess.Popen(
            command("dump", source, target, "--json", *flags),
            env=environment(scene.home),
            stdout=out,
            stderr=errors,
            cwd=scene.folder,
        )
        peak_kb = 0
        while process.poll() is None:
            peak_kb = max(peak_kb, _peak_kb(process.pid))
            time.sleep(LOOK_S)
        wall_s = time.perf_counter() - began
        out.seek(0)
        errors.seek(0)
        assert process.returncode == 0, errors.read()[-2000:]
        id = json.loads(out.read())["id"]
    copy_s, written, first_s = fetch(scene.own, _COPY, id)[0]
    assert written == rows, f"{written} of {rows} rows"
    return Took(copy_s, wall_s, peak_kb / 1024, id, first_s - clock_s)


def _peak_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def dumps(scene: Scene, *words: str) -> tuple[Any, float, int]:
    """One of the other commands: what it says, the seconds it took, and its exit code."""
    began = time.perf_counter()
    done = subprocess.run(
        command("dumps", *words, "--json"),
        env=environment(scene.home),
        capture_output=True,
        text=True,
        cwd=scene.folder,
        check=False,
    )
    took_s = time.perf_counter() - began
    assert done.returncode in (0, 1), done.stderr[-2000:]
    return json.loads(done.stdout), took_s, done.returncode


def verify(scene: Scene, id: str) -> Took:
    """Compare a dump. The start of a process and its database are measured by a command that does nothing else."""
    _, start_s, _ = dumps(scene, "show", id)
    found, wall_s, _ = dumps(scene, "verify", id)
    assert found["equal"], found
    return Took(wall_s - start_s, wall_s, dump=id)
