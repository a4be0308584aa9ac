"""Every command does what it says, shows it in 80 columns, and gives machines nothing but JSON."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fake_node import FakeNode, Run, full, minutes_ago, summary, version

DOCUMENT = "source: {type: webhook}\nsink: {type: postgres, since: 2024-01-02}\n"
CHANGES = {
    "changes": [
        {"name": "new", "action": "create", "changes": [{"path": "source", "before": None, "after": {}}]},
        {"name": "orders", "action": "update", "changes": [{"path": "sink.table", "before": "a", "after": "b"}]},
        {"name": "same", "action": "keep", "changes": []},
    ]
}
DELETION = {"changes": [{"name": "old", "action": "delete", "changes": []}]}
EVENT = {"id": 7, "name": "orders", "type": "published", "payload": {"version": 3}, "actor": "ada"}
LINE = {"id": 9, "level": "warning", "text": "slow\x1b[31m", "fields": {"after_s": 2}}
SCHEMA = {
    "properties": {
        "path": {"type": "string", "description": "A file."},
        "mode": {"anyOf": [{"enum": ["append", "upsert"]}, {"type": "null"}], "default": None, "description": "How."},
        "limit": {"$ref": "#/$defs/Limit", "default": 5},
    },
    "$defs": {"Limit": {"type": "integer"}},
    "required": ["path"],
}

NODE = "5f1c8e7e-aaaa-4000-8000-000000000001"
TOKEN = "aa11aa11-aaaa-4000-8000-000000000001"
ISSUED = {
    "datasources": ["orders-*"],
    "groups": [],
    "created_at": minutes_ago(0),
    "expires_at": "2030-01-31T00:00:00Z",
}
DS = "/api/datasources/orders"
RESULT = {"after": None, "is_delete": False, "stage": None, "field": None, "reason": None}
TESTED = {
    "name": "orders",
    "version": 4,
    "compared_with": 3,
    "read": 2,
    "written": 1,
    "filtered": 0,
    "dead_lettered": 1,
    "records": [
        {
            "before": {"id": 1, "note": "a long text that must not break the table of eighty columns, of all things"},
            "results": [{**RESULT, "outcome": "written", "after": {"id": 1, "cents": 20}}],
            "changes": [{"place": "0.cents", "before": 200, "after": 20}],
            "took_us": 12.5,
            "size_bytes": 80,
        },
        {
            "before": {"id": "x"},
            "results": [
                {
                    **RESULT,
                    "outcome": "dead_lettered",
                    "stage": "mapping",
                    "field": "set.id",
                    "reason": "an integer is expected, not text",
                }
            ],
            "changes": [],
            "took_us": 12.5,
            "size_bytes": 10,
        },
    ],
    "warnings": [{"code": "never_present", "place": "mapping.set.id", "message": "the field idd is in none"}],
    "logs": [{"level": "info", "text": "opened\x1b[31m", "fields": {"file": "a"}}],
    "output": "printed",
    "trouble": "",
    "hint": "",
    "figures": {
        "took_ms": 31.0,
        "cpu_ms": 20.0,
        "memory_bytes": 1,
        "per_record_us": 12.5,
        "bytes_in": 90,
        "apart": ["pid"],
    },
    "is_cut": False,
    "saved": "basic",
}
FIXTURE = {"name": "basic", "inputs": 2, "size_bytes": 300, "author": "ada"}
ACTIONS = ("start", "stop", "pause", "restart", "reload")
ROUTES: dict[tuple[str, str], Any] = {
    ("GET", "/api/datasources"): {"items": [summary()]},
    ("GET", "/api/overview"): {"datasources": [summary()], "nodes": [{"name": "alpha", "streams": 4}], "at_s": 1.0},
    ("POST", "/api/datasources"): full(),
    ("GET", DS): full(),
    ("GET", f"{DS}/deletion"): {"name": "orders", "payloads": 0, "letters": 0, "dumps": []},
    ("DELETE", DS): None,
    ("PUT", f"{DS}/draft"): version(4, status="draft"),
    ("POST", f"{DS}/validate"): {"problems": []},
    ("POST", f"{DS}/publish"): version(4),
    ("POST", f"{DS}/rollback"): version(5),
    ("POST", f"{DS}/test"): TESTED,
    ("GET", f"{DS}/fixtures"): {"items": [{**FIXTURE, "changed_at": minutes_ago(3)}]},
    ("GET", f"{DS}/fixtures/basic"): {
        "name": "basic",
        "inputs": [{"given": '{"id": 1}', "expected": [{**RESULT, "outcome": "written", "after": {"id": 1}}]}],
        "masked": ["seen_at"],
    },
    ("DELETE", f"{DS}/fixtures/basic"): None,
    ("GET", f"{DS}/diff"): {"from": 3, "to": 4, "changes": [{"path": "sink.table", "before": "a", "after": "b"}]},
    ("GET", f"{DS}/explain"): {"name": "orders", "health": "ok", "lines": ["It is running."]},
    ("GET", f"{DS}/events"): {"items": [{**EVENT, "at": minutes_ago(3)}]},
    ("GET", "/api/events"): {"items": [{**EVENT, "at": minutes_ago(3)}], "before": None},
    ("GET", f"{DS}/logs"): {"items": [{**LINE, "at": minutes_ago(3)}]},
    ("POST", "/api/plan"): CHANGES,
    ("POST", "/api/apply"): CHANGES,
    ("GET", "/api/export"): "datasources:\n  orders:\n    enabled: true\n",
    ("GET", "/api/streams"): {
        "items": [
            {
                "id": str(UUID(int=1)),
                "name": "orders:0",
                "datasource": "orders",
                "datasource_id": str(UUID(int=2)),
                "index": 0,
                "label": None,
                "owner": NODE,
                "node": "alpha",
                "run": None,
                "epoch": 2,
                "generation": 0,
                "commits": 5,
                "position": {"offset": 18204, "file": "/var/log/app/2025-11-16-and-a-long-name.jsonl"},
                "version": 3,
                "rests": False,
            }
        ]
    },
    ("GET", "/api/nodes"): {
        "items": [
            {
                "id": NODE,
                "name": "alpha",
                "beat": 9,
                "lease_s": 5.0,
                "address": "http://10.0.0.1:8470",
                "version": "0.1.0",
                "started_at": minutes_ago(180),
                "streams": 4,
                "draining": False,
                "status": "up",
                "silent_s": 0.4,
                "is_this": True,
            }
        ]
    },
    ("GET", "/api/secrets"): {"items": [{"name": "warehouse", "author": "ada", "changed_at": minutes_ago(2880)}]},
    ("PUT", "/api/secrets/warehouse"): {"name": "warehouse", "restarted": 2},
    ("DELETE", "/api/secrets/warehouse"): None,
    ("POST", "/api/secrets/rotate"): {"rewrapped": 3, "stuck": []},
    ("GET", "/api/allowed"): {
        "items": [{"kind": "folder", "value": "/data", "author": "ada", "created_at": minutes_ago(2880)}]
    },
    ("POST", "/api/allowed"): {"kind": "address", "value": "db:5432"},
    ("DELETE", "/api/allowed"): None,
    ("GET", "/api/tokens"): {
        "items": [{**ISSUED, "id": TOKEN, "name": "ci", "role": "viewer", "author": "ada", "used_at": minutes_ago(3)}],
    },
    ("POST", "/api/sign-in"): {"path": "/?code=hgc_once", "expires_s": 600},
    ("POST", "/api/tokens"): {**ISSUED, "id": TOKEN, "name": "ci", "role": "viewer", "token": "hg_secret"},
    ("DELETE", f"/api/tokens/{TOKEN}"): None,
    ("GET", "/api/connectors"): {"items": [{"name": "files", "summary": "JSON Lines.", "sides": ["source", "sink"]}]},
    ("GET", "/api/connectors/installed"): {"items": []},
    ("GET", "/api/connectors/files"): {
        "name": "files",
        "summary": "JSON Lines.",
        "runs": "thread",
        "source": SCHEMA,
        "sink": {"properties": {}},
        "transactional": False,
    },
    ("GET", "/readyz"): {"status": "ok"},
    **{("POST", f"{DS}/{act}"): {"name": "orders", "action": act} for act in ACTIONS},
}

# What to run, and words that the answer must have.
HAPPY: list[tuple[str, list[str]]] = [
    ("ds list", ["orders", "ok", "12,340", "webhook → postgres"]),
    ("ds show orders", ["RUNNING, reading, on alpha", "3 by ada, ", "min ago, hash hash3", "table: orders"]),
    ("ds create orders --file doc.yaml", ["created orders", "headgate ds publish orders"]),
    ("ds edit orders --file doc.yaml", ["draft 4 of orders", "hash4"]),
    ("ds validate orders", ["orders is valid"]),
    ("ds validate orders --file doc.yaml", ["orders is valid"]),
    ("ds validate --file all.yaml", ["all.yaml is valid"]),
    ("ds publish orders --hash hash4", ["published version 4 of orders"]),
    ("ds publish orders --accept --connect", ["published version 4 of orders"]),
    ("ds validate orders --connect", ["orders is valid"]),
    ("ds test orders --payload payload.json --save basic", ["dead lettered", "set.id", "~ 0.0.cents: 200 → 20"]),
    ("ds test orders --fetch 5 --sink rollback", ["! mapping.set.id: the field idd", "opened\\x1b[31m", "printed"]),
    ("ds test orders --file doc.yaml --inbox 3 --timeout 5", ["2 records read, 1 written", "kept as fixture basic"]),
    ("fixtures list orders", ["basic", "300 B", "ada", "min ago"]),
    ("fixtures show orders basic", ["written", '{"id": 1}', "not compared: seen_at"]),
    ("fixtures delete orders basic --yes", ["deleted the fixture basic of orders"]),
    ("ds rollback orders 2", ["published version 5 of orders", "version 2"]),
    ("ds diff orders", ["3 → 4: 1 change", "~ sink.table: a → b"]),
    ("ds start orders", ["started orders"]),
    ("ds stop orders", ["stopped orders"]),
    ("ds pause orders", ["paused orders"]),
    ("ds restart orders", ["restarted orders"]),
    ("ds reload orders", ["reloaded orders"]),
    ("ds events orders --limit 5", ["min ago", "published", "version=3", "by ada"]),
    ("events --since 2h --type published", ["orders", "published", "version=3", "by ada"]),
    ("ds logs orders", ["warning", "slow\\x1b[31m", "after_s=2"]),
    ("ds delete orders --yes", ["deleted orders"]),
    ("explain orders", ["orders: ok", "It is running."]),
    ("top --once --every 0.2", ["NAME", "WRITTEN/S", "DEAD", "BACKLOG", "orders", "12,340", "alpha"]),
    ("plan all.yaml", ["+ create new", "~ update orders", "~ sink.table: a → b", "1 to create, 1 to update"]),
    ("apply all.yaml", ["1 created, 1 updated, 1 unchanged"]),
    ("import all.yaml", ["1 created, 1 updated, 1 unchanged"]),
    ("export", ["datasources:"]),
    ("streams list", ["orders:0", "alpha", "5f1c8e7e", "offset"]),
    ("nodes list", ["alpha", "up", "3 h ago", "http://10.0.0.1:8470"]),
    ("secrets set warehouse --from-file doc.yaml", ["2 datasources restarted"]),
    ("secrets list", ["warehouse", "2 d ago", "ada"]),
    ("secrets delete warehouse", ["deleted secret warehouse"]),
    ("secrets rotate", ["3 secrets rewrapped"]),
    ("allow list", ["folder", "/data", "2 d ago", "ada"]),
    ("allow add address DB:5432", ["allowed address db:5432"]),
    ("allow remove folder /data", ["removed folder /data"]),
    ("console", ["/?code=hgc_once"]),
    ("tokens create ci --role viewer", ["hg_secret"]),
    ("tokens create ci --role sender --datasource orders-* --group a/b --expires 30d", ["hg_secret"]),
    ("tokens list", ["ci", "viewer", "orders-*", "2030-01-31", " min ago"]),
    ("tokens revoke ci", ["revoked ci"]),
    ("connectors list", ["files", "source + sink", "JSON Lines."]),
    ("connectors show files", ["append|upsert", "integer", "required", "It has no options."]),
    ("doctor", ["✓ python", "✓ node"]),
]


@pytest.fixture(autouse=True)
def world(node: FakeNode, tmp_path: Path) -> None:
    for (method, path), body in ROUTES.items():
        node.on(method, path, body, 200 if body is not None else 204)
    (tmp_path / "doc.yaml").write_text(DOCUMENT)
    (tmp_path / "payload.json").write_bytes(b'{"id": 1}')
    (tmp_path / "all.yaml").write_text("datasources: {orders: {}}\n")


@pytest.mark.parametrize(("line", "words"), HAPPY, ids=[line for line, _ in HAPPY])
def test_a_command_answers_in_words(run: Run, line: str, words: list[str]) -> None:
    result = run(*line.split())
    assert result.exit_code == 0, result.output
    for word in words:
        assert word in result.stdout
    if not line.startswith("doctor"):
        assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize("line", [line for line, _ in HAPPY])
def test_a_machine_gets_json_and_nothing_else(run: Run, line: str) -> None:
    result = run(*line.split(), "--json")
    assert result.exit_code == 0, result.output
    assert isinstance(json.loads(result.stdout), dict)


@pytest.mark.parametrize("line", [line for line, _ in HAPPY if line != "doctor"])
def test_what_does_not_exist_is_exit_code_3(run: Run, node: FakeNode, line: str) -> None:
    node.refuse(404, "datasource 'orders' does not exist", "headgate ds list")
    result = run(*line.split())
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "headgate: datasource 'orders' does not exist (headgate ds list)\n"


def test_a_document_is_sent_as_a_node_would_read_it(run: Run, node: FakeNode) -> None:
    run("ds", "create", "orders", "--file", "-", input=DOCUMENT)
    sent = {"source": {"type": "webhook"}, "sink": {"type": "postgres", "since": "2024-01-02"}, "name": "orders"}
    assert node.asked[-1].body == sent


def test_json_documents_may_be_indented_with_tabs(run: Run, node: FakeNode) -> None:
    run("ds", "create", "orders", "--file", "-", input='{\n\t"source": {},\n\t"sink": {}\n}')
    assert node.asked[-1].body == {"source": {}, "sink": {}, "name": "orders"}


def test_a_datasource_is_taken_out_of_a_file_of_many(run: Run, node: FakeNode, tmp_path: Path) -> None:
    (tmp_path / "many.yaml").write_text(
        "datasources: {a: {source: {type: x}}, orders: {enabled: true, source: {}, sink: {}}}"
    )
    result = run("ds", "edit", "orders", "--file", "many.yaml")
    assert node.asked[-1].body == {"source": {}, "sink": {}}
    assert "`enabled` is no part of a draft" in result.stderr
    result = run("ds", "edit", "absent", "--file", "many.yaml")
    assert result.exit_code == 3
    assert "it has: a, orders" in result.stderr


def test_editing_sends_the_hash_that_the_author_saw(
    run: Run, node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITOR", "sed -i s/table:.*/table:\\ other/")
    assert run("ds", "edit", "orders").exit_code == 0
    asked = node.asked[-1]
    assert asked.query == {"expected_hash": "hash3"}
    assert asked.body["sink"]["table"] == "other"


def test_editing_nothing_writes_nothing(run: Run, node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", "true")
    assert run("ds", "edit", "orders").stdout == "nothing changed\n"
    assert [asked.method for asked in node.asked] == ["GET"]


def test_an_edit_that_is_refused_is_kept_in_its_file(run: Run, node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", "sed -i s/table:.*/table:\\ mine/")
    node.on("PUT", f"{DS}/draft", {"detail": "the datasource has changed since it was read"}, 409)
    result = run("ds", "edit", "orders")
    assert result.exit_code == 4
    kept = Path(result.stderr.splitlines()[0].rpartition(" ")[2])
    assert "mine" in kept.read_text()
    kept.unlink()


def test_problems_of_a_draft_are_listed_and_are_exit_code_3(run: Run, node: FakeNode) -> None:
    problems = [{"path": f"sink.{i}", "message": "is missing", "hint": "required"} for i in range(2)]
    node.on("POST", f"{DS}/validate", {"problems": problems})
    result = run("ds", "validate", "orders")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.splitlines()[1] == "  sink.0: is missing (required)"
    result = run("ds", "validate", "orders", "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (3, {"problems": problems})


def test_pruning_asks_before_it_deletes(run: Run, node: FakeNode) -> None:
    node.on("POST", "/api/plan", DELETION)
    node.on("POST", "/api/apply", DELETION)
    refused = run("apply", "all.yaml", "--prune")
    assert refused.exit_code == 4
    assert "old" in refused.stderr
    assert [asked.path for asked in node.asked] == ["/api/plan"]
    done = run("apply", "all.yaml", "--prune", "--yes")
    assert "1 deleted" in done.stdout
    assert node.asked[-1].query == {"prune": "true", "connect": "true", "yes": "true"}
    run("apply", "all.yaml", "--prune", "--yes", "--no-connect")
    assert node.asked[-1].query == {"prune": "true", "connect": "false", "yes": "true"}


def test_an_export_has_fixtures_unless_they_are_left_out(run: Run, node: FakeNode) -> None:
    run("export")
    assert node.asked[-1].query == {"fixtures": "true"}
    run("export", "--no-fixtures")
    assert node.asked[-1].query == {}


def test_a_test_sends_what_it_was_given(run: Run, node: FakeNode, tmp_path: Path) -> None:
    run("ds", "test", "orders", "--payload", "payload.json", "--version", "2", "--sink", "rollback")
    assert node.asked[-1].body == {"version": 2, "payload": '{"id": 1}', "sink": "rollback"}
    (tmp_path / "payload.json").write_bytes(b"\xff")
    run("ds", "test", "orders", "--payload", "payload.json", "--save", "basic")
    assert node.asked[-1].body == {"payload_base64": "/w==", "sink": "none", "save": "basic"}
    run("ds", "test", "orders", "--payload", "-", input="[1]")
    assert node.asked[-1].body == {"payload": "[1]", "sink": "none"}
    assert run("ds", "test", "orders", "--payload", "none.json").exit_code == 3
    assert run("ds", "test", "orders", "--fetch", "1001").exit_code == 2


def test_a_test_that_did_not_end_is_a_failure(run: Run, node: FakeNode) -> None:
    node.on("POST", f"{DS}/test", {**TESTED, "trouble": "it took longer than 10 s and was killed"})
    result = run("ds", "test", "orders", "--fetch", "1")
    assert result.exit_code == 1
    assert "it did not end: it took longer than 10 s" in result.stdout


def test_a_publish_that_changes_a_fixture_says_what_changes(run: Run, node: FakeNode) -> None:
    problem = {"path": "fixtures.basic.0.0.cents", "message": "is 20, and was 200", "hint": ""}
    said = {"detail": "'orders' would no longer", "code": "fixtures_changed", "hint": "", "problems": [problem]}
    node.on("POST", f"{DS}/publish", said, 409)
    result = run("ds", "publish", "orders")
    assert result.exit_code == 4
    assert result.stderr.splitlines()[1] == "  fixtures.basic.0.0.cents: is 20, and was 200"


def test_one_that_fails_does_not_keep_the_others_from_being_done(run: Run, node: FakeNode) -> None:
    node.on("POST", f"{DS}x/start", {"detail": "datasource 'ordersx' does not exist", "hint": "headgate ds list"}, 404)
    result = run("ds", "start", "ordersx", "orders")
    assert (result.exit_code, result.stdout) == (3, "started orders\n")
    assert "ordersx" in result.stderr


def test_a_list_says_what_is_wrong_below_it(run: Run, node: FakeNode) -> None:
    error = {"cause": "network", "message": "refused", "next_try_at_s": time.time() + 100}
    bad = summary("billing", health="error", why="network:\nrefused", error=error, has_draft=True, running_version=2)
    resting = summary("archive", health="stopped", why="somebody stopped it")
    notices = ["the registry file of alpha is not usable"]
    node.on("GET", "/api/datasources", {"items": [summary(), resting, bad], "notices": notices})
    lines = run("ds", "list").stdout.splitlines()
    assert lines[0].split() == ["NAME", "HEALTH", "WRITTEN", "DEAD", "VERSION", "FLOW"]
    assert lines[1].split()[:4] == ["orders", "ok", "12,340", "2"]
    assert "3, 2 runs, draft" in lines[3]
    assert [lines[4], lines[6]] == ["! the registry file of alpha is not usable", "  archive: somebody stopped it"]
    again = r"! billing: network: refused; tries again in (9\d|100) s \(headgate explain billing\)"
    assert re.fullmatch(again, lines[5])


def test_a_datasource_says_what_became_of_its_records_and_what_waits(run: Run, node: FakeNode) -> None:
    metrics = {
        "records_read": 1234,
        "records_written": 1000,
        "records_filtered": 200,
        "records_dead_lettered": 34,
        "records_skipped": 4,
        "read_per_s": 12.34,
        "written_per_s": 10.0,
        "lag_s": 90.0,
        "backlog_records": 1,
        "backlog_bytes": 2500,
        "last_event_delay_s": 0.5,
        "last_record_at_s": time.time() - 60,
    }
    node.on("GET", "/api/datasources/orders", full("orders", metrics=metrics))
    said = dict(line.split("  ", 1) for line in run("ds", "show", "orders").stdout.splitlines() if "  " in line)
    said = {key.strip(): value.strip() for key, value in said.items()}
    assert said["records"] == "1,234 read: 1,000 written, 200 filtered, 34 dead-lettered (4 of them skipped)"
    assert said["rate"] == "12.3 read and 10.0 written in a second"
    assert (said["backlog"], said["lag"]) == ("1 record, 2.5 kB", "90 s")
    assert re.fullmatch(r"6[0-5] s ago, 500 ms after it happened", said["last record"])


def test_an_empty_list_says_what_to_do_next(run: Run, node: FakeNode) -> None:
    node.on("GET", "/api/datasources", {"items": []})
    assert "headgate ds create" in run("ds", "list").stdout


def test_names_are_never_cut(run: Run, node: FakeNode) -> None:
    name = "a-name-of-a-datasource-that-somebody-made-long-enough-to-fill-the-line-to-its-end-0123456789"
    node.on("GET", "/api/datasources", {"items": [summary(name)]})
    first_column = [line.split("  ")[0].strip() for line in run("ds", "list").stdout.splitlines()[1:]]
    assert name in "".join(first_column)


@pytest.mark.parametrize(("text", "value"), [("s3cret\n", "s3cret"), ("a\nb\n", "a\nb"), ("plain", "plain")])
def test_a_secret_comes_from_stdin_without_its_last_line_feed(run: Run, node: FakeNode, text: str, value: str) -> None:
    result = run("secrets", "set", "warehouse", input=text)
    assert node.asked[-1].body == {"value": value}
    assert value not in result.output


def test_an_empty_secret_is_a_mistake(run: Run, node: FakeNode) -> None:
    assert run("secrets", "set", "warehouse", input="\n").exit_code == 2
    assert not node.asked


def test_secrets_that_no_key_fits_are_named(run: Run, node: FakeNode) -> None:
    node.on("POST", "/api/secrets/rotate", {"rewrapped": 1, "stuck": ["old-one"]})
    result = run("secrets", "rotate")
    assert result.exit_code == 1
    assert "old-one" in result.stderr


def test_only_the_token_itself_is_on_stdout(run: Run) -> None:
    assert run("tokens", "create", "ci", "--role", "admin").stdout == "hg_secret\n"


def test_a_token_that_is_called_like_the_id_of_another_does_not_shield_it(run: Run, node: FakeNode) -> None:
    issued = {**ISSUED, "role": "viewer", "author": "ada", "used_at": None}
    both = [{**issued, "id": NODE, "name": TOKEN}, {**issued, "id": TOKEN, "name": "ci"}]
    node.on("GET", "/api/tokens", {"items": both})
    assert run("tokens", "revoke", TOKEN).stdout == "revoked ci\n"


@pytest.mark.parametrize("when", ["", "soon", "-1d", "30", "2030-02-31", "1e400d", "999999999999999d"])
def test_a_token_does_not_end_at_what_is_no_time(run: Run, node: FakeNode, when: str) -> None:
    result = run("tokens", "create", "ci", "--role", "viewer", "--expires", when)
    assert (result.exit_code != 0, node.asked) == (True, [])


def test_an_export_goes_to_a_file(run: Run, tmp_path: Path) -> None:
    result = run("export", "out.yaml")
    assert (result.exit_code, result.stdout) == (0, "")
    assert (tmp_path / "out.yaml").read_text().startswith("datasources:")
