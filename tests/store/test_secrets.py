"""Secrets at rest: what a key opens, what no key opens, and how keys are changed."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest

from headgate.errors import ConfigError
from headgate.ids import new_id
from headgate.store.database import Database
from headgate.store.datasources import Datasources
from headgate.store.dump_rows import NewDump
from headgate.store.dumps import Dumps
from headgate.store.secrets import Keyring, Secrets, new_master_key

OLD, NEW, OTHER = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2, 3))


def keyring(*keys: str) -> Keyring:
    found = Keyring.load(",".join(keys), None)
    assert found is not None
    return found


def flipped(sealed: bytes, place: int) -> bytes:
    """The same with one bit changed."""
    changed = bytearray(sealed)
    changed[place] ^= 1
    return bytes(changed)


@pytest.fixture
def secrets(database: Database) -> Secrets:
    return Secrets(database, keyring(OLD))


async def put(database: Database, name: str, value: str) -> None:
    """Write a secret, sealed with the old key."""
    async with Datasources(database).change("a test") as change:
        await change.execute("secrets/put", name, *keyring(OLD).seal(name, value), "a test")


# Keys.


def test_what_is_sealed_is_opened_with_the_same_key_and_with_no_other() -> None:
    sealed = keyring(OLD).seal("warehouse", "pässword")
    assert keyring(OLD).unseal("warehouse", *sealed) == "pässword"
    assert keyring(NEW, OLD).unseal("warehouse", *sealed) == "pässword"
    assert keyring(NEW).unseal("warehouse", *sealed) is None


def test_the_same_secret_is_never_sealed_the_same_way_twice() -> None:
    assert keyring(OLD).seal("warehouse", "x")[1:] != keyring(OLD).seal("warehouse", "x")[1:]
    assert b"password" not in b"".join(keyring(OLD).seal("warehouse", "password")[1:])


def test_one_row_cannot_be_passed_off_as_another() -> None:
    sealed = keyring(OLD).seal("staging", "x")
    assert keyring(OLD).unseal("production", *sealed) is None


@pytest.mark.parametrize("place", [0, 12, 20, -1])
def test_what_was_tampered_with_is_not_opened(place: int) -> None:
    key_id, wrapped, ciphertext = keyring(OLD).seal("warehouse", "password")
    assert keyring(OLD).unseal("warehouse", key_id, wrapped, flipped(ciphertext, place)) is None
    assert keyring(OLD).unseal("warehouse", key_id, flipped(wrapped, place), ciphertext) is None
    assert keyring(OLD).rewrap("warehouse", key_id, flipped(wrapped, place)) is None


@pytest.mark.parametrize("rest", [b"", b"short", b"x" * 12, b"x" * 13])
def test_what_was_cut_off_is_not_opened(rest: bytes) -> None:
    key_id, wrapped, ciphertext = keyring(OLD).seal("warehouse", "password")
    assert keyring(OLD).unseal("warehouse", key_id, wrapped, rest) is None
    assert keyring(OLD).unseal("warehouse", key_id, rest, ciphertext) is None


def test_a_key_file_is_made_once_and_is_for_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "master.key"
    made = Keyring.load(None, file)
    again = Keyring.load(None, file)
    assert made is not None
    assert again is not None
    assert made.current == again.current
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_setting_wins_over_the_file_and_without_either_there_are_no_keys(tmp_path: Path) -> None:
    file = tmp_path / "master.key"
    file.write_text(OLD)
    assert keyring(NEW).current == getattr(Keyring.load(NEW, file), "current", None)
    assert Keyring.load(None, None) is None
    assert Keyring.load("", None) is None


def test_a_key_file_may_hold_several_keys_a_line_each(tmp_path: Path) -> None:
    file = tmp_path / "master.key"
    file.write_text(f"{NEW}\n{OLD}\n")
    found = Keyring.load(None, file)
    assert found is not None
    assert found.current == keyring(NEW).current
    assert found.unseal("warehouse", *keyring(OLD).seal("warehouse", "x")) == "x"


@pytest.mark.parametrize("text", ["x", "AAAA", "not base64!", f"{OLD},", f"{OLD},x", OLD[:-4], "é"])
def test_a_key_that_is_none_is_refused_with_how_to_make_one(text: str) -> None:
    with pytest.raises(ConfigError, match="32 bytes in base64") as caught:
        Keyring.load(text, None)
    assert "openssl" in caught.value.hint
    assert text not in str(caught.value)


def test_an_empty_key_file_is_refused(tmp_path: Path) -> None:
    """A file that a crash left empty has no key, and must not pass for one."""
    file = tmp_path / "master.key"
    file.touch()
    with pytest.raises(ConfigError):
        Keyring.load(None, file)


def test_a_new_key_is_a_key() -> None:
    assert new_master_key() != new_master_key()
    keyring(new_master_key())


# In the database.


async def test_a_secret_is_read_back_and_what_is_absent_is_left_out(secrets: Secrets, database: Database) -> None:
    await put(database, "warehouse", "one")
    await put(database, "warehouse", "two")
    assert await secrets.read(["warehouse", "nothing"]) == {"warehouse": "two"}
    assert await secrets.read([]) == {}


async def test_with_the_wrong_key_or_none_a_secret_is_there_but_not_readable(database: Database) -> None:
    await put(database, "warehouse", "x")
    assert await Secrets(database, keyring(OTHER)).read(["warehouse"]) == {"warehouse": None}
    assert await Secrets(database, None).read(["warehouse"]) == {"warehouse": None}


async def test_a_tampered_row_is_not_readable(secrets: Secrets, database: Database) -> None:
    await put(database, "warehouse", "x")
    await database.execute(
        "UPDATE headgate.secret SET ciphertext = set_byte(ciphertext, 14, 7 # get_byte(ciphertext, 14))"
    )
    assert await secrets.read(["warehouse"]) == {"warehouse": None}


async def test_after_a_rotation_the_old_key_can_be_removed(secrets: Secrets, database: Database) -> None:
    for n in range(3):
        await put(database, f"s{n}", f"value {n}")
    both = Secrets(database, keyring(NEW, OLD))
    assert await both.rotate() == (3, [])
    assert await both.rotate() == (0, [])
    expected = {f"s{n}": f"value {n}" for n in range(3)}
    assert await Secrets(database, keyring(NEW)).read(list(expected)) == expected
    assert set((await secrets.read(list(expected))).values()) == {None}


async def test_the_urls_of_dumps_are_rotated_too(database: Database) -> None:
    dump, urls = new_id(), {"source": "postgresql://a:b@c/d", "target": "csv:x"}
    new = NewDump(dump, "a", "b", urls, {}, [], None, None, "here", False, "ada", None)
    await Dumps(database, keyring(OLD)).create(new)
    await Secrets(database, keyring(NEW, OLD)).rotate()
    assert await Dumps(database, keyring(OLD)).urls(dump) is None
    found = await Dumps(database, keyring(NEW)).urls(dump)
    assert found is not None
    assert (found.source, found.target) == (urls["source"], urls["target"])


async def test_what_is_sealed_is_listed_by_its_key_and_never_by_its_value(secrets: Secrets, database: Database) -> None:
    await put(database, "warehouse", "value")
    (found,) = await secrets.sealed()
    assert secrets.keyring is not None
    assert (found.noun, found.whose, found.key_id, found.number) == ("secret", "warehouse", secrets.keyring.current, 1)
    assert secrets.keyring.has(found.key_id)
    assert not keyring(NEW).has(found.key_id)


async def test_a_rotation_names_what_no_key_opens_and_does_the_rest(database: Database) -> None:
    await put(database, "good", "x")
    await put(database, "stray", "x")
    await database.execute("UPDATE headgate.secret SET key_id = 'gone' WHERE name = 'stray'")
    assert await Secrets(database, keyring(NEW, OLD)).rotate() == (1, ["stray"])
    assert await Secrets(database, keyring(NEW)).read(["good", "stray"]) == {"good": "x", "stray": None}
