"""A source for tests that speaks Airbyte's protocol, without Airbyte: it runs with nothing installed."""

from __future__ import annotations

import argparse
import json
import sys
import time

MODES = ["stream", "global", "legacy", "auth", "transient", "hang", "broken", "quiet"]
SPEC = {
    "type": "object",
    "required": ["count", "credentials"],
    "additionalProperties": False,
    "properties": {
        "count": {"type": "integer", "minimum": 1},
        "password": {"type": "string", "airbyte_secret": True},
        "mode": {
            "type": "string",
            "enum": ["stream", "global", "legacy", "auth", "transient", "hang", "broken", "quiet"],
        },
        "credentials": {
            "oneOf": [
                {
                    "required": ["type", "key"],
                    "properties": {"type": {"const": "key"}, "key": {"airbyte_secret": True}},
                },
                {"required": ["type", "user"], "properties": {"type": {"const": "user"}, "user": {"type": "string"}}},
            ]
        },
    },
}
SCHEMA = {
    "properties": {
        "id": {"type": "integer"},
        "text": {"type": "string"},
        "at": {"type": "string", "format": "date-time", "airbyte_type": "timestamp_without_timezone"},
        "big": {"type": "string", "airbyte_type": "big_number"},
    }
}


def say(**message: object) -> None:
    print(json.dumps(message), flush=True)


def stream(name: str) -> dict[str, object]:
    modes = ["full_refresh", "incremental"] if name == "orders" else ["full_refresh"]
    made = {"name": name, "json_schema": SCHEMA, "supported_sync_modes": modes, "default_cursor_field": ["id"]}
    return {**made, "source_defined_primary_key": [["id"]]}


def said(mode: str, name: str, state: dict[str, object]) -> dict[str, object]:
    one = {"stream_descriptor": {"name": name}, "stream_state": state}
    if mode == "global":
        return {"type": "GLOBAL", "global": {"shared_state": state, "stream_states": [one]}}
    if mode == "legacy":
        return {"data": {name: state}}
    return {"type": "STREAM", "stream": one, "sourceStats": {"recordCount": 5.0}}


def state_in(path: str | None, name: str) -> dict[str, int]:
    if path is None:
        return {}
    with open(path) as file:
        found = json.load(file)
    if isinstance(found, dict):
        return found.get(name, {})  # type: ignore[no-any-return]
    for one in found:
        if one["type"] == "GLOBAL":
            return one["global"]["shared_state"]  # type: ignore[no-any-return]
        if one["stream"]["stream_descriptor"]["name"] == name:
            return one["stream"]["stream_state"]  # type: ignore[no-any-return]
    return {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    for flag in ("--config", "--catalog", "--state"):
        parser.add_argument(flag)
    given = parser.parse_args()
    if given.command == "spec":
        say(type="SPEC", spec={"connectionSpecification": SPEC})
        return
    with open(given.config) as file:
        config = json.load(file)
    mode = config.get("mode", "stream")
    if given.command == "check":
        wrong = config.get("password") == "wrong"
        status = {"status": "FAILED", "message": f"Invalid API key {config.get('password')}"} if wrong else None
        say(type="CONNECTION_STATUS", connectionStatus=status or {"status": "SUCCEEDED"})
    elif given.command == "discover":
        say(type="LOG", log={"level": "INFO", "message": "looking"})
        say(type="CATALOG", catalog={"streams": [stream("orders"), stream("users")]})
    else:
        with open(given.catalog) as file:
            streams = json.load(file)["streams"]
        for one in streams:
            read(one, config, mode, state_in(given.state, one["stream"]["name"]))
            if one["stream"]["name"] == "orders" and mode in ("broken", "quiet"):
                of = {"stream_descriptor": {"name": "orders"}}
                if mode == "broken":
                    error = {"message": "404 Client Error: Not Found", "failure_type": "config_error", **of}
                    say(type="TRACE", trace={"type": "ERROR", "emitted_at": 1, "error": error})
                status = {"status": "INCOMPLETE", **of}
                say(type="TRACE", trace={"type": "STREAM_STATUS", "emitted_at": 1, "stream_status": status})
        if mode == "broken":
            error = {"message": "some streams failed", "failure_type": "system_error"}
            say(type="TRACE", trace={"type": "ERROR", "emitted_at": 1, "error": error})
            sys.exit(1)
        if mode in ("auth", "transient"):
            kind = "config_error" if mode == "auth" else "transient_error"
            error = {"message": "401 Client Error: Unauthorized" if mode == "auth" else "away", "failure_type": kind}
            say(type="TRACE", trace={"type": "ERROR", "emitted_at": 1, "error": error})
            sys.exit(1)


def read(one: dict[str, object], config: dict[str, object], mode: str, state: dict[str, int]) -> None:
    name = one["stream"]["name"]  # type: ignore[index]
    first = state.get("id", -1) + 1 if one["sync_mode"] == "incremental" else 0
    for id in range(first, int(str(config["count"]))):
        data = {"id": id, "text": f"{name} {id}", **config.get("record", {})}  # type: ignore[dict-item]
        say(type="RECORD", record={"stream": name, "data": data, "emitted_at": 1714564800000})
        if (id + 1) % 5 == 0 or id == int(str(config["count"])) - 1:
            say(type="STATE", state=said(mode, str(name), {"id": id}))
        if mode == "hang" and id == 12:
            time.sleep(3600)


if __name__ == "__main__":
    main()
