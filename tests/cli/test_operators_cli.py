"""What commands ask before they do it, and what the doctor finds about keys."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from fake_node import FakeNode, Run

from headgate.store.secrets import Keyring, new_master_key
from tests.waiting import LONG_S

IN_USE = {"path": "orders", "message": "version 3 is published, and runs now", "hint": ""}


def refuse(node: FakeNode, method: str, path: str, code: str, detail: str, **more: Any) -> None:
    """Answer with a problem that asks for a yes."""
    problem = {"type": "about:blank", "title": "Conflict", "status": 409, "detail": detail, "code": code, **more}
    node.on(method, path, problem, 409)


def test_a_pause_of_several_is_one_request_each(run: Run, node: FakeNode) -> None:
    for name in ("orders", "clicks"):
        node.on("POST", f"/api/datasources/{name}/pause", {"name": name, "action": "pause"})
    result = run("ds", "pause", "orders", "clicks")
    assert (result.exit_code, result.stdout) == (0, "paused orders\npaused clicks\n")


def test_a_secret_that_is_used_is_named_with_its_users_and_needs_a_yes(run: Run, node: FakeNode) -> None:
    hint = "see to that first, or say --yes"
    more = {"problems": [IN_USE], "hint": hint, "counts": {"datasources": 1, "running": 1}}
    refuse(node, "DELETE", "/api/secrets/warehouse", "in_use", "secret 'warehouse' is in use: orders", **more)
    result = run("secrets", "delete", "warehouse")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr.splitlines() == [
        f"headgate: secret 'warehouse' is in use: orders ({hint})",
        "  orders: version 3 is published, and runs now",
    ]
    assert node.asked[-1].query == {}
    node.on("DELETE", "/api/secrets/warehouse", None, 204)
    assert run("secrets", "delete", "warehouse", "--yes").stdout == "deleted secret warehouse\n"
    assert node.asked[-1].query == {"yes": "true"}


def test_deleting_with_a_yes_says_what_was_lost(run: Run, node: FakeNode) -> None:
    stake = {"name": "orders", "payloads": 12, "letters": 0, "dumps": []}
    node.on("GET", "/api/datasources/orders/deletion", stake)
    node.on("DELETE", "/api/datasources/orders", None, 204)
    result = run("ds", "delete", "orders", "--yes")
    assert (result.exit_code, result.stdout) == (0, "deleted orders (12 accepted payloads wait)\n")
    assert node.asked[-1].query == {"yes": "true"}


def test_without_a_terminal_an_edit_says_what_it_would_do_and_does_nothing(run: Run, node: FakeNode) -> None:
    detail = "orders:0: 119 → 99: records 100 to 119 are read again"
    refuse(node, "PUT", "/api/streams/orders:0/position", "unconfirmed", detail, hint="say --yes")
    result = run("streams", "set-position", "orders:0", "99")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == f"headgate: {detail} (say --yes)\n"
    assert [one.body for one in node.asked] == [{"position": 99, "yes": False}]
    result = run("streams", "set-position", "orders:0", "--from-history", "41")
    assert node.asked[-1].body == {"history": 41, "yes": False}


@pytest.mark.parametrize(("answer", "asked"), [("n\n", [False]), ("y\n", [False, True])])
def test_on_a_terminal_an_edit_asks(node: FakeNode, answer: str, asked: list[bool]) -> None:
    detail = "orders:0: 119 → 99: records 100 to 119 are read again"
    refuse(node, "PUT", "/api/streams/orders:0/position", "unconfirmed", detail)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate.cli", "streams", "set-position", "orders:0", "99"],
        env={**os.environ, "HEADGATE_URL": node.url},
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.write(ours, answer.encode())
    _, err = process.communicate(timeout=LONG_S)
    os.close(ours)
    os.close(theirs)
    assert detail in err
    assert "Do it?" in err
    assert [one.body["yes"] for one in node.asked] == asked, err
    assert process.returncode == 4  # The fake node refuses the second one as well.


def test_history_shows_the_numbers_that_a_position_is_restored_by(run: Run, node: FakeNode) -> None:
    line = {"id": 41, "at": "2026-01-01T00:00:00Z", "kind": "released", "actor": "alpha", "epoch": 1, "generation": 0}
    node.on("GET", "/api/streams/orders:0/history", {"items": [{**line, "commits": 3, "position": 99}]})
    heads, row = run("streams", "history", "orders:0").stdout.splitlines()
    assert heads.split()[:2] == ["N", "WHEN"]
    assert row.split()[0] == "41"


# The doctor.

OLD, NEW = new_master_key(), new_master_key()


async def _fill(url: str, key: str) -> str:
    """One of each thing that is encrypted. Returns the id of the key."""
    keyring = Keyring.load(key, None)
    assert keyring is not None
    connection = await asyncpg.connect(url)
    try:
        secret = keyring.seal("warehouse", "value")
        await connection.execute("INSERT INTO headgate.secret VALUES ('warehouse', $1, $2, $3, 'ada')", *secret)
        await connection.execute("""
            INSERT INTO headgate.datasource (id, name, revision) VALUES (gen_random_uuid(), 'orders', 1);
            INSERT INTO headgate.stream (id, datasource, index)
            SELECT gen_random_uuid(), id, 0 FROM headgate.datasource
        """)
        await connection.execute(
            "INSERT INTO headgate.fixture (datasource, name, inputs, key_id, wrapped_key, ciphertext, author)"
            " SELECT id, 'basic', 1, $1, '', '', 'ada' FROM headgate.datasource", keyring.current
        )  # fmt: skip
        await connection.execute(
            "INSERT INTO headgate.dead_letter (id, datasource, stream, place, stage, reason, cause, version, first_at,"
            " last_at, size_bytes, payload, key_id, in_sink) SELECT gen_random_uuid(), datasource, id, 'x', 'mapping',"
            " 'why', 'bad_record', 1, now(), now(), 2, '1', $1, false FROM headgate.stream, generate_series(1, 3)",
            keyring.current,
        )
        await connection.execute(
            "INSERT INTO headgate.dump (id, source, target, key_id, wrapped, ciphertext, options, actor) VALUES"
            " ('01928f3e-7c11-7000-8000-000000000001', 'a', 'b', $1, '', '', '{}', 'ada')", keyring.current
        )  # fmt: skip
    finally:
        await connection.close()
    return keyring.current


@pytest.fixture
def filled(url: str) -> str:
    """A database with one of each thing that is encrypted, under the old key."""
    asyncio.run(_fill(url, OLD))
    return url


def doctor(run: Run, url: str) -> dict[str, list[str]]:
    """The lines of the doctor, by what they are about."""
    found: dict[str, list[str]] = {}
    for line in run("doctor", "--database", url).stdout.splitlines():
        found.setdefault(line.split()[1], []).append(line)
    return found


def stuck(found: dict[str, list[str]]) -> dict[str, str]:
    (secrets,), (fixtures,), (letters,), (dumps,) = (
        found[name] for name in ("secrets", "fixtures", "letters", "dumps")
    )
    assert all(line.startswith("✗") for line in (secrets, fixtures, letters, dumps))
    assert "1 secret: warehouse" in secrets
    assert "1 fixture: orders/basic" in fixtures
    assert "3 dead letters: orders" in letters
    assert "1 dump: 01928f3e-7c11" in dumps
    assert "headgate secrets set NAME" in secrets
    assert "headgate dlq discard NAME" in letters
    assert "headgate dumps resume ID --source URL" in dumps
    return {"secrets": secrets, "letters": letters}


def key_id() -> str:
    keyring = Keyring.load(OLD, None)
    assert keyring is not None
    return keyring.current


def test_without_a_key_the_doctor_names_everything_that_needs_it(run: Run, filled: str, home: Path) -> None:
    found = stuck(doctor(run, filled))
    assert "no master key for 1 secret" in found["secrets"]
    assert f"set HEADGATE_MASTER_KEY to the key of then (its id is {key_id()})" in found["secrets"]
    assert not (home / "master.key").exists()  # Unlike a node, it makes none.


def test_with_another_key_the_doctor_says_which_one_is_missing(
    run: Run, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_MASTER_KEY", NEW)
    found = stuck(doctor(run, filled))
    assert "no key that is here opens 3 dead letters" in found["letters"]
    assert f"its id is {key_id()}" in found["letters"]
    assert NEW not in str(found)


def test_a_key_file_that_would_fit_and_is_not_used_is_named(
    run: Run, filled: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "master.key").write_text(f"{OLD}\n")
    monkeypatch.setenv("HEADGATE_MASTER_KEY", NEW)
    assert f"add the key in {home / 'master.key'}" in stuck(doctor(run, filled))["secrets"]


@pytest.mark.parametrize("key", [OLD, f"{NEW},{OLD}"], ids=["the key", "among others"])
def test_with_the_key_all_is_well(run: Run, filled: str, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("HEADGATE_MASTER_KEY", key)
    found = doctor(run, filled)
    (line,) = found["secrets"]
    assert line.startswith("✓")
    assert "decrypts 1 secret, 1 fixture, 3 dead letters, 1 dump" in line
    assert found.keys().isdisjoint({"fixtures", "letters", "dumps"})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "holds no key"),
        ("not a key\n", "a master key must be 32 bytes in base64"),
        (b"\xff\xfe", "cannot be read: is no text"),
    ],
)
def test_a_key_file_that_is_none_is_said_with_what_cannot_be_opened(
    run: Run, filled: str, home: Path, content: str | bytes, said: str
) -> None:
    file = home / "master.key"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    file.chmod(0o600)
    found = doctor(run, filled)
    assert any(str(file) in line and said in line for line in found["secrets"])
    assert any("no master key for 1 secret: warehouse" in line for line in found["secrets"])
    assert found["letters"]


def test_a_key_file_of_the_wrong_mode(run: Run, filled: str, home: Path) -> None:
    file = home / "master.key"
    file.write_text(f"{OLD}\n")
    file.chmod(0o644)
    warned, well = doctor(run, filled)["secrets"]
    assert warned.startswith("!")
    assert f"{file} may be read by others (mode 644) (chmod 600 {file})" in warned
    assert well.startswith("✓")


def test_a_key_file_that_may_not_be_read(run: Run, filled: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = home / "master.key"
    file.write_text(f"{OLD}\n")
    real = Path.read_text

    def read_text(path: Path, *args: Any, **kwargs: Any) -> str:  # Root may read everything.
        if path == file:
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", read_text)
    found = doctor(run, filled)["secrets"]
    assert any(f"{file} cannot be read: Permission denied" in line and "chmod 600" in line for line in found)
    assert any("no master key for 1 secret: warehouse" in line for line in found)


def test_the_doctor_names_what_could_not_be_removed_from_a_sink(run: Run, filled: str) -> None:
    async def wait() -> None:
        connection = await asyncpg.connect(filled)
        await connection.execute(
            "INSERT INTO headgate.removal (stream, version, datasource, due_at, attempts, reason)"
            " SELECT gen_random_uuid(), 2, id, now() + interval '1 h', 3, 'the sink is away'"
            " FROM headgate.datasource, generate_series(1, 2)"
        )
        await connection.close()

    asyncio.run(wait())
    (line,) = doctor(run, filled)["removals"]
    assert line.startswith("!")
    assert "orders: 2 streams left something in its sink: the sink is away" in line
