"""The documents that pages show, so that tests can run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).parent.parent / "docs"


def datasources_of(page: str) -> list[dict[str, Any]]:
    """The datasources of each document on a page, in order."""
    found = re.findall(r"^```yaml\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    return [yaml.safe_load(text)["datasources"] for text in found]
