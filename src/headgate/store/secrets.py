"""Secrets, encrypted at rest in two layers.

Each secret has its own data key; a master key, which never enters the database, wraps the data keys. To rotate the
master key only the wrapped keys are rewritten, in one transaction, while the old master key is still at hand. The
secret's name is authenticated with its ciphertext, so one row cannot be passed off as another.

Master keys come from `HEADGATE_MASTER_KEY` (several, separated by commas: the first encrypts, all decrypt) or from a
key file that is made on the first run.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets as random
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from headgate.errors import ConfigError
from headgate.hidden import remember
from headgate.store.database import Database, sql

if TYPE_CHECKING:
    from pydantic import SecretStr

_KEY_BYTES = 32
_NONCE_BYTES = 12


class Keyring:
    """The master keys. The first encrypts; all decrypt."""

    def __init__(self, keys: list[bytes]) -> None:
        self._keys = {_key_id(key): key for key in keys}
        self.current = _key_id(keys[0])

    @property
    def others(self) -> list[str]:
        """The ids of the keys that only decrypt."""
        return [id for id in self._keys if id != self.current]

    @classmethod
    def load(cls, text: str | None, file: Path | None) -> Keyring | None:
        """From the setting, or else from the file, which is made if it is absent. None: there are no keys."""
        if text:
            return cls([_parse_key(part) for part in text.split(",")])
        if file is None:
            return None
        if not file.exists():
            _write_key(file)
        lines = file.read_text().split()
        if not lines:
            raise ConfigError(f"{file} holds no key", hint="put the key back, or remove the file to have one made")
        return cls([_parse_key(line) for line in lines])

    def has(self, key_id: str) -> bool:
        """Whether this key is here."""
        return key_id in self._keys

    def seal(self, name: str, plaintext: str) -> tuple[str, bytes, bytes]:
        """Encrypt under a fresh data key: the master key's id, the wrapped data key, the ciphertext."""
        return self.seal_bytes(name, plaintext.encode())

    def seal_bytes(self, name: str, plaintext: bytes) -> tuple[str, bytes, bytes]:
        """The same for bytes."""
        data_key = AESGCM.generate_key(256)
        wrapped = _encrypt(self._keys[self.current], data_key, name)
        return self.current, wrapped, _encrypt(data_key, plaintext, name)

    def unseal(self, name: str, key_id: str, wrapped: bytes, ciphertext: bytes) -> str | None:
        """Decrypt; None if no key fits."""
        found = self.unseal_bytes(name, key_id, wrapped, ciphertext)
        try:
            return None if found is None else found.decode()
        except ValueError:
            return None

    def unseal_bytes(self, name: str, key_id: str, wrapped: bytes, ciphertext: bytes) -> bytes | None:
        """The same for bytes."""
        data_key = self._unwrap(name, key_id, wrapped)
        if data_key is None:
            return None
        try:
            return _decrypt(data_key, ciphertext, name)
        except (InvalidTag, ValueError):  # Changed, or cut off.
            return None

    def rewrap(self, name: str, key_id: str, wrapped: bytes) -> tuple[str, bytes] | None:
        """The same data key under the current master key; None if no key fits."""
        data_key = self._unwrap(name, key_id, wrapped)
        if data_key is None:
            return None
        return self.current, _encrypt(self._keys[self.current], data_key, name)

    def _unwrap(self, name: str, key_id: str, wrapped: bytes) -> bytes | None:
        key = self._keys.get(key_id)
        try:
            return _decrypt(key, wrapped, name) if key else None
        except (InvalidTag, ValueError):
            return None


def sealed_name(noun: str, owner: UUID, name: str) -> str:
    """What is authenticated with the ciphertext of something that is no secret. No secret has a slash in its name."""
    return f"{noun}/{owner}/{name}"


class KeySettings(Protocol):
    """The settings that say where the master keys are."""

    @property
    def master_key(self) -> SecretStr | None:
        """The keys themselves."""
        ...

    @property
    def home(self) -> Path:
        """Where the file is."""
        ...


def load_keyring(settings: KeySettings, *, embedded: bool) -> Keyring | None:
    """The master keys. With an embedded database a key file is made; with your own, you bring the key."""
    text = settings.master_key.get_secret_value() if settings.master_key else None
    file: Path = settings.home / "master.key"
    return Keyring.load(text, file if embedded or file.exists() else None)


def new_master_key() -> str:
    """A fresh master key, as text."""
    return base64.b64encode(random.token_bytes(_KEY_BYTES)).decode()


def _write_key(file: Path) -> None:
    """Never readable by others, not even for a moment."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(new_master_key() + "\n")


def _parse_key(text: str) -> bytes:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except ValueError:  # Not base64, or not even ASCII.
        key = b""
    if len(key) != _KEY_BYTES:
        raise ConfigError("a master key must be 32 bytes in base64", hint="make one with: openssl rand -base64 32")
    return key


def _key_id(key: bytes) -> str:
    return hashlib.sha256(b"headgate-key-id" + key).hexdigest()[:12]


def _encrypt(key: bytes, plaintext: bytes, name: str) -> bytes:
    nonce = random.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plaintext, name.encode())


def _decrypt(key: bytes, sealed: bytes, name: str) -> bytes:
    return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], name.encode())


@dataclass(frozen=True, slots=True)
class SealedThing:
    """Something that a master key wraps."""

    noun: str  # secret, fixture, dead letter or dump.
    whose: str  # Its name; of dead letters, their datasource's; of a dump, the beginning of its id.
    key_id: str  # Of the master key.
    number: int  # How many there are of it.


@dataclass(frozen=True, slots=True)
class SecretName:
    """A secret as it is listed: never its value."""

    name: str
    author: str  # The name of the token that wrote it last.
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class UsedBy:
    """A datasource that refers to a secret."""

    name: str
    is_draft: bool  # In its draft; else in the version that is published or runs.


class Secrets:
    """Read and list secrets; they are written through a change of the registry."""

    def __init__(self, database: Database, keyring: Keyring | None) -> None:
        self._database = database
        self.keyring = keyring

    async def all(self) -> list[SecretName]:
        """Names and when they changed; never a value."""
        rows = await self._database.fetch(sql("secrets/list"))
        return [SecretName(row["name"], row["author"], row["changed_at"]) for row in rows]

    async def users(self) -> dict[str, list[UsedBy]]:
        """Which datasources refer to which secrets, those that do not exist among them."""
        found: dict[str, list[UsedBy]] = {}
        for row in await self._database.fetch(sql("secrets/users")):
            found.setdefault(row["secret"], []).append(UsedBy(row["name"], row["is_draft"]))
        return found

    async def read(self, names: list[str]) -> dict[str, str | None]:
        """The values of those that exist; None for one that cannot be decrypted here."""
        if not names:
            return {}
        found: dict[str, str | None] = {}
        for row in await self._database.fetch(sql("secrets/read"), names):
            keyring = self.keyring
            sealed = (row["name"], row["key_id"], row["wrapped_key"], row["ciphertext"])
            found[row["name"]] = value = keyring.unseal(*sealed) if keyring else None
            if value is not None:
                remember(value)
        return found

    async def sealed(self) -> list[SealedThing]:
        """Everything that a master key wraps: secrets, fixtures, the records of dead letters, the URLs of dumps."""
        rows = await self._database.fetch(sql("secrets/sealed"))
        return [SealedThing(row["noun"], row["whose"], row["key_id"], row["number"]) for row in rows]

    async def known(self, names: list[str]) -> set[str]:
        """Which of these exist. No value is decrypted."""
        return {row["name"] for row in await self._database.fetch(sql("secrets/known"), names)} if names else set()

    async def rotate(self) -> tuple[int, list[str]]:
        """Wrap the data keys of secrets, of fixtures and of the URLs of dumps with the current master key. Returns how
        many, and the names that no key fits; a dump without its URLs can be given them."""
        if self.keyring is None:
            raise ConfigError("the master key is not set", hint="set HEADGATE_MASTER_KEY")
        done, stuck = 0, []
        async with self._database.transaction() as connection:
            for row in await connection.fetch(sql("secrets/read_all")):
                wrapped = self.keyring.rewrap(row["name"], row["key_id"], row["wrapped_key"])
                if wrapped is None:
                    stuck.append(row["name"])
                elif row["key_id"] != self.keyring.current:
                    await connection.execute(sql("secrets/rewrap"), row["name"], *wrapped)
                    done += 1
            for row in await connection.fetch(sql("fixtures/read_keys")):
                name = sealed_name("fixture", row["datasource"], row["name"])
                wrapped = self.keyring.rewrap(name, row["key_id"], row["wrapped_key"])
                if wrapped is None:
                    stuck.append(name)
                elif row["key_id"] != self.keyring.current:
                    await connection.execute(sql("fixtures/rewrap"), row["datasource"], row["name"], *wrapped)
                    done += 1
            for row in await connection.fetch(sql("dumps/read_keys")):
                wrapped = self.keyring.rewrap(str(row["id"]), row["key_id"], row["wrapped"])
                if wrapped is not None and row["key_id"] != self.keyring.current:
                    await connection.execute(sql("dumps/rewrap"), row["id"], *wrapped)
                    done += 1
        return done, stuck
