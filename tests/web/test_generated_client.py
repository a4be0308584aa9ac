"""A client that is generated from the OpenAPI document, against the node that served the document."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.web_node import BLACKHOLE, GENERATOR, Web

PACKAGE = "generated_headgate_client"

Load = Callable[[str, str], Any]


@pytest.fixture(scope="module")
def load(web: Web, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """Finds a name in a module of the client, which is generated once. A warning of the generator is a failure: it is
    about something that the client then lacks."""
    folder = tmp_path_factory.mktemp("client")
    (folder / "openapi.json").write_bytes(web.ask("GET", "/api/schema").content)
    (folder / "settings.yaml").write_text(json.dumps({"post_hooks": []}))
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--fail-on-warning", "--meta", "none"]
    command += ["--path", "openapi.json", "--config", "settings.yaml", "--output-path", PACKAGE]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr

    def find(module: str, name: str) -> Any:
        return getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield find
    for module in [one for one in sys.modules if one.partition(".")[0] == PACKAGE]:
        del sys.modules[module]


@pytest.fixture(scope="module")
def client(web: Web, load: Load) -> Any:
    """The generated client, with the node's own token."""
    return load("client", "AuthenticatedClient")(base_url=web.node.url, token=web.node.token)


def test_all_of_the_client_can_be_imported(load: Load) -> None:
    package = importlib.import_module(PACKAGE)
    folder = Path(str(package.__file__)).parent
    for file in folder.rglob("*.py"):
        relative = file.relative_to(folder.parent).with_suffix("")
        importlib.import_module(".".join(relative.parts).removesuffix(".__init__"))


def test_it_lists_connectors(load: Load, client: Any) -> None:
    found = load("api.connectors.api_connectors_list_all", "sync")(client=client)
    assert isinstance(found, load("models", "Connectors"))
    assert {"generator", "blackhole"} <= {one.name for one in found.items}


def test_it_applies_a_datasource_and_reads_it_back(load: Load, client: Any, name: str) -> None:
    body = load("models", "ApiApplyApplyDocuments").from_dict(
        {"datasources": {name: {"source": GENERATOR, "sink": BLACKHOLE}}}
    )
    applied = load("api.registry.api_apply_apply", "sync")(client=client, body=body)
    assert isinstance(applied, load("models", "Changes"))
    assert [(one.name, one.action) for one in applied.changes] == [(name, "create")]
    found = load("api.datasources.api_datasources_name_show", "sync")(name, client=client)
    assert isinstance(found, load("models", "Datasource"))
    assert (found.name, found.source_type, found.published_version) == (name, "generator", 1)


def test_it_publishes_a_draft_with_or_without_a_body(load: Load, client: Any, name: str) -> None:
    create = load("api.datasources.api_datasources_create", "sync")
    document = load("models", "ApiDatasourcesCreateNamedDatasourceDocument")
    create(client=client, body=document.from_dict({"name": name, "source": GENERATOR, "sink": BLACKHOLE}))
    publish = load("api.datasources.api_datasources_name_publish_publish", "sync")
    first = publish(name, client=client)
    assert (first.number, first.status) == (1, "published")
    write = load("api.datasources.api_datasources_name_draft_draft", "sync")
    draft = write(
        name,
        client=client,
        body=load("models", "ApiDatasourcesNameDraftDraftDatasourceDocument").from_dict(
            {"source": {**GENERATOR, "rate": 5}, "sink": BLACKHOLE}
        ),
    )
    second = publish(name, client=client, body=load("models", "Publish")(hash_=draft.hash_))
    assert (second.number, second.hash_, second.status) == (2, draft.hash_, "published")


def test_a_wrong_token_is_a_typed_problem(web: Web, load: Load) -> None:
    stranger = load("client", "AuthenticatedClient")(base_url=web.node.url, token="wrong")
    answer = load("api.connectors.api_connectors_list_all", "sync_detailed")(client=stranger)
    assert isinstance(answer.parsed, load("models", "ProblemDetails"))
    assert (answer.status_code, answer.parsed.status, answer.parsed.title) == (401, 401, "Unauthorized")


def test_a_wrong_document_is_a_typed_problem(load: Load, client: Any, name: str) -> None:
    body = load("models", "ApiApplyApplyDocuments").from_dict(
        {"datasources": {name: {"source": {"type": "generator", "rate": -1}, "sink": BLACKHOLE}}}
    )
    found = load("api.registry.api_apply_apply", "sync")(client=client, body=body)
    assert isinstance(found, load("models", "ProblemDetails"))
    assert [one.path for one in found.problems] == [f"datasources.{name}.source.rate"]
