"""What is in deploy/ fits the program: its settings, its paths, its metrics, how long it takes to stop."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate import __version__
from headgate.cli.up import LONGEST_STOP_S
from headgate.config import OF_COMMANDS, PREFIX, Settings
from tests.waiting import LONG_S

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
KNOWN = {f"{PREFIX}{name.upper()}" for name in (*Settings.model_fields, *OF_COMMANDS)}
ADDED = {"instance", "job", "le"}  # Labels that Prometheus adds, and that of a histogram's buckets.


def name_of(path: Path) -> str:
    return str(path.relative_to(DEPLOY))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_setting_that_is_named_exists(path: Path) -> None:
    named = set(re.findall(r"\bHEADGATE_[A-Z_]+", path.read_text()))
    assert named <= KNOWN, f"no settings: {sorted(named - KNOWN)}"


def test_the_documents_that_show_how_to_install_it_name_settings_that_exist() -> None:
    for page in (ROOT / "docs/operating/production.md", ROOT / "docs/howto/install.md"):
        named = set(re.findall(r"\bHEADGATE_[A-Z_]+", page.read_text()))
        assert named, page.name
        assert named <= KNOWN | {"HEADGATE_TEST_"}, sorted(named - KNOWN)


# Prometheus and Grafana.


def metrics() -> dict[str, set[str]]:
    """Every metric of the reference, with its labels; of a histogram, the names that PromQL knows it by."""
    page = (ROOT / "docs/reference/metrics.md").read_text()
    found: dict[str, set[str]] = {}
    for name, kind, labels in re.findall(r"^\| `(headgate_\w+)` \| (\w+) \| (.*?) \|", page, re.M):
        names = [f"{name}_{part}" for part in ("bucket", "sum", "count")] if kind == "histogram" else [name]
        found |= {one: set(re.findall(r"`(\w+)`", labels)) for one in names}
    return found


def problems(expression: str) -> list[str]:
    """What an expression names that no node reports: a metric, or a label that none of its metrics has."""
    known = metrics()
    used = set(re.findall(r"\bheadgate_\w+", expression))
    found = [f"{name} is no metric" for name in used if name not in known]
    labels = set().union(*(known.get(name, set()) for name in used)) | ADDED
    named = {
        label
        for inside in re.findall(r"(?:by|on) \(([^)]*)\)", expression) + re.findall(r"\{([^}]*)\}", expression)
        for label in re.findall(r"(?:^|,)\s*(\w+)\s*(?=[=!,]|$)", inside)
    }
    return found + [f"{label} is no label" for label in named - labels]


def expressions() -> Iterator[tuple[str, str]]:
    """Every one, with what it is for."""
    rules = yaml.safe_load((DEPLOY / "prometheus/rules.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    dashboard = json.loads((DEPLOY / "grafana/headgate.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert match
            yield variable["name"], f"sum by ({match[2]}) ({match[1]})"


EXPRESSIONS = list(expressions())


@pytest.mark.parametrize(("what", "expression"), EXPRESSIONS, ids=[what for what, _ in EXPRESSIONS])
def test_rules_and_panels_name_metrics_and_labels_that_exist(what: str, expression: str) -> None:
    assert problems(expression) == []


def test_the_test_of_expressions_sees_what_is_not_there() -> None:
    assert problems("rate(headgate_records_redd_total[5m])") == ["headgate_records_redd_total is no metric"]
    assert problems("sum by (stream, shard) (headgate_lag_seconds)") == ["shard is no label"]
    assert problems('headgate_lag_seconds{name="x"}') == ["name is no label"]
    assert problems("headgate_group_handover_seconds") == ["headgate_group_handover_seconds is no metric"]


def test_the_rules_are_those_of_the_guide() -> None:
    guide = (ROOT / "docs/operating/monitoring.md").read_text()
    (block,) = [one for one in re.findall(r"```yaml\n(.*?)```", guide, re.S) if "alert:" in one]
    assert yaml.safe_load((DEPLOY / "prometheus/rules.yaml").read_text()) == yaml.safe_load(block)


def test_no_two_panels_lie_on_each_other() -> None:
    dashboard = json.loads((DEPLOY / "grafana/headgate.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_the_rules() -> None:
    words = ["promtool", "check", "rules", str(DEPLOY / "prometheus/rules.yaml")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LONG_S)
    assert done.returncode == 0, done.stderr


# The container.


def dockerfile() -> list[tuple[str, str]]:
    """Its instructions, each on one line."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "docker/Dockerfile").read_text(), flags=re.M)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def test_the_image_takes_what_is_there_and_runs_as_nobody_special() -> None:
    found = dockerfile()
    assert [word for word, _ in found].count("FROM") == 2
    last = found[max(index for index, (word, _) in enumerate(found) if word == "FROM") :]
    assert dict(last)["USER"] == "10001:10001"
    assert json.loads(dict(last)["ENTRYPOINT"]) == ["headgate"]
    let_in = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.M))
    for word, rest in found:
        if word == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert source in let_in, f".dockerignore keeps {source} out"
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    (install,) = [rest for word, rest in found if word == "RUN" and "pip install" in rest]
    wanted = re.search(r"\.\[([\w,]+)\]", install)
    assert wanted
    assert set(wanted[1].split(",")) <= extras


class Healthy(http.server.BaseHTTPRequestHandler):
    """Answers as a node does."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Nobody reads it."""


def test_the_health_check_of_the_image_tells_a_node_from_none() -> None:
    (check,) = [rest for word, rest in dockerfile() if word == "HEALTHCHECK"]
    words = json.loads(check.partition("CMD ")[2])
    assert words[0] == "python"
    server = http.server.HTTPServer(("127.0.0.1", 0), Healthy)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def code() -> int:
        environment = {**os.environ, "HEADGATE_PORT": str(server.server_address[1])}
        words[0] = sys.executable
        return subprocess.run(words, env=environment, capture_output=True, timeout=LONG_S).returncode

    try:
        assert code() == 0
    finally:
        server.shutdown()
        server.server_close()
    assert code() != 0


def seconds(text: str) -> float:
    assert text.endswith("s")
    return float(text[:-1])


def test_compose_has_several_nodes_on_one_database_that_get_the_time_to_drain() -> None:
    found = yaml.safe_load((DEPLOY / "docker/compose.yaml").read_text())
    node, database = found["services"]["headgate"], found["services"]["postgres"]
    assert (DEPLOY / "docker" / node["build"]["context"] / node["build"]["dockerfile"]).resolve().exists()
    first, last = map(int, re.findall(r":(\d+)-(\d+):", node["ports"][0])[0])
    assert last - first + 1 == node["deploy"]["replicas"] >= 2
    assert seconds(node["stop_grace_period"]) > LONGEST_STOP_S
    assert node["read_only"]
    assert node["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert database["healthcheck"]["test"][1] == "pg_isready"
    assert database["volumes"][0].partition(":")[0] in found["volumes"]
    plain = yaml.safe_dump(found["services"])
    assert re.findall(r"(?:PASSWORD|KEY): (.*)", plain) == [
        "${HEADGATE_MASTER_KEY:?set it, and keep it}",
        "${POSTGRES_PASSWORD:?set it, and keep it}",
    ]


# Kubernetes.


def manifests() -> dict[tuple[str, str], Any]:
    """Everything that kustomize would apply, by kind and name."""
    folder = DEPLOY / "kubernetes"
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert {path.name for path in folder.glob("*.yaml")} == {*listed, "kustomization.yaml"}
    found = [one for name in listed for one in yaml.safe_load_all((folder / name).read_text())]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def test_the_pods_of_kubernetes_are_probed_drained_and_without_rights() -> None:
    deployment = manifests()["Deployment", "headgate"]["spec"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == f"headgate:{__version__}"
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "http"}
    pause = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > LONGEST_STOP_S + pause
    assert pod["enableServiceLinks"] is False
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    own = container["securityContext"]
    assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True)
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert str(pod["securityContext"]["runAsUser"]) == dict(dockerfile())["USER"].partition(":")[0]
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_what_selects_pods_in_kubernetes_selects_those_that_there_are() -> None:
    found = manifests()
    for kind in ("Deployment", "StatefulSet"):
        for (_, name), one in [(key, one) for key, one in found.items() if key[0] == kind]:
            labels = one["spec"]["template"]["metadata"]["labels"]
            ports = {port["name"] for port in one["spec"]["template"]["spec"]["containers"][0]["ports"]}
            assert one["spec"]["selector"]["matchLabels"] == labels
            service = found["Service", name]["spec"]
            assert service["selector"] == labels
            assert {port["targetPort"] for port in service["ports"]} <= ports
    budget, deployment = found["PodDisruptionBudget", "headgate"]["spec"], found["Deployment", "headgate"]["spec"]
    assert budget["selector"] == deployment["selector"]
    assert budget["maxUnavailable"] < deployment["replicas"]


def test_the_secret_that_kubernetes_is_told_to_make_has_the_keys_that_are_read() -> None:
    text = (DEPLOY / "kubernetes/headgate.yaml").read_text()
    made = set(re.findall(r"--from-literal=([\w-]+)=", text))
    read = set(re.findall(r"secretKeyRef: \{name: headgate, key: ([\w-]+)\}", text))
    read |= set(
        re.findall(
            r"secretKeyRef: \{name: headgate, key: ([\w-]+)\}", (DEPLOY / "kubernetes/postgres.yaml").read_text()
        )
    )
    assert made == read


# A service of systemd.


def test_systemd_takes_the_unit_and_gives_the_node_time_to_drain(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd/headgate.service").read_text()
    assert "KillMode=mixed" in text
    (limit,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.M)
    assert float(limit) > LONGEST_STOP_S
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "headgate.service"
    unit.write_text(text.replace("/opt/headgate/bin/headgate", sys.executable))  # Which must exist.
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=LONG_S)
    assert (done.returncode, done.stderr) == (0, "")
