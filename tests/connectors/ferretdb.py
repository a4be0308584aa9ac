"""FerretDB, a server that speaks MongoDB's protocol and ignores the bounds of queries, for the tests of the connector.

`make ferretdb` builds it; `HEADGATE_TEST_FERRETDB` names a program that was built elsewhere.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import LONG_S

SCRIPT = Path(__file__).parents[2] / "scripts/ferretdb"

TYPES = "closes the connection where a document has a Decimal128, a MinKey, a MaxKey, code or NaN"
RENAME = "cannot rename a collection over another one"

# Tests that need what it does not have, and what that is.
LACKING = {
    "test_each_type_has_its_kind": TYPES,
    "test_values_at_the_edges_arrive_as_canonical_text": TYPES,
    "test_a_field_of_several_types_is_the_widest_or_json": TYPES,
    "test_chunks_of_ids_of_all_types_cover_each_document_once": TYPES,
    "test_values_of_each_kind_are_written_as_bson": TYPES,
    "test_the_canonical_text_of_a_database_becomes_documents": TYPES,
    "test_documents_between_two_mongodbs_stay_what_they_are_to_the_byte": TYPES,
    "test_documents_in_documents_become_columns_when_asked": "ignores min and max, and these ids are documents",
    "test_absent_leaves_what_has_the_key": "does not say which index has refused a document",
    "test_replace_builds_beside_and_takes_the_place_with_the_old_indexes": RENAME,
    "test_aside_does_not_replace_documents_that_came_meanwhile": RENAME,
}


def program() -> Path:
    """Where it is."""
    if named := os.environ.get("HEADGATE_TEST_FERRETDB"):
        return Path(named)
    version = re.search(r"^version=(\S+)$", SCRIPT.read_text(), re.MULTILINE)
    assert version is not None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / f"headgate-tests/ferretdb-{version[1]}/ferretdb"


@contextmanager
def serving() -> Iterator[str]:
    """A server while in use. Its URL ends with a slash."""
    if not program().exists():
        pytest.skip("FerretDB is not built (make ferretdb)")
    with tempfile.TemporaryDirectory(prefix="hgf") as folder:
        process = subprocess.Popen(
            [program(), "127.0.0.1:0", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=folder,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            assert url.startswith("mongodb://127.0.0.1:"), "it has ended"
            yield url
        finally:
            process.stdin.close()
            process.wait(LONG_S)
            process.stdout.close()
