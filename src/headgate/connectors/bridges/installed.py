"""What is installed in a home: connectors of others, each in an environment that is its own.

    HOME/connectors/lock                       held while something is installed or removed
    HOME/connectors/runs/…                     the folders of programs that run now
    HOME/connectors/environments/…             one for each installation, named at random
    HOME/connectors/KIND-NAME.json             what is installed under that name, and in which environment

The file is written last, so an environment that no file names is an installation that failed, was interrupted or has
been replaced. It is removed as soon as no program runs in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from headgate.connectors.bridges.child import remove_if_free, sweep
from headgate.connectors.bridges.requirement import Kind, normalized
from headgate.errors import Busy

FOLDER = "connectors"


class Installed(msgspec.Struct, frozen=True):
    """A connector of somebody else's, as it was installed."""

    kind: Kind
    name: str  # Of its package.
    version: str
    environment: str  # The name of its folder.
    executable: str  # What is run of it, in the environment's `bin`: `tap-github`. Of dlt: `python`.
    frozen: list[str]  # Names and versions of all that was installed with it.
    python: str
    installed_at_s: float
    spec: dict[str, Any] | None = None  # The JSON Schema of its configuration, if it has said one.
    modules: list[str] = []  # The modules that its package brings, at the top.

    @property
    def names(self) -> tuple[str, ...]:
        """What documents may call it."""
        return (self.name, self.executable) if self.executable != "python" else (self.name, *self.modules)

    def brings(self, module: str) -> bool:
        """Whether a module is its own. Of dlt itself only the sources count: nobody should call the rest of it."""
        top = module.partition(".")[0]
        if top not in (self.modules or [self.name.replace("-", "_")]):
            return False
        return top != "dlt" or f"{module}.".startswith("dlt.sources.")


class Home:
    """The connectors that are installed in one home."""

    def __init__(self, home: Path) -> None:
        self.folder = home.absolute() / FOLDER
        self._known: tuple[object, list[Installed]] = (None, [])

    @classmethod
    def use(cls, home: Path) -> Home:
        """The home of this process, from now on."""
        global _home
        _home = cls(home)
        return _home

    @property
    def runs(self) -> Path:
        """Where programs have their folders."""
        path = self.folder / "runs"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def environment(self, name: str) -> Path:
        """The folder of an environment."""
        return self.folder / "environments" / name

    def path_of(self, kind: Kind, name: str) -> Path:
        """The file that says what is installed under this name."""
        return self.folder / f"{kind}-{normalized(name)}.json"

    def all(self) -> list[Installed]:
        """By kind and name. Read again when something was installed or removed."""
        try:
            stamp = os.stat(self.folder).st_mtime_ns
            if self._known[0] != stamp:
                paths = sorted(self.folder.glob("[!.]*-*.json"))  # Not one that is being written.
                self._known = (stamp, [one for path in paths if (one := _read(path)) is not None])
        except OSError:
            return []
        return self._known[1]

    def find(self, kind: str, name: str) -> Installed | None:
        """What documents call so. A package's name comes before that of its program."""
        of_kind = [one for one in self.all() if one.kind == kind]
        exact = [one for one in of_kind if one.name == normalized(name)]
        called = [one for one in of_kind if name in one.names]
        return exact[0] if exact else called[0] if len(called) == 1 else None

    def save(self, one: Installed) -> None:
        """From now on it is installed."""
        path = self.path_of(one.kind, one.name)
        aside = path.with_name(f".{path.name}")
        aside.write_bytes(msgspec.json.format(msgspec.json.encode(one)))
        os.replace(aside, path)

    def forget(self, one: Installed) -> None:
        """It is installed no longer. Programs that run in its environment keep that until they end."""
        self.path_of(one.kind, one.name).unlink(missing_ok=True)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """For as long as something is installed or removed, by one process at a time."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self.folder / "lock", "wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Busy("another connector is being installed in this home", hint="try again later") from None
            yield

    def tidy(self) -> None:
        """Remove what is nobody's: environments that nothing names, and folders of programs that are gone."""
        sweep(self.runs)
        with contextlib.suppress(Busy), self.changing():
            named = {one.environment for one in self.all()}
            environments = self.environment("")
            for path in environments.iterdir() if environments.is_dir() else ():
                if path.name not in named:
                    remove_if_free(path)


def _read(path: Path) -> Installed | None:
    """What a file says. One of another release is as good as none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Installed)
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


_home: Home | None = None


def present_home() -> Home | None:
    """The home of this process. None: it is no node, and cannot tell what is installed."""
    return _home
