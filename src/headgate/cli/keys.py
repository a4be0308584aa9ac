"""The doctor's look at master keys: whether those that are here open what is encrypted, and what to do if not.

A key is known by its id, which stands with everything that it wraps; so a million dead letters cost one query. Secrets
are few, and are opened in earnest. Nothing is changed: unlike a node, the doctor makes no key file.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from headgate.cli.verdict import Verdict, fail, ok, warn
from headgate.config import Settings
from headgate.errors import ConfigError
from headgate.store.database import Database
from headgate.store.secrets import Keyring, SealedThing, Secrets
from headgate.text import counted, one_line

MOST_NAMED = 10

# What stands in each line of the doctor, and what to do without the key.
_LINES = {
    "secret": ("secrets", "set them again: headgate secrets set NAME"),
    "fixture": ("fixtures", "keep them again: headgate ds test NAME --save FIXTURE"),
    "dead letter": ("letters", "discard them: headgate dlq discard NAME"),
    "dump": ("dumps", "give the URLs: headgate dumps resume ID --source URL --target URL"),
}


async def examine(database: Database, settings: Settings) -> list[Verdict]:
    """What is wrong with the key file, and what cannot be opened; or that everything can."""
    keyring, found = keyring_of(settings)
    text, file = _text(settings), settings.home / "master.key"
    secrets = Secrets(database, keyring)
    sealed = await secrets.sealed()
    names = [one.whose for one in sealed if one.noun == "secret"]
    broken = {name for name, value in (await secrets.read(names)).items() if value is None}
    stuck = [one for one in sealed if keyring is None or not keyring.has(one.key_id) or _is_broken(one, broken)]
    if stuck:
        remedy = _remedy(keyring, text, file, {one.key_id for one in stuck}, is_readable=not found)
        return [*found, *_stuck(stuck, keyring, remedy)]
    if found:
        return found
    if keyring is None:
        hint = "set HEADGATE_MASTER_KEY before `headgate secrets set`"
        return [warn("secrets", "no master key, and no secrets", hint)]
    return [*_too_open(text, file), ok("secrets", f"the master key decrypts {_all(sealed)}")]


def keyring_of(settings: Settings) -> tuple[Keyring | None, list[Verdict]]:
    """The keys that a node would have, and why there are none, if that is wrong."""
    return _keyring(_text(settings), settings.home / "master.key")


def _text(settings: Settings) -> str | None:
    return settings.master_key.get_secret_value() if settings.master_key else None


def _keyring(text: str | None, file: Path) -> tuple[Keyring | None, list[Verdict]]:
    """The keys of the setting or of the file, as a node would take them; and why there are none, if that is wrong."""
    try:
        return Keyring.load(text, file if file.exists() else None), []
    except ConfigError as error:
        where = "HEADGATE_MASTER_KEY" if text else str(file)
        message = error.problems[0].message
        return None, [fail("secrets", message if where in message else f"{where}: {message}", error.hint)]
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is no text"
        hint = f"chmod 600 {file}, and make it the file of the user that runs the node"
        return None, [fail("secrets", f"{file} cannot be read: {one_line(why)}", hint)]


def _too_open(text: str | None, file: Path) -> list[Verdict]:
    """A key file that others may read."""
    if text or not file.exists() or not (mode := stat.S_IMODE(file.stat().st_mode)) & 0o077:
        return []
    return [warn("secrets", f"{file} may be read by others (mode {mode:03o})", f"chmod 600 {file}")]


def _is_broken(one: SealedThing, broken: set[str]) -> bool:
    return one.noun == "secret" and one.whose in broken


def _remedy(keyring: Keyring | None, text: str | None, file: Path, key_ids: set[str], *, is_readable: bool) -> str:
    """How to come by the key."""
    if text and is_readable and file.exists():
        others, _ = _keyring(None, file)
        if others is not None and all(map(others.has, key_ids)):
            return f"add the key in {file} to HEADGATE_MASTER_KEY, which is used in its place"
    named = ", ".join(sorted(key_ids))
    if keyring is None and not text and not file.exists():
        return f"set HEADGATE_MASTER_KEY to the key of then (its id is {named}), or put {file} back from your backup"
    return f"add the key of then (its id is {named}) to HEADGATE_MASTER_KEY, or to {file} as another line"


def _stuck(stuck: Sequence[SealedThing], keyring: Keyring | None, remedy: str) -> list[Verdict]:
    verdicts = []
    for noun, (line, otherwise) in _LINES.items():
        some = [one for one in stuck if one.noun == noun]
        if some:
            why = "no master key for" if keyring is None else "no key that is here opens"
            number = counted(sum(one.number for one in some), noun)
            detail = f"{why} {number}: {_names(some)}"
            verdicts.append(fail(line, detail, f"{remedy}; or {otherwise}"))
    return verdicts


def _names(some: Sequence[SealedThing]) -> str:
    names = list(dict.fromkeys(one.whose for one in some))
    few = ", ".join(names[:MOST_NAMED])
    return few if len(names) <= MOST_NAMED else f"{few} and {len(names) - MOST_NAMED} more"


def _all(sealed: Sequence[SealedThing]) -> str:
    """`5 secrets, 2 fixtures`; of nothing, `0 secrets`."""
    numbers = {noun: sum(one.number for one in sealed if one.noun == noun) for noun in _LINES}
    return ", ".join(counted(n, noun) for noun, n in numbers.items() if n or noun == "secret")
