"""Settings: what is read, and that a name which is no setting is an error."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from headgate.config import OF_COMMANDS, OF_TESTS, PREFIX, Settings, load
from headgate.errors import ConfigError, Problem

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the machine's own settings is seen."""
    for name in [name for name in os.environ if name.upper().startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def problems() -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        load()
    return caught.value.problems


def test_settings_come_from_flags_the_environment_and_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "headgate.toml").write_text('port = 1\nhost = "1.1.1.1"\nnode_name = "file"\n')
    monkeypatch.setenv("HEADGATE_PORT", "2")
    monkeypatch.setenv("HEADGATE_HOST", "2.2.2.2")
    found = load(port=3, host=None)
    assert (found.port, found.host, found.node_name) == (3, "2.2.2.2", "file")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("HEADGATE_PROT", "HEADGATE_PORT"),
        ("HEADGATE_MASTERKEY", "HEADGATE_MASTER_KEY"),
        ("HEADGATE_DATABASE_URL", "HEADGATE_DATABASE"),
        ("HEADGATE_TOKENS", "HEADGATE_TOKEN"),
        ("headgate_prot", "HEADGATE_PORT"),
    ],
)
def test_an_unknown_variable_is_an_error_that_names_the_one_that_is_meant(
    monkeypatch: pytest.MonkeyPatch, given: str, meant: str
) -> None:
    monkeypatch.setenv(given, "not-to-be-shown")
    assert problems() == [Problem(given, "is not a setting", f"did you mean {meant}?")]


def test_an_unknown_key_of_the_file_is_an_error_that_names_the_one_that_is_meant(tmp_path: Path) -> None:
    (tmp_path / "headgate.toml").write_text("prot = 1\n'lease-s' = 5\nPORT = 2\n[frobnicate]\nx = 1\n")
    hints = {problem.message: problem.hint for problem in problems()}
    assert hints["'prot' is not a setting"] == "did you mean port?"
    assert hints["'lease-s' is not a setting"] == "did you mean lease_s?"
    assert hints["'PORT' is not a setting"] == "did you mean port?"
    assert "settings.md" in hints["'frobnicate' is not a setting"]


def test_all_that_is_wrong_is_said_at_once_and_no_value_is_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "headgate.toml").write_text('lease_s = "hunter2"\nmaster_kei = "hunter2"\n')
    monkeypatch.setenv("HEADGATE_PORT", "hunter2")
    monkeypatch.setenv("HEADGATE_HOTS", "hunter2")
    found = problems()
    assert [problem.path for problem in found] == [
        "HEADGATE_HOTS",
        "headgate.toml",
        "HEADGATE_PORT",
        "HEADGATE_LEASE_S",
    ]
    assert "hunter2" not in str(found)


@pytest.mark.parametrize("content", [b"port = ", b"\xff\xfe", b"port = 1\nport = 2\n"])
def test_a_file_that_cannot_be_read_is_an_error_of_the_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "headgate.toml").write_bytes(content)
    assert [problem.path for problem in problems()] == ["headgate.toml"]


def test_variables_of_tests_and_of_commands_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (f"{OF_TESTS}ANYTHING", *(f"{PREFIX}{name.upper()}" for name in OF_COMMANDS)):
        monkeypatch.setenv(name, "x")
    load()


def test_every_variable_that_the_tree_names_is_a_setting_or_for_tests() -> None:
    known = {f"{PREFIX}{name.upper()}" for name in [*Settings.model_fields, *OF_COMMANDS]} | {PREFIX}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = {}
    for file in listed.splitlines():
        path = ROOT / file
        if path.is_file() and path != Path(__file__):
            text = path.read_text("utf-8", "replace")
            found |= {
                name: file for name in re.findall(r"\bHEADGATE_[A-Z0-9_]*", text) if not name.startswith(OF_TESTS)
            }
    assert {name: file for name, file in found.items() if name not in known} == {}
