"""A tap for tests: it speaks Singer, and does wrong what its configuration says. It runs with nothing installed.

`count` records with the ids from 0 on; a state after every `state_every` of them, and at the end; it goes on after the
id in its state. Several streams are read one after another, or in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import zip_longest

SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "text": {"type": ["null", "string"]},
        "at": {"type": ["null", "string"], "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "price": {"type": ["null", "number"], "multipleOf": 0.01},
        "share": {"type": "number"},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"at": {"format": "date-time"}}}},
    },
}


def say(**message: object) -> None:
    print(json.dumps(message), flush=True)


def record(id: int, config: dict[str, object], stream: str) -> dict[str, object]:
    if "record" in config:
        return {"id": id, **config["record"]}  # type: ignore[dict-item]
    return {"id": id, "text": f"{stream} {id}"}


def fault(kind: str, config: dict[str, object]) -> None:
    """What goes wrong in the middle."""
    if kind == "hang":
        if os.path.exists(marker := str(config.get("marker", "/nowhere"))):
            return  # Once is enough.
        if "marker" in config:
            os.close(os.open(marker, os.O_CREAT))
        time.sleep(3600)
    elif kind == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        os.write(2, f"pids {os.getpid()} {child.pid}\n".encode())
        time.sleep(3600)
    elif kind == "stop":
        os.write(2, f"pids {os.getpid()}\n".encode())
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "garbage":
        print("starting up, please wait", flush=True)
        print('{"type": "RECORD", "stream": "orders", "record": {"id": 1', flush=True)
        print("[1, 2]\n\n\x00\x01", flush=True)
    elif kind == "huge":
        print(json.dumps({"type": "RECORD", "stream": "orders", "record": {"x": "y" * 300_000}}), flush=True)
    elif kind == "costly":
        numbers = ", ".join(["1e308"] * 100_000)
        print(f'{{"type": "RECORD", "stream": "orders", "record": {{"x": [{numbers}]}}}}', flush=True)
    elif kind == "senseless":
        say(type="SCHEMA", stream="orders", schema={"properties": {"x": {"format": ["date"], "airbyte_type": {}}}})
        for value in ("[" * 3000 + "]" * 3000, "1e99999999999999999999"):
            say(type="SCHEMA", stream="orders", schema={"properties": {"y": {"format": "decimal"}}})
            print(f'{{"type": "RECORD", "stream": "orders", "record": {{"STATE": {value}}}}}', flush=True)
        say(type="SCHEMA", stream="orders", schema=SCHEMA, key_properties=["id"])
    elif kind == "crash":
        sys.exit(str(config.get("last_words", "something is wrong")))
    elif kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "noise":
        for number in range(20_000):
            os.write(2, f"line {number} {config.get('password', '')}\n".encode())
    elif kind == "memory":
        held = bytearray(400 * 1024 * 1024)
        del held
    elif kind == "environment":
        names = sorted(name for name in os.environ)
        files = {name: oct(os.stat(name).st_mode & 0o777) for name in os.listdir(".")}
        folder = oct(os.stat(".").st_mode & 0o777)
        say(
            type="RECORD",
            stream="orders",
            record={"names": names, "files": files, "folder": folder, "cwd": os.getcwd()},
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("--config", "--catalog", "--properties", "--state"):
        parser.add_argument(flag)
    parser.add_argument("--discover", action="store_true")
    parser.add_argument("--about", action="store_true")
    parser.add_argument("--format")
    given = parser.parse_args()
    if given.about:
        print(json.dumps({"name": "tap-test", "settings": {"type": "object", "properties": {}}}))
        return
    with open(given.config) as file:
        config = json.load(file)
    if config.get("password", "right") == "wrong":
        sys.exit("FATAL: password authentication failed for user 'ada' with wrong")
    streams = config.get("streams", ["orders"])
    if given.discover:
        json.dump(
            {"streams": [{"tap_stream_id": name, "stream": name, "schema": SCHEMA} for name in streams]}, sys.stdout
        )
        return
    state = {}
    if given.state:
        with open(given.state) as file:
            state = json.load(file)
    if given.catalog:
        with open(given.catalog) as file:
            chosen = [one for one in json.load(file)["streams"] if one["metadata"][-1]["metadata"]["selected"]]
        streams = [one["tap_stream_id"] for one in chosen]
    several = [reading(stream, config, state) for stream in streams]
    if config.get("in_turns"):
        for _ in zip_longest(*several):
            pass
    else:
        for one in several:
            for _ in one:
                pass
    if config.get("last_state", True):
        say(type="STATE", value=state)


def reading(stream: str, config: dict[str, object], state: dict[str, object]) -> Iterator[None]:
    """One record at a time."""
    count, every = int(str(config.get("count", 23))), int(str(config.get("state_every", 5)))
    say(type="SCHEMA", stream=stream, schema=SCHEMA, key_properties=["id"])
    for id in range(int(str(state.get(stream, -1))) + 1, count):
        say(type="RECORD", stream=stream, record=record(id, config, stream))
        if config.get("pause_s"):
            time.sleep(float(str(config["pause_s"])))
        if config.get("fault_at") == id:
            fault(str(config["fault"]), config)
        state[stream] = id
        if every and (id + 1) % every == 0:
            say(type="STATE", value=state)
        yield


if __name__ == "__main__":
    main()
