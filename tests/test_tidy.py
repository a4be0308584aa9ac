"""The tree keeps its promises: layers, purity, docstrings, and nothing that should not be here."""

from __future__ import annotations

import ast
import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from headgate.connectors import plugins

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "headgate"
MODULES = sorted(SOURCE.rglob("*.py"))

# What each package may know. A module at the top of the package is known to all.
TOP = {
    "errors",
    "ids",
    "config",
    "demo",
    "clock",
    "text",
    "slices",
    "credentials",
    "hidden",
    "hosts",
    "awaited",
    "log",
    "spans",
}
LAYERS = {
    "core": set(),
    "client": {"core"},
    "connectors": {"core"},
    "store": {"core"},
    "datasources": {"core", "connectors", "store"},
    "runtime": {"core", "connectors", "store", "datasources"},
    "telemetry": {"core", "store"},
    "web": {"core", "connectors", "store", "datasources", "runtime", "telemetry"},
    "cli": {"core", "connectors", "store", "datasources", "runtime", "telemetry", "web"},
    "testing": {"core", "client", "connectors", "store", "datasources", "runtime", "telemetry", "web", "cli"},
}
IMPURE = {
    "asyncio",
    "time",
    "random",
    "os",
    "socket",
    "threading",
    "structlog",
    "logging",
    "asyncpg",
    "uuid4",
    "secrets",
}


BEYOND_THE_STORE = {"runtime", "cluster", "streams", "datasources", "telemetry", "web", "api", "console", "doors"}
MOST_ANY = 15


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, []
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, [alias.name for alias in node.names]


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return [ROOT / line for line in listed.splitlines() if (ROOT / line).is_file()]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_dependencies_point_one_way(path: Path) -> None:
    package = path.relative_to(SOURCE).parts[0]
    if package not in LAYERS:
        return
    for module, names in imports(path):
        if not module.startswith("headgate"):
            continue
        parts = module.split(".")[1:] or names
        assert parts[0] in {*TOP, *LAYERS[package], package, "__version__"}, f"{name_of(path)} imports {module}"


ROOMS = {path.name for path in (SOURCE / "connectors").iterdir() if (path / "__init__.py").exists()} - {
    "api",
    "values",
    "sql",
}


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "store").glob("*.py")), ids=name_of)
def test_the_tests_of_the_store_know_the_store_only(path: Path) -> None:
    known = {"headgate.store", "headgate.core", *(f"headgate.{name}" for name in TOP)}
    found = {".".join(module.split(".")[:2]) for module, _ in imports(path) if module.startswith("headgate.")}
    assert found <= known, f"{name_of(path)} tests another layer: {found - known}"


# Each client library, and the folders that may import it. The registry itself is in PostgreSQL.
CLIENTS = {
    "asyncpg": ("connectors/postgres/", "store/"),
    "bson": ("connectors/mongodb/",),
    "hiredis": ("connectors/redis/",),
    "confluent_kafka": ("connectors/kafka/",),
    "fastavro": ("connectors/kafka/",),
    "opentelemetry": ("telemetry/",),
    "pymongo": ("connectors/mongodb/",),
    "pymysql": ("connectors/mysql/",),
    "sqlite3": ("connectors/sqlite/",),
}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_systems_client_is_imported_in_its_room_only(path: Path) -> None:
    inside = str(path.relative_to(SOURCE))
    for module, _ in imports(path):
        allowed = CLIENTS.get(module.partition(".")[0])
        assert allowed is None or inside.startswith(allowed), f"{name_of(path)} imports {module}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nobody_looks_into_a_room_and_rooms_do_not_know_each_other(path: Path) -> None:
    """From outside a room is what its `__init__` shows, and no other room may know even that."""
    parts = path.relative_to(SOURCE).parts
    here = parts[1] if parts[0] == "connectors" and parts[1] in ROOMS else None
    for module, names in imports(path):
        found = module.split(".")[2:]
        if not module.startswith("headgate.connectors") or (found or names)[0] not in ROOMS:
            continue
        room = (found or names)[0]
        assert here in (None, room), f"{name_of(path)}: a room imports {module}"
        is_inner = len(found) > 1 or any((SOURCE / "connectors" / room / f"{name}.py").exists() for name in names)
        assert here == room or not is_inner, f"{name_of(path)} looks into a room: {module}"


@pytest.mark.parametrize("path", sorted((SOURCE / "runtime").rglob("*.py")), ids=name_of)
def test_the_runtime_names_no_system(path: Path) -> None:
    """What it must know of one, the connector says. The registry's PostgreSQL may be named in prose."""
    tree = ast.parse(path.read_text())
    words = {word for word in ROOMS if word != "files"} | {"postgresql", "mariadb", "mongo", "csv", "jsonl", "parquet"}
    named = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value in words]
    assert not named, f"{name_of(path)} names {named}"


@pytest.mark.parametrize("name", sorted(plugins.names()))
def test_every_side_of_a_connector_runs_the_contract_suite(name: str) -> None:
    """A class in tests/connectors, `Test` + the system + the side, such as TestKafkaSource."""
    text = "".join(path.read_text() for path in (ROOT / "tests" / "connectors").glob("test_*.py"))
    connector = plugins.get(name)
    found = [side for side in ("source", "sink", "reader", "writer") if getattr(connector, side) is not None]
    systems = {"files": "Csv|Jsonl|Parquet|Files", "mongodb": "Mongo"}.get(name, name)
    for side in found:
        assert re.search(rf"^class Test({systems})\w*{side}\(", text, re.IGNORECASE | re.MULTILINE), f"{name}: {side}"


@pytest.mark.parametrize("path", sorted((SOURCE / "core").rglob("*.py")), ids=name_of)
def test_the_core_is_pure(path: Path) -> None:
    """No clock, no I/O, no randomness, no logging."""
    for module, names in imports(path):
        assert not ({module.split(".")[0], *names} & IMPURE), f"{name_of(path)} imports {module}"
    tree = ast.parse(path.read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]


def test_no_class_name_of_the_core_means_two_things() -> None:
    """Two machines may have an event of the same kind, but a reader should know which one is meant. Each has a Step."""
    found: dict[str, list[str]] = {}
    for path in sorted((SOURCE / "core").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name != "Step":
                found.setdefault(node.name, []).append(name_of(path))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_and_class_and_every_public_function_of_some_length_says_what_it_is(path: Path) -> None:
    """A function of a few lines whose name says it all (`lower`, `starts_with`) needs no second saying."""
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), f"{name_of(path)} has no docstring"
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            is_short = isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno < 10
            assert is_short or ast.get_docstring(node), f"{name_of(path)}: {node.name} has no docstring"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_module_is_a_drawer(path: Path) -> None:
    assert path.stem not in {"utils", "common", "helpers", "base", "misc"}


# Outside `store/`, names that a row of the driver would have. mypy holds the rest: what the store returns is frozen and
# cannot be subscripted, and only `store/` may see the driver's rows.
ROWS = {"row", "rows", "record"}


@pytest.mark.parametrize("path", [path for path in MODULES if path.parent.name in BEYOND_THE_STORE], ids=name_of)
def test_no_row_is_subscripted_beyond_the_store(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, str)
        ):
            name = node.value.id if isinstance(node.value, ast.Name) else ""
            assert name not in ROWS, f"{name_of(path)}:{node.lineno} subscripts a row"


def test_what_the_store_returns_has_a_type() -> None:
    """A public method of a store class returns no row of the driver, no dict of anything, and not `Any`."""
    for path in (SOURCE / "store").glob("*.py"):
        if path.stem == "database":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.AsyncFunctionDef) and not node.name.startswith("_") and node.returns is not None:
                returned = ast.unparse(node.returns)
                assert not re.search(r"\b(Any|Row)\b", returned), f"{name_of(path)}: {node.name} returns {returned}"


def test_any_is_rare() -> None:
    """In a thousand lines. What is `Any` is checked by nobody."""
    text = "".join(path.read_text() for path in MODULES)
    assert len(re.findall(r"\bAny\b", text)) < MOST_ANY * text.count("\n") / 1000


def test_no_work_is_left_for_later_and_nothing_names_this_machine() -> None:
    later = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    for path in tracked():
        if path.suffix in {".png", ".ico"}:
            continue
        text = path.read_text(errors="replace")
        assert not later.search(text), f"{name_of(path)} leaves work for later"
        assert "/work" + "/" not in text, f"{name_of(path)} names a path of one machine"
        assert not re.search(r"https?://[^ \"']+\.(whl|tgz|tar\.gz|deb)\b", text), (
            f"{name_of(path)}: a package's address"
        )


def test_versions_are_pinned_by_name_and_number_only() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.!+-]+", line), line


def installed_for(name: str, extras: frozenset[str], found: set[str]) -> None:
    """Add the installed distributions that this one needs, and those that they need."""
    for line in metadata.requires(name) or []:
        need = Requirement(line)
        if need.marker and not any(need.marker.evaluate({"extra": extra}) for extra in extras | {""}):
            continue
        key = f"{canonicalize_name(need.name)}{sorted(need.extras)}"
        with contextlib.suppress(metadata.PackageNotFoundError):  # Those of `bench` need not be installed.
            metadata.version(need.name)
            if key not in found:
                found.add(key)
                installed_for(need.name, frozenset(need.extras), found)


def test_every_package_that_gets_installed_is_pinned() -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.split("==")[0]) for line in pins}
    extras = frozenset(metadata.metadata("headgate").get_all("Provides-Extra") or [])
    found: set[str] = set()
    installed_for("headgate", extras, found)
    installed = {key.partition("[")[0] for key in found} - {"headgate"}
    assert {"faker", "rich-click"} <= installed  # Nobody names these two; they come with what we name.
    assert installed <= pinned, f"not pinned: {sorted(installed - pinned)}"


def test_no_two_files_of_tests_have_the_same_name() -> None:
    """Their folders are no packages: of two with the same name, a worker imports only the first."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_no_lock_file_records_addresses() -> None:
    assert not {path.name for path in tracked()} & {
        "uv.lock",
        "poetry.lock",
        "pdm.lock",
        "package-lock.json",
        "yarn.lock",
    }


def test_every_statement_is_used_and_every_use_exists() -> None:
    """One query per file, named by a verb; none is left over."""
    files = {str(p.relative_to(SOURCE / "store/sql").with_suffix("")) for p in (SOURCE / "store/sql").rglob("*.sql")}
    text = "".join(path.read_text() for path in MODULES)
    used = set(re.findall(r"""["']([a-z_]+/[a-z_]+)["']""", text))
    assert files <= used, f"not used: {sorted(files - used)}"


def test_no_module_of_the_tests_hides_one_of_the_standard_library() -> None:
    """Folders of tests are on the path of the processes that they start, before the standard library."""
    assert [name_of(path) for path in (ROOT / "tests").rglob("*.py") if path.stem in sys.stdlib_module_names] == []
