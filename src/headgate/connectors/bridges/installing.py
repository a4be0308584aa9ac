"""Installs a connector of others: an environment, its package from the registry of Python packages, and what it says.

An installation takes minutes, so it runs in the background of a node, one at a time, and says how it goes. Its
environment counts only once everything is there; what fails or is interrupted is removed, at once or by the next one.
What pip is asked for is put together from a name and a version (`requirement`). Where packages come from, pip's own
settings on this machine say.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import structlog

from headgate.connectors.bridges.child import Child, Program, output_of
from headgate.connectors.bridges.installed import Home, Installed
from headgate.connectors.bridges.requirement import Wanted
from headgate.credentials import hide_credentials
from headgate.errors import ConfigError, ConnectorError, HeadgateError, Refused
from headgate.hidden import hide
from headgate.text import one_line

INSTALL_S = 3600.0
ASK_S = 120.0  # For what a connector says of itself.
SPEC_BYTES = 8 * 1024 * 1024
MEMORY_MB = 16 * 1024
LINE_BYTES = 1024 * 1024
_NOT_PASSED = ("HEADGATE_", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
_PREFIX = {"singer": "tap-", "airbyte": "source-"}

# What is in an environment: the version of the package, its scripts, its modules, and all names and versions.
_LOOK = """
import importlib.metadata as m, json, platform, re, sys
own = m.distribution(sys.argv[1])
plain = lambda name: re.sub(r"[-_.]+", "-", name).lower()
tops = {p.parts[0].removesuffix(".py") for p in own.files or [] if p.suffix == ".py" and ".." not in p.parts}
print(json.dumps({
    "version": own.version,
    "scripts": sorted(e.name for e in own.entry_points if e.group == "console_scripts"),
    "modules": sorted(t for t in tops if t.isidentifier() and t != "tests"),
    "frozen": sorted({f"{plain(d.metadata['Name'])}=={d.version}" for d in m.distributions()}),
    "python": platform.python_version(),
}))
"""

log = structlog.get_logger()


class Look(msgspec.Struct):
    """What is in an environment."""

    version: str
    scripts: list[str]
    modules: list[str]
    frozen: list[str]
    python: str


@dataclass(slots=True)
class Work:
    """An installation that is under way, or that has failed."""

    wanted: Wanted
    began_s: float
    step: str = "making an environment"
    said: str = ""  # What pip says now.
    error: str = ""  # Why it has failed.


class Installer:
    """Installs and removes connectors in one home."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.work: Work | None = None  # The latest, while it is under way and if it has failed.
        self._task: asyncio.Task[None] | None = None

    def begin(self, wanted: Wanted, on_end: Callable[[Installed | None, str], None]) -> Work:
        """Install it in the background. `on_end` is told what is installed, or why nothing is."""
        if self._task is not None and not self._task.done():
            assert self.work is not None
            raise Refused(f"{self.work.wanted.package} is being installed", hint="try again when it is done")
        self.work = Work(wanted, time.time())
        self._task = asyncio.create_task(self._install(self.work, on_end), name="install a connector")
        return self.work

    async def close(self) -> None:
        """Stop what is under way; it leaves nothing behind."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def remove(self, one: Installed) -> None:
        """Remove it, or as much of it as nothing runs in."""
        self.home.forget(one)
        self.home.tidy()

    async def _install(self, work: Work, on_end: Callable[[Installed | None, str], None]) -> None:
        done: Installed | None = None
        try:
            done = await install(self.home, work)
            self.work = None
        except HeadgateError as error:
            work.error = error.message
        except OSError as error:
            work.error = f"{work.step} failed: {error.strerror or 'it took too long'}"
        except asyncio.CancelledError:
            work.error = "the node has stopped"
            raise
        except Exception as error:
            log.exception("an installation failed")
            work.error = f"a fault of this node: {type(error).__name__}"
        finally:
            on_end(done, work.error)


async def install(home: Home, work: Work) -> Installed:
    """Do it. Raises if it cannot be done, and leaves nothing then."""
    await asyncio.to_thread(home.tidy)
    with home.changing():
        name = secrets.token_hex(8)
        folder = home.environment(name)
        folder.mkdir(mode=0o700, parents=True)
        try:
            found = await _made(home, work, name, folder)
            home.save(found)
        except BaseException:
            # Thousands of files: others have their turn meanwhile, and a node that ends waits for it.
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))
            raise
    await asyncio.to_thread(home.tidy)  # The one that it takes the place of.
    return found


async def _made(home: Home, work: Work, name: str, folder: Path) -> Installed:
    wanted = work.wanted
    python = str(folder / "bin" / "python")
    # An environment with pip in it takes several times as long to make, and pip may be here already.
    has_pip = importlib.util.find_spec("pip") is not None
    await _run(home, work, folder, [sys.executable, "-m", "venv", *(["--without-pip"] if has_pip else []), str(folder)])
    work.step = f"installing {wanted.package}"
    pip = [sys.executable, "-m", "pip", "--python", python] if has_pip else [python, "-m", "pip"]
    more = ["dlt"] if wanted.kind == "dlt" and wanted.package.name != "dlt" else []
    packages = [str(wanted.package), *map(str, wanted.extra), *more]
    flags = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    await _run(home, work, folder, [*pip, "install", *flags, "--", *packages])
    work.step, work.said = "asking it for its options", ""
    look = await _look(home, wanted, folder)
    executable = _executable(wanted, look.scripts)
    return Installed(
        wanted.kind,
        wanted.package.name,
        look.version,
        name,
        executable,
        look.frozen,
        look.python,
        time.time(),
        await _spec(home, wanted, folder, executable),
        look.modules,
    )


async def _run(home: Home, work: Work, folder: Path, command: list[str]) -> None:
    """One command to its end. It ends with the node."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED)}
    program = Program(command[2], command, folder, {}, MEMORY_MB, LINE_BYTES, variables)
    child = await Child.start(program, home.runs, log.bind(connector=str(work.wanted.package)))
    try:
        async with asyncio.timeout(INSTALL_S):
            while (lines := await child.lines()) is not None:
                for line in lines:
                    if isinstance(line, bytes) and line.strip():
                        work.said = _shown(line.decode("utf-8", "replace"))
            code = await child.ended()
    except TimeoutError:
        raise ConfigError(f"{work.step} took longer than {INSTALL_S / 60:.0f} minutes") from None
    finally:
        await child.close()
    if code != 0:
        why = _shown(child.said.last("ERROR: ").removeprefix("ERROR: ")) or work.said
        raise ConfigError(f"{work.step} failed: {why}")


def _shown(text: str) -> str:
    """Of pip, which names the addresses that it asks."""
    return one_line(hide_credentials(hide(text), in_prose=True), 300)


async def _look(home: Home, wanted: Wanted, folder: Path) -> Look:
    python = str(folder / "bin" / "python")
    program = Program("python", [python, "-I", "-c", _LOOK, wanted.package.name], folder, {})
    code, lines, said = await output_of(program, home.runs, log, ASK_S, SPEC_BYTES)
    if code != 0 or not lines:
        raise ConfigError(f"{wanted.package} cannot be looked at: {said.last()}")
    try:
        return msgspec.json.decode(lines[-1], type=Look)
    except (msgspec.MsgspecError, UnicodeError):
        raise ConfigError(f"{wanted.package} cannot be looked at: it does not say its name and version") from None


def _executable(wanted: Wanted, scripts: list[str]) -> str:
    """Which of a package's programs is the connector."""
    if wanted.kind == "dlt":
        return "python"
    prefix = _PREFIX[wanted.kind]
    found = [one for one in scripts if one.startswith(prefix) and "/" not in one] or [
        one for one in scripts if prefix in one and "/" not in one
    ]
    if not found:
        said = f"{wanted.package} has no program {prefix}…, so it is no {wanted.kind} connector"
        raise ConfigError(said, hint=f"it has {', '.join(scripts[:10]) or 'none'}")
    return min(found, key=len)


async def _spec(home: Home, wanted: Wanted, folder: Path, executable: str) -> dict[str, Any] | None:
    """The JSON Schema of its configuration. Not every tap says one, and none is needed."""
    if wanted.kind == "dlt":
        return None
    arguments = ["spec"] if wanted.kind == "airbyte" else ["--about", "--format=json"]
    program = Program(executable, [str(folder / "bin" / executable), *arguments], folder, {})
    try:
        code, lines, _ = await output_of(program, home.runs, log, ASK_S, SPEC_BYTES)
    except (TimeoutError, ConnectorError):
        return None
    return spec_in(lines) if code == 0 else None


def spec_in(lines: list[bytes]) -> dict[str, Any] | None:
    """The schema in an answer: a message of Airbyte's, or the page that taps of the SDK have about themselves."""
    text = b"\n".join(lines)
    for part in [*lines, text[text.find(b"{") :]]:
        try:
            found = json.loads(part)
        except (ValueError, RecursionError):
            continue
        match found:
            case {"type": "SPEC", "spec": {"connectionSpecification": dict(schema)}} | {"settings": dict(schema)}:
                return schema
    return None
