"""Functions that mappings name: nothing is imported before it was judged, and what is none is named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from headgate.connectors.guard import OPEN, Guard
from headgate.core.reach import Kind
from headgate.datasources import functions
from headgate.datasources.documents import read_all
from headgate.datasources.prepared import Checked, check, prepare
from headgate.datasources.reaching import NodeReach, Reaching
from headgate.errors import ConfigError
from headgate.store.allowed import Line

MODULE = """
import pathlib
pathlib.Path(__file__).with_suffix(".imported").touch()

not_a_function = 5

def clean(record, meta):
    return {**record, "cleaned": True}

def one(record):
    return record

async def later(record, meta):
    return record

def several(record, meta):
    yield record
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cleaning_for_tests.py").write_text(MODULE)
    (tmp_path / "broken_for_tests.py").write_text("1 / 0\n")
    (tmp_path / "leaving_for_tests.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [one for one in sys.modules if one.endswith("_for_tests")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def reaching(*modules: str) -> Reaching:
    return Reaching.of([_line(one) for one in modules], NodeReach())


def _line(module: str) -> Line:
    return Line(Kind.MODULE, module, "admin", None)  # type: ignore[arg-type]


def checked(name: str, guard: Guard | None) -> Checked:
    raw: dict[str, Any] = {"source": {"type": "generator"}, "sink": {"type": "blackhole"}, "mapping": {"python": name}}
    return check(read_all({"datasources": {"orders": raw}})["orders"].content, {}, "datasources.orders", guard)


def test_an_allowed_module_is_imported_and_its_function_called(folder: Path) -> None:
    found = checked("cleaning_for_tests:clean", reaching("cleaning_for_tests").guard(is_trusted=False))
    assert found.problems == []
    assert found.mapping is not None
    assert found.mapping.apply([{"a": 1}]).records == [{"a": 1, "cleaned": True}]


@pytest.mark.parametrize("guard", [reaching("other").guard(is_trusted=False), None])
def test_a_module_that_is_not_allowed_is_not_imported(folder: Path, guard: Guard | None) -> None:
    [problem] = checked("cleaning_for_tests:clean", guard).problems
    assert problem.path == "datasources.orders.mapping.python"
    assert not (folder / "cleaning_for_tests.imported").exists()
    assert "cleaning_for_tests" not in sys.modules
    if guard is not None:
        assert "headgate allow add module cleaning_for_tests" in problem.hint


def test_an_admins_document_may_name_any_module(folder: Path) -> None:
    assert checked("cleaning_for_tests:clean", reaching().guard(is_trusted=True)).problems == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent_for_tests:clean", "absent_for_tests cannot be imported: ModuleNotFoundError"),
        ("broken_for_tests:clean", "broken_for_tests cannot be imported: ZeroDivisionError"),
        ("leaving_for_tests:clean", "leaving_for_tests cannot be imported: SystemExit"),
        ("cleaning_for_tests:absent", "cleaning_for_tests has no function absent"),
        ("cleaning_for_tests:not_a_function", "cleaning_for_tests has no function not_a_function"),
        ("cleaning_for_tests:one", "cleaning_for_tests:one does not take a record and its metadata"),
        ("cleaning_for_tests:later", "cleaning_for_tests:later is no plain function"),
        ("cleaning_for_tests:several", "cleaning_for_tests:several is no plain function"),
    ],
)
def test_what_cannot_be_called_is_named_in_one_line(folder: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        functions.load(name, OPEN)
    assert caught.value.message.startswith(message)
    assert "\n" not in caught.value.message
    assert caught.value.problems[0].hint


def test_a_version_that_names_a_function_is_prepared_with_it(folder: Path) -> None:
    raw = {
        "source": {"type": "generator"},
        "sink": {"type": "blackhole"},
        "mapping": {"python": "cleaning_for_tests:clean"},
    }
    content = read_all({"datasources": {"orders": raw}})["orders"].content
    assert prepare(content, {}, "", OPEN).mapping.calls_python
