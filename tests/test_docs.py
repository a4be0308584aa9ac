"""The documents are complete: every option, command, path, metric, event and setting is in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from headgate.config import Settings
from headgate.connectors import plugins as registry
from headgate.core.mapping.document import PARTS
from headgate.core.records import OnError
from headgate.datasources.prepared import DatasourceOptions, DeadLetters, Expect
from headgate.telemetry import metrics

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def text(name: str) -> str:
    return (DOCS / name).read_text()


ALONE = (
    metrics.WEBHOOKS[0],
    metrics.PUSH_RECORDS[0],
    metrics.PUSH_ENDS[0],
    metrics.GROUP_ENDS[0],
    metrics.HANDED_OVER[0],
    metrics.DUMP_ROWS[0],
    metrics.DUMP_BYTES[0],
)


@pytest.mark.parametrize("name", registry.names())
def test_every_connector_and_each_of_its_options_is_documented(name: str) -> None:
    page = text(f"reference/connectors/{name}.md")
    connector = registry.get(name)
    for kind in (connector.source, connector.sink):
        for option, info in kind.model.model_fields.items() if kind else ():
            assert f"`{info.alias or option}`" in page, f"{name}: {option}"


def test_every_key_of_a_document_and_every_part_of_a_mapping_is_documented() -> None:
    page = text("reference/document.md")
    options = [*DatasourceOptions.model_fields, *Expect.model_fields, *DeadLetters.model_fields]
    for name in ("source", "sink", "mapping", "enabled", *options, *PARTS):
        assert f"| `{name}` |" in page, name
    for answer in get_args(OnError):
        assert f"| `{answer}` |" in page, answer


def test_every_setting_is_documented() -> None:
    page = text("reference/settings.md")
    for name in Settings.model_fields:
        assert f"`HEADGATE_{name.upper()}`" in page, name


def test_every_metric_is_documented() -> None:
    page = text("reference/metrics.md")
    for name in [*(counter for counter, _ in metrics.COUNTERS.values()), *metrics.GAUGES, *ALONE]:
        assert f"`{name}" in page, name


def test_every_path_of_the_api_is_documented() -> None:
    from litestar.datastructures import State

    from headgate.web.app import make_api

    page = text("reference/http.md")
    for route in make_api(None, State()).routes:
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)
        if path.startswith("/api/schema/"):
            continue
        assert f"`{path}`" in page, path


def test_every_code_of_an_error_is_documented_and_no_other() -> None:
    """Storages have their own codes; the command line's are not answers of a node."""
    elsewhere = {"cli", "client", "connectors", "testing"}
    found = set()
    for path in (ROOT / "src/headgate").rglob("*.py"):
        if path.relative_to(ROOT / "src/headgate").parts[0] not in elsewhere:
            found |= set(re.findall(r"""\bcode ?= ?"(\w+)\"""", path.read_text()))
    found.remove("connector")  # Steers a worker, and reaches no caller.
    assert found == set(re.findall(r"^\| `(\w+)` \|", text("reference/http.md").partition("## Codes")[2], re.M))


def test_every_event_is_documented() -> None:
    page = text("reference/events.md")
    sources = "".join(path.read_text() for path in (ROOT / "src/headgate").rglob("*.py"))
    types = set(re.findall(r"""change\.event\([^)]*?"(\w+)"[,)]""", sources))
    types |= {f"worker_{name}" for name in re.findall(r"""Report\("(\w+)\"""", lifecycle())}
    types |= {"position_reset", "position_edited", "reloaded", "node_drained", "node_undrained", "node_forgotten"}
    types |= {"stream_moved", "stream_unpinned", "group_evaluated", "streams_dealt"}
    types |= {"registry_went_back", "installation_forked"}
    types |= set(re.findall(r"""\b_event\("(\w+)\"""", sources))
    assert len(types) > 15
    for name in types:
        assert f"`{name}`" in page, name


def lifecycle() -> str:
    return "".join(file.read_text() for file in (ROOT / "src/headgate/core/lifecycle").glob("*.py"))


def test_every_link_between_documents_leads_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} → {target}"


def test_every_guarantee_names_a_test_that_exists() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(named) >= 8
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"


def test_every_file_that_the_architecture_names_is_there() -> None:
    root = DOCS.parent
    text = (root / "ARCHITECTURE.md").read_text()
    for named in set(re.findall(r"`([a-z_]+(?:/[a-z_0-9]+)+(?:\.py|/)?)", text)):
        assert any((folder / named).exists() for folder in (root / "src" / "headgate", root)), named
