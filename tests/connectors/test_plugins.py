"""The registry: every connector through the same door, each loaded alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headgate.connectors import plugins as registry
from headgate.errors import ConfigError, NotFound

BUILT_IN = {"blackhole", "files", "generator", "stdout"}

GOOD = """
from headgate.connectors.api import Connector
CONNECTOR = Connector(name="{name}", summary="A plugin")
"""

Install = Callable[..., None]


def forget() -> None:
    registry._entries.cache_clear()
    registry.get.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package with one connector, as pip would."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, code: str, *, package: str = "plugin", extras: str = "") -> None:
        metadata = tmp_path / f"{package}-1.0.dist-info"
        metadata.mkdir()
        provides = f"Provides-Extra: {extras}\n" if extras else ""
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n{provides}")
        (metadata / "entry_points.txt").write_text(f"[headgate.connectors]\n{name} = {package}_module:CONNECTOR\n")
        (tmp_path / f"{package}_module.py").write_text(code)
        monkeypatch.delitem(sys.modules, f"{package}_module", raising=False)
        forget()

    yield install
    forget()


def test_the_built_in_connectors_are_there() -> None:
    assert set(registry.names()) >= BUILT_IN
    assert {connector.name for connector in registry.all()} >= BUILT_IN


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_connector_is_found_by_its_name_and_loaded_once(name: str) -> None:
    assert registry.get(name).name == name
    assert registry.get(name) is registry.get(name)


def test_the_scheme_of_a_built_in_connector_is_found_without_looking_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    built_in = [one for one in registry.all() if registry.module_of(one.name).startswith("headgate.connectors.")]
    known = {scheme: one.name for one in built_in for scheme in one.schemes}
    assert {"postgresql", "mariadb", "parquet", "mongodb+srv", "sqlite"} <= known.keys()

    def refuse() -> list[object]:
        raise AssertionError("all connectors were looked at")

    monkeypatch.setattr(registry, "all", refuse)
    for scheme, name in known.items():
        found = registry.by_scheme(scheme)
        assert found is not None
        assert found.name == name


def test_loading_one_connector_imports_no_other() -> None:
    code = (
        "import sys; from headgate.connectors import plugins; plugins.names(); plugins.get('blackhole');"
        "print(*sorted(name for name in sys.modules if name.startswith('headgate.connectors.')))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.removeprefix("headgate.connectors.").partition(".")[0] for name in result.stdout.split()}
    assert loaded == {"api", "blackhole", "guard", "places", "plugins", "urls", "values"}, (
        "no room but the one that was asked for"
    )


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(NotFound, match="'genrator'") as caught:
        registry.get("genrator")
    assert caught.value.hint == "did you mean generator?"


def test_a_plugin_comes_through_the_same_door(install: Install) -> None:
    install("pigeon", GOOD.format(name="pigeon"))
    assert "pigeon" in registry.names()
    assert registry.get("pigeon").summary == "A plugin"
    assert registry.get("pigeon") in registry.all()


def test_a_missing_library_is_named_together_with_the_extra_that_brings_it(install: Install) -> None:
    install("pigeon", "import no_such_client", extras="pigeon")
    with pytest.raises(ConfigError, match="No module named 'no_such_client'") as caught:
        registry.get("pigeon")
    assert caught.value.hint == "pip install 'plugin[pigeon]'"


def test_a_missing_library_without_an_extra_asks_for_the_package(install: Install) -> None:
    install("pigeon", "import no_such_client")
    with pytest.raises(ConfigError) as caught:
        registry.get("pigeon")
    assert caught.value.hint == "pip install --upgrade plugin"


def test_a_connector_that_cannot_be_loaded_does_not_hide_the_others(install: Install) -> None:
    install("pigeon", "import no_such_client")
    assert "pigeon" in registry.names()
    assert {connector.name for connector in registry.all()} >= BUILT_IN


@pytest.mark.parametrize("code", ["", "CONNECTOR = 1", GOOD.format(name="dove")])
def test_what_is_not_the_connector_that_was_promised_is_refused(install: Install, code: str) -> None:
    install("pigeon", code)
    with pytest.raises(ConfigError):
        registry.get("pigeon")


def test_two_connectors_of_one_name_are_both_refused(install: Install) -> None:
    install("pigeon", GOOD.format(name="pigeon"), package="one")
    install("pigeon", GOOD.format(name="pigeon"), package="two")
    with pytest.raises(ConfigError, match="one_module:CONNECTOR and two_module:CONNECTOR"):
        registry.get("pigeon")
