"""A payload that somebody hands in for a test, taken apart into the records or bodies that it holds."""

from __future__ import annotations

import json

MOST_PAYLOAD_BYTES = 8 * 1024 * 1024
MOST_INPUTS = 1000


def bodies_in(payload: bytes, *, is_text: bool = False) -> list[bytes]:
    """The bodies of a payload: each element of a JSON array, each line of JSON Lines, else the payload as it is.

    `is_text`: the source takes any text, so the payload is one body whatever it holds.
    """
    if is_text:
        return [payload]
    try:
        whole = json.loads(payload)
    except (ValueError, RecursionError):
        lines = [line for line in payload.splitlines() if line.strip()]
        return lines if len(lines) > 1 and _is_json(lines[0]) else [payload]
    if isinstance(whole, list):
        return [json.dumps(one, ensure_ascii=False).encode("utf-8", "surrogatepass") for one in whole]
    return [payload]


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
