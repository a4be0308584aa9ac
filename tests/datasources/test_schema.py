"""The published JSON Schema accepts and refuses what the documents' own check does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from headgate.cli import app
from headgate.connectors import plugins as connectors
from headgate.core.mapping.document import PARTS, compile_mapping
from headgate.datasources import schema
from headgate.datasources.documents import parse_yaml, read_all
from headgate.datasources.prepared import check, prepare
from headgate.datasources.references import Unread
from headgate.errors import ConfigError

ROOT = Path(__file__).parent.parent.parent
SOURCE: dict[str, Any] = {"type": "generator", "rate": 1}
SINK: dict[str, Any] = {"type": "blackhole"}
POSTGRES = {"type": "postgres", "url": {"$secret": "warehouse"}, "table": "orders"}
SECRETS = {"warehouse": "postgresql://app@db.example.org/shop"}


def blocks() -> list[str]:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return [block for page in pages for block in re.findall(r"```yaml\n(.*?)```", page.read_text("utf-8"), re.S)]


def documents_of_docs() -> list[Any]:
    """Every file of datasources that the docs show."""
    found = [parse_yaml(block) for block in blocks() if block.startswith("datasources:")]
    found += [parse_yaml(file.read_text("utf-8")) for file in (ROOT / "examples").glob("*.yaml")]
    return [one for one in found if all(_is_installed(each) for each in one["datasources"].values())]


def _is_installed(datasource: dict[str, Any]) -> bool:
    """Some pages show a connector that their reader writes."""
    return {datasource["source"]["type"], datasource["sink"]["type"]} <= set(connectors.names())


def is_valid(datasource: Any) -> bool:
    return Draft202012Validator(schema.file_schema()).is_valid({"datasources": {"orders": datasource}})


def is_accepted(datasource: Any) -> bool:
    try:
        documents = read_all({"datasources": {"orders": datasource}})
        prepare(documents["orders"].content, SECRETS)
    except ConfigError:
        return False
    return True


def test_the_schema_is_one() -> None:
    for found in (schema.file_schema(), schema.document_schema()):
        Draft202012Validator.check_schema(found)


@pytest.mark.parametrize(
    "datasource",
    [
        {"source": SOURCE, "sink": SINK},
        {"source": SOURCE, "sink": POSTGRES, "enabled": False, "description": "d", "expect": {"fresh_within": "5m"}},
        {"source": SOURCE, "sink": POSTGRES | {"url": "postgresql://app@db.example.org/shop"}},
        {"source": {"type": "push"}, "sink": SINK},
        {
            "source": SOURCE,
            "sink": SINK,
            "mapping": {
                "where": "n > 1",
                "set": {"id": "n", "at": "made_at", "price": 3},
                "types": {"id": "text"},
                "drop": ["price"],
                "rename": {"at": "time"},
                "key": "id",
                "unnest": "lines",
            },
            "on_error": "skip",
            "dead_letters": {"stop_after": "10 in 1m", "keep": "7d"},
        },
    ],
)
def test_what_a_node_accepts_the_schema_accepts(datasource: dict[str, Any]) -> None:
    assert is_accepted(datasource)
    assert is_valid(datasource)


@pytest.mark.parametrize(
    "datasource",
    [
        {"source": SOURCE},
        {"sink": SINK},
        {"source": SOURCE, "sink": SINK, "mapings": {}},
        {"source": {"rate": 1}, "sink": SINK},
        {"source": {"type": "genrator"}, "sink": SINK},
        {"source": {"type": "blackhole"}, "sink": SINK},
        {"source": SOURCE | {"rates": 1}, "sink": SINK},
        {"source": SOURCE | {"rate": "fast"}, "sink": SINK},
        {"source": SOURCE, "sink": POSTGRES | {"table": {"$secret": "warehouse"}}},
        {"source": SOURCE, "sink": POSTGRES | {"url": {"$secret": "No Name"}}},
        {"source": SOURCE, "sink": {"type": "postgres", "table": "orders"}},
        {"source": SOURCE, "sink": SINK, "streams": 0},
        {"source": SOURCE, "sink": SINK, "expect": {"fresh": "5m"}},
        {"source": SOURCE, "sink": SINK, "mapping": {"wher": "true"}},
        {"source": SOURCE, "sink": SINK, "mapping": {"set": {}}},
        {"source": SOURCE, "sink": SINK, "mapping": {"types": {"id": "money"}}},
        {"source": SOURCE, "sink": SINK, "mapping": {"key": ["id", "id"]}},
        {"source": SOURCE, "sink": SINK, "enabled": "yes"},
        {"source": SOURCE, "sink": SINK, "mapping": {"on_error": "skip"}},
        {"source": SOURCE, "sink": SINK, "mapping": {"python": "clean"}},
        {"source": SOURCE, "sink": SINK, "mapping": {"set": {"a": ["b"]}}},
        {"source": SOURCE, "sink": SINK, "mapping": {"delete": ["a"], "key": "id"}},
        {"source": SOURCE, "sink": SINK, "on_error": "retry"},
        {"source": SOURCE, "sink": SINK, "dead_letters": {"after": 5}},
    ],
)
def test_what_the_schema_refuses_a_node_refuses(datasource: dict[str, Any]) -> None:
    assert not is_accepted(datasource)
    assert not is_valid(datasource)


def test_every_side_of_every_connector_is_described_option_by_option() -> None:
    found = schema.file_schema()["$defs"]
    for connector in connectors.all():
        for side, kind in (("source", connector.source), ("sink", connector.sink)):
            if kind is not None:
                options = found[f"{side}-{connector.name}"]
                assert set(options["properties"]) == {
                    "type",
                    *(info.alias or name for name, info in kind.model.model_fields.items()),
                }
                assert options["additionalProperties"] is False


def test_the_documents_in_the_docs_fit_the_schema() -> None:
    validator = Draft202012Validator(schema.file_schema())
    found = documents_of_docs()
    assert len(found) > 3
    for document in found:
        assert [error.message for error in validator.iter_errors(document)] == []


def test_every_document_in_the_docs_is_one_that_could_be_published() -> None:
    """Everything but the values of its secrets is checked, as `headgate ds validate` does for a viewer."""
    for document in documents_of_docs():
        for name, datasource in read_all(document).items():
            names = re.findall(r"'\$secret': '([^']+)'", str(document))
            found = check(datasource.content, {secret: Unread() for secret in names}, name)
            wrong = [str(problem) for problem in found.problems]
            assert [one for one in wrong if "is not installed on this node" not in one] == []  # Connectors of others.


def test_the_mappings_in_the_docs_fit_the_schema_and_can_be_compiled() -> None:
    validator = Draft202012Validator({"$ref": "#/$defs/mapping", "$defs": schema.file_schema()["$defs"]})
    found = [parse_yaml(block)["mapping"] for block in blocks() if block.startswith("mapping:")]
    assert len(found) > 5
    for mapping in found:
        assert [error.message for error in validator.iter_errors(mapping)] == []
        compile_mapping(mapping, load=lambda name: lambda record, meta: record)


def test_every_part_of_a_mapping_is_described() -> None:
    assert set(schema.file_schema()["$defs"]["mapping"]["properties"]) == set(PARTS)


def test_the_command_prints_it_without_a_node() -> None:
    whole = CliRunner().invoke(app, ["schema"])
    assert (whole.exit_code, json.loads(whole.stdout)) == (0, schema.file_schema())
    one = CliRunner().invoke(app, ["schema", "--one"])
    validator = Draft202012Validator(json.loads(one.stdout))
    assert validator.is_valid({"source": SOURCE, "sink": SINK})
    assert not validator.is_valid({"source": SOURCE})
